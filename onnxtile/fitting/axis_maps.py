"""The elements of each operand that a range of the output reads, axis by axis, exact for each operator.

A rule is found by the operator's name. Operators without a rule are never cut; tests/operators has the reason for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir
from onnx import helper, numpy_helper

from onnxtile.inspection.work import operator_name
from onnxtile.model.constants import Constants
from onnxtile.model.draws import draws
from onnxtile.model.quantising import FLOAT_MEANINGS, OWN_DOMAINS, FloatMeaning
from onnxtile.model.save import proto_bytes
from onnxtile.model.submodel import assembled, tensor_type
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.runtime import Array, Session
from onnxtile.tiling.contraction import InputWindow, NotTiled, SlidingAxis

# Elements of a result that are sums or copies of elements of an operand at places that follow no fixed stride.


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The elements of an operand of `size` that each element of a result reads along one axis.

    `places` has for each element of the result the place of the operand that it is a copy of. Otherwise `weights` has a row for each
    element of the result, with the weight of each element of the operand.
    """

    size: int
    places: Array | None = None
    weights: Array | None = None

    @property
    def out(self) -> int:
        """The number of elements of the result."""
        return len(self.starts)

    @cached_property
    def starts(self) -> Array:
        """The first element that each element of the result reads."""
        if self.places is not None:
            return self.places
        assert self.weights is not None
        found: Array = np.argmax(self.weights != 0, axis=1)
        return found

    @cached_property
    def stops(self) -> Array:
        """The element behind the last that each element of the result reads."""
        if self.places is not None:
            return self.places + 1
        assert self.weights is not None
        found: Array = self.size - np.argmax(self.weights[:, ::-1] != 0, axis=1)
        return found

    @cached_property
    def overlap(self) -> int:
        """The elements that two neighbouring elements of the result both read, at most."""
        return int(np.max(np.maximum(self.stops[:-1] - self.starts[1:], 0), initial=0))

    def reads(self, start: int, stop: int) -> tuple[int, int]:
        """Return the range of the elements that the results from `start` to `stop` read."""
        return int(self.starts[start:stop].min()), int(self.stops[start:stop].max())

    @cached_property
    def _needs(self) -> Array:
        """The elements of the operand that the results up to each one need."""
        return np.maximum.accumulate(self.stops).astype(np.float64)

    def results(self, available: Array) -> Array:
        """Return the number of results that operands up to `available` allow, beyond the ends as if the operand went on."""
        ratio = self.out / self.size
        within = np.searchsorted(self._needs, np.clip(available, 0, self.size), side="right")
        beyond = np.where(available > self.size, self.out + (available - self.size) * ratio, within)
        return np.where(available < 0, available * ratio, beyond)

    def operands(self, results: Array) -> Array:
        """Return the number of operands that results up to `results` need, beyond the ends as if the operand went on."""
        ratio = self.size / self.out
        places = np.clip(np.ceil(np.clip(results, 0, self.out)) - 1, 0, self.out - 1).astype(np.int64)
        beyond = np.where(results > self.out, self.size + (results - self.out) * ratio, self._needs[places])
        return np.where(results <= 0, results * ratio, beyond)


# The facts of a node that rules for cutting read, and the link from an axis of its result to an axis of an operand.


class Uncut(Exception):
    """The reason why an operator is not cut along an axis; one line for the user."""


@dataclass(frozen=True)
class AxisLink:
    """The axis of an operand that an axis of the output depends on, and how.

    Without `window`, element i reads element i. With `factor` n, the elements i·n to i·n + n - 1 read element i. With `sources`, they say
    what each element reads.
    """

    axis: int
    window: SlidingAxis | None = None
    factor: int = 1
    sources: SourceRows | None = None

    def reads(self, start: int, stop: int) -> InputWindow:
        """Return the elements of the operand that the outputs from `start` to `stop` read, and the padding around them."""
        if self.window is not None:
            return self.window.window(slice(start, stop))
        if self.sources is not None:
            return InputWindow(*self.sources.reads(start, stop), 0, 0)
        return InputWindow(start // self.factor, -(-stop // self.factor), 0, 0)

    @property
    def sums(self) -> bool:
        """Whether elements of the result are weighted sums, which pieces compute as a matrix product."""
        return self.sources is not None and self.sources.weights is not None

    @property
    def overlap(self) -> int:
        """The elements that neighbouring elements of the result both read; 0 for an operator without windows."""
        if self.window is not None:
            return max(self.window.reach - self.window.stride, 0)
        return 0 if self.sources is None else self.sources.overlap


AxisLinks = tuple[AxisLink | None, ...]
"""One link for each operand of a node; None for an operand that is read whole."""


@dataclass(frozen=True)
class OperatorFacts:
    """A node with the sizes of its operands and results, all known."""

    node: ir.Node
    shapes: Shapes
    constants: Constants
    opset: int

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The operands by their places."""
        return self.node.inputs

    def sizes(self, place: int) -> tuple[int, ...] | None:
        """Return the sizes of the operand at `place`; None where it is not given or its sizes are not known."""
        value = self.inputs[place] if place < len(self.inputs) else None
        return None if value is None else self.shapes.sizes(value)

    @property
    def result(self) -> tuple[int, ...]:
        """The sizes of the first result. Raises Uncut where they are not known."""
        sizes = self.shapes.sizes(self.node.outputs[0])
        if sizes is None:
            raise Uncut("the sizes of its result are not known")
        return sizes

    def operand(self, place: int) -> tuple[int, ...]:
        """Return the sizes of the operand at `place`. Raises Uncut where they are not known."""
        sizes = self.sizes(place)
        if sizes is None:
            raise Uncut("the sizes of an operand are not known")
        return sizes

    def ints(self, name: str, default: Sequence[int]) -> list[int]:
        """Return an attribute with whole numbers."""
        return list(self.node.attributes.get_ints(name, list(default)) or default)

    def integer(self, name: str, default: int) -> int:
        """Return an attribute with one whole number."""
        return self.node.attributes.get_int(name, default)

    def numbers(self, place: int) -> list[float] | None:
        """Return the elements of the constant operand at `place`; None where it is not given. Raises Uncut for one that is computed."""
        value = self.inputs[place] if place < len(self.inputs) else None
        if value is None:
            return None
        if value not in self.constants:
            raise Uncut("an operand that sets its sizes is computed at run time")
        found = self.constants.array(value).ravel()
        # The largest whole number, the end of many slices, is no float.
        return list(map(int if found.dtype.kind in "iu" else float, found))


# Rules for operators that move, cut, pad or repeat elements, and compute nothing.


class SliceRange(NamedTuple):
    """The elements that Slice takes along one axis: from `start` to `stop`, every `step`-th."""

    start: int
    stop: int
    step: int


def _with_whole(facts: OperatorFacts, link: AxisLink) -> AxisLinks:
    """Return the link of the first operand; the others are read whole."""
    return (link, *(None for _ in facts.inputs[1:]))


def slice_ranges(facts: OperatorFacts) -> Mapping[int, SliceRange]:
    """Return the range of each axis that Slice cuts. Raises Uncut where a bound is computed at run time."""
    if facts.opset < 10:
        starts: list[float] = [*facts.ints("starts", ())]
        stops: list[float] = [*facts.ints("ends", ())]
        axes: list[float] = [*facts.ints("axes", range(len(starts)))]
        steps: list[float] = [1] * len(starts)
    else:
        starts, stops = facts.numbers(1) or [], facts.numbers(2) or []
        axes = facts.numbers(3) or [*range(len(starts))]
        steps = facts.numbers(4) or [1] * len(starts)
    found, rank = {}, len(facts.result)
    for axis, start, stop, step in zip(axes, starts, stops, steps, strict=True):
        found[int(axis) % rank] = SliceRange(int(start), int(stop), int(step))
    return found


def sliced(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Slice: element i reads element start + i·step."""
    cut, size = slice_ranges(facts).get(axis), facts.operand(0)[axis]
    if cut is None:
        return _with_whole(facts, AxisLink(axis))
    if cut.step < 1:
        raise Uncut("it reverses this axis")
    start = min(max(cut.start + size if cut.start < 0 else cut.start, 0), size)
    if not facts.result[axis]:
        raise Uncut("its result is empty")
    return _with_whole(facts, AxisLink(axis, _window(facts, axis, stride=cut.step, before=-start)))


def _window(facts: OperatorFacts, axis: int, *, stride: int = 1, before: int = 0, after: int = 0) -> SlidingAxis:
    size, out = facts.operand(0)[axis], facts.result[axis]
    return SlidingAxis(stride=stride, before=before, after=after, size=size, out=out)


def pad_sizes(facts: OperatorFacts) -> list[int]:
    """Return the padding before each axis, then that behind each. Raises Uncut where it is computed at run time."""
    rank = len(facts.result)
    if facts.opset < 11:
        return facts.ints("pads", facts.ints("paddings", ()))
    given = [int(one) for one in facts.numbers(1) or ()]
    axes = facts.numbers(3) or range(rank)
    found = [0] * 2 * rank
    for number, axis in enumerate(axes):
        found[int(axis) % rank] = given[number]
        found[int(axis) % rank + rank] = given[number + len(given) // 2]
    return found


def is_mirrored(facts: OperatorFacts) -> bool:
    """Return whether a Pad mirrors its operand at the border."""
    return facts.node.attributes.get_string("mode", "constant") == "reflect"


def padded(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Pad: element i reads element i less the padding before it; one that is mirrored reads another one."""
    pads, rank = pad_sizes(facts), len(facts.result)
    before, after = pads[axis], pads[axis + rank]
    if min(before, after) < 0:
        raise Uncut("its padding is negative")
    if not before and not after:
        return _with_whole(facts, AxisLink(axis))
    if facts.node.attributes.get_string("mode", "") == "wrap":
        raise Uncut("it pads this axis from its other end")
    if is_mirrored(facts):
        if any(pads[one] or pads[one + rank] for one in range(rank) if one != axis):
            raise Uncut("it pads several axes at once from within")
        size = facts.operand(0)[axis]
        places = np.pad(np.arange(size), (before, after), mode="reflect")
        return _with_whole(facts, AxisLink(axis, sources=SourceRows(size, places=places)))
    return _with_whole(facts, AxisLink(axis, _window(facts, axis, before=before, after=after)))


def expanded(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Expand: the operand is aligned at its last axis; along an axis of size 1 it is repeated."""
    sizes = facts.operand(0)
    own = axis - len(facts.result) + len(sizes)
    return (AxisLink(own) if own >= 0 and sizes[own] == facts.result[axis] and sizes[own] > 1 else None, None)


def gathered(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Gather: the axes of the places stand where the axis that they choose from was."""
    chosen = facts.integer("axis", 0) % len(facts.operand(0))
    places = len(facts.operand(1))
    if axis < chosen:
        return (AxisLink(axis), None)
    return (None, AxisLink(axis - chosen)) if axis < chosen + places else (AxisLink(axis - places + 1), None)


def spread(facts: OperatorFacts, axis: int) -> AxisLinks:
    """DepthToSpace: rows and columns come from channels, in blocks."""
    if axis == 1:
        raise Uncut("it moves channels to rows and columns")
    return (AxisLink(axis, factor=1 if axis == 0 else facts.integer("blocksize", 1)),)


def stacked(facts: OperatorFacts, axis: int) -> AxisLinks:
    """SpaceToDepth: blocks of rows and columns become channels."""
    if axis == 1:
        raise Uncut("it moves rows and columns to channels")
    return (_blocks(axis, facts.integer("blocksize", 1), facts.result[axis]) if axis else AxisLink(0),)


def _blocks(axis: int, length: int, out: int) -> AxisLink:
    """Return the link of elements that read `length` elements of the operand each."""
    return AxisLink(axis, SlidingAxis(kernel=length, stride=length, size=length * out, out=out))


def reshaped(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Reshape and its kin: an axis is one of the operand, several of them as one, or the first of several that one was cut into.

    Where the products of the sizes before two axes are the same, they begin at the same elements; so for their ends.
    """
    before, after = facts.operand(0), facts.result
    outer, size = prod(after[:axis]), after[axis]
    starts, ends = [1, *accumulate(before, mul)], {*accumulate(after, mul)}
    own = next((one for one, length in enumerate(before) if length > 1 and starts[one] == outer), None)
    if own is None or size < 2:
        raise Uncut("it mixes this axis with others")
    length = before[own]
    if length == size:
        return _with_whole(facts, AxisLink(own))
    if outer * size in starts and size % length == 0:
        return _with_whole(facts, AxisLink(own, factor=size // length))
    if outer * length in ends and length % size == 0:
        return _with_whole(facts, _blocks(own, length // size, size))
    raise Uncut("it mixes this axis with others")


# The rule for Resize: each element is repeated, copied from a place, or a weighted sum of neighbours.
#
# Places and weights come from onnxruntime itself, which resizes numbered rows and an identity matrix. So they hold for every mode, also
# where rounding of coordinates decides.

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


# Operators on quantised tensors, as the plain operators that they are apart from scales and zero points.
#
# QLinearConv and its kin (https://onnx.ai/onnx/operators/onnx__QLinearConv.html), and those of onnxruntime.

_SUMS = {"ConvInteger": FloatMeaning("Conv", (0, 1)), "MatMulInteger": FloatMeaning("MatMul", (0, 1))}
"""Operators whose zero points stand behind all operands."""


@dataclass(frozen=True)
class QuantisedFacts(OperatorFacts):
    """The facts of a node as those of the plain operator `plain_type`, whose operands are those at `places` of the node."""

    plain_type: str = ""
    places: tuple[int, ...] = ()

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The operands of the plain operator."""
        return [self.node.inputs[place] for place in self.places]

    def spread(self, plain: AxisLinks) -> AxisLinks:
        """Return the links of all operands of the node, from those of the plain operator. Raises Uncut for scales that do not follow."""
        found: list[AxisLink | None] = [None] * len(self.node.inputs)
        for place, link in zip(self.places, plain, strict=True):
            found[place] = link
        for place, value in enumerate(self.node.inputs):
            sizes = () if value is None or place in self.places else self.shapes.sizes(value)
            if sizes is not None and prod(sizes) == 1:
                continue
            owner = max((one for one in self.places if one < place), default=place)
            if found[owner] is None:
                continue
            if self.node.op_type != "QLinearConv" or owner != self.places[1]:
                raise Uncut("it has several scales for an operand that is cut")
            found[place] = AxisLink(0)
        return tuple(found)


def quantised_facts(facts: OperatorFacts) -> QuantisedFacts | None:
    """Return the facts of a quantised operator as those of the plain one; None for others. Raises Uncut for channels behind columns."""
    node = facts.node
    plain = {**FLOAT_MEANINGS, **_SUMS}.get(node.op_type)
    if plain is None or node.domain not in OWN_DOMAINS:
        return None
    if facts.integer("channels_last", 0):
        raise Uncut("its channels are behind its columns")
    opset = facts.integer("opset", facts.opset)
    given = tuple(place for place in plain.places(node) if place < len(node.inputs))
    return QuantisedFacts(node, facts.shapes, facts.constants, opset, plain.op_type, given)


AxisRule = Callable[[OperatorFacts, int], AxisLinks]

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitCast BitwiseNot Cast CastLike Ceil Celu Cos Cosh Dropout Elu Erf Exp Floor Gelu "
    "HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign "
    "Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
)
_BROADCAST = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or "
    "PRelu Pow Sub Sum Where Xor"
)
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare"
)


def links(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Return the link of each operand along `axis` of the first result. Raises Uncut with the reason where it cannot be cut."""
    if draws(facts.node, facts.opset, facts.constants):
        raise Uncut("it draws random numbers")
    plain = quantised_facts(facts)
    name = operator_name(facts.node) if plain is None else plain.plain_type
    rule = _RULES.get(name)
    if rule is None:
        raise Uncut(f"{name.replace('::', '.')} has no rule for cutting")
    if not 0 <= axis < len(facts.result):
        raise Uncut("its result does not have this axis")
    return rule(facts, axis) if plain is None else plain.spread(rule(plain, axis))


def _padded(facts: OperatorFacts, first: Sequence[AxisLink | None]) -> AxisLinks:
    return (*first, *(None for _ in range(len(facts.inputs) - len(first))))


def _unary(facts: OperatorFacts, axis: int) -> AxisLinks:
    if len([value for value in facts.node.outputs if value.name]) > 1:
        raise Uncut("it has several results")
    return _padded(facts, [AxisLink(axis)])


def _broadcast(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Each operand is aligned at its last axis; an operand of size 1 along an axis is read whole."""
    rank, size = len(facts.result), facts.result[axis]
    found: list[AxisLink | None] = []
    for place in range(len(facts.inputs)):
        sizes = () if facts.inputs[place] is None else facts.operand(place)
        own = axis - rank + len(sizes)
        found.append(AxisLink(own) if own >= 0 and sizes[own] == size and size > 1 else None)
    return tuple(found)


def _gated_sum(facts: OperatorFacts, axis: int) -> AxisLinks:
    """GatedAdd: a gate for each row, which a weight may make of a whole row."""
    if len(facts.inputs) > 3 and facts.inputs[3] is not None:
        raise Uncut("it makes its gates of whole rows")
    return _broadcast(facts, axis)


def _beside_rows(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Operators that normalise the last axis of sums or products of operands; scales and biases are read whole."""
    if axis == len(facts.result) - 1:
        raise Uncut("it normalises along this axis")
    return tuple(
        link if len(facts.sizes(place) or ()) > 1 else None for place, link in enumerate(_broadcast(facts, axis))
    )


def _normalised_channels(facts: OperatorFacts, axis: int) -> AxisLinks:
    """BatchNormalization in inference: the statistics of a channel are constants."""
    if facts.integer("training_mode", 0) or len([value for value in facts.node.outputs if value.name]) > 1:
        raise Uncut("it computes statistics")
    if facts.opset < 9 and not facts.integer("spatial", 1):
        raise Uncut("its statistics are not one for each channel")
    return (AxisLink(axis), *(AxisLink(0) if axis == 1 else None for _ in facts.inputs[1:]))


def _over_channels(_facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis == 1:
        raise Uncut("it reads neighbouring channels")
    return (AxisLink(axis),)


def _along(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Softmax and its kin: along one axis, before opset 13 along all axes from that one on."""
    rank = len(facts.result)
    chosen = facts.integer("axis", -1 if facts.opset >= 13 else 1) % rank
    if axis == chosen or (facts.opset < 13 and axis > chosen):
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis),)


def _one_axis(facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis == facts.integer("axis", -1) % len(facts.result):
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis),)


def _from_axis(facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis >= facts.integer("axis", -1) % len(facts.result):
        raise Uncut("it normalises along this axis")
    return _padded(facts, [AxisLink(axis)])


def _instances(facts: OperatorFacts, axis: int) -> AxisLinks:
    """InstanceNormalization: all of a channel; GroupNormalization: all of several."""
    if axis > 1 or (axis == 1 and facts.node.op_type != "InstanceNormalization"):
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis), *(AxisLink(0) if axis == 1 else None for _ in facts.inputs[1:]))


def _along_axes(facts: OperatorFacts, axis: int) -> AxisLinks:
    rank = len(facts.result)
    if axis in {one % rank for one in facts.ints("axes", (0, 2, 3))}:
        raise Uncut("it normalises along this axis")
    return (AxisLink(axis),)


def _accumulated(facts: OperatorFacts, axis: int) -> AxisLinks:
    """CumSum and its kin: each element is made of those before it along one axis."""
    own = facts.numbers(1)
    if own is None or axis == int(own[0]) % len(facts.result):
        raise Uncut("it accumulates along this axis")
    return _padded(facts, [AxisLink(axis)])


def _rotated(facts: OperatorFacts, axis: int) -> AxisLinks:
    """RotaryEmbedding: a row of a head is read as a whole, with the cosines and sines of its position."""
    rank = len(facts.result)
    if axis == rank - 1:
        raise Uncut("it reads the whole of this axis")
    # [batch, heads, tokens, head] or [batch, tokens, heads of a row].
    own = {0: 0, rank - 2: 1}.get(axis)
    has_places = len(facts.inputs) > 3 and facts.inputs[3] is not None
    table = None if own is None or has_places else AxisLink(own)
    places = (AxisLink(own) if own is not None else None,) if has_places else ()
    return _padded(facts, [AxisLink(axis), table, table, *places])


def _repeated(facts: OperatorFacts, axis: int) -> AxisLinks:
    """Tile: along an axis that is not repeated."""
    counts = facts.numbers(1)
    if counts is None or len(counts) != len(facts.result) or int(counts[axis]) != 1:
        raise Uncut("it repeats its operand along this axis")
    return _padded(facts, [AxisLink(axis)])


def _sliding(facts: OperatorFacts, axis: int, kernel: Sequence[int], *, transposed: bool = False) -> SlidingAxis:
    """Return the windows along the spatial `axis`, for an operand of known sizes."""
    rank, at = len(kernel), axis - 2
    pads, strides = facts.ints("pads", [0] * 2 * rank), facts.ints("strides", [1] * rank)
    dilations, extra = facts.ints("dilations", [1] * rank), facts.ints("output_padding", [0] * rank)
    if len(pads) != 2 * rank or len(strides) != rank or min(pads) < 0:
        raise Uncut("its pads or strides do not fit its rank")
    wanted = facts.ints("output_shape", [0] * rank)[-rank:] if "output_shape" in facts.node.attributes else None
    slide = SlidingAxis(
        kernel=kernel[at],
        stride=strides[at],
        dilation=dilations[at],
        before=pads[at],
        after=pads[rank + at],
        output_padding=extra[at],
        auto=facts.node.attributes.get_string("auto_pad", "NOTSET"),
        wanted=None if wanted is None else wanted[at],
        transposed=transposed,
    )
    try:
        # With ceil_mode the last window may reach over the padding.
        return replace(slide.over(facts.operand(0)[axis]), out=facts.result[axis])
    except NotTiled as error:
        raise Uncut(str(error)) from error


def _conv(facts: OperatorFacts, axis: int) -> AxisLinks:
    kernel, groups = facts.operand(1), facts.integer("group", 1)
    has_bias = len(facts.inputs) > 2
    if axis == 1:
        depthwise = groups > 1 and kernel[0] == groups and kernel[1] == 1
        if groups > 1 and not depthwise:
            raise Uncut("its groups have several channels")
        bias = (AxisLink(0),) if has_bias else ()
        return (AxisLink(1) if depthwise else None, AxisLink(0), *bias)
    if axis == 0:
        return _padded(facts, [AxisLink(0)])
    return _padded(facts, [AxisLink(axis, _sliding(facts, axis, kernel[2:]))])


def _conv_transpose(facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis == 1:
        raise Uncut("its output channels are not cut")
    if axis == 0:
        return _padded(facts, [AxisLink(0)])
    return _padded(facts, [AxisLink(axis, _sliding(facts, axis, facts.operand(1)[2:], transposed=True))])


def _pool(facts: OperatorFacts, axis: int) -> AxisLinks:
    if len([value for value in facts.node.outputs if value.name]) > 1:
        raise Uncut("it also gives the places of its results")
    if axis < 2:
        return (AxisLink(axis),)
    slide = _sliding(facts, axis, facts.ints("kernel_shape", ()))
    counted = facts.node.op_type.endswith("AveragePool") and facts.integer("count_include_pad", 0)
    if counted and facts.integer("ceil_mode", 0):
        raise Uncut("it counts its padding, and its last window reaches over it")
    last = slide.window(slice(facts.result[axis] - 1, facts.result[axis]))
    if max(slide.before, last.after) >= slide.reach:
        raise Uncut("a window reads padding only")
    return (AxisLink(axis, slide),)


def _global_pool(_facts: OperatorFacts, axis: int) -> AxisLinks:
    if axis > 1:
        raise Uncut("it reads the whole of this axis")
    return (AxisLink(axis),)


def _reduced(facts: OperatorFacts, axis: int) -> AxisLinks:
    """The axes that are not reduced stay in their order; without keepdims the result has no others."""
    rank = len(facts.operand(0))
    axes = facts.numbers(1) if len(facts.inputs) > 1 else facts.ints("axes", ())
    if not axes and facts.integer("noop_with_empty_axes", 0):
        return _padded(facts, [AxisLink(axis)])
    reduced = {int(one) % rank for one in axes} if axes else set(range(rank))
    left = range(rank) if facts.integer("keepdims", 1) else [one for one in range(rank) if one not in reduced]
    if left[axis] in reduced:
        raise Uncut("it reduces this axis")
    return _padded(facts, [AxisLink(left[axis])])


def _chosen(facts: OperatorFacts, axis: int) -> AxisLinks:
    """ArgMax and its kin: one axis is reduced to the place of an element."""
    rank = len(facts.operand(0))
    own = facts.integer("axis", 0) % rank
    left = [one for one in range(rank) if facts.integer("keepdims", 1) or one != own]
    if left[axis] == own:
        raise Uncut("it reduces this axis")
    return (AxisLink(left[axis]),)


def _joined(facts: OperatorFacts, axis: int) -> AxisLinks:
    if facts.integer("axis", 1 if facts.opset < 4 else 0) % len(facts.result) == axis:
        raise Uncut("it joins its operands along this axis")
    return tuple(AxisLink(axis) for _ in facts.inputs)


def _split(facts: OperatorFacts, axis: int) -> AxisLinks:
    if facts.integer("axis", 0) % len(facts.result) == axis:
        raise Uncut("it splits its operand along this axis")
    return _padded(facts, [AxisLink(axis)])


def _transposed(facts: OperatorFacts, axis: int) -> AxisLinks:
    rank = len(facts.result)
    return (AxisLink(facts.ints("perm", range(rank)[::-1])[axis]),)


def _matmul(facts: OperatorFacts, axis: int) -> AxisLinks:
    left, right, rank = facts.operand(0), facts.operand(1), len(facts.result)
    if len(left) < 2 or len(right) < 2:
        raise Uncut("it multiplies a vector")
    if axis == rank - 1:
        return (None, AxisLink(len(right) - 1))
    if axis == rank - 2:
        return (AxisLink(len(left) - 2), None)
    found = []
    for sizes in (left, right):
        own = axis - rank + len(sizes)
        found.append(AxisLink(own) if own >= 0 and sizes[own] > 1 else None)
    return tuple(found)


def _gemm(facts: OperatorFacts, axis: int) -> AxisLinks:
    place = axis  # rows come from A, columns from B
    turned = facts.integer("transA" if place == 0 else "transB", 0)
    factors: list[AxisLink | None] = [None, None]
    factors[place] = AxisLink(1 - axis if turned else axis)
    sizes = facts.sizes(2)
    if sizes is None:
        return _padded(facts, factors)
    own = axis - 2 + len(sizes)
    return (*factors, AxisLink(own) if own >= 0 and sizes[own] > 1 else None)


def _quantised(facts: OperatorFacts, axis: int) -> AxisLinks:
    scale = facts.operand(1)
    if prod(scale) > 1 and (facts.integer("block_size", 0) or len(scale) != 1):
        raise Uncut("it has a scale for each block")
    per_axis = prod(scale) > 1 and facts.integer("axis", 1) % len(facts.result) == axis
    return (AxisLink(axis), *(AxisLink(0) if per_axis else None for _ in facts.inputs[1:]))


_RULES: dict[str, AxisRule] = {
    **dict.fromkeys(_UNARY.split(), _unary),
    **dict.fromkeys(_BROADCAST.split(), _broadcast),
    **dict.fromkeys(["MaxPool", "AveragePool", "LpPool"], _pool),
    **dict.fromkeys(["GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool"], _global_pool),
    **dict.fromkeys(_REDUCTIONS.split(), _reduced),
    **dict.fromkeys(["ArgMax", "ArgMin"], _chosen),
    **dict.fromkeys(["Reshape", "Flatten", "Squeeze", "Unsqueeze"], reshaped),
    **dict.fromkeys(["Softmax", "LogSoftmax", "Hardmax"], _along),
    **dict.fromkeys(["LpNormalization"], _one_axis),
    "Slice": sliced,
    "Pad": padded,
    "Expand": expanded,
    "Gather": gathered,
    "DepthToSpace": spread,
    "SpaceToDepth": stacked,
    **dict.fromkeys(["LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"], _from_axis),
    **dict.fromkeys(["InstanceNormalization", "GroupNormalization"], _instances),
    "MeanVarianceNormalization": _along_axes,
    **dict.fromkeys(["CumSum", "CumProd"], _accumulated),
    "RotaryEmbedding": _rotated,
    "Tile": _repeated,
    **dict.fromkeys(["QuantizeLinear", "DequantizeLinear"], _quantised),
    **dict.fromkeys(["Resize", "Upsample"], resized),
    "BatchNormalization": _normalised_channels,
    "LRN": _over_channels,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Concat": _joined,
    "Split": _split,
    "Transpose": _transposed,
    "MatMul": _matmul,
    "Gemm": _gemm,
    **{f"com.microsoft::{name}": _unary for name in ("Gelu", "MurmurHash3", "QuickGelu", "SampleOp", "ScaledSiLU")},
    **{f"com.microsoft::{name}": _broadcast for name in ("BiasGelu", "FastGelu")},
    **{f"com.microsoft::{name}": _quantised for name in ("QuantizeLinear", "DequantizeLinear")},
    "com.microsoft::GatedAdd": _gated_sum,
    "com.microsoft::GatedRMSNorm": _beside_rows,
    "com.microsoft::SkipLayerNormalization": _beside_rows,
    "com.microsoft::SkipSimplifiedLayerNormalization": _beside_rows,
}
