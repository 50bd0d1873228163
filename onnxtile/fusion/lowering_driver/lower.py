"""Lowering: calls of meta-ops become operators that a runtime has, where that is proved on the call itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import ModelError
from onnxtile.fusion.library import Pattern
from onnxtile.fusion.lowering import Target
from onnxtile.fusion.lowering_driver.decide import Decider, Decision
from onnxtile.fusion.lowering_driver.evidence import Evidence, SitePair
from onnxtile.fusion.lowering_driver.facts import LoweringFacts
from onnxtile.fusion.lowering_driver.plug_ins import PlugIns
from onnxtile.fusion.lowering_driver.write import Emitter
from onnxtile.fusion.outcome import PatternResult
from onnxtile.fusion.record import dumps, fused_calls, past_of
from onnxtile.fusion.rewrite import fuse
from onnxtile.fusion.unfuse import called_functions
from onnxtile.model.infer import values
from onnxtile.model.opset import opset_of, raised
from onnxtile.model.raised_shapes import shapes_of_raised
from onnxtile.model.shapes import Shapes
from onnxtile.model.walk import all_nodes
from onnxtile.model.widen import resolved
from onnxtile.progress import Progress, silent

_ALL_OPSETS = 1_000
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class LoweredSite:
    """The outcome for one call: the operator it became, or the reason why it stays a call. An opened call was replaced by its nodes.

    `edges` names the edge rows on which the operator differs, by effect (`onnxtile.fusion.edge_rows.EdgeEffect`).
    """

    call: str
    meta_op: str
    operator: str = ""
    reason: str = ""
    opened: bool = False
    edges: Mapping[str, list[str]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON of one call."""
        return {key: value for key, value in vars(self).items() if value not in ("", False, {})}


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
    request = _Request(list(patterns), target, unfit, progress)
    run = _Run(original, resolved(original), request)
    wanted = {proof.opset for decision in run.decide(_ALL_OPSETS, "") for proof in decision.proofs()}
    source, refusal = _raise(original, wanted)
    if source is not original:
        shapes = shapes_of_raised(original, run.shapes, source)
        run = _Run(source, shapes or resolved(source), request)
    version = opset_of(source)
    run.apply(run.decide(version, refusal or f"the model has {version}"))
    return Lowered(
        target, run.fused, source, run.shapes, tuple(run.results), tuple(run.sites), tuple(run.evidence.parts)
    )


@dataclass(frozen=True)
class _Request:
    """What is asked of one lowering: patterns, target, and the calls that must stay, with reasons."""

    patterns: list[Pattern]
    target: Target
    unfit: Mapping[str, str]
    progress: Progress


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


class _Run:
    """A fused copy of one model, the decisions on its calls, and their application."""

    def __init__(self, source: ir.Model, shapes: Shapes, request: _Request) -> None:
        self.shapes = shapes
        self.fused = source.clone()
        counterparts = dict(zip(values(source), values(self.fused), strict=True))
        self.results = fuse(
            self.fused, request.patterns, request.progress, shapes=lambda: shapes.of_copies(counterparts)
        )
        facts = LoweringFacts(source, shapes)
        plug_ins = PlugIns.found(request.target, request.patterns)
        self._decider = Decider(self.fused, facts, plug_ins, request.unfit)
        self.evidence = Evidence(self.fused, facts)
        self.sites: list[LoweredSite] = []

    def decide(self, limit: int, why: str) -> list[Decision]:
        """Decide on all calls, none of which may need an opset beyond `limit`."""
        return self._decider.decide(limit, why)

    def apply(self, decisions: Iterable[Decision]) -> None:
        """Write what was decided into the fused model, and remove values and functions that are no longer used."""
        emitter = Emitter(self.fused)
        for decision in decisions:
            self._apply(decision, emitter)
        self._decider.discard()
        emitter.prune()
        _tidy(self.fused, any(site.operator for site in self.sites))

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
            self.sites.append(replace(site, operator=f"{main.domain}.{main.op}" if main.domain else main.op))
        else:
            self.sites.append(site)


def _tidy(model: ir.Model, lowered: bool) -> None:
    """Remove records and functions of calls that are no more, and import the domains that are used."""
    if lowered:  # what was lowered cannot be unfused
        model.graph.metadata_props[keys.ORIGINAL] = dumps(past_of(model).only(fused_calls(model)))
    called = called_functions(model)
    for identifier, function in list(model.functions.items()):
        if keys.META_OP in function.metadata_props and identifier not in called:
            del model.functions[identifier]
    used = {node.domain for node in all_nodes(model)}
    imports = model.graph.opset_imports
    if keys.DOMAIN not in used:
        imports.pop(keys.DOMAIN, None)
    for domain in sorted(used - imports.keys() - {"", "ai.onnx"}):
        imports[domain] = 1
