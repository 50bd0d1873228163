"""Quantised islands: an operator with the DequantizeLinear nodes that it reads and the QuantizeLinear nodes that read it.

Such nodes compute on quantised tensors as one kernel (Jacob et al., arXiv 1712.05877); what is between them is never stored. A
DequantizeLinear node that several islands read is copied into each: it computes nothing that a kernel would not compute on reading.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.island_rule import IslandRule
from onnxtile.fusion.region import FusedRegion
from onnxtile.model.constants import Constants
from onnxtile.model.quantising import OWN_DOMAINS, dequantises, quantises
from onnxtile.model.walk import has_body

_MOVES = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators allowed between the DequantizeLinear of a constant and its reader."""


@dataclass(frozen=True)
class Island:
    """`nodes` in the order in which they depend on each other; `operators` are those that neither quantise nor dequantise."""

    nodes: tuple[ir.Node, ...]
    operators: tuple[ir.Node, ...]
    is_view: bool = False

    @property
    def name(self) -> str:
        """The name of its meta-op: Q and the operators in it."""
        operators = [keys.meta_op(node.op_type) for node in self.operators] or ["Requantize"]
        return f"Q{''.join(operators)}{'View' if self.is_view else ''}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What its function is marked with."""
        return (keys.ISLAND, keys.VIEW) if self.is_view else (keys.ISLAND,)


def is_quantised(model: ir.Model) -> bool:
    """Return whether any graph of `model` has a node that quantises or dequantises."""
    return any(quantises(node) or dequantises(node) for graph in model.graphs() for node in graph)


def islands(model: ir.Model, graph: ir.Graph, rule: IslandRule, constants: Constants) -> Iterator[Island]:
    """Yield the islands of `graph`, no two of which share a node that is not copied, in the order of the file."""
    finder = _Finder(model, graph, rule, constants)
    for node in graph:
        found = finder.around(node)
        if found is not None:
            yield found
    for node in graph:
        found = finder.requantising(node)
        if found is not None:
            yield found


class _Finder:
    def __init__(self, model: ir.Model, graph: ir.Graph, rule: IslandRule, constants: Constants) -> None:
        self._model = model
        self._graph = graph
        self._rule = rule
        self._constants = constants
        self._taken: set[ir.Node] = set()

    def around(self, core: ir.Node) -> Island | None:
        """Return the island whose first operator is `core`; None where nothing around it is quantised."""
        if core in self._taken or not self._may_begin(core):
            return None
        operators, quantisers = self._downwards(core)
        nodes: dict[ir.Node, None] = {}
        for operator in operators:
            nodes |= dict.fromkeys(maker for value in operator.inputs for maker in self._dequantisers(value))
            nodes[operator] = None
        if len(nodes) == len(operators) and not quantisers:
            return None
        nodes |= dict.fromkeys(quantisers)
        self._taken.update(operators, quantisers)
        return Island(tuple(nodes), tuple(operators), self._is_view(operators, quantisers))

    def requantising(self, node: ir.Node) -> Island | None:
        """Return the island of `node`, a QuantizeLinear that reads a DequantizeLinear; None for any other node."""
        if node in self._taken or self._rule.products or not quantises(node) or node.inputs[0] is None:
            return None
        maker = node.inputs[0].producer()
        if (
            maker is None
            or not dequantises(maker)
            or maker.graph is not self._graph
            or node.outputs[0] in self._constants
        ):
            return None
        self._taken.add(node)
        return Island((maker, node), (), self._is_view([], [node]))

    def _may_begin(self, node: ir.Node) -> bool:
        """Return whether an island may begin with `node`, as far as the rule names operators for that."""
        named = self._rule.products
        if named and (node.op_type not in named or len(node.inputs) < 2 or node.inputs[1] not in self._constants):
            return False
        return self._may_be_inside(node)

    def _may_be_inside(self, node: ir.Node) -> bool:
        if quantises(node) or dequantises(node) or node.device_configurations or not node.inputs:
            return False
        if any(value in self._constants for value in node.outputs):
            return False
        if has_body(node) or any(attribute.is_ref() for attribute in node.attributes.values()):
            return False
        function = self._model.functions.get(node.op_identifier())
        return function is None or keys.META_OP in function.metadata_props

    def _downwards(self, core: ir.Node) -> tuple[list[ir.Node], list[ir.Node]]:
        """Return `core` with what follows it up to the QuantizeLinear nodes, and these; `core` alone where there is no way to any."""
        operators = [core]
        while len([value for value in operators[-1].outputs if value.name]) == 1:
            quantisers = self._quantisers(operators[-1].outputs[0])
            if quantisers:
                return operators, quantisers
            following = self._epilogue(operators[-1].outputs[0])
            if following is None:
                break
            operators.append(following)
        return [core], [reader for value in core.outputs for reader in self._quantisers(value)]

    def _quantisers(self, value: ir.Value) -> list[ir.Node]:
        """Return the readers of `value` where all quantise it, and nothing else does."""
        readers = list(dict.fromkeys(value.consumers()))
        fit = all(
            quantises(one) and one.inputs[0] is value and value not in one.inputs[1:] and one.graph is self._graph
            for one in readers
        )
        return readers if fit and not value.is_graph_output() else []

    def _epilogue(self, value: ir.Value) -> ir.Node | None:
        """Return the only reader of `value` where it may follow in the same kernel."""
        readers = list(dict.fromkeys(value.consumers()))
        if len(readers) != 1 or value.is_graph_output() or readers[0].graph is not self._graph:
            return None
        reader = readers[0]
        fits = reader.op_type in self._rule.epilogues and reader.domain in OWN_DOMAINS and reader not in self._taken
        others = [one for one in reader.inputs if one is not None and one is not value]
        known = all(one in self._constants or dequantises(one.producer()) for one in others)
        return reader if fits and known and self._may_be_inside(reader) else None

    def _dequantisers(self, value: ir.Value | None) -> Sequence[ir.Node]:
        """Return the nodes that `value` comes from where these only dequantise, or move what was a stored constant."""
        found: list[ir.Node] = []
        while value is not None:
            maker = value.producer()
            if maker is None or maker.graph is not self._graph or maker.device_configurations:
                return ()
            if dequantises(maker):
                return (maker, *reversed(found))
            if maker.op_type not in _MOVES or maker.domain not in OWN_DOMAINS or value not in self._constants:
                return ()
            found.append(maker)
            value = maker.inputs[0]
        return ()

    def _is_view(self, operators: Sequence[ir.Node], quantisers: Sequence[ir.Node]) -> bool:
        """Return whether the result is the operand under another shape: both are quantised alike."""
        if len(operators) > 1 or len(quantisers) != 1 or any(one.op_type not in self._rule.views for one in operators):
            return False
        source = operators[0].inputs[0] if operators else quantisers[0].inputs[0]
        maker = None if source is None else source.producer()
        return maker is not None and dequantises(maker) and self._are_inverse(maker, quantisers[0])

    def _are_inverse(self, dequantiser: ir.Node, quantiser: ir.Node) -> bool:
        """Return whether `quantiser` gives back what `dequantiser` read: one scale, finite and no subnormal, and one zero point."""
        if len(dequantiser.inputs) < 3 or len(quantiser.inputs) < 3:
            return False
        pairs = list(zip(dequantiser.inputs[1:3], quantiser.inputs[1:3], strict=True))
        if any(value is None or value not in self._constants for pair in pairs for value in pair):
            return False
        arrays = [[self._constants.array(value) for value in pair if value is not None] for pair in pairs]
        alike = all(a.size == b.size == 1 and a.dtype == b.dtype and a.ravel()[0] == b.ravel()[0] for a, b in arrays)
        if not alike or arrays[1][0].dtype.kind not in "iu" or arrays[1][0].dtype.itemsize != 1:
            return False
        scale = float(arrays[0][0].ravel()[0])
        return math.isfinite(scale) and scale > float(np.finfo(np.float32).tiny)


def island_region(island: Island) -> FusedRegion:
    """Return the region of one meta-op. Every operand is an input, also a constant, so that islands of one structure share a function."""
    members = set(island.nodes)
    made = {value for node in island.nodes for value in node.outputs}
    read = dict.fromkeys(
        value for node in island.nodes for value in node.inputs if value is not None and value not in made
    )
    computing = set(island.operators)
    own = [node for node in island.nodes if node in computing or quantises(node)]
    outputs = [
        value
        for node in own
        for value in node.outputs
        if value.is_graph_output() or any(reader not in members for reader in value.consumers())
    ]
    return FusedRegion(island.nodes, tuple(read), tuple(outputs), (), frozenset(island.nodes) - set(own))


def overwritten(island: Island, part: FusedRegion, rule: IslandRule) -> tuple[int, ...]:
    """Return the places of the operands of `part` that the kernel may write its result over."""
    if not island.operators or any(node.op_type not in rule.in_place for node in island.operators):
        return ()
    scales = {value for node in set(island.nodes) - set(island.operators) for value in node.inputs[1:]}
    return tuple(place for place, value in enumerate(part.inputs) if value not in scales)
