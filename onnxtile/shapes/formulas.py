"""Sizes of results as formulas of the sizes of operands, operator by operator, and the few sizes that operators compute with.

onnx's own inference carries numbers and names. It says nothing of a sum or a quotient of names, as a Concat or a convolution makes it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.model.formula import SizeFormula, SizeRanges, exact_quotient, extreme, product_of
from onnxtile.model.topology import node_id
from onnxtile.operators.node_view import STANDARD, NotApplicable
from onnxtile.operators.reads import SlidingAxis, broadcast, kernel_axes, same_place
from onnxtile.operators.table import factors_of, movement_of, operator_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.runtime import Array

SizeFormulas: TypeAlias = tuple[SizeFormula, ...]
"""The sizes of a tensor, or the elements of a short list of sizes."""
OpenFormulas: TypeAlias = Sequence[SizeFormula | None]
"""The sizes of a tensor; None for one that no rule says."""

MOST_LISTED = 64
"""Elements of the longest list of sizes that is followed."""
_FAR = 2**29
"""Exporters write such ends of a Slice for "to the last": no dimension becomes larger."""

ZERO, ONE = SizeFormula.number(0), SizeFormula.number(1)


@dataclass(frozen=True)
class SizeOperands:
    """What is known of the operands of `node`: their sizes, None where the rank is open, and the elements of lists of whole numbers.

    `reals` are the elements of other numbers, and `unknown` returns a symbol for a whole number of which nothing is known. All symbols are
    in `ranges`.
    """

    node: ir.Node
    shapes: Sequence[SizeFormulas | None]
    lists: Callable[[int], SizeFormulas | None]
    reals: Callable[[int], Sequence[float] | None]
    unknown: Callable[[], SizeFormula]
    ranges: SizeRanges

    def shape(self, index: int = 0) -> SizeFormulas | None:
        """Return the sizes of the operand at `index`."""
        return self.shapes[index] if index < len(self.shapes) else None

    def has(self, index: int) -> bool:
        """Return whether there is an operand at `index`."""
        return index < len(self.node.inputs) and self.node.inputs[index] is not None

    def numbers(self, index: int, attribute: str) -> list[int] | None:
        """Return the numbers of the operand at `index`, or of an attribute that older versions have for it; None where not known."""
        return _constants(self.lists(index)) if self.has(index) else self.integers(attribute)

    def integers(self, attribute: str) -> list[int] | None:
        """Return the integers of an attribute; None where it is left out."""
        numbers = self.node.attributes.get_ints(attribute)
        return None if numbers is None else list(numbers)

    def integer(self, attribute: str, default: int) -> int:
        """Return the integer of an attribute."""
        return self.node.attributes.get_int(attribute, default)

    def text(self, attribute: str, default: str) -> str:
        """Return the text of an attribute."""
        return self.node.attributes.get_string(attribute, default)

    def larger(self, sizes: Iterable[SizeFormula]) -> SizeFormula:
        """Return the largest of `sizes` over all ranges."""
        return extreme("max", sizes, self.ranges)

    def broadcast(self, shapes: Sequence[SizeFormulas]) -> OpenFormulas:
        """Return the sizes to which `shapes` are broadcast: of two that may differ, the larger."""
        rank = max(map(len, shapes), default=0)
        columns = zip(*((ONE,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
        return [self._joined(column) for column in columns]

    def _joined(self, sizes: Sequence[SizeFormula]) -> SizeFormula | None:
        different = [size for size in dict.fromkeys(sizes) if size != ONE]
        numbers = [size for size in different if size.constant is not None]
        if len(numbers) > 1:
            return None  # no run has such sizes
        return numbers[0] if numbers else self.larger(different) if different else ONE


ResultRule: TypeAlias = Callable[[SizeOperands], Sequence[OpenFormulas | None] | None]
"""Returns the sizes of each result; None where it says nothing."""


def result_sizes(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """Return the sizes of the results of a standard operator of `operands`; None where no rule says them."""
    rule = _RULES.get(operands.node.op_type)
    if rule is not None:
        return rule(operands)
    row = operator_of(operands.node)
    if row is None or len(operands.node.outputs) != 1:
        return None
    if row.reads is same_place:
        return _same(operands)
    return _each_of_all(operands) if row.reads is broadcast else None


# Movements.


def _sliced(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A Slice: it may begin or end at a size."""
    sizes = operands.shape()
    starts, ends = (_list(operands, index, name) for index, name in ((1, "starts"), (2, "ends")))
    if sizes is None or starts is None or ends is None:
        return None
    axes, steps = operands.numbers(3, "axes"), operands.numbers(4, "steps")
    if (axes is None and operands.has(3)) or (steps is None and operands.has(4)):
        return [[None] * len(sizes)]
    axes = list(range(len(starts))) if axes is None else axes
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps) or any(not -len(sizes) <= a < len(sizes) for a in axes):
        return None
    lengths: list[SizeFormula | None] = list(sizes)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        length = _length(operands, sizes[axis], start, end) if step > 0 else None
        lengths[axis] = None if length is None else (length + (step - 1)) // step
    return [lengths]


def _list(operands: SizeOperands, index: int, attribute: str) -> SizeFormulas | None:
    if operands.has(index):
        return operands.lists(index)
    numbers = operands.integers(attribute)
    return None if numbers is None else tuple(map(SizeFormula.number, numbers))


def _length(operands: SizeOperands, size: SizeFormula, start: SizeFormula, end: SizeFormula) -> SizeFormula | None:
    first = start if start.limits(operands.ranges)[0] >= 0 else _clamped(operands, size, start)
    last = _clamped(operands, size, end)
    return None if first is None or last is None else operands.larger([last - first, ZERO])


def _clamped(operands: SizeOperands, size: SizeFormula, position: SizeFormula) -> SizeFormula | None:
    """Return the position on an axis of this size that a Slice means, counted from 0; None where the sign is not known."""
    low, high = position.limits(operands.ranges)
    if high < 0:
        return operands.larger([position + size, ZERO])
    if low < 0:
        return None
    return size if low >= _FAR else extreme("min", [position, size], operands.ranges)


def _reshaped(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A Reshape: a 0 is the size of the operand, a -1 what is left of its elements."""
    sizes, wanted = operands.shape(), _list(operands, 1, "shape")
    if wanted is None:
        return None
    keeps_zero = operands.integer("allowzero", 0) == 1
    dims: list[SizeFormula | None] = []
    for axis, size in enumerate(wanted):
        if size.constant == 0 and not keeps_zero:
            dims.append(sizes[axis] if sizes is not None and axis < len(sizes) else None)
        else:
            is_size = size.constant is not None or size.limits(operands.ranges)[0] >= 0
            dims.append(size if is_size else None)
    left = [axis for axis, size in enumerate(dims) if size is not None and size.constant == -1]
    known = [size for axis, size in enumerate(dims) if axis not in left and size is not None]
    for axis in left:
        is_known = sizes is not None and len(known) == len(dims) - 1
        dims[axis] = _rest(product_of(sizes or ()), product_of(known)) if is_known else None
    return [dims]


def _rest(total: SizeFormula, known: SizeFormula) -> SizeFormula | None:
    """Return the size by which `known` makes `total`, of which it is a divisor at all sizes that a run can have."""
    exact = exact_quotient(total, known)
    number = known.terms[0][1] if len(known.terms) == 1 else 0
    if exact is not None or number < 1:
        return exact
    without = exact_quotient(total, SizeFormula.from_terms({known.terms[0][0]: 1}))
    return None if without is None or without.constant is not None else without // number


def _flattened(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    sizes, axis = operands.shape(), operands.integer("axis", 1)
    if sizes is None or not -len(sizes) <= axis <= len(sizes):
        return None
    at = axis + len(sizes) if axis < 0 else axis
    return [[product_of(sizes[:at]), product_of(sizes[at:])]]


def _concatenated(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    parts = [shape for shape in operands.shapes if shape is not None]
    axis = operands.integer("axis", 1)
    if len(parts) != len(operands.shapes) or len({len(part) for part in parts}) != 1:
        return None
    rank = len(parts[0])
    if not -rank <= axis < rank:
        return None
    columns = [list(dict.fromkeys(column)) for column in zip(*parts, strict=True)]
    dims: list[SizeFormula | None] = [
        next((s for s in column if s.constant is not None), column[0]) for column in columns
    ]
    dims[axis] = sum((part[axis] for part in parts), ZERO)
    return [dims]


def _split(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    sizes, axis, count = operands.shape(), operands.integer("axis", 0), len(operands.node.outputs)
    if sizes is None or not -len(sizes) <= axis < len(sizes):
        return None
    parts: OpenFormulas | None = _list(operands, 1, "split")
    if parts is None:
        parts = [None] * count if operands.has(1) else _even_parts(sizes[axis], count)
    axis %= len(sizes)
    return [[*sizes[:axis], part, *sizes[axis + 1 :]] for part in parts]


def _even_parts(size: SizeFormula, count: int) -> OpenFormulas:
    """Return the sizes of parts of which none is larger than the first, and none but the last smaller."""
    exact = exact_quotient(size, SizeFormula.number(count))
    if exact is not None:
        return [exact] * count
    half = (size + 1) // 2
    return [half, size - half] if count == 2 else [None] * count


def _expanded(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    sizes, wanted = operands.shape(), operands.lists(1)
    return None if sizes is None or wanted is None else [operands.broadcast([sizes, wanted])]


def _filled(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A ConstantOfShape."""
    wanted = operands.lists(0)
    return None if wanted is None else [wanted]


def _counted(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A Range of whole numbers that counts in ones."""
    start, limit, step = (operands.lists(index) for index in range(3))
    if start is None or limit is None or step is None or step[0].constant != 1:
        return None
    return [[operands.larger([limit[0] - start[0], ZERO])]]


def _padded(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    sizes, pads = operands.shape(), operands.numbers(1, "pads")
    axes = operands.numbers(3, "axes")
    if sizes is None or pads is None or (axes is None and operands.has(3)):
        return None
    axes = list(range(len(sizes))) if axes is None else axes
    if len(pads) != 2 * len(axes):
        return None
    dims = list(sizes)
    for axis, before, after in zip(axes, pads, pads[len(axes) :], strict=False):
        dims[axis] = dims[axis] + (before + after)
    return [dims]


def _tiled(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    sizes, repeats = operands.shape(), operands.lists(1)
    if sizes is None or repeats is None or len(sizes) != len(repeats):
        return None
    return [[size * times for size, times in zip(sizes, repeats, strict=True)]]


def _to_space(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    sizes, block = operands.shape(), operands.integer("blocksize", 1)
    if sizes is None or len(sizes) != 4:
        return None
    return [[sizes[0], sizes[1] // (block * block), sizes[2] * block, sizes[3] * block]]


def _to_depth(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    sizes, block = operands.shape(), operands.integer("blocksize", 1)
    if sizes is None or len(sizes) != 4:
        return None
    return [[sizes[0], sizes[1] * (block * block), sizes[2] // block, sizes[3] // block]]


# Products, windows and images.


def _multiplied(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A MatMul: axes before the last two are broadcast."""
    a, b = operands.shape(0), operands.shape(1)
    if not a or not b:
        return None
    rows, columns = ([a[-2]] if len(a) > 1 else []), ([b[-1]] if len(b) > 1 else [])
    return [[*operands.broadcast([a[:-2], b[:-2]]), *rows, *columns]]


def _windows(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A convolution or a pooling: as many results as windows have room."""
    sizes, weight = operands.shape(0), _weight(operands)
    if sizes is None or len(sizes) < 2 or (weight is None and factors_of(operands.node) is not None):
        return None
    slides: Sequence[SlidingAxis | None] = _slides(operands) or [None] * (len(sizes) - 2)
    if len(slides) != len(sizes) - 2:
        return None
    rounds_up = operands.integer("ceil_mode", 0) == 1
    axes = [None if s is None else _count(operands, s, n, rounds_up) for s, n in zip(slides, sizes[2:], strict=True)]
    return [[sizes[0], sizes[1] if weight is None else weight[0], *axes]] * len(operands.node.outputs)


def _weight(operands: SizeOperands) -> SizeFormulas | None:
    factors = factors_of(operands.node)
    return None if factors is None else operands.shape(factors[1])


def _count(operands: SizeOperands, slide: SlidingAxis, size: SizeFormula, rounds_up: bool) -> SizeFormula:
    """Return how many windows an axis of this size has; none of those that `rounds_up` adds begins in the padding after it."""
    stride = slide.stride
    if slide.auto.startswith("SAME"):
        return (size + (stride - 1)) // stride
    before, after = (0, 0) if slide.auto == "VALID" else (slide.before, slide.after)
    room = size + (before + after - slide.reach)
    if not rounds_up:
        return room // stride + 1
    return extreme(
        "min", [(room + (stride - 1)) // stride + 1, (size + (before + stride - 1)) // stride], operands.ranges
    )


def require_windows(model: ir.Model, sizes_of: Callable[[ir.Value], SizeFormulas | None], ranges: SizeRanges) -> None:
    """Raise UsageError that names the first node of `model` whose window has no room at a corner of `ranges`.

    At such a size no convolution runs. Of a pooling ONNX has no result, and onnxruntime, which rounds towards 0, may have one.
    `sizes_of` returns the sizes of values as formulas, None where they are not known.
    """
    refused: list[tuple[ir.Node, int, Mapping[str, int]]] = []
    least: dict[str, int] = {}
    for node in model.graph.all_nodes():
        is_sliding = _RULES.get(node.op_type) is _windows and node.domain in STANDARD
        counts = (sizes_of(node.outputs[0]) or ())[2:] if is_sliding else ()
        for axis, count in enumerate(counts, 2):
            corner = _fewest(count, ranges)
            if corner is None or count.at(corner) > 0:
                continue
            refused.append((node, axis, corner))
            if len(corner) == 1:
                (name,) = corner
                least[name] = max(least.get(name, 0), _least(count, name))
    if refused:
        node, axis, corner = refused[0]
        at = f" at {', '.join(f'{name}={size}' for name, size in corner.items())}" if corner else ""
        begins = ", ".join(f"of {name!r} with {size}" for name, size in least.items())
        raise UsageError(
            f"the node {node_id(node)!r} ({node.op_type}) has no result{at}: its window is longer than axis {axis} of its operand",
            hint=f"begin the range {begins}" if begins else "make the sizes larger",
        )


def _least(count: SizeFormula, name: str) -> int:
    """Return the least size of the dimension `name` at which a `count` that grows with it is above 0."""
    return bisect_left(range(_FAR), 1, key=lambda size: count.at({name: size}))


def _fewest(count: SizeFormula, ranges: SizeRanges) -> Mapping[str, int] | None:
    """Return the corner of `ranges` at which `count` is smallest; None where it depends on other symbols."""
    names = count.symbols
    if not ranges.keys() >= set(names):
        return None
    corners = (dict(zip(names, ends, strict=True)) for ends in product(*(ranges[name] for name in names)))
    return min(corners, key=count.at)


def _spread(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A ConvTranspose."""
    sizes, weight = operands.shape(0), _weight(operands)
    if sizes is None or weight is None or len(weight) != len(sizes):
        return None
    slides: Sequence[SlidingAxis | None] = _slides(operands, transposed=True) or [None] * (len(sizes) - 2)
    axes = [None if s is None else _reached(s, n) for s, n in zip(slides, sizes[2:], strict=True)]
    return [[sizes[0], weight[1] * operands.integer("group", 1), *axes]]


def _reached(slide: SlidingAxis, size: SizeFormula) -> SizeFormula:
    if slide.wanted is not None:
        return SizeFormula.number(slide.wanted)
    if slide.auto.startswith("SAME"):
        return size * slide.stride
    padding = 0 if slide.auto == "VALID" else slide.before + slide.after
    return (size - 1) * slide.stride + (slide.reach + slide.output_padding - padding)


def _slides(operands: SizeOperands, *, transposed: bool = False) -> list[SlidingAxis] | None:
    weight = _weight(operands)
    kernel = operands.integers("kernel_shape") or _constants(None if weight is None else weight[2:])
    try:
        return None if kernel is None else kernel_axes(operands.node, kernel, transposed=transposed)
    except NotApplicable:
        return None


def _resized(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A Resize, to sizes that are given or by scales."""
    sizes, wanted = operands.shape(), operands.lists(3)
    if sizes is None or operands.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return None
    axes = operands.integers("axes") or list(range(len(sizes)))
    scales = operands.reals(1 if len(operands.node.inputs) < 3 else 2)
    dims: list[SizeFormula | None] = list(sizes)
    if wanted is not None:
        dims = [dict(zip(axes, wanted, strict=False)).get(axis, size) for axis, size in enumerate(sizes)]
    elif scales is not None and len(scales) == len(axes):
        for axis, scale in zip(axes, scales, strict=True):
            dims[axis] = _scaled(sizes[axis], scale)
    return None if wanted is None and scales is None else [dims]


def _scaled(size: SizeFormula, scale: float) -> SizeFormula | None:
    """Return a size times a scale, rounded down, where either the scale or its reciprocal is a whole number."""
    if scale >= 1 and scale == int(scale):
        return size * int(scale)
    divisor = round(1 / scale) if scale > 0 else 0
    return size // divisor if divisor and scale == 1 / divisor else None


def _unpooled(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A MaxUnpool to sizes that are given; without them onnx says these."""
    sizes = operands.shape()
    return (
        None
        if sizes is None or not operands.has(2)
        else [operands.lists(2) or [*sizes[:2], *[None] * (len(sizes) - 2)]]
    )


# Other operators.


def _same(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    return [operands.shape()]


def _normalised(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A StringNormalizer, which leaves words out where it has a list of them."""
    return None if "stopwords" in operands.node.attributes else _same(operands)


def _each_of_all(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    given = [shape for index, shape in enumerate(operands.shapes) if operands.has(index)]
    known = [shape for shape in given if shape is not None]
    return [operands.broadcast(known)] if len(known) == len(given) else None


def _largest(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A TopK."""
    sizes, count, axis = operands.shape(), operands.lists(1), operands.integer("axis", -1)
    if sizes is None or not -len(sizes) <= axis < len(sizes):
        return None
    dims: list[SizeFormula | None] = list(sizes)
    dims[axis] = None if count is None else count[0]
    return [dims] * len(operands.node.outputs)


def _attended(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """An Attention: its result, the keys and values so far, and the scores."""
    query, keys, values = (operands.shape(index) for index in range(3))
    if query is None or keys is None or values is None or not len(query) == len(keys) == len(values):
        return None
    if len(query) == 3:
        heads, shared = operands.integer("q_num_heads", 0), operands.integer("kv_num_heads", 0)
        if not heads or not shared:
            return None
        result = [*query[:2], (values[2] // shared) * heads]
        query, keys, values = (
            _in_heads(operand, count) for operand, count in ((query, heads), (keys, shared), (values, shared))
        )
    else:
        result = [*query[:3], values[3]]
    past = operands.shape(4) if operands.has(4) else None
    length = None if operands.has(4) and past is None else keys[2] + (ZERO if past is None else past[2])
    present = [[*part[:2], length, part[3]] for part in (keys, values)]
    return [result, *present, [*query[:3], length]]


def _in_heads(sizes: SizeFormulas, heads: int) -> SizeFormulas:
    return (sizes[0], SizeFormula.number(heads), sizes[1], sizes[2] // heads)


def _transformed(operands: SizeOperands) -> Sequence[OpenFormulas | None] | None:
    """A DFT of as many samples as there are, of which the half is enough where they are real."""
    sizes, axes = operands.shape(), _constants(operands.lists(2))
    if sizes is None or operands.has(1) or operands.integer("inverse", 0) or (axes is None and operands.has(2)):
        return None
    axis = operands.integer("axis", 1) if axes is None else axes[0]
    dims = list(sizes[:-1])
    if operands.integer("onesided", 0):
        dims[axis if axis >= 0 else axis + 1] = sizes[axis] // 2 + 1
    return [[*dims, SizeFormula.number(2)]]


_RULES: Mapping[str, ResultRule] = {
    "Attention": _attended,
    "Concat": _concatenated,
    "ConstantOfShape": _filled,
    "ConvTranspose": _spread,
    "DFT": _transformed,
    "DepthToSpace": _to_space,
    "Expand": _expanded,
    "Flatten": _flattened,
    "GroupNormalization": _same,
    "MaxUnpool": _unpooled,
    "MeanVarianceNormalization": _same,
    "Pad": _padded,
    "Range": _counted,
    "Reshape": _reshaped,
    "Resize": _resized,
    "Slice": _sliced,
    "SpaceToDepth": _to_depth,
    "Split": _split,
    "StringConcat": _each_of_all,
    "StringNormalizer": _normalised,
    "Tile": _tiled,
    "TopK": _largest,
    "Upsample": _resized,
    **dict.fromkeys(("AveragePool", "Conv", "ConvInteger", "DeformConv", "LpPool", "MaxPool", "QLinearConv"), _windows),
    **dict.fromkeys(("MatMul", "MatMulInteger"), _multiplied),
}
"""The sizes of what an operator makes."""


# Lists of sizes, as models compute with them.


def result_list(operands: SizeOperands) -> SizeFormulas | None:
    """Return the elements of the result of a standard operator on lists of sizes; None where they are not known."""
    node = operands.node
    if movement_of(node) in {"renames", "converts"}:
        return operands.lists(0)
    rule = _ELEMENTWISE.get(node.op_type)
    if rule is not None:
        return _each(operands, rule)
    other = _LISTS.get(node.op_type)
    elements = None if other is None else other(operands)
    return None if elements is None or len(elements) > MOST_LISTED else elements


def _each(operands: SizeOperands, compute: _Elementwise) -> SizeFormulas | None:
    lists = [operands.lists(index) for index in range(len(operands.node.inputs))]
    known = [elements for elements in lists if elements is not None]
    count = max(map(len, known), default=0)
    if len(known) != len(lists) or not {len(elements) for elements in known} <= {1, count}:
        return None
    columns = zip(*(elements * count if len(elements) == 1 else elements for elements in known), strict=True)
    return whole(compute(operands, *column) for column in columns)


def _divided(operands: SizeOperands, total: SizeFormula, divisor: SizeFormula) -> SizeFormula | None:
    """Return a whole quotient, which ONNX rounds towards 0."""
    number = divisor.constant
    if number is not None and number > 0 and total.limits(operands.ranges)[0] >= 0:
        return total // number
    return exact_quotient(total, divisor)


def _remainder(operands: SizeOperands, a: SizeFormula, b: SizeFormula) -> SizeFormula | None:
    """Return a remainder of numbers, which has the sign of the divisor."""
    if a.constant is None or not b.constant or operands.integer("fmod", 0):
        return None
    return SizeFormula.number(a.constant % b.constant)


def _equal(operands: SizeOperands, a: SizeFormula, b: SizeFormula) -> SizeFormula | None:
    low, high = (a - b).limits(operands.ranges)
    if low > 0 or high < 0:
        return ZERO
    return None if low or high else ONE


def _chosen(operands: SizeOperands) -> SizeFormulas | None:
    """A Where: only what it chooses must be known."""
    condition, yes, no = (operands.lists(index) for index in range(3))
    truths = _constants(condition)
    if truths is None:
        return None
    count = max(len(truths), len(yes or ()), len(no or ()))
    lists: list[Sequence[SizeFormula | None]] = [yes or [None], no or [None]]
    a, b = ([*elements] * count if len(elements) == 1 else elements for elements in lists)
    chosen = truths * count if len(truths) == 1 else truths
    return whole(x if truth else y for truth, x, y in zip(chosen, a, b, strict=False))


def _measured(operands: SizeOperands) -> SizeFormulas | None:
    sizes = operands.shape()
    if sizes is None or operands.node.op_type == "Size":
        return None if sizes is None else (product_of(sizes),)
    end = operands.node.attributes.get("end")
    return sizes[operands.integer("start", 0) : None if end is None else end.as_int()]


def _all_of(operands: SizeOperands) -> SizeFormulas | None:
    """A Concat of lists, of which elements may be unknown."""
    parts = [operands.lists(index) or _unknown(operands, index) for index in range(len(operands.node.inputs))]
    return None if None in parts else tuple(element for part in parts for element in part or ())


def _unknown(operands: SizeOperands, index: int) -> SizeFormulas | None:
    shape = operands.shape(index)
    count = shape[0].constant if shape is not None and len(shape) == 1 else None
    return None if count is None or count > MOST_LISTED else tuple(operands.unknown() for _ in range(count))


def _taken(operands: SizeOperands) -> SizeFormulas | None:
    """A Gather of a list, or a Slice of numbers in any shape."""
    data, shape = operands.lists(0), _constants(operands.shape())
    places = [_constants(operands.lists(index)) for index in range(1, len(operands.node.inputs))]
    if data is None or None in places or shape is None:
        return None
    given = [numbers for numbers in places if numbers is not None]
    if operands.node.op_type == "Gather":
        first = given[0]
        within = len(shape) == 1 and all(-len(data) <= at < len(data) for at in first)
        return tuple(data[at] for at in first) if within else None
    if len(given) < 2 or math.prod(shape) != len(data):
        return None
    starts, stops = given[:2]
    axes = given[2] if len(given) > 2 else [*range(len(starts))]
    steps = given[3] if len(given) > 3 else [1] * len(starts)
    if not len(starts) == len(stops) == len(axes) == len(steps) or 0 in steps or not _are_axes(axes, len(shape)):
        return None
    cuts = [slice(None)] * len(shape)
    for axis, *cut in zip(axes, starts, stops, steps, strict=True):
        cuts[axis] = slice(*cut)
    return _at(data, np.arange(len(data)).reshape(shape)[tuple(cuts)])


def _transposed(operands: SizeOperands) -> SizeFormulas | None:
    """A Transpose of numbers."""
    data, shape, order = operands.lists(0), _constants(operands.shape()), operands.integers("perm")
    if data is None or shape is None or math.prod(shape) != len(data) or len(order or shape) != len(shape):
        return None
    if order is not None and not _are_axes(order, len(shape)):
        return None
    return _at(data, np.arange(len(data)).reshape(shape).transpose(order))


def _are_axes(axes: Sequence[int], rank: int) -> bool:
    """Return whether `axes` are different ones of a tensor of this `rank`."""
    return all(-rank <= axis < rank for axis in axes) and len({axis % rank for axis in axes}) == len(axes)


def _at(data: SizeFormulas, places: Array) -> SizeFormulas:
    return tuple(data[place] for place in places.ravel().tolist())


def _repeated(operands: SizeOperands) -> SizeFormulas | None:
    """A ConstantOfShape: a list of one number."""
    wanted, value = _constants(operands.lists(0)), operands.node.attributes.get("value")
    if value is None or wanted is None or len(wanted) != 1 or wanted[0] > MOST_LISTED:
        return None
    tensor = value.as_tensor()
    return (SizeFormula.number(int(tensor.numpy().ravel()[0])),) * wanted[0] if is_whole(tensor.dtype) else None


_Elementwise: TypeAlias = Callable[..., SizeFormula | None]
_ELEMENTWISE: Mapping[str, _Elementwise] = {
    "Add": lambda _, a, b: a + b,
    "Div": _divided,
    "Equal": _equal,
    "Max": lambda operands, *sizes: extreme("max", sizes, operands.ranges),
    "Min": lambda operands, *sizes: extreme("min", sizes, operands.ranges),
    "Mod": _remainder,
    "Mul": lambda _, a, b: a * b,
    "Sub": lambda _, a, b: a - b,
}
_LISTS: Mapping[str, Callable[[SizeOperands], SizeFormulas | None]] = {
    "Concat": _all_of,
    "ConstantOfShape": _repeated,
    "Gather": _taken,
    "Shape": _measured,
    "Size": _measured,
    "Slice": _taken,
    "Transpose": _transposed,
    "Where": _chosen,
}


def is_whole(dtype: ir.DataType | None) -> bool:
    """Return whether sizes are computed in this element type, or compared."""
    return dtype in {ir.DataType.INT64, ir.DataType.INT32, ir.DataType.BOOL}


def whole(sizes: Iterable[SizeFormula | None]) -> SizeFormulas | None:
    """Return all sizes; None where one is not known."""
    listed = tuple(sizes)
    known = tuple(size for size in listed if size is not None)
    return known if len(known) == len(listed) else None


def _constants(sizes: Sequence[SizeFormula] | None) -> list[int] | None:
    """Return the numbers that `sizes` are; None where one is no number."""
    numbers = [None] if sizes is None else [size.constant for size in sizes]
    known = [number for number in numbers if number is not None]
    return known if len(known) == len(numbers) else None
