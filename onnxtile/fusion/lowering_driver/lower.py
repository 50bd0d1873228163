"""Lowering: calls of meta-ops become operators that a runtime has, where that is proved on the call itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import ModelError
from onnxtile.fusion.library import Pattern
from onnxtile.fusion.lowering import Argument, FactsTable, Lowering, NotLowered, Proof, Site
from onnxtile.fusion.lowering_driver.evidence import Evidence, Part
from onnxtile.fusion.lowering_driver.symbols import Symbols
from onnxtile.fusion.lowering_driver.widen import is_narrow
from onnxtile.fusion.lowering_driver.write import Emitter
from onnxtile.fusion.proofs.numbers import Numbers
from onnxtile.fusion.record import dumps, past_of
from onnxtile.fusion.rewrite import PatternResult, fuse
from onnxtile.fusion.unfuse import Undo, called_functions
from onnxtile.graph import node_id
from onnxtile.model.constants import Constants
from onnxtile.model.opset import opset_of, raised
from onnxtile.model.shapes import Shapes, resolve
from onnxtile.model.walk import all_nodes
from onnxtile.registry import discover
from onnxtile.runtime import Array

_MOST_ELEMENTS = 16
"""Constants of no more elements than this are looked into: numbers, axes."""
_ALL_OPSETS = 1_000


class Target(Enum):
    """Whose operators the calls become."""

    ONNX = "onnx"
    ORT = "ort"


@dataclass(frozen=True)
class LoweredSite:
    """What became of one call: the operator it is now, or the reason why it stays. An opened call gave way to its parts."""

    call: str
    meta_op: str
    operator: str = ""
    reason: str = ""
    opened: bool = False

    def to_dict(self) -> dict[str, object]:
        """Return the JSON of one call."""
        return {key: value for key, value in vars(self).items() if value != "" and value is not False}


@dataclass(frozen=True)
class Lowered:
    """The lowered model, what the patterns did, what became of each call, and the parts to verify."""

    model: ir.Model = field(repr=False)
    source: ir.Model = field(repr=False)
    patterns: tuple[PatternResult, ...]
    sites: tuple[LoweredSite, ...]
    parts: tuple[Part, ...] = field(repr=False)


def lower(original: ir.Model, patterns: Iterable[Pattern], target: Target) -> Lowered:
    """Fuse a copy of `original`, raised to the opset that the operators need, and lower what is proved.

    Where the model cannot be raised, or not that far, what needs more stays a call, and says so.
    """
    chosen = list(patterns)
    fused = original.clone()
    results = fuse(fused, chosen)
    facts = Facts(original, _shapes(original))
    declared = {pattern.name: pattern.lowering for pattern in chosen if pattern.lowering is not None}
    trial = _Run(fused.clone(), facts, target, _ALL_OPSETS, {}, declared)
    trial.all()
    source, refusal = _raise(original, trial.opsets)
    if source is not original:
        fused = source.clone()
        results = fuse(fused, chosen)
        facts = Facts(source, _shapes(source))
    limit = opset_of(source)
    trial = _Run(fused.clone(), facts, target, limit, {}, declared)
    trial.all()
    run = _Run(fused, facts, target, limit, trial.idle, declared, refusal)
    run.all()
    run.finish()
    return Lowered(fused, source, tuple(results), tuple(run.sites), tuple(run.evidence.parts))


def _shapes(model: ir.Model) -> Shapes:
    """Return what is known of the shapes of `model`; no run helps where onnxruntime lacks kernels."""
    return resolve(model, run=not is_narrow(model))


def _raise(original: ir.Model, opsets: Iterable[int]) -> tuple[ir.Model, str]:
    """Return `original` raised as far as one of `opsets` asks and the converter can, and why it could go no further."""
    refusal = ""
    for version in sorted(set(opsets), reverse=True):
        if version <= opset_of(original):
            break
        try:
            return raised(original, version), refusal
        except ModelError as error:
            refusal = refusal or str(error)
    return original, refusal


class Facts(FactsTable):
    """What is known of the values of a model, by name: fused and opened, a model keeps the names of what it was."""

    def __init__(self, model: ir.Model, shapes: Shapes) -> None:
        self._shapes = shapes
        self._constants = Constants(model)
        self._numbers = Numbers(shapes, self._small)
        self._symbols = Symbols(shapes, self._numbers)
        self._values: dict[str, ir.Value | None] = {}
        for graph in model.graphs():
            made = (value for node in graph for value in node.outputs if value.name)
            for value in dict.fromkeys((*graph.inputs, *graph.initializers.values(), *made)):
                # A name that stands in two graphs says nothing.
                self._values[value.name or ""] = None if value.name in self._values else value

    def argument(self, value: ir.Value) -> Argument:
        """Return what is known of a value of the fused model."""
        known = self._values.get(value.name or "")
        if known is None:
            return Argument(value, value.dtype, None)
        dims = self._symbols.dims(known)
        tensor = known.const_value if known in self._constants else None
        if dims is None and tensor is not None:
            dims = tuple(tensor.shape.numpy())
        dtype = self._shapes.dtype(known) or (tensor.dtype if tensor is not None else None)
        array = self._small(known)
        if array is None and dtype is not None and (dims is None or _count(dims) <= _MOST_ELEMENTS):
            computed = self._numbers.of(known)
            array = None if computed is None else computed.astype(dtype.numpy())
        return Argument(value, dtype, dims, array, known in self._constants)

    def _small(self, value: ir.Value) -> Array | None:
        """Return the elements of a constant that has few; None for any other value."""
        if value not in self._constants:
            return None
        dims = self._shapes.dims(value)
        if dims is None and value.const_value is not None:
            dims = tuple(value.const_value.shape.numpy())
        return self._constants.array(value) if dims is not None and _count(dims) <= _MOST_ELEMENTS else None

    def elements(self, value: ir.Value) -> Array:
        """Return the elements of a constant. Raises KeyError where it is none."""
        known = self._values.get(value.name or "")
        if known is None:
            raise KeyError(value.name)
        return self._constants.array(known)


def _count(dims: Iterable[object]) -> int:
    count = 1
    for dim in dims:
        count *= dim if isinstance(dim, int) else _MOST_ELEMENTS + 1
    return count


class _Run:
    """One pass over the calls of a fused model, which it changes. Calls in `kept` are not opened, for the reasons it gives;
    `declared` are the lowerings that pattern files declare, by meta-op, before those that are built in."""

    def __init__(
        self,
        model: ir.Model,
        facts: Facts,
        target: Target,
        limit: int,
        kept: Mapping[str, str],
        declared: Mapping[str, Lowering],
        refusal: str = "",
    ) -> None:
        self._model = model
        self._facts = facts
        self._target = target
        self._limit = limit
        self._kept = kept
        self._refusal = refusal
        known = discover("onnxtile.fusion.lowerings", Lowering)  # type: ignore[type-abstract]
        self._lowerings: Mapping[str, Lowering] = {**known, **declared}
        self._emitter = Emitter(model)
        self._undo = Undo(model)
        self._by_name: dict[object, dict[str, ir.Value]] = {}
        self.evidence = Evidence(model, facts)
        self.sites: list[LoweredSite] = []
        self.opsets: set[int] = set()
        self.idle: dict[str, str] = {}

    def all(self) -> None:
        """Lower what can be lowered."""
        for graph in self._model.graphs():
            for call in [node for node in graph if node.op_identifier() in self._model.functions]:
                if keys.FUSED in call.metadata_props:
                    self._one(call)

    def _one(self, call: ir.Node) -> int:
        """Lower `call` or, where it cannot be, its parts; return how many operators were written that were not in its body."""
        function = self._model.functions[call.op_identifier()]
        meta_op = function.metadata_props.get(keys.META_OP, function.name)
        name = node_id(call)
        try:
            proof = self._prove(call, function, meta_op)
        except NotLowered as refused:
            return self._open(call, function, LoweredSite(name, meta_op, reason=str(refused)))
        main = proof.steps[proof.main]
        self.opsets.add(proof.opset)
        self.evidence.add(call, proof)
        self._emitter.replace(call, proof, meta_op)
        self.sites.append(LoweredSite(name, meta_op, f"{main.domain}.{main.op}" if main.domain else main.op))
        return 0 if proof.plain else 1

    def _prove(self, call: ir.Node, function: ir.Function, meta_op: str) -> Proof:
        plug_in = self._lowerings.get(meta_op)
        if plug_in is None:
            raise NotLowered(f"no operator is known that means {meta_op}")
        arguments = [self._facts.argument(v) if v is not None else Argument(None, None, None) for v in call.inputs]
        results = [self._facts.argument(v) for v in call.outputs]
        site = Site(function, tuple(arguments), tuple(results), self._model.functions, self._facts)
        proof = plug_in.to_ort(site) if self._target is Target.ORT else plug_in.to_onnx(site)
        if proof.opset > self._limit:
            why = self._refusal or f"the model has {self._limit}"
            raise NotLowered(f"{proof.steps[proof.main].op} needs opset {proof.opset}: {why}")
        return proof

    def _open(self, call: ir.Node, function: ir.Function, site: LoweredSite) -> int:
        """Put the parts of `call` in its place where it has meta-ops among them, and lower these."""
        nested = any(node.op_identifier() in self._model.functions for node in function)
        if not nested or site.call in self._kept:
            inner_reason = self._kept.get(site.call, "")
            self.sites.append(replace(site, reason="; ".join(filter(None, (site.reason, inner_reason)))))
            return 0
        self.sites.append(LoweredSite(site.call, site.meta_op, reason=site.reason, opened=True))
        opened = self._undo.open(call, self._names(call.graph))
        inner = [node for node in opened if keys.FUSED in node.metadata_props]
        before = len(self.sites)
        written = sum(self._one(node) for node in inner)
        if not written:
            reasons = dict.fromkeys(
                f"{inner.meta_op} in it: {inner.reason}" for inner in self.sites[before:] if inner.reason
            )
            self.idle[site.call] = "; ".join(reasons)
        return written

    def _names(self, graph: object) -> dict[str, ir.Value]:
        """Return the values that the nodes of a graph make, by name."""
        assert isinstance(graph, ir.Graph)
        if graph not in self._by_name:
            self._by_name[graph] = {value.name or "": value for node in graph for value in node.outputs}
        return self._by_name[graph]

    def finish(self) -> None:
        """Remove what nobody needs any more, and import what is new."""
        self._emitter.prune()
        calls = [node for graph in self._model.graphs() for node in graph if keys.FUSED in node.metadata_props]
        if any(site.operator for site in self.sites):  # what was lowered cannot be unfused
            self._model.graph.metadata_props[keys.ORIGINAL] = dumps(past_of(self._model).only(calls))
        called = called_functions(self._model)
        for identifier, function in list(self._model.functions.items()):
            if keys.META_OP in function.metadata_props and identifier not in called:
                del self._model.functions[identifier]
        used = {node.domain for node in all_nodes(self._model)}
        imports = self._model.graph.opset_imports
        if keys.DOMAIN not in used:
            imports.pop(keys.DOMAIN, None)
        for domain in sorted(used - imports.keys() - {"", "ai.onnx"}):
            imports[domain] = 1
