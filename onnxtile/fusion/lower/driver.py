"""Lowering: calls of meta-ops become operators that a runtime has, where that is proved on the call itself."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from functools import partial
from itertools import chain, count
from types import MappingProxyType

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.declare.verb import JsonFields
from onnxtile.fusion.fuse import PatternResult, fuse
from onnxtile.fusion.lower.island_lowering import IslandLowering, read_island
from onnxtile.fusion.lower.lowering import (
    Argument,
    CallSite,
    Literal,
    Lowering,
    LoweringFacts,
    Made,
    NewNode,
    NotLowered,
    Operand,
    OperatorLowering,
    OperatorSite,
    Replacement,
    Target,
)
from onnxtile.fusion.pattern import Pattern
from onnxtile.fusion.record import dumps, fused_calls, hand_on, past_of
from onnxtile.fusion.site_check import COUNTS, SiteRuns, SiteVerdict
from onnxtile.fusion.unfuse import ChangedFunction, Opening, Undo, remove_uncalled
from onnxtile.model import keys
from onnxtile.model.constants import prune
from onnxtile.model.feeds import draw
from onnxtile.model.modules import module_note, module_path
from onnxtile.model.opset import opset_of, raised
from onnxtile.model.session import session_of
from onnxtile.model.submodel import Submodels, tensor_type
from onnxtile.model.topology import all_nodes, cloned, node_id
from onnxtile.operators.node_view import operator_name
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import Shapes, shapes_of_raised
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, NoKernel
from onnxtile.system.long_work import Progress, counted, silent
from onnxtile.system.registry import discover
from onnxtile.system.runtime import Array
from onnxtile.verification.rounding import is_narrow, resolved, widened
from onnxtile.verification.values import compare_quantised, compare_values

# The plug-ins that lower for one target, and the choice among them.


@dataclass(frozen=True)
class PlugIns:
    """What lowers for `target`: calls by meta-op, quantised islands by their first operator, nodes by operator.

    Operators of the names `whole` do the work of a whole meta-op by themselves.
    """

    target: Target
    calls: Mapping[str, Lowering]
    islands: Mapping[str, IslandLowering]
    operators: Mapping[str, OperatorLowering]
    whole: frozenset[str]

    @staticmethod
    def of_target(target: Target, patterns: Iterable[Pattern]) -> PlugIns:
        """Return the plug-ins of onnxtile and of others, and what `patterns` declare."""
        calls = discover("onnxtile.fusion.lowerings", Lowering)  # type: ignore[type-abstract]
        patterns = tuple(patterns)
        declared = {pattern.name: pattern.lowering for pattern in patterns if pattern.lowering is not None}
        islands = discover("onnxtile.fusion.island_lowerings", IslandLowering)
        operators = discover("onnxtile.fusion.operator_lowerings", OperatorLowering)  # type: ignore[type-abstract]
        whole = frozenset[str]().union(*(program.named for pattern in patterns for program in pattern.operators))
        return PlugIns(target, {**calls, **declared}, islands, operators if target is Target.QDQ else {}, whole)

    def of_call(self, site: CallSite) -> Replacement:
        """Return what a call becomes. Raises NotLowered."""
        meta_op = site.function.metadata_props.get(keys.META_OP, site.function.name)
        plug_in = self.calls.get(meta_op)
        if plug_in is not None:
            return plug_in.lowered(site, self.target)
        if keys.ISLAND in site.function.metadata_props:
            return self._of_island(site)
        raise NotLowered(f"no operator is known that means {meta_op}")

    def parts_of(self, function: ir.Function) -> frozenset[str]:
        """Return the operators that parts of a call would become, and that exporters may write themselves; none where it may be lowered."""
        meta_op = function.metadata_props.get(keys.META_OP, function.name)
        return frozenset() if meta_op in self.calls or keys.ISLAND in function.metadata_props else self.whole

    def _of_island(self, site: CallSite) -> Replacement:
        if self.target is Target.QDQ:
            raise NotLowered("it is quantised with QuantizeLinear and DequantizeLinear already")
        island = read_island(site)
        name = operator_name(island.first)
        plug_in = self.islands.get(name)
        if plug_in is None:
            raise NotLowered(f"no operator is known that means {name} on quantised operands")
        return plug_in.to_ort(island) if self.target is Target.ORT else plug_in.to_onnx(island)


# Decides, without a change to the model, which calls are lowered, which are opened for the meta-ops in them, and which stay.


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
        facts: LoweringFacts,
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
        return self._is_fused(node) or operator_name(node) in self._plug_ins.operators

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
        standing = frozenset[str]() if function is None else self._plug_ins.parts_of(function)
        known = self._model.functions
        if function is None or not any(n.op_identifier() in known or operator_name(n) in standing for n in function):
            return Decision(call, name, meta_op, reason=reason)
        try:
            opening = self._opening(call, graph)
        except ChangedFunction:
            reason = f"{reason}; its function was changed since it was fused, so that what is in it is not lowered"
            return Decision(call, name, meta_op, reason=reason)
        inner = tuple(self._decided(node, graph, limit, why) for node in opening.nodes if self._is_call(node))
        opened = Decision(call, name, meta_op, reason=reason, opening=opening, inner=inner)
        if opened.written or any(operator_name(node) in standing for node in opening.nodes):
            return opened
        listed = dict.fromkeys(f"{decision.meta_op} in it: {decision.reason}" for decision in inner if decision.reason)
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
            plug_in = self._plug_ins.operators[operator_name(call)]
            return plug_in.to_qdq(OperatorSite(call, arguments, results, self._facts))
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


# Writes what was proved into the graph, and removes what that leaves behind.


class Emitter:
    """Replaces calls in one model; names of new nodes and values are free ones."""

    def __init__(self, model: ir.Model) -> None:
        graphs = list(model.graphs())
        self._names: set[str | None] = {
            item.name for graph in graphs for item in (*graph.inputs, *graph.initializers.values(), *graph)
        }
        self._names |= {value.name for graph in graphs for node in graph for value in node.outputs}
        self._literals: dict[Hashable, ir.Value] = {}
        self._written: dict[Hashable, ir.Node] = {}
        self._loose: dict[ir.Value, None] = {}
        self._replaced: dict[ir.Value, ir.Value] = {}

    def replaced(self, pairs: Iterable[tuple[ir.Value, ir.Value]]) -> None:
        """Note of each pair of values that the second takes the place of the first."""
        self._replaced.update(pairs)

    def current(self, proof: Replacement) -> Replacement:
        """Return `proof`, made before calls were replaced, with the values that are now in the place of those it names."""
        steps = [
            replace(step, inputs=tuple(self._newest(o) if isinstance(o, ir.Value) else o for o in step.inputs))
            for step in proof.steps
        ]
        return replace(proof, steps=tuple(steps), twice=frozenset(map(self._newest, proof.twice)))

    def _newest(self, value: ir.Value) -> ir.Value:
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def replace(self, call: ir.Node, proof: Replacement, meta_op: str) -> list[ir.Node]:
        """Put the steps of `proof` in the place of `call`; return the new nodes."""
        graph = call.graph
        assert isinstance(graph, ir.Graph)
        nodes: list[ir.Node] = []
        handed = {output.step for output in proof.outputs}
        main = call.name or self._free(meta_op)
        for i, step in enumerate(proof.steps):
            name = main
            shared = i != proof.main and i not in handed
            if i != proof.main:
                name = self._free(f"{name}/{step.op}")
            nodes.append(self._node(step, nodes, name, graph, shared=shared))
        nodes[proof.main].metadata_props[keys.LOWERED] = meta_op
        fresh = [node for node in dict.fromkeys(nodes) if node.graph is None]
        path = module_path(call.name, call.metadata_props)
        for node in fresh:
            node.metadata_props.update(module_note(path, node.name or ""))
        graph.insert_before(call, fresh)
        for old, output in zip(call.outputs, proof.outputs, strict=True):
            self._replaced[old] = new = nodes[output.step].outputs[output.output]
            known_name = old.name
            hand_on(old, new)
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            old.name, new.name = None, known_name
        kept = {self._replaced[old] for old in call.outputs}
        for node in fresh:
            for i, value in enumerate(node.outputs):
                if value not in kept:
                    value.name = self._free(f"{node.name}_output_{i}")
        self._loose.update(dict.fromkeys(value for value in call.inputs if value is not None))
        graph.remove(call, safe=True)
        return nodes

    def prune(self) -> None:
        """Remove what only the replaced calls read: constants, and nodes whose results are read no more."""
        prune(self._loose)

    def _node(self, step: NewNode, before: list[ir.Node], name: str, graph: ir.Graph, *, shared: bool) -> ir.Node:
        """Return the node of a step; where it may be `shared`, that of an earlier call of the graph, if there is one."""
        operands = [self._operand(operand, before, graph) for operand in step.inputs]
        key = (graph, step.domain, step.op, tuple(operands), repr(sorted(step.attributes.items())))
        if shared and key in self._written:
            return self._written[key]
        attributes = ir.convenience.convert_attributes(step.attributes)
        node = ir.Node(step.domain, step.op, operands, attributes, num_outputs=step.outputs, name=name)
        if shared:
            self._written[key] = node
        return node

    def _operand(self, operand: Operand, before: list[ir.Node], graph: ir.Graph) -> ir.Value | None:
        if isinstance(operand, Made):
            return before[operand.step].outputs[operand.output]
        if not isinstance(operand, Literal):
            return operand
        key = (graph, operand.dtype, operand.array.shape, operand.array.tobytes())
        if key not in self._literals:
            tensor = ir.Tensor(operand.array, dtype=operand.dtype, name=self._free(f"onnxtile/{operand.hint}"))
            self._literals[key] = value = ir.val(tensor.name, const_value=tensor)
            graph.register_initializer(value)
        return self._literals[key]

    def _free(self, name: str) -> str:
        free = next(n for n in chain([name], (f"{name}_{number}" for number in count(2))) if n not in self._names)
        self._names.add(free)
        return free


# Cuts out each different site of a lowering: the call as it was, and the operators it became, as two models.


@dataclass(frozen=True)
class SitePair:
    """A site alone: as a model of the call, and as one of the operators; `constants` are the inputs that are no free ones."""

    call: str
    meta_op: str
    before: ir.Model = field(repr=False)
    after: ir.Model = field(repr=False)
    constants: frozenset[str] = field(repr=False)
    twice: frozenset[str] = field(default=frozenset(), repr=False)
    """Inputs whose last axis is one vector twice."""
    rounds: bool = False
    """Whether the outputs are quantised anew, and may be one step off."""
    same: tuple[str, ...] = ()
    """The names of further calls that are the same."""
    key: object = field(default=None, repr=False)
    """What two sites that are the same have in common."""


class Evidence:
    """Collects the parts of a lowering, equal ones once."""

    def __init__(self, model: ir.Model, facts: LoweringFacts) -> None:
        self._cut = Submodels(model)
        self._facts = facts
        self.parts: dict[object, SitePair] = {}
        """The parts found so far, by what equal ones have in common."""

    def add(self, call: ir.Node, name: str, meta_op: str, proof: Replacement) -> None:
        """Keep the site of `call`, which is still in the graph, and the operators that it becomes."""
        given = dict.fromkeys(o for step in proof.steps for o in step.inputs if isinstance(o, ir.Value))
        nodes, inputs = _slice(call, given)
        key = self._signature(call, nodes, inputs, proof)
        if key in self.parts:
            self.parts[key] = replace(self.parts[key], same=(*self.parts[key].same, name))
            return
        cut = self._cut.model_of([*nodes, call], {value: self._type(value) for value in inputs}, call.outputs)
        before, after = ir.from_proto(cut), ir.from_proto(cut)
        emitter = Emitter(after)
        emitter.replaced(zip(inputs, after.graph.inputs, strict=True))
        emitter.replace(after.graph[-1], emitter.current(proof), meta_op)
        emitter.prune()
        _tidy(after, lowered=False)
        constants = frozenset(v.name or "" for v in inputs if self._facts.argument(v).constant)
        twice = frozenset(v.name or "" for v in proof.twice)
        self.parts[key] = SitePair(name, meta_op, before, after, constants, twice, proof.rounds, key=key)

    def _signature(self, call: ir.Node, nodes: list[ir.Node], inputs: list[ir.Value], proof: Replacement) -> object:
        numbers = {value: i for i, value in enumerate(inputs)}
        known = []
        for value in inputs:
            argument = self._facts.argument(value)
            array = None if argument.array is None else argument.array.tobytes()
            known.append((argument.dtype, argument.dims, array))
        above = tuple(
            (n.op_identifier(), repr(sorted((a.name, repr(a.value)) for a in n.attributes.values())))
            for n in (*nodes, call)
        )
        steps = tuple(
            (s.op, s.domain, repr(s.attributes), tuple(_key(o, numbers) for o in s.inputs)) for s in proof.steps
        )
        return (above, tuple(known), steps)

    def _type(self, value: ir.Value) -> onnx.TypeProto:
        argument = self._facts.argument(value)
        return tensor_type(argument.dtype or ir.DataType.FLOAT, argument.dims)


def _key(operand: Operand, numbers: Mapping[ir.Value, int]) -> object:
    if isinstance(operand, ir.Value):
        return numbers[operand]
    if isinstance(operand, Literal):
        return operand.dtype, operand.array.shape, operand.array.tobytes()
    return operand


def _slice(call: ir.Node, given: Iterable[ir.Value]) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the nodes from the values `given` to `call`, in order, and what they and `call` read besides."""
    stops = set(given)
    nodes: dict[ir.Node, None] = {}
    inputs: dict[ir.Value, None] = dict.fromkeys(given)

    def reaches(value: ir.Value | None) -> bool:
        """Tell whether `value` is computed from what is given, over a few nodes; those are noted."""
        if value is None:
            return False
        if value in stops:
            return True
        node = value.producer()
        if node is None or len(node.inputs) > 2 or node.graph is not call.graph:
            return False
        if node.op_type not in {"Cast", "Transpose", "Reshape", "Mul"}:
            return False
        if not any([reaches(v) for v in node.inputs]):
            return False
        nodes[node] = None
        inputs.update(dict.fromkeys(v for v in node.inputs if v is not None and v.producer() not in nodes))
        return True

    for value in call.inputs:
        if value is not None and not reaches(value):
            inputs[value] = None
    results = {value for node in nodes for value in node.outputs}
    return list(nodes), [value for value in inputs if value not in results]


_ALL_OPSETS = 1_000
BY_RUN = "by a run"
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class LoweredSite(JsonFields):
    """The outcome for one call: the operator it became, or the reason why it stays a call. An opened call was replaced by its nodes.

    `decided` says that no proof decides whether the operator means the call, but a run of both. `edges` names the edge rows on which the
    operator differs, by effect (`onnxtile.fusion.site_check.EdgeEffect`). `call` is the name of the node, `meta_op` that of the function it
    calls, `operator` the new operator (empty: none). `reason` is a sentence, empty where it was lowered. `opened` says whether the call was
    replaced by its nodes.
    """

    JSON = "call meta_op operator? reason? opened? decided? edges?"

    call: str
    meta_op: str
    operator: str = ""
    reason: str = ""
    opened: bool = False
    decided: str = ""
    edges: Mapping[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Lowered:
    """The lowered model, the model it was made of with its shapes, what became of each match and each call, and the parts to verify."""

    target: Target
    model: ir.Model = field(repr=False)
    source: ir.Model = field(repr=False)
    shapes: Shapes = field(repr=False)
    patterns: tuple[PatternResult, ...]
    sites: tuple[LoweredSite, ...]
    parts: tuple[SitePair, ...] = field(repr=False)


def lower(
    original: ir.Model,
    patterns: Iterable[Pattern],
    target: Target,
    *,
    unfit: Mapping[str, str] = NOTHING,
    progress: Progress = silent,
) -> Lowered:
    """Fuse a copy of `original`, raised to the opset that the operators need, and lower what is proved.

    Where the model cannot be raised, or not that far, what needs more stays a call, and says so. So do the calls named in `unfit`, for the
    reasons given there.
    """
    run_of = partial(_Run, patterns=list(patterns), target=target, unfit=unfit, progress=progress)
    run = run_of(original, resolved(original))
    wanted = {proof.opset for decision in run.decider.decide(_ALL_OPSETS, "") for proof in decision.proofs()}
    source, refusal = _raise(original, wanted)
    if source is not original:
        shapes = shapes_of_raised(original, run.shapes, source)
        run = run_of(source, shapes or resolved(source))
    version = opset_of(source)
    run.apply(run.decider.decide(version, refusal or f"the model has {version}"))
    return Lowered(
        target, run.fused, source, run.shapes, tuple(run.results), tuple(run.sites), tuple(run.evidence.parts.values())
    )


def _raise(original: ir.Model, opsets: Iterable[int]) -> tuple[ir.Model, str]:
    """Return `original` raised as far as one of `opsets` asks and the converter can, and why it could go no further."""
    refusal = ""
    for version in sorted(set(opsets), reverse=True):
        if version <= opset_of(original):
            break
        try:
            return raised(original, version), refusal
        except ModelError as error:
            refusal = refusal or error.message
    return original, refusal


class _Run:
    """A fused copy of one model, the decisions on its calls, and their application."""

    def __init__(
        self,
        source: ir.Model,
        shapes: Shapes,
        *,
        patterns: list[Pattern],
        target: Target,
        unfit: Mapping[str, str],
        progress: Progress,
    ) -> None:
        self.shapes = shapes
        self.fused = cloned(source)
        counterparts = dict(zip(values(source), values(self.fused), strict=True))
        self.results = fuse(self.fused, patterns, progress, shapes=lambda: shapes.of_copies(counterparts))
        facts = LoweringFacts(source, shapes)
        self.decider = Decider(self.fused, facts, PlugIns.of_target(target, patterns), unfit)
        self.evidence = Evidence(self.fused, facts)
        self.sites: list[LoweredSite] = []

    def apply(self, decisions: Iterable[Decision]) -> None:
        """Write what was decided into the fused model, and remove values and functions that are no longer used."""
        emitter = Emitter(self.fused)
        for decision in decisions:
            self._apply(decision, emitter)
        self.decider.discard()
        emitter.prune()
        _tidy(self.fused, lowered=any(site.operator for site in self.sites))

    def _apply(self, decision: Decision, emitter: Emitter) -> None:
        site = LoweredSite(decision.name, decision.meta_op, reason=decision.reason)
        if decision.opening is not None:
            self.sites.append(replace(site, opened=True))
            emitter.replaced(zip(decision.call.outputs, decision.opening.outputs, strict=True))
            decision.opening.insert()
            for inner in decision.inner:
                self._apply(inner, emitter)
        elif decision.proof is not None:
            proof = emitter.current(decision.proof)
            main = proof.steps[proof.main]
            self.evidence.add(decision.call, decision.name, decision.meta_op, proof)
            emitter.replace(decision.call, proof, decision.meta_op)
            operator = f"{main.domain}.{main.op}" if main.domain else main.op
            self.sites.append(replace(site, operator=operator, decided=BY_RUN if proof.needs_run else ""))
        else:
            self.sites.append(site)


def _tidy(model: ir.Model, *, lowered: bool) -> None:
    """Remove records and functions of calls that are no more, and import the domains that are used."""
    if lowered:  # what was lowered cannot be unfused
        model.graph.metadata_props[keys.ORIGINAL] = dumps(past_of(model).only(fused_calls(model)))
    remove_uncalled(model)
    used = {node.domain for node in all_nodes(model)}
    imports = model.graph.opset_imports
    if keys.DOMAIN not in used:
        imports.pop(keys.DOMAIN, None)
    for domain in sorted(used - imports.keys() - {""}):
        imports[domain] = 1


# Local verification of lowering: each different site is run alone, the call as it was beside the operators it became.
#
# First on random inputs; where it agrees, on edge rows besides.

_STORED = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255)}


class _Skipped(Exception):
    """Why a site cannot be run alone."""


class LoweredSites:
    """Checks the parts of a lowering, and of further lowerings of the same model: a part that was checked is not run again."""

    def __init__(self) -> None:
        self._verdicts: dict[object, SiteVerdict] = {}

    def check(
        self, parts: Collection[SitePair], facts: LoweringFacts, progress: Progress = silent
    ) -> tuple[SiteVerdict, ...]:
        """Run each part as it was and as it is, on random inputs and edge rows, constants as they are, and compare the outputs.

        `facts` know the sizes of all inputs. A site in bfloat16, for which onnxruntime has few kernels, is compared with what it was in
        float; where it has none for the operator either, the verdict says so, and edge rows are run in float before and after. Where
        onnxruntime refuses the lowered site, so does the verdict.
        """
        different = counted(parts, "verifying each different lowered site", progress)
        return tuple(self._verdict(part, facts) for part in different)

    def _verdict(self, part: SitePair, facts: LoweringFacts) -> SiteVerdict:
        if part.key not in self._verdicts:
            # A seed of its own for each part: what is drawn does not depend on the parts before.
            self._verdicts[part.key] = _check(part, facts, np.random.default_rng(0))
        return replace(self._verdicts[part.key], call=part.call, also=len(part.same))


def _check(part: SitePair, facts: LoweringFacts, generator: np.random.Generator) -> SiteVerdict:
    try:
        feeds, varied, guessed = _feeds(part, facts, generator)
    except _Skipped as reason:
        return SiteVerdict(part.call, (), 0, str(reason))
    try:
        return _narrow_verdict(part, feeds, varied) if is_narrow(part.before) else _verdict(part, feeds, varied)
    except ModelError as error:
        # A shape or an index that the model computes elsewhere cannot be drawn at random.
        why = f"{guessed!r}, which the model computes, takes no random values" if guessed else ""
        refused = "" if guessed else " ".join(error.message.split())
        return SiteVerdict(part.call, (), 0, why, refused)


def _feeds(
    part: SitePair, facts: LoweringFacts, generator: np.random.Generator
) -> tuple[dict[str, Array], list[str], str]:
    """Return an array for each input of a part, the names of those drawn at random, and that of one among them that may be a shape."""
    shapes = _computed_shapes(part.before, facts)
    feeds: dict[str, Array] = {}
    varied: list[str] = []
    guessed = ""
    for value in part.before.graph.inputs:
        name, argument = value.name or "", facts.argument(value)
        if name in part.constants:
            feeds[name] = facts.elements(value)
        elif argument.array is not None or name in shapes:
            feeds[name] = shapes[name] if argument.array is None else argument.array
        else:
            guessed = name if argument.dtype in COUNTS else guessed
            drawn = _drawn(value, argument, generator)
            feeds[name] = _twice(drawn) if name in part.twice else drawn
            varied.append(name)
    return feeds, varied, guessed


def _verdict(part: SitePair, feeds: Mapping[str, Array], varied: list[str]) -> SiteVerdict:
    runs = SiteRuns(session_of(part.before), session_of(part.after), part.rounds, part.twice)
    expected, got = runs.before.run(feeds), runs.after.run(feeds)
    compared = compare_quantised if part.rounds else compare_values
    verdict = SiteVerdict(part.call, tuple(compared(name, value, got[name]) for name, value in expected.items()), 0)
    return replace(verdict, edges=runs.differences(feeds, varied)) if verdict.equal else verdict


def _narrow_verdict(part: SitePair, feeds: Mapping[str, Array], varied: list[str]) -> SiteVerdict:
    """Return the verdict on a site in bfloat16: both are held against the site as it was in float, and edge rows run in float."""
    wide = {name: _wide(array) for name, array in feeds.items()}
    before = session_of(widened(part.before))
    reference, verdict = before.run(wide), SiteVerdict(part.call, (), 0)
    try:
        got = session_of(part.after).run(feeds)
        errors = (compare_values(name, reference[name].astype(value.dtype), value) for name, value in got.items())
        verdict = replace(verdict, outputs=tuple(errors))
    except NoKernel:
        operators = " and ".join(dict.fromkeys(node.op_type for node in part.after.graph))
        verdict = replace(verdict, skipped=f"onnxruntime has no kernel for {operators} of bfloat16")
    with suppress(NoKernel):
        after = session_of(widened(part.after))
        edges = SiteRuns(before, after, part.rounds, part.twice).differences(wide, varied)
        return replace(verdict, edges=edges) if verdict.equal else verdict
    return verdict


def _computed_shapes(model: ir.Model, facts: LoweringFacts) -> dict[str, Array]:
    """Return, by name, the shapes that the Reshapes of `model` are given, as far as the shapes of their results are known."""
    shapes = {}
    for node in model.graph:
        if node.op_type != "Reshape" or node.inputs[1] is None or node.inputs[1].producer() is not None:
            continue
        sizes = _sizes(facts.argument(node.outputs[0]))
        if sizes is not None:
            shapes[node.inputs[1].name or ""] = np.asarray(sizes, np.int64)
    return shapes


def _sizes(argument: Argument) -> tuple[int, ...] | None:
    sizes = tuple(dim for dim in argument.dims or () if isinstance(dim, int))
    return sizes if argument.dims is not None and len(sizes) == len(argument.dims) else None


def _drawn(value: ir.Value, argument: Argument, generator: np.random.Generator) -> Array:
    sizes = _sizes(argument)
    if sizes is None:
        raise _Skipped(f"the shape of {value.name!r} is not known")
    if argument.dtype in _STORED:  # what is quantised uses the whole range of its type
        low, high = _STORED[argument.dtype]
        return generator.integers(low, high, sizes, argument.dtype.numpy(), endpoint=True)
    return draw(generator, value, lambda _: sizes)


def _twice(array: Array) -> Array:
    first = array[..., : array.shape[-1] // 2]
    return np.concatenate([first, first], -1)


def _wide(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
