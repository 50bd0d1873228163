"""Judges a rewritten model by the effect that rounding has on the original model.

A sum in another order, or another formula for the same function, rounds otherwise, and some models make much of that: near 0 a sigmoid in
float32 knows steps of 6e-8 only, however small its result. So where an output is further off than the usual tolerance, it is held
against what the original makes of inputs that are changed by one unit in the last place; each rewritten site is judged alone besides.
In a quantised model, where rounding crosses from one step of quantisation to the next, some elements of every quantised tensor are
changed by one step as well.

A model that computes in floats of 16 bits rounds each result, whatever element type its outputs have. Where both models, run in
float32, agree, the outputs may be off as far as floats of 16 bits may.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.session import AnySession, session_of
from onnxtile.model.widen import HALVES, halves, widened
from onnxtile.progress import Progress, silent
from onnxtile.runtime import Array
from onnxtile.verification.before_last import compare_before
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
    trials, dims = run_original(original, progress=progress)

    def judged(first: ir.Model, second: ir.Model, ran: list[Trial]) -> Verdict:
        if compared is not None:
            return compare_with(ran, second, dims, progress, compared)
        return excused(compare_with(ran, second, dims, progress), first, second, ran)

    return compare_before(judged(original, rewritten, trials), trials, original, rewritten, judged)


def excused(verdict: Verdict, original: ir.Model, rewritten: ir.Model, trials: Iterable[Trial]) -> Verdict:
    """Return `verdict` with those outputs passed, too, that are off by no more than rounding in `original` explains.

    That is twice what one unit in the last place leads to, or, of floats of 16 bits, their tolerance where both models agree in float32.
    """
    trials = list(trials)
    if not verdict.equal:
        verdict = _excused_by_units(verdict, original, trials)
    if not verdict.equal and (narrow := halves(original)):
        verdict = _excused_in_float(verdict, original, rewritten, trials, narrow)
    return verdict


def _excused_by_units(verdict: Verdict, original: ir.Model, trials: list[Trial]) -> Verdict:
    stepping = one_step_off(original)
    kinds = "f" if stepping is None else "fiu"
    reach = moved_by_rounding(session_of(original if stepping is None else stepping), trials, kinds)
    cause = _INPUTS if stepping is None else f"{_INPUTS}, and quantised tensors one step apart,"
    outputs = tuple(output if output.equal else _within(output, reach, cause) for output in verdict.outputs)
    return replace(verdict, outputs=outputs)


def _excused_in_float(
    verdict: Verdict, original: ir.Model, rewritten: ir.Model, trials: list[Trial], narrow: set[ir.DataType]
) -> Verdict:
    """Return `verdict` with those outputs passed that are equal in float, and off by no more than what is `narrow` may be."""
    first, second = (widened(model, HALVES) for model in (original, rewritten))
    try:
        runner = session_of(first)
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


def moved_by_rounding(
    runner: AnySession, trials: Iterable[Trial], kinds: str = "f", *, nudges: int = _NUDGES
) -> dict[str, float]:
    """Return how far each output moves, at most, when the inputs of the trials change by one unit in the last place.

    `kinds` are those of numpy whose arrays may move; integers of more than 8 bits never do. Inputs change so many times as `nudges` says.
    """
    random = np.random.default_rng(0)
    reach: dict[str, float] = {}
    for trial in trials:
        for _ in range(nudges):
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
