"""Rules for operators that move, cut, pad or repeat elements, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from math import prod
from operator import mul
from typing import NamedTuple

import numpy as np

from onnxtile.fitting.axis_links import AxisLink, AxisLinks, OperatorFacts, Uncut
from onnxtile.fitting.source_rows import SourceRows
from onnxtile.tiling.sliding import SlidingAxis


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
