"""Means of maps that need not exist as a whole: those of summands, those before a convolution, and sums that are added up strip by strip.

The mean over rows and columns of a sum is the sum of the means, and the mean of joined channels joins their means. So a sum of branches of
which only the mean is read, as in selective kernels and split attention, needs not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.strip_forms import BYTES, is_over_whole_map
from onnxtile.model.node_kinds import dequantises
from onnxtile.model.topology import dependencies, has_body, is_read
from onnxtile.operators.families.reductions import reduced, reduced_axes, whole_images
from onnxtile.operators.node_view import STANDARD, NotApplicable, given_input
from onnxtile.operators.table import may_draw, movement_of, operator_of
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

_SPATIAL = 2
"""The axes of rows and columns: the last ones."""
_MEANS = frozenset({"GlobalAveragePool", "ReduceMean"})
_SUMS = frozenset({"Add", "Sum"})
_REDUCTIONS = frozenset({"ReduceMean", "ReduceSum"})
"""Operators whose results, as those of sums, need not exist where only their means are read."""
_DEEPEST = 8
"""Nodes between a mean and the tensors whose means are taken instead, at most."""
_RANK = 4
"""Batch, channels, rows and columns."""


class _NotAlike(Exception):
    """The operand of a mean is not a sum, or the terms of the sum differ in rows or columns."""


def mean_before_sum(edit: ModelEdit) -> list[ir.Node]:
    """Take the means of summands instead of those of their sums; return the means that went.

    The sums are left in the graph, where nothing reads them any more.
    """
    changed = []
    for node in list(edit.model.graph):
        source = node.inputs[0] if node.op_type in _MEANS and node.domain in STANDARD else None
        if source is None or not _is_of_pixels(edit, node) or edit.bytes(source) <= edit.least:
            continue
        try:
            summands = list(_summands(edit, source))
        except _NotAlike:
            continue
        if source not in summands:
            _MeanWriter(edit, node, summands).write()
            changed.append(node)
    return changed


def _is_of_pixels(edit: ModelEdit, node: ir.Node) -> bool:
    """Return whether a node takes the mean over rows and columns alone."""
    sizes, result_sizes = edit.sizes(node.inputs[0]) if node.inputs[0] else None, edit.sizes(node.outputs[0])
    if sizes is None or result_sizes is None or len(sizes) <= _SPATIAL:
        return False
    if node.op_type == "GlobalAveragePool":
        return len(sizes) == _RANK
    return _reduced(edit, node) == {len(sizes) - 2, len(sizes) - 1}


def _reduced(edit: ModelEdit, node: ir.Node) -> set[int]:
    """Return the axes that a reduction goes over; empty where they are not known."""
    facts = edit.view(node)
    rank = len(facts.sizes(0) or ())
    try:
        axes = facts.numbers(1) if len(facts.inputs) > 1 else facts.ints("axes", ())
    except NotApplicable:
        return set()
    return {int(axis) % max(rank, 1) for axis in axes or ()}


def _summands(edit: ModelEdit, value: ir.Value, depth: int = 0) -> Iterator[ir.Value]:
    """Yield the tensors whose means make that of `value`. Raises _NotAlike where one has not four axes."""
    node, sizes = value.producer(), edit.sizes(value)
    if node is not None and sizes is not None and depth < _DEEPEST and _is_linear(edit, node):
        for operand in _operands(node):
            yield from _summands(edit, operand, depth + 1)
    elif sizes is None or len(sizes) != _RANK or value in edit.constants:
        raise _NotAlike
    else:
        yield value


def _operands(node: ir.Node) -> list[ir.Value]:
    """Return the operands that are summed up or moved; others say how."""
    some = node.inputs if node.op_type in {*_SUMS, "Concat"} else node.inputs[:1]
    return [value for value in some if value is not None]


def _is_linear(edit: ModelEdit, node: ir.Node) -> bool:
    """Return whether the mean of the node's result is the node's result of the means, and nothing else reads a sum."""
    is_sum = node.op_type in _SUMS | _REDUCTIONS and node.domain in STANDARD
    if len(node.outputs) > 1 or not (is_sum or movement_of(node) in {"renames", "joins"}):
        return False
    result = node.outputs[0]
    after = edit.sizes(result) or ()
    shapes = [edit.sizes(value) or () for value in _operands(node)]
    if any(shape[-_SPATIAL:] != after[-_SPATIAL:] or len(shape) <= _SPATIAL for shape in shapes):
        return False
    if is_sum and (len(result.uses()) > 1 or result.is_graph_output()):
        return False
    if node.op_type in _REDUCTIONS:
        reduced = _reduced(edit, node)
        return bool(reduced) and max(reduced) < len(shapes[0]) - _SPATIAL
    if node.op_type == "Concat":
        return node.attributes.get_int("axis", 1) % len(after) < len(after) - _SPATIAL
    return node.op_type not in _SUMS or all(shape == after for shape in shapes)


def _mean_of(edit: ModelEdit, value: ir.Value, count: int | None = None) -> ir.Value:
    """Return a new value for the mean over the last `count` axes of another one: all after its channels where none is given."""
    sizes = edit.sizes(value) or ()
    count = len(sizes) - 2 if count is None else count
    return edit.value(f"{value.name}/mean", sizes[: len(sizes) - count] + (1,) * count, edit.dtype(value))


class _MeanWriter:
    """Writes the means of `summands`, and the operators between them and one `mean` over these means."""

    def __init__(self, edit: ModelEdit, mean: ir.Node, summands: list[ir.Value]) -> None:
        self.edit, self.mean = edit, mean
        self.means: dict[ir.Value, ir.Value] = {}
        for value in dict.fromkeys(summands):
            self.means[value] = edit.add(mean, "GlobalAveragePool", [value], _mean_of(edit, value))

    def write(self) -> None:
        """Write all, and let the readers of the mean take the result."""
        source, mean = self.mean.inputs[0], self.mean.outputs[0]
        assert source is not None
        result, sizes = self._over(source), self.edit.sizes(mean)
        if sizes is not None and sizes != self.edit.sizes(result):
            numbers = self.edit.constant(f"{mean.name}/sizes", np.asarray(sizes, np.int64))
            flat = self.edit.value(f"{mean.name}/mean", sizes, self.edit.dtype(mean))
            result = self.edit.add(self.mean, "Reshape", [result, numbers], flat)
        self.edit.replace(mean, result)
        self.edit.model.graph.remove(self.mean, safe=True)

    def _over(self, value: ir.Value) -> ir.Value:
        """Return the mean of a value, from those of its summands."""
        node = value.producer()
        if value not in self.means:
            assert node is not None
            given = set(_operands(node))
            inputs = [
                self._over(operand) if operand in given else operand for operand in node.inputs if operand is not None
            ]
            self.means[value] = _mean_of(self.edit, value, _SPATIAL)
            self.edit.again(self.mean, node, inputs, [self.means[value]])
        return self.means[value]


# The mean over rows and columns of a pointwise convolution is the convolution of the mean.
#
# So the wide result of the convolution needs not exist as a whole: its mean comes from the narrow operand.

_PIXELS = 256
"""Pixels below which the product with one more pixel would count."""


def pool_before_convolution(edit: ModelEdit) -> list[ir.Node]:
    """Take the means of operands of pointwise convolutions instead of those of their results; return the poolings that went."""
    changed = []
    for node in list(edit.model.graph):
        if node.op_type != "GlobalAveragePool" or node.domain not in STANDARD:
            continue
        chain = _pointwise(edit, node)
        if not chain:
            continue
        _move(edit, node, chain)
        for member in (node, *chain):
            if not any(map(is_read, member.outputs)):
                edit.model.graph.remove(member, safe=True)
        changed.append(node)
    return changed


def _pointwise(edit: ModelEdit, pool: ir.Node) -> list[ir.Node]:
    """Return the pointwise convolutions and normalisations between a pooling and the smallest tensor, the last one first."""
    chain: list[ir.Node] = []
    source = pool.inputs[0]
    sizes = () if source is None else edit.sizes(source) or ()
    if prod(sizes[2:]) < _PIXELS:
        return []
    size = 0 if source is None else edit.bytes(source)
    best = 0
    while source is not None and (maker := source.producer()) is not None and _is_pointwise(edit, maker):
        chain.append(maker)
        source = maker.inputs[0]
        if source is not None and source not in edit.constants and 0 < edit.bytes(source) < size:
            best, size = len(chain), edit.bytes(source)
    return chain[:best]


def _is_pointwise(edit: ModelEdit, node: ir.Node) -> bool:
    """Return whether the mean of the node's result is the node's result of the mean: each pixel of it is the same sum of channels."""
    if node.domain not in STANDARD or node.outputs[0].is_graph_output():
        return False
    if any(value is not None and value not in edit.constants for value in node.inputs[1:]):
        return False
    if node.op_type == "BatchNormalization":
        is_alone = not any(value.name for value in node.outputs[1:]) and not node.attributes.get_int("training_mode", 0)
        return is_alone and (edit.opset >= 9 or bool(node.attributes.get_int("spatial", 1)))
    if node.op_type != "Conv":
        return False
    weights = None if node.inputs[1] is None else edit.sizes(node.inputs[1])
    steps = [*(node.attributes.get_ints("strides") or ())]
    pads = [*(node.attributes.get_ints("pads") or ())]
    return weights is not None and set(weights[2:]) == {1} and set(steps) <= {1} and not any(pads)


def _move(edit: ModelEdit, pool: ir.Node, chain: list[ir.Node]) -> None:
    """Add the mean of the first operand of `chain` where it is made, and the chain over it where the pooling stood."""
    source = chain[-1].inputs[0]
    assert source is not None
    value = edit.add(chain[-1], "GlobalAveragePool", [source], _mean_of(edit, source))
    for node in reversed(chain):
        attributes = [attribute for attribute in node.attributes.values() if attribute.name != "auto_pad"]
        inputs = [value, *node.inputs[1:]]
        value = edit.add(pool, node.op_type, inputs, _mean_of(edit, node.outputs[0]), attributes)
    edit.replace(pool.outputs[0], value)


# Tensors whose means over rows and columns scale them again are made twice: once for the means, once to be scaled.
#
# So no such tensor exists as a whole. For the means it is made some channels at a time; the second time it is made strip by strip, together
# with what reads it. Squeeze-and-excitation and global response normalisation (ConvNeXt V2, arXiv:2301.00808) are of this kind.

_SMALLER = 16
"""The result of a reduction is at most this part of its operand."""
_NARROWER = 2
"""The tensors from which a wide one is made again are at most this part of it."""
_LONGEST = 24
"""Nodes that are run again for one reduction, at most."""


@dataclass(frozen=True)
class SecondPass:
    """The last `reduction` of a tensor, and the `nodes` that run once more after it, in their order, for readers of their results.

    These readers wait for the reductions of the tensor, of which there may be several: its mean and its maximum, or means over each axis.
    """

    reduction: ir.Node
    nodes: tuple[ir.Node, ...]


def _reduces(node: ir.Node) -> bool:
    row = operator_of(node)
    return row is not None and row.reads in (reduced, whole_images)


def second_passes(edit: ModelEdit, reductions: Collection[ir.Node]) -> Iterator[SecondPass]:
    """Yield what would run twice so that no operand of these `reductions` exists as a whole."""
    places = {node: index for index, node in enumerate(edit.model.graph)}
    taken: set[ir.Node] = set()
    for node in edit.model.graph:
        if node in reductions and _reduces(node):
            cone = _cone(edit, node) or set()
            source = node.inputs[0]
            # All reductions of the tensor are taken in the first pass.
            beside = sorted({node, *(reductions_of(edit, source) if source else ())}, key=places.__getitem__)
            wanted = _after(beside, cone, places) if taken.isdisjoint(cone) else []
            if wanted:
                taken |= cone
                yield SecondPass(beside[-1], tuple(sorted(_makers(wanted, cone), key=places.__getitem__)))


def reductions_of(edit: ModelEdit, source: ir.Value) -> set[ir.Node]:
    """Return the nodes that reduce a tensor to much smaller results, of nothing else that is made at run time."""
    return {use.node for use in source.uses() if _reduces(use.node) and _is_small(edit, use.node, source)}


def _is_small(edit: ModelEdit, reduction: ir.Node, source: ir.Value) -> bool:
    """Return whether the results of a reduction are much smaller than its operand."""
    return sum(map(edit.bytes, reduction.outputs)) * _SMALLER <= edit.bytes(source)


def run_again(edit: ModelEdit, again: SecondPass) -> None:
    """Add the second pass before the first node that waits for the reduction and reads it."""
    places = {node: slot for slot, node in enumerate(edit.model.graph)}
    cone = set(again.nodes)
    readers = [
        (use.node, use.idx, value)
        for node in again.nodes
        for value in node.outputs
        for use in value.uses()
        if use.node not in cone and places.get(use.node, -1) > places[again.reduction]
    ]
    first = min((reader for reader, _, _ in readers), key=places.__getitem__)
    copies: dict[ir.Value, ir.Value] = {}
    for node in again.nodes:
        results = [
            edit.value(f"{result.name}/again", edit.sizes(result) or (), edit.dtype(result)) for result in node.outputs
        ]
        edit.again(
            first, node, [result if result is None else copies.get(result, result) for result in node.inputs], results
        )
        copies.update(zip(node.outputs, results, strict=True))
    for reader, slot, value in readers:
        reader.replace_input_with(slot, copies[value])


def _cone(edit: ModelEdit, reduction: ir.Node) -> set[ir.Node] | None:
    """Return the nodes that make the operand of a reduction from much narrower tensors; None where there are no such nodes."""
    source = reduction.inputs[0]
    return None if source is None or not _is_small(edit, reduction, source) else makers_from_narrower(edit, source)


def makers_from_narrower(
    edit: ModelEdit, source: ir.Value, inside: Collection[str] = frozenset()
) -> set[ir.Node] | None:
    """Return the nodes that make a tensor from much narrower ones, or from inputs; None where there are no such nodes.

    Each of them gives the same when it runs again. Tensors `inside` of quantised islands are made again with the island.
    """
    wide, cone = edit.bytes(source), set[ir.Node]()
    given = {source: wide}
    while len(cone) < _LONGEST:
        is_stored = not any(value.name in inside for value in given)
        if cone and is_stored and sum(given.values()) * _NARROWER <= wide:
            return cone
        widest = max(given, key=lambda value: (given[value], value.name or ""))
        maker = widest.producer()
        if not given[widest] or maker is None or not _may_run_twice(maker):
            return None
        cone.add(maker)
        read = [value for value in maker.inputs if value is not None and value.producer() not in cone]
        given.update((value, edit.bytes(value)) for value in read)
        given = {value: size for value, size in given.items() if value.producer() not in cone}
        if not given:
            return None
    return None


def _may_run_twice(node: ir.Node) -> bool:
    """Return whether a node of one result gives the same each time."""
    if node.domain not in STANDARD or has_body(node) or len(node.outputs) > 1 or may_draw(node):
        return False
    return not node.outputs[0].is_graph_output()


def _after(reductions: Sequence[ir.Node], cone: Collection[ir.Node], places: Mapping[ir.Node, int]) -> list[ir.Value]:
    """Return the results of `cone` that nodes after the last of the reductions read; none where others outside of it read some."""
    later: list[ir.Value] = []
    for value in (value for node in cone for value in node.outputs):
        others = [use.node for use in value.uses() if use.node not in cone and use.node not in reductions]
        if any(places.get(reader, -1) < places[reductions[-1]] for reader in others):
            return []
        later += [value] if others else []
    return later


def _makers(wanted: Collection[ir.Value], cone: Collection[ir.Node]) -> set[ir.Node]:
    """Return the nodes of `cone` that make the values `wanted`."""
    makers: set[ir.Node] = set()
    pending = list(wanted)
    while pending:
        maker = pending.pop().producer()
        if maker is not None and maker in cone and maker not in makers:
            makers.add(maker)
            pending += dependencies(maker)
    return makers


# Means and norms become sums, which are added up strip by strip, and one product or root of the sum.
#
# So a map of which only the mean is read, before a head or the gate of squeeze-and-excitation, needs not exist as a whole.

WIDE = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE})
"""The element types in which sums are added up: those of 16 bits would lose too many."""
_SUM_OF = {
    "GlobalAveragePool": "ReduceSum",
    "AveragePool": "ReduceSum",
    "ReduceMean": "ReduceSum",
    "ReduceL2": "ReduceSumSquare",
}
"""By reduction, the sum that it is made of."""


def sum_means(edit: ModelEdit) -> list[ir.Node]:
    """Write means and norms of tensors that matter as sums and what follows; return the reductions that went."""
    changed = []
    for node in list(edit.model.graph):
        source = node.inputs[0] if node.op_type in _SUM_OF and node.domain in STANDARD else None
        if source is None or edit.dtype(source) not in WIDE or edit.bytes(source) <= edit.least:
            continue
        axes = _axes(edit, node)
        if axes:
            _write_mean(edit, node, source, axes)
            changed.append(node)
    return changed


def _axes(edit: ModelEdit, node: ir.Node) -> list[int]:
    """Return the axes that a reduction goes over; none where they are not known, or it leaves some places of one."""
    view = edit.view(node)
    sizes, result = view.sizes(0), edit.sizes(node.outputs[0])
    if not sizes or result is None:
        return []
    if node.op_type == "GlobalAveragePool" or (node.op_type == "AveragePool" and is_over_whole_map(view)):
        return list(range(2, len(sizes)))
    if node.op_type == "AveragePool":
        return []
    try:
        return sorted(reduced_axes(view))
    except NotApplicable:
        return []


def _write_mean(edit: ModelEdit, node: ir.Node, source: ir.Value, axes: list[int]) -> None:
    result = node.outputs[0]
    sizes, dtype = edit.sizes(source) or (), edit.dtype(source)
    assert dtype is not None
    op = _SUM_OF[node.op_type]
    total = sum_over(edit, node, op, source, axes, edit.sizes(result) or ())
    after = edit.value(f"{result.name}/after", edit.sizes(result) or (), dtype)
    if op == "ReduceSumSquare":
        edit.add(node, "Sqrt", [total], after)
    else:
        share = edit.shared("share", np.asarray(1 / prod(sizes[axis] for axis in axes), dtype.numpy()))
        edit.add(node, "Mul", [total, share], after)
    _take_over(edit, node, total, after)


def sum_over(
    edit: ModelEdit, before: ir.Node, op: str, source: ir.Value, axes: list[int], sizes: Sequence[int]
) -> ir.Value:
    """Add the sum `op` of a value over axes before a node; return it. Its `sizes` have these axes as ones, or leave them out."""
    attributes = [ir.AttrInt64("keepdims", int(len(sizes) == len(edit.sizes(source) or ())))]
    operands = [source]
    # The axes of a ReduceSum are an operand since opset 13, those of a ReduceSumSquare since opset 18.
    if edit.opset >= (13 if op == "ReduceSum" else 18):
        operands.append(edit.numbers(axes))
    else:
        attributes.append(ir.AttrInt64s("axes", axes))
    total = edit.value(f"{before.outputs[0].name}/total", sizes, edit.dtype(source))
    return edit.add(before, op, operands, total, attributes)


def _take_over(edit: ModelEdit, node: ir.Node, total: ir.Value, after: ir.Value) -> None:
    """Let readers of the mean `node` take `after`; the sum takes its name."""
    edit.replace(node.outputs[0], after)
    edit.model.graph.remove(node, safe=True)
    maker = total.producer()
    assert maker is not None
    maker.name = node.name


# Means of quantised maps: the integers are added up without rounding, and the sum is scaled and quantised once.
#
# A product with ones adds up the last axis. It makes sums of 32 bits of integers of 8 without a wider copy of them.

_LARGE = 2
"""The part of the largest stored map from which on a map is summed up: a smaller one may be made in chunks of channels instead."""
_MOST_SUMMED = 1 << 23
"""The elements of the largest tensor whose sums have no more than 31 bits."""


def sum_quantised_means(edit: ModelEdit) -> list[ir.Node]:
    """Write means of dequantised maps that matter as sums of their integers; return the means that went."""
    changed = []
    results = [value for node in edit.model.graph for value in node.outputs if edit.dtype(value) in BYTES]
    least = max(map(edit.bytes, results), default=0) // _LARGE
    for node in list(edit.model.graph):
        source = node.inputs[0] if _SUM_OF.get(node.op_type) == "ReduceSum" and node.domain in STANDARD else None
        stored = None if source is None else _stored(edit, source)
        axes = [] if stored is None or edit.bytes(stored.value) < least else _axes(edit, node)
        sizes = () if source is None else edit.sizes(source) or ()
        if stored is not None and axes and axes[-1] == len(sizes) - 1 and prod(sizes) <= _MOST_SUMMED:
            _write_quantised(edit, node, stored, axes)
            changed.append(node)
    return changed


class StoredIntegers(NamedTuple):
    """A tensor of integers of 8 bits that floats are made of, with the scale and the zero point of all of them."""

    value: ir.Value
    scale: float
    zero_point: int


def _stored(edit: ModelEdit, value: ir.Value) -> StoredIntegers | None:
    """Return the integers that a value is made of; None for a value that is not made of such integers."""
    maker = value.producer()
    if maker is None or not dequantises(maker) or value in edit.constants or edit.dtype(value) != ir.DataType.FLOAT:
        return None
    stored, *numbers = maker.inputs
    if stored is None or edit.dtype(stored) not in BYTES:
        return None
    known = [edit.constants.array(number) for number in numbers if number is not None and number in edit.constants]
    if len(known) < len(numbers) or any(array.size != 1 for array in known):
        return None
    return StoredIntegers(stored, float(known[0].item()), int(known[1].item()) if len(known) > 1 else 0)


def _write_quantised(edit: ModelEdit, node: ir.Node, stored: StoredIntegers, axes: list[int]) -> None:
    result, sizes = node.outputs[0], edit.sizes(stored.value) or ()
    wanted, count = edit.sizes(result) or (), prod(sizes[axis] for axis in axes)
    ones = edit.shared("ones", np.ones((sizes[-1], 1), np.int8))
    total = edit.value(f"{result.name}/summed", (*sizes[:-1], 1), ir.DataType.INT32)
    edit.add(node, "MatMulInteger", [stored.value, ones], total)
    if wanted != (*sizes[:-1], 1):
        total = sum_over(edit, node, "ReduceSum", total, axes, wanted)
    zeros = edit.shared("zeros", np.asarray(count * stored.zero_point, np.int32))
    centred = edit.value(f"{result.name}/centred", wanted, ir.DataType.INT32)
    edit.add(node, "Sub", [total, zeros], centred)
    number = edit.value(f"{result.name}/float", wanted, ir.DataType.FLOAT)
    edit.add(node, "Cast", [centred], number, [ir.AttrInt64("to", ir.DataType.FLOAT.value)])
    after = edit.value(f"{result.name}/after", wanted, ir.DataType.FLOAT)
    edit.add(node, "Mul", [number, edit.shared("share", np.asarray(stored.scale / count, np.float32))], after)
    _take_over(edit, node, total, after)


# The scale of a DynamicQuantizeLinear comes from the least and the largest element alone, which are found part by part.
#
# So its operand may be there in pieces, each of which is quantised by itself. The scale is that of the same operator on both elements.


def scale_by_extremes(edit: ModelEdit) -> list[ir.Node]:
    """Let each DynamicQuantizeLinear of a tensor that matters read its least and largest element; return those that went.

    The tensor is quantised by their scale, element by element. Every result is equal to the last bit.
    """
    changed = []
    for node in list(edit.model.graph):
        source = node.inputs[0] if node.op_type == "DynamicQuantizeLinear" and node.domain in STANDARD else None
        sizes = None if source is None else edit.sizes(source)
        if source is None or not sizes or edit.bytes(source) <= edit.least:
            continue
        rank, stem = len(sizes), node.outputs[0].name
        ends: list[ir.Value] = []
        for op in ("ReduceMin", "ReduceMax"):
            # Each row has its own, so that pieces of tokens make them; those of all rows are few.
            rows = sum_over(edit, node, op, source, [rank - 1], (*sizes[:-1], 1))
            ends.append(sum_over(edit, node, op, rows, list(range(rank)), (1,) * rank))
        both = edit.value(f"{stem}/extremes", (2, *(1,) * (rank - 1)), ir.DataType.FLOAT)
        edit.add(node, "Concat", ends, both, [ir.AttrInt64("axis", 0)])
        kinds = (edit.sizes(both) or (), ir.DataType.UINT8), ((), ir.DataType.FLOAT), ((), ir.DataType.UINT8)
        scales = [edit.value(f"{stem}/scale{position}", *kind) for position, kind in enumerate(kinds)]
        edit.again(node, node, [both], scales)
        integers = edit.value(f"{stem}/integers", sizes, ir.DataType.UINT8)
        edit.add(node, "QuantizeLinear", [source, *scales[1:]], integers)
        for old, new in zip(node.outputs, (integers, *scales[1:]), strict=True):
            edit.replace(old, new)
        edit.model.graph.remove(node, safe=True)
        changed.append(node)
    return changed


# Normalisations over rows become two sums, which are added up strip by strip, and elementwise operators, which run strip by strip.
#
# The first sum gives the mean. The second is that of the squares of what is left without the mean, as in the usual two passes: the
# difference of a mean square and a squared mean would lose all digits of a variance much smaller than the mean. What is left is also what
# is scaled, so it takes the place of the map.


_AFTER_CHANNELS = 2
"""The first axis after the channels."""


class Normalisation(NamedTuple):
    """A `source` whose elements from `axis` on are normalised to the value `result`, those of each place before the axis together.

    With `groups`, those of a group of channels are normalised together. `scale` and `bias` fit the axes of the source; None where neutral.
    """

    source: ir.Value
    result: ir.Value
    groups: int
    axis: int
    scale: Array | None
    bias: Array | None


def sum_norms(edit: ModelEdit) -> list[ir.Node]:
    """Write normalisations of tensors that matter as sums and what follows; return the nodes that went."""
    changed = []
    for node in list(edit.model.graph):
        norm = _normalisation(edit, node) if node.domain in STANDARD else None
        if norm is not None and edit.dtype(norm.source) in WIDE and edit.bytes(norm.source) > edit.least:
            edit.replace(norm.result, _write_norm(edit, node, norm))
            changed.append(node)
    return changed


def _normalisation(edit: ModelEdit, node: ir.Node) -> Normalisation | None:
    """Return what a node normalises over rows; None for any other operator, or where its scale is no constant."""
    reader = _READERS.get(node.op_type)
    source = node.inputs[0] if reader is not None else None
    if reader is None or source is None or not edit.sizes(source) or any(value.uses() for value in node.outputs[1:]):
        return None
    known = [value is None or value in edit.constants for value in node.inputs[1:]]
    return reader(edit, node, source) if all(known) else None


def _layer(edit: ModelEdit, node: ir.Node, source: ir.Value) -> Normalisation | None:
    rank = len(edit.sizes(source) or ())
    axis = node.attributes.get_int("axis", -1) % rank
    if axis == rank - 1:
        return None  # rows are apart
    return Normalisation(source, node.outputs[0], 0, axis, *(_array(edit, node, position) for position in (1, 2)))


def _groups(edit: ModelEdit, node: ir.Node, source: ir.Value) -> Normalisation:
    groups = node.attributes.get_int("num_groups", 1)
    return _by_channel(edit, node, source, node.outputs[0], groups)


def _instances(edit: ModelEdit, node: ir.Node, source: ir.Value) -> Normalisation:
    """Return groups of channels where the node stands between two Reshapes that make each of them one, as exporters write them."""
    result, sizes = node.outputs[0], edit.sizes(source) or ()
    before, uses = source.producer(), list(result.uses())
    after = uses[0].node if len(uses) == 1 and not uses[0].idx and not result.is_graph_output() else None
    if before is not None and after is not None and before.op_type == after.op_type == "Reshape":
        whole, parts = before.inputs[0], after.outputs[0]
        channels = () if whole is None else edit.sizes(whole) or ()
        is_grouped = len(channels) > _AFTER_CHANNELS and channels[0] == sizes[0] and channels[1] % sizes[1] == 0
        if whole is not None and is_grouped and channels == edit.sizes(parts):
            return _by_channel(edit, node, whole, parts, sizes[1])
    return _by_channel(edit, node, source, result, sizes[1])


_READERS = {"GroupNormalization": _groups, "InstanceNormalization": _instances, "LayerNormalization": _layer}


def _array(edit: ModelEdit, node: ir.Node, position: int) -> Array | None:
    value = given_input(node, position)
    return None if value is None else edit.constants.array(value)


def _by_channel(edit: ModelEdit, node: ir.Node, source: ir.Value, result: ir.Value, groups: int) -> Normalisation:
    """Return the normalisation of groups of channels; a scale or a bias of each group is that of each of its channels."""
    sizes = edit.sizes(source) or ()
    numbers: list[Array | None] = []
    for position, neutral in ((1, 1), (2, 0)):
        array = _array(edit, node, position)
        if array is not None:
            array = np.repeat(array, sizes[1] // len(array)).reshape(-1, *(1 for _ in sizes[_AFTER_CHANNELS:]))
        numbers.append(None if array is None or bool(np.all(array == neutral)) else array)
    return Normalisation(source, result, groups, _AFTER_CHANNELS, *numbers)


def _write_norm(edit: ModelEdit, node: ir.Node, norm: Normalisation) -> ir.Value:
    """Add the nodes of a normalisation before `node`; return their result."""
    source, dtype = norm.source, edit.dtype(norm.source)
    assert dtype is not None
    sizes, stem = edit.sizes(source) or (), norm.result.name
    epsilon = edit.shared("epsilon", np.asarray(node.attributes.get_float("epsilon", 1e-5), dtype.numpy()))

    def add(op: str, ending: str, *operands: ir.Value) -> ir.Value:
        shape = np.broadcast_shapes(*(edit.sizes(value) or () for value in operands))
        return edit.add(node, op, operands, edit.value(f"{stem}/{ending}", shape, dtype))

    apart = add("Sub", "apart", source, _mean(edit, node, norm, "ReduceSum", source))
    variance = _mean(edit, node, norm, "ReduceSumSquare", apart)
    root = add("Sqrt", "root", add("Add", "variance", variance, epsilon))
    if norm.groups and norm.scale is not None:
        factor = add("Div", "factor", edit.constant(f"{stem}/scale", norm.scale), root)
        value = add("Mul", "scaled", apart, factor)
    else:
        value = add("Div", "normal", apart, root)
        value = value if norm.scale is None else add("Mul", "scaled", value, edit.constant(f"{stem}/scale", norm.scale))
    assert (edit.sizes(value) or ()) == sizes
    return value if norm.bias is None else add("Add", "shifted", value, edit.constant(f"{stem}/bias", norm.bias))


def _mean(edit: ModelEdit, node: ir.Node, norm: Normalisation, op: str, value: ir.Value) -> ir.Value:
    """Add the mean of elements, or of their squares, for all that are normalised together; it fits the axes of the value."""
    sizes, dtype = edit.sizes(value) or (), edit.dtype(value)
    assert dtype is not None
    axes = range(norm.axis, len(sizes))
    each = sizes[1] // norm.groups if norm.groups else 1
    share = 1 / (each * prod(sizes[axis] for axis in axes))
    total = sum_over(
        edit, node, op, value, list(axes), tuple(1 if axis in axes else size for axis, size in enumerate(sizes))
    )
    whole = edit.sizes(total) or ()
    if each == 1:
        return edit.add(
            node,
            "Mul",
            [total, edit.shared("share", np.asarray(share, dtype.numpy()))],
            edit.value(f"{value.name}/mean", whole, dtype),
        )

    def shaped(value: ir.Value, sizes: tuple[int, ...], ending: str) -> ir.Value:
        return edit.add(
            node, "Reshape", [value, edit.numbers(sizes)], edit.value(f"{value.name}/{ending}", sizes, dtype)
        )

    grouped = shaped(total, (sizes[0], norm.groups, each), "grouped")
    of_group = sum_over(edit, node, "ReduceSum", grouped, [2], (sizes[0], norm.groups, 1))
    # The mean of a group is that of each of its channels.
    shares = edit.shared("shares", np.full((1, 1, each), share, dtype.numpy()))
    by_channel = edit.add(
        node, "Mul", [of_group, shares], edit.value(f"{value.name}/means", (sizes[0], norm.groups, each), dtype)
    )
    return shaped(by_channel, whole, "mean")
