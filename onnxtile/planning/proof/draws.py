"""Nodes that draw random numbers, and outputs of a model that may have other bits in a second run, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.graph import dependencies, node_id
from onnxtile.model.constants import RANDOM
from onnxtile.model.walk import called_functions, nodes_in, nodes_inside
from onnxtile.planning.layout.aliases.find import LayoutFacts, does_not_train

_HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
_NAMED = 3
"""Random nodes that a reason names."""

WIDER = "onnxruntime keeps more than 16 bits of a float between two nodes"


def draws(node: ir.Node, facts: LayoutFacts) -> bool:
    """Return whether `node`, a body of it, or a function that it calls may give other results in each run."""
    own = (node, *nodes_inside(node))
    inner = (one for function in called_functions(own, facts.model) for one in nodes_in(function))
    return any(_is_random(one, facts) for one in (*own, *inner))


def _is_random(node: ir.Node, facts: LayoutFacts) -> bool:
    if node.op_type not in RANDOM or not facts.is_standard(node):
        return False
    return node.op_type != "Dropout" or not does_not_train(node, facts)


@dataclass(frozen=True)
class Unsure:
    """Outputs that may differ between a run of the whole model and a run of its nodes, by name with the reason.

    `drawn` outputs depend on a random operator, `wider` outputs on a float of 16 bits.
    """

    drawn: Mapping[str, str]
    wider: Mapping[str, str]

    @classmethod
    def of(cls, facts: LayoutFacts) -> Unsure:
        """Return the unsure outputs of the model of `facts`."""
        outputs = [value for value in facts.model.graph.outputs if value.name]
        random = _followers(facts.model.graph, {node for node in facts.model.graph if draws(node, facts)})
        halves = _followers(facts.model.graph, set(_with_halves(facts)))
        drawn = {value.name or "": _reason(random[value]) for value in outputs if value in random}
        return cls(drawn, {value.name or "": WIDER for value in outputs if value in halves})


def _with_halves(facts: LayoutFacts) -> Iterator[ir.Node]:
    for node in facts.model.graph:
        inner = (value for one in nodes_inside(node) for value in one.outputs)
        if any(facts.shapes.dtype(value) in _HALVES for value in (*dependencies(node), *node.outputs, *inner)):
            yield node


def _followers(graph: ir.Graph, sources: set[ir.Node]) -> dict[ir.Value, dict[str, None]]:
    """Return the values that depend on `sources`, each with the names of some: one more than a reason lists."""
    found: dict[ir.Value, dict[str, None]] = {}
    for node in graph if sources else ():
        names = {node_id(node): None} if node in sources else {}
        for value in dependencies(node):
            names |= found.get(value, {})
        if names:
            few = dict.fromkeys(list(names)[: _NAMED + 1])
            found.update((value, few) for value in node.outputs)
    return found


def _reason(names: Mapping[str, None]) -> str:
    listed = ", ".join(map(repr, list(names)[:_NAMED])) + (" ..." if len(names) > _NAMED else "")
    return f"it follows from {listed}, which draw{'s' * (len(names) == 1)} random numbers"
