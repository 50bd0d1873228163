"""fuse --lower: meta-ops become operators; each different site is run alone, and then the whole."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import onnx_ir as ir

from onnxtile.fusion.lower.driver import BY_RUN, Lowered, LoweredSites, SitePair
from onnxtile.fusion.lower.driver import lower as lower_graph
from onnxtile.fusion.lower.lowering import LoweringFacts, Target
from onnxtile.fusion.pattern import Pattern
from onnxtile.fusion.site_check import EdgeRule, SiteVerdict, by_effect, check_sites
from onnxtile.model.validity import check
from onnxtile.shapes.resolve import resolve
from onnxtile.system.long_work import Progress
from onnxtile.verbs.flows.results import BoundDims, FuseResult, agreeing, require_sites
from onnxtile.verification.draws import same_draws
from onnxtile.verification.open_sizes import bound_form
from onnxtile.verification.rounding import bound_shapes, excused, is_narrow, widened
from onnxtile.verification.trials import Verdict, compare_with, run_original


def lower_patterns(
    original: ir.Model, chosen: list[Pattern], lower: str, edge: EdgeRule, verify: bool, progress: Progress
) -> FuseResult:
    """Return `original` with the matches of the patterns `chosen` as operators of the target `lower`.

    Where the model is verified, a site that differs on edge rows stays a call unless `edge` admits it.
    """
    progress("matching")
    lowered = lower_graph(original, chosen, Target(lower), progress=progress)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        narrow = is_narrow(original)
        reference = widened(original) if narrow else original
        trials, dims = run_original(reference, progress=progress)
        lowered, sites = _with_fit_sites(original, chosen, lowered, dims, edge, progress)
        # Of bfloat16, which has few kernels, both models run in float.
        models = same_draws(reference, widened(lowered.model) if narrow else lowered.model)
        if models.first is not reference:
            trials, dims = run_original(models.first, progress=progress)
        verdict = compare_with(trials, models.second, dims, progress)
        if not any(site.skipped for site in sites):
            verdict = excused(verdict, models.first, models.second, trials)
        verdict = agreeing(models.judged(verdict), "the lowered model")
    else:
        undecided = (replace(site, decided=site.decided and f"{BY_RUN}, which was left out") for site in lowered.sites)
        lowered = replace(lowered, sites=tuple(undecided))
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
    original: ir.Model, chosen: list[Pattern], lowered: Lowered, dims: BoundDims, edge: EdgeRule, progress: Progress
) -> tuple[Lowered, tuple[SiteVerdict, ...]]:
    """Return `lowered`, and the verdicts of its sites run alone. Sites that do not compute what they replace are lowered again as calls.

    Those stay calls. Raises Mismatch where the operator was declared by a pattern file, whose claim is wrong.
    """
    declared = {pattern.name for pattern in chosen if pattern.lowering is not None}
    unfit: dict[str, str] = {}
    checked = LoweredSites()
    while True:
        sites, verdicts = _lowered_sites(lowered, dims, checked, progress)
        pairs = list(zip(lowered.parts, verdicts, strict=True))
        require_sites(part.call for part, v in pairs if part.meta_op in declared and not v.equal and not v.refused)
        failed = {name: why for part, v in pairs if (why := _why_unfit(v, edge)) for name in (part.call, *part.same)}
        if not failed:
            require_sites(site.call for site in sites if not site.equal)
            return _with_edges(lowered, pairs), (*sites, *verdicts)
        unfit |= failed
        lowered = lower_graph(original, chosen, lowered.target, unfit=unfit, progress=progress)


def _with_edges(lowered: Lowered, pairs: Iterable[tuple[SitePair, SiteVerdict]]) -> Lowered:
    """Return `lowered` with the edge rows named on which its sites differ."""
    edges = {name: by_effect(v.edges) for part, v in pairs if v.edges for name in (part.call, *part.same)}
    sites = (replace(site, edges=edges.get(site.call, {})) if site.operator else site for site in lowered.sites)
    return replace(lowered, sites=tuple(sites))


def _why_unfit(verdict: SiteVerdict, edge: EdgeRule) -> str:
    """Return why a lowered site has to stay a call, nothing where it need not."""
    if verdict.refused:
        return f"onnxruntime refuses the operator: {verdict.refused}"
    if not verdict.equal:
        worst = max((output for output in verdict.outputs if not output.equal), key=lambda output: output.max_abs)
        return f"run alone, the operator is off by {worst.max_abs:.3g}"
    if verdict.edges is None and edge is EdgeRule.STRICT:
        return f"its edge rows cannot be run: {verdict.skipped}"
    refused = next((difference for difference in verdict.edges or () if not edge.admits(difference.effect)), None)
    return "" if refused is None else f"it differs on an edge row: {refused.text}"


def _lowered_sites(
    lowered: Lowered, dims: BoundDims, checked: LoweredSites, progress: Progress
) -> tuple[tuple[SiteVerdict, ...], tuple[SiteVerdict, ...]]:
    """Run each different call that stayed, and each different lowered site that was not `checked` before, alone."""
    bound, model = bound_form(lowered.source, dims), lowered.model
    shapes = bound_shapes(lowered.source, lambda: lowered.shapes, bound)
    facts = LoweringFacts(bound, shapes)
    if is_narrow(bound):
        bound, model = widened(bound), widened(model)
        shapes = resolve(bound, run=True)
    stayed = check_sites(bound, model, shapes, progress=progress)
    return stayed, checked.check(lowered.parts, facts, progress)
