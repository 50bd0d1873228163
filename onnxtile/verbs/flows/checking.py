"""Checks a plan against its model, and a model against its original."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.model.binding import bind, formula_names, free_inputs, rename_symbols, symbols
from onnxtile.model.constants import Constants
from onnxtile.model.feeds import Wanted
from onnxtile.model.load import digest, load
from onnxtile.model.npz_inputs import Feeds, given_shapes, read_inputs
from onnxtile.model.session import repeatable_session
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import UsageError
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.kernels import KernelChoice, choose_kernels
from onnxtile.verbs.flows.stage import BoundDims, InputShapes, not_both
from onnxtile.verification.bisect import bisect
from onnxtile.verification.draws import same_draws
from onnxtile.verification.rounding import compare_before, excused_by_one_step, within_one_step
from onnxtile.verification.trials import Trial, Verdict, compare_with, run_edges, run_original

if TYPE_CHECKING:
    from onnxtile.check.audit import Audit
    from onnxtile.declare.plan_document import PlanDocument, PlanFailure, ReadPlan
    from onnxtile.verbs.options.plan import CheckOptions
    from onnxtile.verbs.options.verify import CompareOptions


def check_plan(options: CheckOptions) -> Audit:
    """Check a plan as `onnxtile.check_plan` says."""
    from onnxtile.check.audit import Audit, check_ranges, judged
    from onnxtile.check.graph import Model
    from onnxtile.check.movement import with_claimed_copies
    from onnxtile.check.ranges import listed, wrong_ranges
    from onnxtile.check.reading import RangedValue, plain_model, ranged_values
    from onnxtile.declare.plan_document import PlanFailure, ReadPlan

    progress, model, plan = options.progress, options.model, options.plan
    inputs, ranges = options.inputs, options.ranges
    progress("reading the plan")
    claims, surplus = _read(plan) if isinstance(plan, Path | str) else ReadPlan(plan, ())
    progress("reading the model")
    checked = load(model)
    given = None if inputs is None else read_inputs(inputs, checked)
    open_ = set(symbols(free_inputs(checked)))
    wrong, noted = [*_unknown(claims, open_)], []
    told = {name: size for name, size in claims.dims.items() if name in open_}
    words: dict[str, str] = {}
    if claims.ranges:
        words = formula_names(checked)
        ranged = {name for name in told if words.get(name, name) in claims.ranges or name in claims.sums}
        told = {name: size for name, size in told.items() if name not in ranged}
    wrong += wrong_ranges(claims, words)
    if wrong:
        return Audit.refused(*wrong)
    if surplus:
        reasons = (f"{name}: the model shows no such field, so that nothing can check it" for name in surplus)
        return Audit.refused(*map(PlanFailure, reasons))
    bind(checked, {**told, **options.single_dims}, {**given_shapes(given or {}), **options.whole_shapes})
    islands = choose_kernels(checked, KernelChoice.NODES if claims.kernels is None else KernelChoice.ISLANDS)
    # A planned model has its islands already.
    if claims.outside is not None and claims.kernels not in {None, islands}:
        noted.append(
            PlanFailure(f"kernels are {claims.kernels and vars(claims.kernels)}, not {islands and vars(islands)}")
        )
    largest = {**claims.bounds, **(options.bounds or {})} or None
    wanted = Wanted(given, ranges)
    if claims.ranges:
        rename_symbols(checked, {**claims.sums, **words})

        def at(sizes: Mapping[str, int]) -> Model:
            progress(f"checking the plan at {listed(sizes)}")
            bound = checked.clone()
            bind(bound, sizes, {}, least=0)
            shapes = resolve(bound, run=True, wanted=wanted, bounds=largest)
            return Model(*plain_model(bound, shapes, Constants(bound)))

        def over() -> Mapping[str, RangedValue]:
            progress("checking the plan over its ranges")
            return ranged_values(
                checked, resolve(checked, run=True, wanted=wanted, bounds=largest, ranges=claims.ranges)
            )

        return check_ranges(claims, at, over, digest(model)).with_failures(noted)
    progress("inferring shapes")
    known = resolve(checked, run=True, wanted=wanted, bounds=largest)
    progress("checking the plan")
    plain = plain_model(checked, known, Constants(checked))
    is_copied = claims.movement is not None and claims.movement.copies is not None
    copied = with_claimed_copies(plain, claims) if is_copied else plain
    if isinstance(copied, PlanFailure):
        return Audit.refused(copied)
    return judged(Model(*copied), claims, digest(model)).with_failures(noted)


def _unknown(claims: PlanDocument, known: Collection[str]) -> Iterator[PlanFailure]:
    """Yield the dimensions of `claims` that are not in `known`, those of the model."""
    from onnxtile.declare.plan_document import PlanFailure

    for kind, names in (("dims", claims.dims), ("sums", claims.sums)):
        for name in names:
            if name not in known:
                yield PlanFailure(f"{kind}: the model has no open dimension {name!r}")


def _read(file: Path | str) -> ReadPlan:
    from onnxtile.check.marks import from_marks
    from onnxtile.declare.plan_document import ReadPlan, from_json

    path = Path(file)
    if path.suffix.lower() != ".json":
        return ReadPlan(from_marks(load(path), str(path)), ())
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error
    return from_json(data, str(path))


# Run two models and compare every output.


def verify(how: CompareOptions) -> Verdict:
    """Compare two models as `onnxtile.verify` says."""
    progress = how.progress
    if how.inputs is not None and how.ranges and not how.edge:
        raise not_both()
    progress("reading the models")
    first, second = load(how.model), load(how.other)
    _bind_both(first, second, how.single_dims, how.whole_shapes)
    given = None if how.inputs is None else read_inputs(os.fspath(how.inputs), first)
    models = same_draws(first, second)
    first, second = models.first, models.second
    progress("running the first model")
    trials, assigned, skipped = _run_first(first, how, given, progress)
    progress("running the second model")

    def judged(original: ir.Model, other: ir.Model, ran: list[Trial]) -> Verdict:
        if how.tolerance is not None:
            return compare_with(ran, other, assigned, progress, within_one_step(first))
        return excused_by_one_step(compare_with(ran, other, assigned, progress), original, other, ran)

    verdict = compare_before(judged(first, second, trials), trials, first, second, judged)
    verdict = replace(models.judged(verdict), skipped=skipped)
    if all(output.equal for output in verdict.outputs) or not how.bisect:
        return verdict
    progress("looking for the first value that differs")
    return replace(verdict, bisection=bisect(first, second, _worst(verdict, trials).feeds, progress))


def _run_first(
    model: ir.Model, how: CompareOptions, given: Feeds | None, progress: Progress
) -> tuple[list[Trial], dict[str, int], dict[str, str]]:
    """Return the trials of the first model, its sizes, and the edges it refuses. Its session ends here: two would double the memory."""
    runner = repeatable_session(model)
    trials, assigned = run_original(
        model, runs=how.runs, seed=how.seed, given=given, ranges=how.ranges, runner=runner, progress=progress
    )
    edges, skipped = run_edges(model, trials[0].feeds, runner, ranges=how.ranges) if how.edge else ([], {})
    return [*trials, *edges], assigned, skipped


def _worst(verdict: Verdict, trials: list[Trial]) -> Trial:
    """Return the trial on which an output differs."""
    named = {trial.inputs: trial for trial in trials}
    return next((named[one.inputs] for one in verdict.outputs if not one.equal and one.inputs in named), trials[0])


def _bind_both(first: ir.Model, second: ir.Model, dims: BoundDims, shapes: InputShapes) -> None:
    """Bind the sizes in both models, then give each the input sizes that only the other fixes."""
    mine, others = symbols(free_inputs(first)), symbols(free_inputs(second))
    # A symbol that neither has is an error of the first.
    bind(first, {name: size for name, size in dims.items() if name in mine or name not in others}, shapes)
    bind(second, {name: size for name, size in dims.items() if name in others}, shapes)
    for model, fixed in ((first, _fixed(second)), (second, _fixed(first))):
        bind(model, {}, _missing(model, fixed))


def _fixed(model: ir.Model) -> dict[str, tuple[int, ...]]:
    inputs = free_inputs(model)
    return {v.name or "": v.shape.numpy() for v in inputs if v.shape is not None and v.shape.is_static()}


def _missing(model: ir.Model, fixed: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return those shapes of `fixed` that say what `model` leaves open, and contradict nothing that it says."""
    found = {}
    for value in free_inputs(model):
        shape, given = value.shape, fixed.get(value.name or "")
        if given is None or shape is None or shape.is_static() or len(shape) != len(given):
            continue
        if all(not isinstance(dim, int) or dim == size for dim, size in zip(shape, given, strict=True)):
            found[value.name or ""] = given
    return found
