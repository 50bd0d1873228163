"""Fuse with `--lower`: meta-ops become operators, each different site is run alone, and then the whole."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxtile.fusion.library import Pattern
from onnxtile.fusion.lowering import Target
from onnxtile.fusion.lowering_driver.evidence import SitePair
from onnxtile.fusion.lowering_driver.facts import LoweringFacts
from onnxtile.fusion.lowering_driver.lower import Lowered
from onnxtile.fusion.lowering_driver.lower import lower as lower_graph
from onnxtile.fusion.lowering_driver.lowered_site_check import check_parts
from onnxtile.fusion.site_check import SiteVerdict, check_sites
from onnxtile.model.shapes import resolve
from onnxtile.model.validity import check
from onnxtile.model.widen import is_narrow, widened
from onnxtile.verbs.flows.fusing import FuseResult, bound_shapes
from onnxtile.verbs.flows.stage import BoundDims, Progress, agreeing, require_sites
from onnxtile.verification import Verdict, bound_form, compare_with, excused, run_original, same_draws


def lower_patterns(
    original: ir.Model, chosen: list[Pattern], lower: str, verify: bool, progress: Progress
) -> FuseResult:
    """Return `original` with the matches of the patterns `chosen` as operators of the target `lower`."""
    progress("matching")
    lowered = lower_graph(original, chosen, Target(lower), progress=progress)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        narrow = is_narrow(original)
        reference = widened(original) if narrow else original
        trials, dims = run_original(reference, progress=progress)
        lowered, sites = _with_fit_sites(original, chosen, lowered, dims, progress)
        # Of bfloat16, which has few kernels, both models run in float.
        models = same_draws(reference, widened(lowered.model) if narrow else lowered.model)
        if models.first is not reference:
            trials, dims = run_original(models.first, progress=progress)
        verdict = compare_with(trials, models.second, dims, progress)
        if not any(site.skipped for site in sites):
            verdict = excused(verdict, models.first, models.second, trials)
        verdict = agreeing(models.judged(verdict), "the lowered model")
    check(lowered.model)
    return FuseResult(
        lowered.model,
        lowered.patterns,
        original.graph.num_nodes(),
        lowered.model.graph.num_nodes(),
        verdict,
        sites,
        lowered.sites,
    )


def _with_fit_sites(
    original: ir.Model, chosen: list[Pattern], lowered: Lowered, dims: BoundDims, progress: Progress
) -> tuple[Lowered, tuple[SiteVerdict, ...]]:
    """Return `lowered`, and the verdicts on its sites run alone; made anew without the sites that do not compute what they replace.

    Those stay calls. Raises Mismatch where the operator was declared by a pattern file, whose claim is wrong.
    """
    declared = {pattern.name for pattern in chosen if pattern.lowering is not None}
    unfit: dict[str, str] = {}
    while True:
        sites, verdicts = _lowered_sites(lowered, dims, progress)
        failed = _failed(lowered, verdicts)
        require_sites(part.call for part, v in failed if part.meta_op in declared and not v.refused)
        if not failed:
            require_sites(site.call for site in sites if not site.equal)
            return lowered, (*sites, *verdicts)
        for part, v in failed:
            unfit |= dict.fromkeys((part.call, *part.same), _why_unfit(v))
        lowered = lower_graph(original, chosen, lowered.target, unfit=unfit, progress=progress)


def _failed(lowered: Lowered, verdicts: Iterable[SiteVerdict]) -> list[tuple[SitePair, SiteVerdict]]:
    return [(part, v) for part, v in zip(lowered.parts, verdicts, strict=True) if not v.equal]


def _why_unfit(verdict: SiteVerdict) -> str:
    """Return why a lowered site has to stay a call."""
    if verdict.refused:
        return f"onnxruntime refuses the operator: {verdict.refused}"
    worst = max((output for output in verdict.outputs if not output.equal), key=lambda output: output.max_abs)
    return f"run alone, the operator is off by {worst.max_abs:.3g}"


def _lowered_sites(
    lowered: Lowered, dims: BoundDims, progress: Progress
) -> tuple[tuple[SiteVerdict, ...], tuple[SiteVerdict, ...]]:
    """Run each different call that stayed, and each different lowered site, alone."""
    bound, model = bound_form(lowered.source, dims), lowered.model
    shapes = bound_shapes(lowered.source, lambda: lowered.shapes, bound)
    facts = LoweringFacts(bound, shapes)
    if is_narrow(bound):
        bound, model = widened(bound), widened(model)
        shapes = resolve(bound, run=True)
    stayed = check_sites(bound, model, shapes, progress=progress)
    return stayed, check_parts(lowered.parts, facts, progress=progress)
