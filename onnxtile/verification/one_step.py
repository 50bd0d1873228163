"""Comparison of quantised outputs that lets each element be one step of quantisation off.

A product in another order, or by another kernel, rounds otherwise before it is quantised. An element whose exact value lies near the border
of two steps then becomes the one or the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.quantising import dequantises
from onnxtile.model.walk import RESHAPING
from onnxtile.runtime import Array
from onnxtile.verification.steps import makes_quantised
from onnxtile.verification.trials import OutputComparison
from onnxtile.verification.values import OutputError, compare_quantised, compare_values

_MOVING = RESHAPING | {"Slice", "Transpose"}
"""Operators whose results have elements of their first operand."""
_JOINING = frozenset({"Concat"})
"""Operators whose results have the elements of all operands."""


def within_one_step(original: ir.Model) -> OutputComparison:
    """Return a comparison with the outputs of `original`: those that are quantised may be one step off.

    A step is 1 in an output of 8-bit integers, and the scale in an output that DequantizeLinear makes. All other outputs are compared as
    usual.
    """
    steps = _steps(original)

    def compared(name: str, expected: Any, got: Any) -> OutputError:
        if name in steps:
            return _compare_floats(name, expected, got, steps[name])
        return compare_quantised(name, expected, got)

    return compared


def of_last_quantisation(original: ir.Model) -> tuple[frozenset[str], OutputComparison]:
    """Return the outputs of `original` that a quantisation makes, and a comparison in which these may be one step off.

    Their elements are stored numbers, or dequantised ones, which nodes only move after the quantisation.
    """
    outputs = {value.name: value for value in original.graph.outputs if value.name}
    stored = frozenset(name for name, value in outputs.items() if _are_all(value, makes_quantised))
    steps = {name: step for name, step in _steps(original).items() if name in outputs}
    dequantised = frozenset(name for name in steps if _are_all(outputs[name], _is_dequantised))

    def compared(name: str, expected: Any, got: Any) -> OutputError:
        error = compare_values(name, expected, got)
        if name not in stored | dequantised or error.equal or not np.isfinite(error.max_abs):
            return error
        allowed = error.tolerance * np.abs(expected.astype(np.float64)) + error.floor
        off = np.abs(expected.astype(np.float64) - got.astype(np.float64)) > allowed
        if name in dequantised:
            error = _compare_floats(name, expected, got, steps[name])
        else:
            why = f"{expected.dtype}: one step of quantisation"
            error = replace(error, equal=error.max_abs <= 1, floor=1.0, why=why)
        count = f"{int(off.sum()):,} of {off.size:,} elements are one step of quantisation off"
        return replace(error, reason=count) if error.equal else error

    return stored | dequantised, compared


def _is_dequantised(value: ir.Value) -> bool:
    """Return whether `value` is dequantised from what a quantisation makes."""
    node = value.producer()
    first = None if node is None or not dequantises(node) else node.inputs[0]
    return first is not None and _are_all(first, makes_quantised)


def _are_all(value: ir.Value, wanted: Callable[[ir.Value], bool]) -> bool:
    """Return whether all elements of `value` come from `wanted` values, by nodes that only move them."""
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        one = pending.pop()
        node = one.producer()
        if one in seen or wanted(one):
            continue
        if node is None or node.op_type not in _MOVING | _JOINING or node.domain not in {"", "ai.onnx"}:
            return False
        seen.add(one)
        pending += [read for read in node.inputs[: None if node.op_type in _JOINING else 1] if read is not None]
    return True


def _steps(model: ir.Model) -> Mapping[str, Array]:
    """Return the step of each output that is dequantised, in a shape that broadcasts with the output."""
    constants = Constants(model)
    found = {value.name or "": _step(value, constants) for value in model.graph.outputs}
    return {name: step for name, step in found.items() if step is not None}


def _step(value: ir.Value, constants: Constants) -> Array | None:
    node, is_moved = value.producer(), False
    while node is not None and node.op_type in _MOVING and node.domain in {"", "ai.onnx"}:
        first = node.inputs[0]
        node, is_moved = None if first is None else first.producer(), True
    if node is None or not dequantises(node):
        return None
    scale = node.inputs[1]
    if scale is None or scale not in constants:
        return None
    step = np.abs(constants.array(scale).astype(np.float64))
    if step.size == 1:
        return step.reshape(())
    rank = None if node.outputs[0].shape is None else len(node.outputs[0].shape)
    if is_moved or step.ndim != 1 or rank is None:
        return None
    dims = [1] * rank
    dims[node.attributes.get_int("axis", 1)] = step.size
    return step.reshape(dims)


def _compare_floats(name: str, expected: Any, got: Any, step: Array) -> OutputError:
    """Compare a dequantised output: each element may be off by `step`, and by the rounding of a float besides."""
    error = compare_values(name, expected, got)
    if error.equal or not isinstance(expected, np.ndarray) or not np.isfinite(error.max_abs):
        return error
    before, after = expected.astype(np.float64), got.astype(np.float64)
    allowed = step + error.tolerance * np.abs(before) + error.floor
    is_within = bool((np.abs(before - after) <= allowed).all())
    why = f"{error.why}, and one step of quantisation"
    return replace(error, equal=is_within, floor=error.floor + float(step.max()), why=why)
