"""Decides, without a change to the model, which calls are lowered, which are opened for the meta-ops in them, and which stay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.lowering import Argument, CallSite, FactsTable, Lowering, NotLowered, Replacement
from onnxtile.fusion.unfuse import Opening, Undo
from onnxtile.graph import node_id


@dataclass(frozen=True)
class Decision:
    """What becomes of one call: it is lowered (`proof`), opened (`opening`, with decisions on the `inner` calls), or stays.

    `reason` says why it is not lowered.
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

    `lowerings` are the plug-ins by meta-op; of each, the one for onnxruntime's own operators is asked where `for_ort`. `unfit` gives the
    reasons why calls, by name, must not be lowered, whatever their plug-in says.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: FactsTable,
        lowerings: Mapping[str, Lowering],
        unfit: Mapping[str, str],
        *,
        for_ort: bool,
    ) -> None:
        self._model = model
        self._facts = facts
        self._lowerings = lowerings
        self._unfit = unfit
        self._for_ort = for_ort
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
        return node.op_identifier() in self._model.functions and keys.FUSED in node.metadata_props

    def _decided(self, call: ir.Node, graph: ir.Graph, limit: int, why: str) -> Decision:
        function = self._model.functions[call.op_identifier()]
        name, meta_op = node_id(call), function.metadata_props.get(keys.META_OP, function.name)
        outcome = self._proof(call, function, meta_op)
        if isinstance(outcome, Replacement):
            if outcome.opset <= limit:
                return Decision(call, name, meta_op, outcome)
            outcome = NotLowered(f"{outcome.steps[outcome.main].op} needs opset {outcome.opset}: {why}")
        reason = str(outcome)
        if not any(node.op_identifier() in self._model.functions for node in function):
            return Decision(call, name, meta_op, reason=reason)
        opening = self._opening(call, graph)
        inner = tuple(self._decided(node, graph, limit, why) for node in opening.nodes if self._is_call(node))
        opened = Decision(call, name, meta_op, reason=reason, opening=opening, inner=inner)
        if opened.written:
            return opened
        listed = dict.fromkeys(f"{one.meta_op} in it: {one.reason}" for one in inner if one.reason)
        return Decision(call, name, meta_op, reason="; ".join(filter(None, (reason, "; ".join(listed)))))

    def _proof(self, call: ir.Node, function: ir.Function, meta_op: str) -> Replacement | NotLowered:
        if call not in self._proofs:
            try:
                self._proofs[call] = self._proved(call, function, meta_op)
            except NotLowered as refused:
                self._proofs[call] = refused
        return self._proofs[call]

    def _proved(self, call: ir.Node, function: ir.Function, meta_op: str) -> Replacement:
        if node_id(call) in self._unfit:
            raise NotLowered(self._unfit[node_id(call)])
        plug_in = self._lowerings.get(meta_op)
        if plug_in is None:
            raise NotLowered(f"no operator is known that means {meta_op}")
        arguments = [self._facts.argument(v) if v is not None else Argument(None, None, None) for v in call.inputs]
        results = [self._facts.argument(v) for v in call.outputs]
        site = CallSite(function, tuple(arguments), tuple(results), self._model.functions, self._facts)
        return plug_in.to_ort(site) if self._for_ort else plug_in.to_onnx(site)

    def _opening(self, call: ir.Node, graph: ir.Graph) -> Opening:
        if call not in self._openings:
            if graph not in self._values:
                self._values[graph] = {value.name or "": value for node in graph for value in node.outputs}
            self._openings[call] = self._undo.preview(call, self._values[graph], graph)
        return self._openings[call]
