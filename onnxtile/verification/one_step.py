"""Comparison of quantised outputs that lets each element be one step of quantisation off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.quantising import dequantises
from onnxtile.model.walk import RESHAPING
from onnxtile.runtime import Array
from onnxtile.verification.trials import OutputComparison
from onnxtile.verification.values import OutputError, compare_quantised, compare_values

_MOVING = RESHAPING | {"Slice", "Transpose"}
"""Operators whose results have elements of their first operand."""


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
