"""Decides, without a change to the model, which calls are lowered, which are opened for the meta-ops in them, and which stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.lowering import Argument, CallSite, FactsTable, NotLowered, Replacement
from onnxtile.fusion.lowering_driver.plug_ins import PlugIns
from onnxtile.fusion.operator_lowering import OperatorSite
from onnxtile.fusion.unfuse import Opening, Undo
from onnxtile.graph import node_id


@dataclass(frozen=True)
class Decision:
    """What becomes of one call: it is lowered (`proof`), opened (`opening`, with decisions on the `inner` calls), or stays.

    `reason` says why it is not lowered. An operator that may be lowered, and that no pattern fused, is decided on like a call.
    """

    call: ir.Node
    name: str
    meta_op: str
    proof: Replacement | None = None
    reason: str = ""
    opening: Opening | None = None
    inner: tuple[Decision, ...] = ()

    @property
    def written(self) -> int:
        """How many operators are written that were not in a body."""
        if self.proof is not None:
            return 0 if self.proof.plain else 1
        return sum(decision.written for decision in self.inner)

    def proofs(self) -> Iterator[Replacement]:
        """Yield the proofs of the call, or of those in it."""
        if self.proof is not None:
            yield self.proof
        for decision in self.inner:
            yield from decision.proofs()


class Decider:
    """Decides on the calls of one fused model, as often as asked: each call is proved and opened once.

    `plug_ins` lower for one target. `unfit` gives the reasons why calls, by name, must not be lowered, whatever their plug-in says.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: FactsTable,
        plug_ins: PlugIns,
        unfit: Mapping[str, str],
    ) -> None:
        self._model = model
        self._facts = facts
        self._plug_ins = plug_ins
        self._unfit = unfit
        self._undo = Undo(model)
        self._values: dict[ir.Graph, dict[str, ir.Value]] = {}
        self._proofs: dict[ir.Node, Replacement | NotLowered] = {}
        self._openings: dict[ir.Node, Opening] = {}

    def decide(self, limit: int, why: str) -> list[Decision]:
        """Decide on all calls; an operator of a later opset than `limit` cannot be written, and `why` says the reason for the limit."""
        graphs = list(self._model.graphs())
        calls = [(call, graph) for graph in graphs for call in graph if self._is_call(call)]
        return [self._decided(call, graph, limit, why) for call, graph in calls]

    def discard(self) -> None:
        """Give up the nodes of openings that were not inserted."""
        for opening in self._openings.values():
            opening.discard()

    def _is_call(self, node: ir.Node) -> bool:
        return self._is_fused(node) or self._plug_ins.takes(node)

    def _is_fused(self, node: ir.Node) -> bool:
        return node.op_identifier() in self._model.functions and keys.FUSED in node.metadata_props

    def _decided(self, call: ir.Node, graph: ir.Graph, limit: int, why: str) -> Decision:
        function = self._model.functions[call.op_identifier()] if self._is_fused(call) else None
        name, meta_op = node_id(call), call.op_type
        if function is not None:
            meta_op = function.metadata_props.get(keys.META_OP, function.name)
        outcome = self._proof(call, function)
        if isinstance(outcome, Replacement):
            if outcome.opset <= limit:
                return Decision(call, name, meta_op, outcome)
            outcome = NotLowered(f"{outcome.steps[outcome.main].op} needs opset {outcome.opset}: {why}")
        reason = str(outcome)
        if function is None or not any(node.op_identifier() in self._model.functions for node in function):
            return Decision(call, name, meta_op, reason=reason)
        opening = self._opening(call, graph)
        inner = tuple(self._decided(node, graph, limit, why) for node in opening.nodes if self._is_call(node))
        opened = Decision(call, name, meta_op, reason=reason, opening=opening, inner=inner)
        if opened.written:
            return opened
        listed = dict.fromkeys(f"{one.meta_op} in it: {one.reason}" for one in inner if one.reason)
        return Decision(call, name, meta_op, reason="; ".join(filter(None, (reason, "; ".join(listed)))))

    def _proof(self, call: ir.Node, function: ir.Function | None) -> Replacement | NotLowered:
        if call not in self._proofs:
            try:
                self._proofs[call] = self._proved(call, function)
            except NotLowered as refused:
                self._proofs[call] = refused
        return self._proofs[call]

    def _proved(self, call: ir.Node, function: ir.Function | None) -> Replacement:
        if node_id(call) in self._unfit:
            raise NotLowered(self._unfit[node_id(call)])
        arguments = tuple(self._arguments(call.inputs))
        results = tuple(self._arguments(call.outputs))
        if function is None:
            return self._plug_ins.of_operator(OperatorSite(call, arguments, results, self._facts))
        return self._plug_ins.of_call(CallSite(function, arguments, results, self._model.functions, self._facts))

    def _arguments(self, values: Iterable[ir.Value | None]) -> Iterator[Argument]:
        for value in values:
            yield self._facts.argument(value) if value is not None else Argument(None, None, None)

    def _opening(self, call: ir.Node, graph: ir.Graph) -> Opening:
        if call not in self._openings:
            if graph not in self._values:
                self._values[graph] = {value.name or "": value for node in graph for value in node.outputs}
            self._openings[call] = self._undo.preview(call, self._values[graph], graph)
        return self._openings[call]
