"""fuse: subgraphs become meta-ops, with --lower operators, with --for-memory only where the arena gets no larger; and unfuse."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from onnxtile.declare.layout_rules import FIXED
from onnxtile.declare.verb import Outcome, declared
from onnxtile.fusion.fuse import PatternResult, Site
from onnxtile.fusion.fuse import fuse as fuse_graph
from onnxtile.fusion.pattern import Pattern, chosen_patterns
from onnxtile.fusion.site_check import EdgeRule, SiteVerdict, check_sites
from onnxtile.fusion.unfuse import unfuse as unfuse_graph
from onnxtile.model import keys
from onnxtile.model.binding import free_inputs
from onnxtile.model.load import load
from onnxtile.model.save import Draft, check_written, written
from onnxtile.model.topology import all_values, clear_plan, cloned, node_ids
from onnxtile.model.validity import check
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import about_options
from onnxtile.system.long_work import Progress
from onnxtile.verbs.flows.results import (
    ArenaChange,
    BoundDims,
    FuseResult,
    UnfuseResult,
    agreeing,
    file_of,
    require_sites,
)
from onnxtile.verbs.fuse import FuseOptions
from onnxtile.verbs.unfuse import UnfuseOptions
from onnxtile.verification.open_sizes import bound_copy, bound_form
from onnxtile.verification.rounding import bound_shapes, compare, is_narrow, resolved
from onnxtile.verification.trials import Verdict, run_original

if TYPE_CHECKING:
    from onnxtile.planning.result import PlanResult


@declared(FuseOptions)
def fuse(options: FuseOptions) -> FuseResult:
    """Fuse the subgraphs that `patterns` describe into meta-ops: calls of model-local functions.

    A pattern is a name of the library, a set of it, a TOML file, or a query; by default the whole library. `lower` turns calls into
    operators that mean the same where that is proved: "onnx" into standard ones, raising the opset where they ask for it, "ort" into
    those that onnxruntime runs best. `edge` says which of them may differ from the call on zeros, NaN, infinities and extreme numbers:
    "kinder" where a number comes in place of NaN, "strict" none, "any" all. With `for_memory`, meta-ops are left out until the arena of
    the default plan is no larger than that of `model`. Marks of a plan are taken off. With `verify`, each different site and the whole
    model are run beside the original. Raises ModelError, QueryError, PatternError, UsageError; Mismatch where the outputs differ.
    """
    return _fuse(options)[0]


def _fuse(options: FuseOptions) -> tuple[FuseResult, Draft]:
    """Return what `fuse` returns, and its model as it is to be written."""
    lower, verify, progress = options.lower, options.verify, options.progress
    _require_runs(options)
    chosen = chosen_patterns(options.patterns, lower)
    progress("reading the model")
    original, source = load(options.model), file_of(options.model)
    clear_plan(original)
    if lower != "none" and options.for_memory:
        message = "{for_memory} chooses meta-ops, and {lower} replaces them"
        raise about_options(message, hint="leave out one of the two")
    if lower != "none":
        from onnxtile.verbs.flows.lower import lower_patterns  # fuse without lowering takes no time to load it

        lowered = lower_patterns(original, chosen, lower, EdgeRule(options.edge), verify, progress)
        return replace(lowered, source=source), Draft(lowered.model)
    shapes = cache(lambda: resolved(original))
    arena: ArenaChange | None = None

    def fuse_copy(left_out: Container[Site]) -> tuple[ir.Model, list[PatternResult]]:
        return _fused_copy(original, chosen, shapes, left_out, progress)

    if options.for_memory:
        (fused, results), arena = choose_by_memory(original, fuse_copy, _sizes(original, progress), progress)
    else:
        fused, results = fuse_copy(())
    draft = written(fused)
    check_written(draft)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        verdict = compare(original, fused, progress=progress, file=source, content=draft.content)
        verdict = agreeing(verdict, "the fused model")
        if any(result.calls for result in results):
            bound = bound_form(original, verdict.dims)
            known = resolve(bound, run=True) if is_narrow(bound) else bound_shapes(original, shapes, bound)
            sites = check_sites(bound, fused, known, progress=progress)
            require_sites(site.call for site in sites if not site.equal)
    result = FuseResult(
        fused,
        tuple(results),
        original.graph.num_nodes(),
        fused.graph.num_nodes(),
        verdict,
        sites,
        arena=arena,
        source=source,
    )
    return result, draft


def _require_runs(options: FuseOptions) -> None:
    """Raise UsageError where edge rows decide, and nothing is run on them."""
    if options.edge == EdgeRule.KINDER.value:
        return
    if options.lower == "none":
        message = "{edge} is about edge rows of lowered sites"
        raise about_options(message, hint="add {lower}", edge=options.edge)
    if not options.verify:
        message = "{edge} takes runs on edge rows, and {verify} leaves out all runs"
        raise about_options(message, hint="leave out one of the two", edge=options.edge)


def _fused_copy(
    original: ir.Model,
    patterns: list[Pattern],
    shapes: Callable[[], Shapes],
    left_out: Container[Site],
    progress: Progress,
) -> tuple[ir.Model, list[PatternResult]]:
    """Return a copy of `original` fused with `patterns`, and the outcome of each; `shapes` are those of `original`."""
    fused = cloned(original)
    counterparts = dict(zip(values(original), values(fused), strict=True))
    progress("matching")
    known = cache(lambda: shapes().of_copies(counterparts))
    return fused, fuse_graph(fused, patterns, progress, known, through=True, left_out=left_out)


def _sizes(model: ir.Model, progress: Progress) -> BoundDims:
    """Return the sizes with which verification runs `model`; none where all its inputs have sizes."""
    bound = all(value.shape is not None and value.shape.is_static() for value in free_inputs(model))
    return {} if bound else run_original(model, runs=1, progress=progress)[1]


def run(options: FuseOptions) -> Outcome:
    """Do what the command and the step `fuse` ask for."""
    result, draft = _fuse(options)
    # Patterns that are named must match; those of the library need not.
    if not options.patterns or result.lowered or any(pattern.matches for pattern in result.patterns):
        return Outcome(result, "fuse", draft)
    note = "error: no pattern that was named matches, so nothing is written (--explain NAME says why)"
    return Outcome(result, "", reason=_no_match(result.patterns), note=note)


def _no_match(patterns: Sequence[PatternResult]) -> str:
    """Return that no pattern matches, and what does the work of the meta-ops already."""
    already = [f"{operator} {count:,}" for pattern in patterns for operator, count in pattern.already.items()]
    return "no match" + (f" (already one node: {', '.join(already)})" if already else "")


# With --for-memory, meta-ops are left out until the model needs no larger arena than node by node.

_ROUNDS = 32
"""Largest number of plans that are made to find the meta-ops that cost memory; after that, all are left out."""

Fusion: TypeAlias = tuple[ir.Model, list[PatternResult]]
"""A fused model, and the outcome of each pattern."""


def choose_by_memory(
    original: ir.Model, fuse: Callable[[Container[Site]], Fusion], dims: Mapping[str, int], progress: Progress
) -> tuple[Fusion, ArenaChange]:
    """Fuse `original`, and leave out sites until its arena, as `plan` makes it by default, is no larger than before.

    `fuse` fuses a copy of the model without certain sites. `dims` are the sizes of its symbolic dimensions. Sites are left out whose kernel
    runs, or whose operands live, while the model needs more bytes than before.
    """
    progress("planning")
    before = _arena(_plan(original, dims))
    left_out: set[Site] = set()
    for _ in range(_ROUNDS):
        fused, results = fuse(left_out)
        planned = _plan(fused, dims)
        if _arena(planned) <= before:
            return (fused, results), ArenaChange(before, _arena(planned))
        costly = _costly(fused, planned, before) - left_out
        if not costly:
            break
        left_out |= costly
    return fuse(_AllSites()), ArenaChange(before, before)


class _AllSites:
    def __contains__(self, site: object) -> bool:
        return True


def _plan(model: ir.Model, dims: Mapping[str, int]) -> PlanResult:
    """Return the plan of `model` that `plan` makes by default."""
    from onnxtile.verbs.flows.plan import plan
    from onnxtile.verbs.plan import PlanOptions

    copy = bound_copy(model, dims)
    # Only sizes are compared: the memories that tensors are placed in have no capacities here.
    for value in all_values(copy):
        value.metadata_props.pop(FIXED["places"].mark, None)
    return plan.from_options(PlanOptions(copy, verify=False)).plan


def _arena(plan: PlanResult) -> int:
    return sum(arena.size for arena in plan.arenas)


def _costly(model: ir.Model, plan: PlanResult, limit: int) -> set[Site]:
    """Return the sites of meta-ops that run while more than `limit` bytes live; where none runs then, those whose operands live then."""
    steps = _steps_over(plan, limit)
    names = {name: node for node, name in node_ids(model.graph).items() if keys.FUSED in node.metadata_props}
    at = dict(zip(plan.schedule, plan.steps, strict=True))
    running = {_site(node) for name, node in names.items() if at.get(name) in steps}
    if running:
        return running
    live = {row.name for row in plan.buffers if any(row.first <= step <= row.last for step in steps)}
    touched = {name: {value.name for value in (*node.inputs, *node.outputs) if value} for name, node in names.items()}
    return {_site(node) for name, node in names.items() if live & touched[name]}


def _steps_over(plan: PlanResult, limit: int) -> set[int]:
    """Return the steps at which more than `limit` bytes live; those of the largest sum where none has more, as between buffers are gaps."""
    from onnxtile.verbs.flows.kernels import live_bytes

    live = live_bytes(plan)
    least = min(limit + 1, max(live))
    return {step for step, size in enumerate(live) if size >= least}


def _site(call: ir.Node) -> Site:
    return keys.meta_op(call.op_type), call.outputs[0].name or ""


# unfuse undoes all that fuse did.


@declared(UnfuseOptions)
def unfuse(options: UnfuseOptions) -> UnfuseResult:
    """Undo all that fuse did to `model`, and take the marks of a plan off.

    Raises UsageError where there is nothing to undo, ModelError, Mismatch.
    """
    progress = options.progress
    progress("reading the model")
    fused = load(options.model)
    restored = cloned(fused)
    unfused = unfuse_graph(restored)
    clear_plan(restored)
    check(restored)
    verdict = None
    if options.verify:
        progress("verifying")
        verdict = agreeing(compare(fused, restored, progress=progress), "the unfused model")
    return UnfuseResult(restored, unfused, verdict, source=file_of(options.model))


def run_unfuse(options: UnfuseOptions) -> Outcome:
    """Do what the command and the step `unfuse` ask for."""
    result = unfuse.from_options(options)
    return Outcome(result, "unfuse", result.model)
