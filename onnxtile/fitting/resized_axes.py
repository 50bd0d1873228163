"""The rule for Resize: each element is repeated, copied from a place, or a weighted sum of neighbours.

Places and weights come from onnxruntime itself, which resizes numbered rows and an identity matrix. So they hold for every mode, also
where rounding of coordinates decides.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnxtile.fitting.axis_links import AxisLink, AxisLinks, OperatorFacts, Uncut
from onnxtile.fitting.source_rows import SourceRows
from onnxtile.model.save import proto_bytes
from onnxtile.model.submodel import assembled, tensor_type
from onnxtile.runtime import Array, Session

_NEAREST = "nearest"
_LARGEST = 1 << 24
"""Weights of one axis, at most."""
_WEIGHTED = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Element types of which sums are matrix products."""
_MODES = frozenset(
    [
        "antialias",
        "coordinate_transformation_mode",
        "cubic_coeff_a",
        "exclude_outside",
        "extrapolation_value",
        "mode",
        "nearest_mode",
    ]
)
ResizeMode: TypeAlias = tuple[tuple[str, str | int | float], ...]
"""The attributes of a Resize that say how it interpolates."""


def resize_scales(facts: OperatorFacts) -> list[float] | None:
    """Return the scale of each axis; None where the sizes of the result are given. Raises Uncut for scales computed at run time."""
    is_old = facts.node.op_type == "Upsample" or facts.opset < 11
    given = facts.numbers(1 if is_old else 2) if facts.opset > 8 else facts.node.attributes.get_floats("scales", [])
    if not given:
        return None
    found = [1.0] * len(facts.result)
    for axis, scale in zip(facts.ints("axes", range(len(found))), given, strict=True):
        found[axis] = scale
    return found


def resized(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Resize: an axis that keeps its size is not changed; of others each element is repeated, or reads elements around a place."""
    size, out = facts.operand(0)[axis], facts.result[axis]
    attributes = facts.node.attributes
    if attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise Uncut("it resizes a part of its operand")
    if attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise Uncut("it keeps the ratio of its sizes")
    scales = resize_scales(facts)
    scale = None if scales is None else scales[axis]
    if size == out and scale in {None, 1.0}:
        return _first(facts, AxisLink(axis))
    if _is_repeated(facts, size, out) and scale in {None, out // size}:
        return _first(facts, AxisLink(axis, factor=out // size))
    return _first(facts, AxisLink(axis, sources=_sources(facts, axis, scale)))


def interpolates(facts: OperatorFacts, axis: int) -> bool:
    """Return whether an axis is resized to weighted sums, or to copies that are no whole number of each element."""
    size, out = facts.operand(0)[axis], facts.result[axis]
    if facts.node.op_type != "Resize" or facts.opset < 11 or size * out > _LARGEST:
        return False
    scales = resize_scales(facts)
    repeats = _is_repeated(facts, size, out) and (scales is None or scales[axis] == out // size)
    is_float = facts.shapes.dtype(facts.node.outputs[0]) in _WEIGHTED
    return size != out and not repeats and (_is_nearest(facts) or is_float)


def _is_nearest(facts: OperatorFacts) -> bool:
    return facts.node.attributes.get_string("mode", _NEAREST) == _NEAREST


def _first(facts: OperatorFacts, link: AxisLink) -> AxisLinks:
    return (link, *(None for _ in facts.inputs[1:]))


def _is_repeated(facts: OperatorFacts, size: int, out: int) -> bool:
    """Return whether a whole number of elements in a row are copies of one."""
    attributes = facts.node.attributes
    way = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounded = attributes.get_string("nearest_mode", "round_prefer_floor")
    is_plain = (way == "asymmetric" and rounded == "floor") or (
        way in {"half_pixel", "pytorch_half_pixel"} and rounded.startswith("round")
    )
    return _is_nearest(facts) and out % size == 0 and (facts.node.op_type == "Upsample" or is_plain)


def _sources(facts: OperatorFacts, axis: int, scale: float | None) -> SourceRows:
    """Return the elements that each element reads, of a node that resizes one axis alone."""
    before, after = facts.operand(0), facts.result
    scales = resize_scales(facts) or [after[one] / before[one] for one in range(len(after))]
    if any(one != axis and (before[one] != after[one] or scales[one] != 1) for one in range(len(after))):
        raise Uncut("it resizes several axes at once")
    if facts.node.op_type == "Upsample" or facts.opset < 11:
        raise Uncut("its old form interpolates")
    if not _is_nearest(facts) and facts.shapes.dtype(facts.node.outputs[0]) not in _WEIGHTED:
        raise Uncut("it interpolates elements that are no floats")
    if not _is_nearest(facts) and axis < len(after) - 2:
        raise Uncut("it interpolates neither rows nor columns")
    if before[axis] * after[axis] > _LARGEST:
        raise Uncut("it interpolates too many elements")
    attributes = ((one.name, one.value) for one in facts.node.attributes.values() if one.name in _MODES)
    return _measured(facts.opset, tuple(sorted(attributes)), before[axis], after[axis], scale)


@cache
def _measured(opset: int, mode: ResizeMode, size: int, out: int, scale: float | None) -> SourceRows:
    """Return the elements that each element of an axis reads, from runs of onnxruntime."""
    if dict(mode).get("mode", _NEAREST) == _NEAREST:
        rows = _run(opset, mode, np.arange(size, dtype=np.float32)[:, None], out, scale)
        return SourceRows(size, places=rows[:, 0].astype(np.int64))
    return SourceRows(size, weights=_run(opset, mode, np.eye(size, dtype=np.float32), out, scale))


def _run(opset: int, mode: ResizeMode, rows: Array, out: int, scale: float | None) -> Array:
    """Return `rows` resized to `out` rows by onnxruntime."""
    by_size = numpy_helper.from_array(np.asarray([1, 1, out, rows.shape[1]], np.int64), "sizes")
    by_scale = numpy_helper.from_array(np.asarray([1, 1, scale or 1, 1], np.float32), "scales")
    none = numpy_helper.from_array(np.zeros(0, np.float32), "none")
    # Before opset 13 operands that are not given are empty tensors.
    empty = "" if opset > 12 else "none"
    constants = [none, by_size if scale is None else by_scale]
    inputs = ["x", empty, *([empty, "sizes"] if scale is None else ["scales"])]
    node = helper.make_node("Resize", inputs, ["y"])
    node.attribute.extend(helper.make_attribute(*one) for one in mode)
    dims = (1, 1, *rows.shape)
    made = assembled([node], {"x": tensor_type(ir.DataType.FLOAT, dims)}, ["y"], {"": opset}, constants=constants)
    found: Array = Session(proto_bytes(made)).run({"x": rows.reshape(dims)})["y"][0, 0]
    return found
