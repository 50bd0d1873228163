"""Fuse subgraphs into meta-ops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxtile.errors import UsageError
from onnxtile.fusion import library as pattern_files
from onnxtile.fusion.library import Pattern
from onnxtile.fusion.lowering_driver.lower import Facts, Lowered, LoweredSite, Target
from onnxtile.fusion.lowering_driver.lower import lower as lower_graph
from onnxtile.fusion.lowering_driver.lowered_site_check import check_parts
from onnxtile.fusion.lowering_driver.widen import is_narrow, widened
from onnxtile.fusion.rewrite import PatternResult
from onnxtile.fusion.rewrite import fuse as fuse_graph
from onnxtile.fusion.site_check import SiteVerdict, check_sites
from onnxtile.model.load import Source, load
from onnxtile.model.plan_marks import clear_plan
from onnxtile.model.shapes import resolve
from onnxtile.model.validity import check
from onnxtile.verbs.stage import Dims, Progress, agreeing, require_sites, silent
from onnxtile.verification import Verdict, bound_copy, compare_with, excused, run_original


@dataclass(frozen=True)
class FuseResult:
    """The fused model, what each pattern did, and the verdict of the runs (None where verification was off)."""

    model: ir.Model = field(repr=False)
    patterns: tuple[PatternResult, ...]
    nodes_before: int
    nodes_after: int
    verdict: Verdict | None
    sites: tuple[SiteVerdict, ...] = ()
    lowered: tuple[LoweredSite, ...] = ()

    @property
    def fused(self) -> int:
        """How many meta-ops the patterns made."""
        return sum(len(pattern.calls) for pattern in self.patterns)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `fuse`."""
        return {
            "patterns": [pattern.to_dict() for pattern in self.patterns],
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "verdict": self.verdict and self.verdict.to_dict(),
            "sites": [site.to_dict() for site in self.sites],
            "lowered": [site.to_dict() for site in self.lowered],
        }


def fuse(
    model: Source,
    patterns: Iterable[str | Pattern] = (),
    *,
    lower: str = "none",
    verify: bool = True,
    progress: Progress = silent,
) -> FuseResult:
    """Fuse the subgraphs that `patterns` describe into meta-ops: calls of model-local functions.

    A pattern is a name of the library, a set of it, a TOML file, or a query; by default the whole library. `lower` turns calls into
    operators that mean the same where that is proved: "onnx" into standard ones, raising the opset where they ask for it, "ort" into
    those that onnxruntime runs best. Marks of a plan are taken off. With `verify`, each different site alone and the whole model are
    run beside the original. Raises ModelError, QueryError, PatternError, UsageError; Mismatch where the outputs differ.
    """
    chosen = chosen_patterns(patterns, islands=lower == "none")
    progress("reading the model")
    original = load(model)
    clear_plan(original)
    if lower != "none":
        return _lowered(original, chosen, lower, verify, progress)
    fused = original.clone()
    progress("matching")
    results = fuse_graph(fused, chosen, progress, through=True)
    check(fused)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        trials, dims = run_original(original, progress=progress)
        verdict = agreeing(compare_with(trials, fused, dims, progress), "the fused model")
        if any(result.calls for result in results):
            bound = bound_copy(original, dims)
            sites = check_sites(bound, fused, resolve(bound, run=True), progress=progress)
            require_sites(site.call for site in sites if not site.equal)
    return FuseResult(fused, tuple(results), original.graph.num_nodes(), fused.graph.num_nodes(), verdict, sites)


def _lowered(original: ir.Model, chosen: list[Pattern], lower: str, verify: bool, progress: Progress) -> FuseResult:
    names = [target.value for target in Target]
    if lower not in names:
        raise UsageError(f"there is no lowering {lower!r}", hint=f"there is none, {', '.join(names)}")
    progress("matching")
    lowered = lower_graph(original, chosen, Target(lower))
    check(lowered.model)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        verdict, sites = _lowered_verdict(original, lowered, progress)
    return FuseResult(
        lowered.model,
        lowered.patterns,
        original.graph.num_nodes(),
        lowered.model.graph.num_nodes(),
        verdict,
        sites,
        lowered.sites,
    )


def _lowered_verdict(
    original: ir.Model, lowered: Lowered, progress: Progress
) -> tuple[Verdict, tuple[SiteVerdict, ...]]:
    """Run each site alone, and compare the outputs of both models; where they are of bfloat16, which has few kernels, of both in float.

    Rounding may explain what the whole is off by only where every site was seen to be right alone. Raises Mismatch.
    """
    model = lowered.model
    if is_narrow(original):
        original, model = widened(original), widened(model)
    trials, dims = run_original(original, progress=progress)
    verdict = compare_with(trials, model, dims, progress)
    sites = _lowered_sites(lowered, dims, progress)
    require_sites(site.call for site in sites if not site.equal)
    if not any(site.skipped for site in sites):
        verdict = excused(verdict, original, trials)
    return agreeing(verdict, "the lowered model"), sites


def _lowered_sites(lowered: Lowered, dims: Dims, progress: Progress) -> tuple[SiteVerdict, ...]:
    """Run each different lowered site, and each different call that stayed, alone."""
    bound, model = bound_copy(lowered.source, dims), lowered.model
    facts = Facts(bound, resolve(bound, run=not is_narrow(bound)))
    if is_narrow(bound):
        bound, model = widened(bound), widened(model)
    shapes = resolve(bound, run=True)
    return (
        *check_sites(bound, model, shapes, progress=progress),
        *check_parts(lowered.parts, facts, progress=progress),
    )


def chosen_patterns(patterns: Iterable[str | Pattern], *, islands: bool = True) -> list[Pattern]:
    """Return the patterns that `patterns` name; where they name none the library, and with `islands` those of quantised operators.

    Raises PatternError, QueryError, UsageError.
    """
    chosen: list[Pattern] = []
    for pattern in patterns:
        chosen += [pattern] if isinstance(pattern, Pattern) else pattern_files.select([pattern])
    quantised = pattern_files.pattern_set("quantised") if islands and not chosen else []
    return pattern_files.require_distinct(chosen) or [*pattern_files.pattern_set(), *quantised]
