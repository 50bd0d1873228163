"""Resize: each element is repeated, copied from a place, or a weighted sum of neighbours.

Places and weights come from onnxruntime itself, which resizes numbered rows and an identity matrix. So they hold for every mode, also
where rounding of coordinates decides.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, SourceRows, links_of
from onnxtile.operators.row import (
    Family,
    Operations,
    Operator,
)
from onnxtile.system.runtime import Array, Session

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


_IR_VERSION = 10
"""The IR version of the models that are run here."""
ResizeMode: TypeAlias = tuple[tuple[str, str | int | float], ...]
"""The attributes of a Resize that say how it interpolates."""


def resize_scales(view: NodeView) -> list[float] | None:
    """Return the scale of each axis; None where the sizes of the result are given. Raises NotApplicable for scales computed at run time."""
    is_old = view.node.op_type == "Upsample" or view.opset < 11
    given = view.numbers(1 if is_old else 2) if view.opset > 8 else view.node.attributes.get_floats("scales", [])
    if not given:
        return None
    scales = [1.0] * len(view.result)
    for axis, scale in zip(view.ints("axes", range(len(scales))), given, strict=True):
        scales[axis] = scale
    return scales


def resized(view: NodeView, axis: int) -> AxisLinks:
    """Resize: an axis that keeps its size is not changed; of others each element is repeated, or reads elements around a place."""
    size, out = view.operand(0)[axis], view.result[axis]
    attributes = view.node.attributes
    if attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize":
        raise NotApplicable("it resizes a part of its operand")
    if attributes.get_string("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise NotApplicable("it keeps the ratio of its sizes")
    scales = resize_scales(view)
    scale = None if scales is None else scales[axis]
    if size == out and scale in {None, 1.0}:
        return links_of(view, AxisLink(axis))
    if _is_repeated(view, size, out) and scale in {None, out // size}:
        return links_of(view, AxisLink(axis, factor=out // size))
    return links_of(view, AxisLink(axis, sources=_sources(view, axis, scale)))


def interpolates(view: NodeView, axis: int) -> bool:
    """Return whether an axis is resized to weighted sums, or to copies that are no whole number of each element."""
    size, out = view.operand(0)[axis], view.result[axis]
    if view.node.op_type != "Resize" or view.opset < 11 or size * out > _LARGEST:
        return False
    scales = resize_scales(view)
    repeats = _is_repeated(view, size, out) and (scales is None or scales[axis] == out // size)
    is_float = view.shapes.dtype(view.node.outputs[0]) in _WEIGHTED
    return size != out and not repeats and (_is_nearest(view) or is_float)


def _is_nearest(view: NodeView) -> bool:
    return view.node.attributes.get_string("mode", _NEAREST) == _NEAREST


def _is_repeated(view: NodeView, size: int, out: int) -> bool:
    """Return whether a whole number of elements in a row are copies of one."""
    attributes = view.node.attributes
    way = attributes.get_string("coordinate_transformation_mode", "half_pixel")
    rounded = attributes.get_string("nearest_mode", "round_prefer_floor")
    is_plain = (way == "asymmetric" and rounded == "floor") or (
        way in {"half_pixel", "pytorch_half_pixel"} and rounded.startswith("round")
    )
    return _is_nearest(view) and out % size == 0 and (view.node.op_type == "Upsample" or is_plain)


def _sources(view: NodeView, axis: int, scale: float | None) -> SourceRows:
    """Return the elements that each element reads, of a node that resizes one axis alone."""
    before, after = view.operand(0), view.result
    scales = resize_scales(view) or [after[attribute] / before[attribute] for attribute in range(len(after))]
    if any(
        attribute != axis and (before[attribute] != after[attribute] or scales[attribute] != 1)
        for attribute in range(len(after))
    ):
        raise NotApplicable("it resizes several axes at once")
    if view.node.op_type == "Upsample" or view.opset < 11:
        raise NotApplicable("its old form interpolates")
    if not _is_nearest(view) and view.shapes.dtype(view.node.outputs[0]) not in _WEIGHTED:
        raise NotApplicable("it interpolates elements that are no floats")
    if not _is_nearest(view) and axis < len(after) - 2:
        raise NotApplicable("it interpolates neither rows nor columns")
    if before[axis] * after[axis] > _LARGEST:
        raise NotApplicable("it interpolates too many elements")
    attributes = (
        (attribute.name, attribute.value) for attribute in view.node.attributes.values() if attribute.name in _MODES
    )
    return _measured(view.opset, tuple(sorted(attributes)), before[axis], after[axis], scale)


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
    node.attribute.extend(helper.make_attribute(*pair) for pair in mode)
    dims = (1, 1, *rows.shape)
    given, result_type = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in (("x", dims), ("y", None))
    )
    graph = helper.make_graph([node], "resize", [given], [result_type], constants)
    model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[helper.make_opsetid("", opset)])
    result: Array = Session(model.SerializeToString()).run({"x": rows.reshape(dims)})["y"][0, 0]
    return result


_POINTS = {"nearest": 1, "linear": 2, "bilinear": 2, "cubic": 4}


def resize_operations(view: NodeView) -> int:
    """Count n products and n - 1 additions for n points; the weights are not counted."""
    points = _POINTS.get(view.text("mode", "nearest"))
    if (
        points is None
        or view.integer("antialias", 0)
        or view.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    ):
        raise NotApplicable(f"the number of points that {view.operator} reads in this mode depends on its kernel")
    changed = sum(before != after for before, after in zip(view.operand(0), view.output(), strict=True))
    around = points**changed
    return view.elements() * (2 * around - 1) if around > 1 else 0


_RESIZING = Operator(
    over=reasons.WINDOW,
    reads=resized,
    work=Operations(resize_operations),
    saves=saves.nothing,
    quantised=reasons.FLOAT_SCALE,
)

FAMILY = Family(
    "resizing",
    (
        *_RESIZING.rows(
            "Resize", shaped_by=(2, 3), set_by=(1,), takes={2: takes.doubled_axes, 3: takes.sizes_of_first}
        ),
        *_RESIZING.rows("Upsample", shaped_by=(1,), takes={1: takes.doubled_axes}),
    ),
)
