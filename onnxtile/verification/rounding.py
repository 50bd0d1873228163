"""Judges a rewritten model by the effect that rounding has on the original model.

A sum in another order, or another formula for the same function, rounds otherwise, and some models make much of that: near 0 a sigmoid in
float32 knows steps of 6e-8 only, however small its result. So where an output is further off than the usual tolerance, it is held
against what the original makes of inputs that are changed by one unit in the last place; each rewritten site is judged alone besides.
In a quantised model, where rounding crosses from one step of quantisation to the next, some elements of every quantised tensor are
changed by one step as well. An output that a quantisation makes may be one step off.

A model that computes in floats of 16 bits rounds each result, whatever element type its outputs have. Where both models, run in
float32, agree, the outputs may be off as far as floats of 16 bits may.

No effect is measured through numbers that differ from run to run: each run draws the same ones. An output that depends on a random
operator without a seed, or on one that chooses by the size of its operands, has the usual tolerance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.session import ModelRunner, repeatable_session, session_of
from onnxtile.model.widen import HALVES, halves, widened
from onnxtile.progress import Progress, silent
from onnxtile.runtime import Array
from onnxtile.verification.before_last import compare_before
from onnxtile.verification.draws import drawn_outputs, same_draws, unsteady_outputs
from onnxtile.verification.one_step import of_last_quantisation
from onnxtile.verification.steps import one_step_off
from onnxtile.verification.trials import OutputComparison, Trial, Verdict, compare_with, run_original
from onnxtile.verification.values import OutputError, compare_values, precision_of

_FACTOR = 2
_INPUTS = "inputs one unit in the last place apart"
_NUDGES = 3


def judge(
    original: ir.Model, rewritten: ir.Model, progress: Progress = silent, compared: OutputComparison | None = None
) -> Verdict:
    """Run both models on the same inputs; an output may be off by the usual tolerance, or twice as far as rounding leads.

    Rounding changes inputs by one unit in the last place, and quantised tensors of `original`, where it has some, by one step. A
    comparison of outputs that is given decides alone. An output that is flat on these inputs is compared before its last Sigmoid or
    Softmax.

    Raises ModelError where onnxruntime refuses one of the models.
    """
    models = same_draws(original, rewritten)
    trials, dims = run_original(models.first, progress=progress)

    def judged(first: ir.Model, second: ir.Model, ran: list[Trial]) -> Verdict:
        if compared is not None:
            return compare_with(ran, second, dims, progress, compared)
        return excused(compare_with(ran, second, dims, progress), first, second, ran)

    pair = models.first, models.second
    return models.judged(compare_before(judged(*pair, trials), trials, *pair, judged))


def compare(
    original: ir.Model, other: ir.Model, *, runs: int = 2, seed: int = 0, progress: Progress = silent
) -> Verdict:
    """Run both models on the same random inputs and compare every output.

    Symbolic dimensions that are not bound get sizes with which `original` runs. Raises ModelError where onnxruntime refuses one of
    the models, or where no such sizes are found.
    """
    models = same_draws(original, other)
    trials, dims = run_original(models.first, runs=runs, seed=seed, progress=progress)
    return models.judged(compare_with(trials, models.second, dims, progress))


def excused(verdict: Verdict, original: ir.Model, rewritten: ir.Model, trials: Iterable[Trial]) -> Verdict:
    """Return `verdict` with those outputs passed, too, that are off by no more than rounding in `original` explains.

    That is twice what one unit in the last place leads to, or, of floats of 16 bits, their tolerance where both models agree in float32.
    """
    trials = list(trials)
    measured = _without(verdict, unsteady_outputs(original) | unsteady_outputs(rewritten))
    if not measured.equal:
        measured = excused_by_one_step(measured, original, rewritten, trials)
    if not measured.equal:
        measured = _excused_by_units(measured, original, trials)
    if not measured.equal and (narrow := halves(original)):
        measured = _excused_in_float(measured, original, rewritten, trials, narrow)
    return _with(verdict, measured)


def _without(verdict: Verdict, names: Collection[str]) -> Verdict:
    """Return `verdict` on the outputs that are not among `names`."""
    return replace(verdict, outputs=tuple(one for one in verdict.outputs if one.name not in names))


def _with(verdict: Verdict, measured: Verdict) -> Verdict:
    """Return `verdict` with the outputs of `measured` as these are there."""
    found = {one.name: one for one in measured.outputs}
    return replace(verdict, outputs=tuple(found.get(one.name, one) for one in verdict.outputs))


def excused_by_one_step(verdict: Verdict, original: ir.Model, other: ir.Model, trials: list[Trial]) -> Verdict:
    """Return `verdict` with those outputs passed, too, that a quantisation makes, and that are at most one step off.

    The rounding before a quantisation crosses from one step to the next where an exact value lies near the border.
    """
    made, compared = of_last_quantisation(original)
    made -= unsteady_outputs(original) | unsteady_outputs(other)
    if all(one.equal or one.name not in made for one in verdict.outputs):
        return verdict
    found = {
        one.name: one
        for one in compare_with(trials, other, {}, compared=compared).outputs
        if one.equal and one.name in made
    }
    return replace(verdict, outputs=tuple(one if one.equal else found.get(one.name, one) for one in verdict.outputs))


def _excused_by_units(verdict: Verdict, original: ir.Model, trials: list[Trial]) -> Verdict:
    stepping = one_step_off(original)
    kinds = "f" if stepping is None else "fiu"
    reach = moved_by_rounding(_runners(original, stepping), trials, kinds)
    cause = _INPUTS if stepping is None else f"{_INPUTS}, and quantised tensors one step apart,"
    outputs = tuple(output if output.equal else _within(output, reach, cause) for output in verdict.outputs)
    return replace(verdict, outputs=outputs)


def _excused_in_float(
    verdict: Verdict, original: ir.Model, rewritten: ir.Model, trials: list[Trial], narrow: set[ir.DataType]
) -> Verdict:
    """Return `verdict` with those outputs passed that are equal in float, and off by no more than what is `narrow` may be."""
    first, second = (widened(model, HALVES) for model in (original, rewritten))
    try:
        runner = repeatable_session(first)
        wide = [replace(trial, feeds=fed, results=runner.run(fed)) for trial in trials for fed in [_wide(trial.feeds)]]
        in_float = excused(compare_with(wide, second, {}), first, second, wide)
    except ModelError:  # an operator has no kernel of floats, and says nothing of the two
        return verdict
    coarsest = max(precision_of(dtype.numpy()) for dtype in narrow)
    loosely = compare_with(trials, rewritten, {}, compared=partial(compare_values, coarsest=coarsest))
    fine = {one.name for one in in_float.outputs if one.equal} & {one.name for one in loosely.outputs if one.equal}
    why = "equal in float32, and within the tolerance of floats of 16 bits"
    outputs = (replace(one, equal=True, reason=why) if one.name in fine else one for one in verdict.outputs)
    return replace(verdict, outputs=tuple(outputs))


def _wide(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return `feeds` with arrays of 16-bit floats in float32."""
    types = [dtype.numpy() for dtype in HALVES]
    return {
        name: fed.astype(np.float32) if isinstance(fed, np.ndarray) and fed.dtype in types else fed
        for name, fed in feeds.items()
    }


def _within(output: OutputError, reach: Mapping[str, float], cause: str) -> OutputError:
    allowed = _FACTOR * reach.get(output.name, 0.0)
    if not output.max_abs <= allowed:
        return output
    return replace(output, equal=True, reason=f"{cause} move it by {allowed / _FACTOR:.2g}")


def _runners(original: ir.Model, stepping: ir.Model | None) -> list[ModelRunner]:
    """Return what runs the model at each nudge: `stepping` where there is one, which draws other steps in each run.

    A model with random operators begins each run anew, to draw the same numbers in all; so its steps have other seeds at each nudge.
    """
    if not drawn_outputs(original):
        return [session_of(original if stepping is None else stepping)] * _NUDGES
    if stepping is None:
        return [repeatable_session(original)] * _NUDGES
    copies = (one_step_off(original, turn) for turn in range(_NUDGES))
    return [repeatable_session(copy) for copy in copies if copy is not None]


def moved_by_rounding(runners: Collection[ModelRunner], trials: Iterable[Trial], kinds: str = "f") -> dict[str, float]:
    """Return how far each output moves, at most, when the inputs of the trials change by one unit in the last place.

    Each of `runners` runs once on each trial. `kinds` are those of numpy whose arrays may move; integers of more than 8 bits never do.
    """
    random = np.random.default_rng(0)
    reach: dict[str, float] = {}
    for trial in trials:
        for runner in runners:
            got = runner.run({name: _nudged(value, random) for name, value in trial.feeds.items()})
            for name, value in trial.results.items():
                reach[name] = max(reach.get(name, 0.0), _distance(value, got[name], kinds))
    return reach


def _nudged(value: Any, random: np.random.Generator) -> Any:
    """Return a float array with each element one unit up or down; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    way = np.where(random.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
    with np.errstate(over="ignore"):  # one unit above the largest number is infinite
        return np.asarray(np.nextafter(value, way))  # of a scalar NumPy makes a number


def _distance(expected: Any, got: Any, kinds: str) -> float:
    """Return the largest difference of two arrays that may move; 0 for all others, which must be equal."""
    if not _may_move(expected, kinds) or not _may_move(got, kinds) or expected.shape != got.shape:
        return 0.0
    with np.errstate(invalid="ignore"):  # the difference of two infinities
        off: Array = np.abs(expected.astype(np.float64) - got.astype(np.float64))
    return float(off[np.isfinite(off)].max(initial=0.0))


def _may_move(value: Any, kinds: str) -> bool:
    return (
        isinstance(value, np.ndarray) and value.dtype.kind in kinds and (value.dtype.kind == "f" or value.itemsize == 1)
    )
