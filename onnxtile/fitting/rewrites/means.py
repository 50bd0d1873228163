"""The mean over rows and columns of a sum is the sum of the means, and the mean of joined channels joins their means.

So a sum of branches that only its mean is read of, as in selective kernels and split attention, needs not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.model.topology import dependencies, has_body
from onnxtile.operators.families.reductions import reduced, whole_images
from onnxtile.operators.node_view import STANDARD, NotApplicable
from onnxtile.operators.table import may_draw, movement_of, operator_of
from onnxtile.system.dataclass import dataclass

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
            if not any(value.uses() or value.is_graph_output() for value in member.outputs):
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
