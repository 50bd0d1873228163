"""verify: two models are run on the same inputs, and every output is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from onnxtile.declare.verb import Outcome, declared
from onnxtile.model.binding import bind, free_inputs, symbols
from onnxtile.model.feeds import Feeds, read_inputs
from onnxtile.model.load import load
from onnxtile.model.session import repeatable_session
from onnxtile.system.long_work import Progress
from onnxtile.verbs.flows.results import BoundDims, InputShapes, not_both, nothing_compared, worst_difference
from onnxtile.verbs.verify import CompareOptions
from onnxtile.verification.draws import same_draws
from onnxtile.verification.rounding import compare_before, excused_by_one_step, within_one_step
from onnxtile.verification.trials import Trial, Verdict, bisect, compare_with, run_edges, run_original


@declared(CompareOptions)
def verify(options: CompareOptions) -> Verdict:
    """Run both models on the same inputs and compare every output; a difference is in the result, not an error.

    A symbol of `dims` need be in one of the models only; a size that one model leaves free is what the other fixes. Raises ModelError
    where onnxruntime refuses one of them or they take different inputs, and UsageError.
    """
    progress = options.progress
    if options.input_file is not None and options.input_ranges and not options.edge:
        raise not_both()
    progress("reading the models")
    first, second = load(options.model), load(options.other)
    _bind_both(first, second, options.single_dims, options.whole_shapes)
    given = None if options.input_file is None else read_inputs(options.input_file, first)
    models = same_draws(first, second)
    first, second = models.first, models.second
    progress("running the first model")
    trials, assigned, skipped = _run_first(first, options, given, progress)
    progress("running the second model")

    def judged(original: ir.Model, other: ir.Model, ran: list[Trial]) -> Verdict:
        if options.tolerance is not None:
            return compare_with(ran, other, assigned, progress, within_one_step(first))
        return excused_by_one_step(compare_with(ran, other, assigned, progress), original, other, ran)

    verdict = compare_before(judged(first, second, trials), trials, first, second, judged)
    verdict = replace(models.judged(verdict), skipped=skipped)
    if all(output.equal for output in verdict.outputs) or not options.bisect:
        return verdict
    progress("looking for the first value that differs")
    return replace(verdict, bisection=bisect(first, second, _worst(verdict, trials).feeds, progress))


def run(options: CompareOptions) -> Outcome:
    """Do what the command and the step `verify` ask for."""
    verdict = verify.from_options(options)
    reason = None
    if verdict.is_empty:
        reason = f"no output could be compared: {nothing_compared(verdict)}"
    elif not verdict.equal:
        reason = f"the outputs differ: {worst_difference(verdict)}"
    return Outcome(verdict, "verify", reason=reason)


def _run_first(
    model: ir.Model, options: CompareOptions, given: Feeds | None, progress: Progress
) -> tuple[list[Trial], dict[str, int], dict[str, str]]:
    """Return the trials of the first model, its sizes, and the edges it refuses. Its session ends here: two would double the memory."""
    runner = repeatable_session(model)
    trials, assigned = run_original(
        model,
        runs=options.run_count or 2,
        seed=options.seed,
        given=given,
        ranges=options.input_ranges,
        runner=runner,
        progress=progress,
    )
    edges, skipped = (
        run_edges(model, trials[0].feeds, runner, ranges=options.input_ranges) if options.edge else ([], {})
    )
    return [*trials, *edges], assigned, skipped


def _worst(verdict: Verdict, trials: list[Trial]) -> Trial:
    """Return the trial on which an output differs."""
    named = {trial.inputs: trial for trial in trials}
    return next(
        (named[output.inputs] for output in verdict.outputs if not output.equal and output.inputs in named), trials[0]
    )


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
    missing = {}
    for value in free_inputs(model):
        shape, given = value.shape, fixed.get(value.name or "")
        if given is None or shape is None or shape.is_static() or len(shape) != len(given):
            continue
        if all(not isinstance(dim, int) or dim == size for dim, size in zip(shape, given, strict=True)):
            missing[value.name or ""] = given
    return missing
