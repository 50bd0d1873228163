"""Outputs of a model that may have other bits in a second run, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.graph import dependencies, followers
from onnxtile.model.walk import nodes_inside
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.verification import drawn_outputs

_HALVES = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}

WIDER = "onnxruntime keeps more than 16 bits of a float between two nodes"


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
        graph = facts.model.graph
        halves = followers(graph, set(_with_halves(facts)), 1)
        wider = {value.name: WIDER for value in graph.outputs if value.name and value in halves}
        return cls(drawn_outputs(facts.model, facts.constants), wider)


def _with_halves(facts: LayoutFacts) -> Iterator[ir.Node]:
    for node in facts.model.graph:
        inner = (value for one in nodes_inside(node) for value in one.outputs)
        if any(facts.shapes.dtype(value) in _HALVES for value in (*dependencies(node), *node.outputs, *inner)):
            yield node
