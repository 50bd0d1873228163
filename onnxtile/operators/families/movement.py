"""Operators that move, cut, pad or repeat elements, and compute none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, SlidingAxis, SourceRows, links_of, same_place
from onnxtile.operators.table import (
    ALL_OPERANDS,
    COMPUTED,
    FIRST,
    NO_PRODUCTS,
    NOT_STANDARD,
    NOTHING,
    RISING,
    SELECTING,
    Family,
    Operations,
    Operator,
    QuantisedPort,
    ShapeGrowth,
    without,
)
from onnxtile.system.runtime import Array, Session


class SliceRange(NamedTuple):
    """The elements that Slice takes along one axis: from `start` to `stop`, every `step`-th."""

    start: int
    stop: int
    step: int


def slice_ranges(view: NodeView) -> Mapping[int, SliceRange]:
    """Return the range of each axis that Slice cuts. Raises NotApplicable where a bound is computed at run time."""
    if view.opset < 10:
        starts: list[float] = [*view.ints("starts", ())]
        stops: list[float] = [*view.ints("ends", ())]
        axes: list[float] = [*view.ints("axes", range(len(starts)))]
        steps: list[float] = [1] * len(starts)
    else:
        starts, stops = view.numbers(1) or [], view.numbers(2) or []
        axes = view.numbers(3) or [*range(len(starts))]
        steps = view.numbers(4) or [1] * len(starts)
    ranges, rank = {}, len(view.result)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        ranges[int(axis) % rank] = SliceRange(int(start), int(stop), int(step))
    return ranges


def sliced(view: NodeView, axis: int) -> AxisLinks:
    """Slice: element i reads element start + i·step."""
    cut, size = slice_ranges(view).get(axis), view.operand(0)[axis]
    if cut is None:
        return links_of(view, AxisLink(axis))
    if cut.step < 1:
        raise NotApplicable("it reverses this axis")
    start = min(max(cut.start + size if cut.start < 0 else cut.start, 0), size)
    if not view.result[axis]:
        raise NotApplicable("its result is empty")
    return links_of(view, AxisLink(axis, _window(view, axis, stride=cut.step, before=-start)))


def _window(view: NodeView, axis: int, *, stride: int = 1, before: int = 0, after: int = 0) -> SlidingAxis:
    size, out = view.operand(0)[axis], view.result[axis]
    return SlidingAxis(stride=stride, before=before, after=after, size=size, out=out)


def pad_sizes(view: NodeView) -> list[int]:
    """Return the padding before each axis, then that after each. Raises NotApplicable where it is computed at run time."""
    rank = len(view.result)
    if view.opset < 11:
        return view.ints("pads", view.ints("paddings", ()))
    given = [int(axis_number) for axis_number in view.numbers(1) or ()]
    axes = view.numbers(3) or range(rank)
    pads = [0] * 2 * rank
    for number, axis in enumerate(axes):
        pads[int(axis) % rank] = given[number]
        pads[int(axis) % rank + rank] = given[number + len(given) // 2]
    return pads


def is_mirrored(view: NodeView) -> bool:
    """Return whether a Pad mirrors its operand at the border."""
    return view.node.attributes.get_string("mode", "constant") == "reflect"


def padded(view: NodeView, axis: int) -> AxisLinks:
    """Pad: element i reads element i less the padding before it; one that is mirrored reads another one."""
    pads, rank = pad_sizes(view), len(view.result)
    before, after = pads[axis], pads[axis + rank]
    if min(before, after) < 0:
        raise NotApplicable("its padding is negative")
    if not before and not after:
        return links_of(view, AxisLink(axis))
    if view.node.attributes.get_string("mode", "") == "wrap":
        raise NotApplicable("it pads this axis from its other end")
    if is_mirrored(view):
        if any(pads[other] or pads[other + rank] for other in range(rank) if other != axis):
            raise NotApplicable("it pads several axes at once from within")
        size = view.operand(0)[axis]
        places = np.pad(np.arange(size), (before, after), mode="reflect")
        return links_of(view, AxisLink(axis, sources=SourceRows(size, places=places)))
    return links_of(view, AxisLink(axis, _window(view, axis, before=before, after=after)))


def expanded(view: NodeView, axis: int) -> AxisLinks:
    """Expand: the operand is aligned at its last axis; along an axis of size 1 it is repeated."""
    sizes = view.operand(0)
    operand_axis = axis - len(view.result) + len(sizes)
    return (
        AxisLink(operand_axis)
        if operand_axis >= 0 and sizes[operand_axis] == view.result[axis] and sizes[operand_axis] > 1
        else None,
        None,
    )


def gathered(view: NodeView, axis: int) -> AxisLinks:
    """Gather: the axes of the places stand where the axis that they choose from was."""
    chosen = view.integer("axis", 0) % len(view.operand(0))
    places = len(view.operand(1))
    if axis < chosen:
        return (AxisLink(axis), None)
    return (None, AxisLink(axis - chosen)) if axis < chosen + places else (AxisLink(axis - places + 1), None)


def depth_to_space(view: NodeView, axis: int) -> AxisLinks:
    """DepthToSpace: rows and columns come from channels, in blocks; with the mode CRD, each channel from a block of channels."""
    if axis == 1 and view.node.attributes.get_string("mode", "DCR") != "CRD":
        raise NotApplicable("it moves channels to rows and columns")
    length = view.integer("blocksize", 1)
    return (_blocks(1, length**2, view.result[1]) if axis == 1 else AxisLink(axis, factor=length if axis else 1),)


def space_to_depth(view: NodeView, axis: int) -> AxisLinks:
    """SpaceToDepth: blocks of rows and columns become channels."""
    if axis == 1:
        raise NotApplicable("it moves rows and columns to channels")
    return (_blocks(axis, view.integer("blocksize", 1), view.result[axis]) if axis else AxisLink(0),)


def _blocks(axis: int, length: int, out: int) -> AxisLink:
    """Return the link of elements that read `length` elements of the operand each."""
    return AxisLink(axis, SlidingAxis(kernel=length, stride=length, size=length * out, out=out))


def reshaped(view: NodeView, axis: int) -> AxisLinks:
    """Reshape and its kin: an axis is one of the operand, several of them as one, or the first of several that one was cut into.

    Where the products of the sizes before two axes are the same, they begin at the same elements; so for their ends.
    """
    before, after = view.operand(0), view.result
    outer, size = prod(after[:axis]), after[axis]
    starts, ends = [1, *accumulate(before, mul)], {*accumulate(after, mul)}
    operand_axis = next(
        (number for number, length in enumerate(before) if length > 1 and starts[number] == outer), None
    )
    if operand_axis is None or size < 2:
        raise NotApplicable("it mixes this axis with others")
    length = before[operand_axis]
    if length == size:
        return links_of(view, AxisLink(operand_axis))
    if outer * size in starts and size % length == 0:
        return links_of(view, AxisLink(operand_axis, factor=size // length))
    if outer * length in ends and length % size == 0:
        return links_of(view, _blocks(operand_axis, length // size, size))
    raise NotApplicable("it mixes this axis with others")


def tiled(view: NodeView, axis: int) -> AxisLinks:
    """Tile: along an axis that is not repeated."""
    counts = view.numbers(1)
    if counts is None or len(counts) != len(view.result) or int(counts[axis]) != 1:
        raise NotApplicable("it repeats its operand along this axis")
    return links_of(view, AxisLink(axis))


def joined(view: NodeView, axis: int) -> AxisLinks:
    """Concat: an axis that is not joined along."""
    if view.integer("axis", 1 if view.opset < 4 else 0) % len(view.result) == axis:
        raise NotApplicable("it joins its operands along this axis")
    return tuple(AxisLink(axis) for _ in view.inputs)


def split(view: NodeView, axis: int) -> AxisLinks:
    """Split: an axis that is not cut."""
    if view.integer("axis", 0) % len(view.result) == axis:
        raise NotApplicable("it splits its operand along this axis")
    return links_of(view, AxisLink(axis))


def transposed(view: NodeView, axis: int) -> AxisLinks:
    """Transpose: each axis is one of the operand."""
    rank = len(view.result)
    return (AxisLink(view.ints("perm", range(rank)[::-1])[axis]),)


def scatter_operations(view: NodeView) -> int:
    """Count one operation for each update that is reduced with the element in its place."""
    return 0 if view.text("reduction", "none") == "none" else view.read(2)


def dropout_operations(view: NodeView) -> int:
    """Count nothing where the node copies its input: only one with a third input can be in training mode."""
    if view.has(2):
        raise NotApplicable("the training mode of Dropout is known only in a run")
    return 0


_MOVING = Operator(over=reasons.MOVED, reads=reasons.ANY_ELEMENT, work=NOTHING, saves=saves.nothing)
_RENAMING = Operator(
    over=reasons.MOVED, reads=reshaped, work=NOTHING, saves=saves.nothing, same="view", moves="renames", numbers=RISING
)
_UPDATING = Operator(over=FIRST, reads=reasons.ANY_ELEMENT, work=NOTHING, saves=saves.chosen(1))
_OF_RUNTIME = Operator(name=f"{MICROSOFT}::", over=reasons.MOVED, reads=reasons.ANY_ELEMENT, work=NO_PRODUCTS)
_NO_KERNEL = Operator(
    name=f"{MICROSOFT}::", over=reasons.NO_KERNEL, reads=reasons.NO_KERNEL, work=reasons.NO_KERNEL, draws=True
)

FAMILY = Family(
    "movement",
    (
        *_RENAMING.rows("Cast", over=FIRST, reads=same_place, moves="converts"),
        *_MOVING.rows("CastLike", over=FIRST, reads=same_place, same="view", moves="converts"),
        *_MOVING.rows("CenterCropPad", reads=reasons.POSITION, shaped_by=(1,)),
        *_MOVING.rows("Col2Im", work=reasons.NO_FORMULA, shaped_by=(1, 2), takes={2: takes.repeated(1)}),
        *_UPDATING.rows("Compress", over=reasons.SIZED_BY_DATA, reads=reasons.SIZED_BY_DATA, shaped_by=ALL_OPERANDS),
        *_RENAMING.rows(
            "Concat", reads=joined, same="join", moves="joins", state={0: 0}, state_grows=True, state_over=True
        ),
        *_MOVING.rows("DepthToSpace", reads=depth_to_space, moves="permutes"),
        *_MOVING.rows(
            "Dropout",
            reads=same_place,
            work=Operations(dropout_operations),
            same="view",
            takes={1: takes.always(0), 2: takes.always(0)},
            draws=True,
            trains_by=2,
        ),
        *_RENAMING.rows(
            "Expand",
            reads=expanded,
            moves="repeats",
            shaped_by=(1,),
            grows=ShapeGrowth(1),
            takes={1: takes.repeated(1)},
            same="",
        ),
        *_RENAMING.rows("Flatten"),
        *_UPDATING.rows(
            "Gather",
            over=reasons.MOVED,
            reads=gathered,
            moves="selects",
            numbers=SELECTING,
            takes={1: takes.place_in_axis},
        ),
        *_UPDATING.rows(
            "GatherElements GatherND",
            over=reasons.MOVED,
            moves="selects",
            numbers=COMPUTED,
            takes={1: takes.place_in_axis},
        ),
        *_MOVING.rows("GridSample", over=reasons.WINDOW, work=reasons.NO_FORMULA, saves=saves.operands),
        *_RENAMING.rows("Identity", reads=same_place),
        *without(
            "MaxRoiPool RoiAlign",
            reasons.WINDOW,
            reads=reasons.ANY_ELEMENT,
            work=reasons.NO_FORMULA,
            saves=reasons.FRAMEWORKS_DIFFER,
        ),
        *_UPDATING.rows("MaxUnpool", over=reasons.MOVED, shaped_by=(2,)),
        *_MOVING.rows(
            "Pad", reads=padded, moves="pads", shaped_by=(1, 3), grows=ShapeGrowth(1), takes={1: takes.between(0, 2)}
        ),
        *_RENAMING.rows("Reshape", shaped_by=(1,), grows=ShapeGrowth(1), takes={1: takes.any_shape}),
        *_MOVING.rows("ReverseSequence", takes={1: takes.time_steps}),
        *_UPDATING.rows("Scatter", takes={1: takes.place_in_axis}),
        *_UPDATING.rows(
            "ScatterElements ScatterND",
            work=Operations(scatter_operations),
            state={0: 0},
            numbers=COMPUTED,
            takes={1: takes.place_in_axis},
        ),
        *_MOVING.rows(
            "Slice",
            reads=sliced,
            same="cut",
            moves="selects",
            shaped_by=(1, 2, 3, 4),
            grows=ShapeGrowth(2, shrinks_by=1, step=4),
            numbers=SELECTING,
            takes={1: takes.repeated(0), 2: takes.repeated(2), 3: takes.first_axes, 4: takes.repeated(1)},
        ),
        *_MOVING.rows("SpaceToDepth", reads=space_to_depth, moves="permutes"),
        *_MOVING.rows(
            "Split",
            reads=split,
            same="cut",
            moves="selects",
            shaped_by=(1,),
            numbers=SELECTING,
            takes={1: takes.even_parts},
        ),
        *_RENAMING.rows("Squeeze Unsqueeze", shaped_by=(1,), numbers=SELECTING, takes={1: takes.first_axes}),
        *_UPDATING.rows("TensorScatter", saves=saves.chosen(2), state={0: 0}),
        *_RENAMING.rows(
            "Tile",
            reads=tiled,
            moves="repeats",
            shaped_by=(1,),
            grows=ShapeGrowth(1),
            takes={1: takes.repeated(1)},
            same="",
        ),
        *_MOVING.rows(
            "TopK",
            work=reasons.COMPARISONS,
            saves=saves.second_result,
            shaped_by=(1,),
            grows=ShapeGrowth(1),
            takes={1: takes.always(1)},
        ),
        *_RENAMING.rows("Transpose", reads=transposed, moves="permutes", same=""),
        *_MOVING.rows("Trilu", over=FIRST, reads=reasons.POSITION, set_by=(1,), numbers=COMPUTED),
        *_NO_KERNEL.rows("BiasDropout", work=NO_PRODUCTS, trains_by=4),
        *_NO_KERNEL.rows("BitmaskBiasDropout", trains_by=4),
        *_NO_KERNEL.rows("BitmaskDropout", trains_by=2),
        *_OF_RUNTIME.rows("CropAndResize", over=reasons.OTHER_SIZE, shaped_by=(3,)),
        *_OF_RUNTIME.rows("ExpandDims", over=reasons.OTHER_SIZE, reads=reasons.OPTIMISED, work=NOTHING, shaped_by=(1,)),
        *_OF_RUNTIME.rows("GatherBlockQuantized", ports=(QuantisedPort(0, 2, 3, axis=1),), bits="bits"),
        *_OF_RUNTIME.rows("GatherND", work=NOTHING, takes={1: takes.place_in_axis}),
        *_OF_RUNTIME.rows("GatherPacked UnfoldTensor"),
        *_OF_RUNTIME.rows("GridSample", over=reasons.WINDOW),
        *_OF_RUNTIME.rows("NGramRepeatBlock", over=frozenset({1}), reads=reasons.POSITION),
        *_OF_RUNTIME.rows("Pad", reads=reasons.OPTIMISED, work=NOTHING, shaped_by=(1,), takes={1: takes.between(0, 2)}),
        *_UPDATING.rows("Trilu", domain=MICROSOFT, reads=reasons.POSITION, saves=NOT_STANDARD),
    ),
)


# Resize: each element is repeated, copied from a place, or a weighted sum of neighbours.
#
# Places and weights come from onnxruntime itself, which resizes numbered rows and an identity matrix. So they hold for every mode, also
# where rounding of coordinates decides.


_NEAREST = "nearest"


_LARGEST = 1 << 24
"""Weights of one axis, at most."""


_WEIGHTED = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""Element types of which sums are matrix products."""


_HALF_PIXELS = frozenset({"half_pixel", "pytorch_half_pixel"})
"""The ways in which the middle of an element is its place."""


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
    if scale in {None, out / size} and _is_same_in_ranges(view, axis) and _is_between_quantised(view):
        return links_of(view, AxisLink(axis, sources=_between(view, size, out // size)))
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
    is_plain = (way == "asymmetric" and rounded == "floor") or (way in _HALF_PIXELS and rounded.startswith("round"))
    return _is_nearest(view) and out % size == 0 and (view.node.op_type == "Upsample" or is_plain)


def _is_between_quantised(view: NodeView) -> bool:
    """Return whether a kernel makes the floats of a node for itself, of integers, and stores its result as integers."""
    operand, result = view.inputs[0], view.node.outputs[0]
    maker = None if operand is None else operand.producer()
    readers = {use.node.op_type for use in result.uses()}
    return maker is not None and maker.op_type == "DequantizeLinear" and readers == {"QuantizeLinear"}


def _is_same_in_ranges(view: NodeView, axis: int) -> bool:
    """Return whether a range of rows or columns is interpolated with the weights of the whole, to the last bit: places have few digits."""
    attributes, size, out = view.node.attributes, view.operand(0)[axis], view.result[axis]
    way, scale = attributes.get_string("coordinate_transformation_mode", "half_pixel"), out // size
    is_plain = attributes.get_string("mode", _NEAREST) == "linear" and way in {*_HALF_PIXELS, "asymmetric"}
    is_plain &= view.opset > 10 and axis >= len(view.result) - 2
    is_binary = out == size * scale and scale & (scale - 1) == 0 and out <= _LARGEST
    return is_plain and is_binary and not any(attributes.get_int(name, 0) for name in ("antialias", "exclude_outside"))


def _between(view: NodeView, size: int, scale: int) -> SourceRows:
    """Return the neighbours that each element of an axis lies between."""
    way = view.node.attributes.get_string("coordinate_transformation_mode", "half_pixel")
    middle = 0.5 if way in _HALF_PIXELS else 0.0
    places = np.floor(np.maximum((np.arange(size * scale) + middle) / scale - middle, 0)).astype(np.int64)
    return SourceRows(size, places=places, scale=scale)


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

RESIZING = Family(
    "resizing",
    (
        *_RESIZING.rows(
            "Resize", shaped_by=(2, 3), set_by=(1,), takes={2: takes.doubled_axes, 3: takes.sizes_of_first}
        ),
        *_RESIZING.rows("Upsample", shaped_by=(1,), takes={1: takes.doubled_axes}),
    ),
)
