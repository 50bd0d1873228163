"""The mean over rows and columns of a sum is the sum of the means, and the mean of joined channels joins their means.

So a sum of branches that only its mean is read of, as in selective kernels and split attention, needs not exist.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.axis_maps import OperatorFacts, Uncut
from onnxtile.fitting.unblocking.editing import ModelEdit

_SPATIAL = 2
"""The axes of rows and columns: the last ones."""
_MEANS = frozenset({"GlobalAveragePool", "ReduceMean"})
_SUMS = frozenset({"Add", "ReduceMean", "ReduceSum", "Sum"})
"""Operators whose results need not exist where only their means are read."""
_MOVES = frozenset({"Concat", "Reshape", "Squeeze", "Unsqueeze"})
"""Operators that move whole channels."""
_DEEPEST = 8
"""Nodes between a mean and the tensors whose means are taken instead, at most."""
_RANK = 4
"""Batch, channels, rows and columns."""


class _NotAlike(Exception):
    """The operand of a mean is not a sum, or the terms of the sum differ in rows or columns."""


def mean_early(edit: ModelEdit) -> list[ir.Node]:
    """Take the means of summands instead of those of their sums; return the means that went.

    The sums are left in the graph, where nothing reads them any more.
    """
    found = []
    for node in list(edit.model.graph):
        source = node.inputs[0] if node.op_type in _MEANS and node.domain in {"", "ai.onnx"} else None
        if source is None or not _is_of_pixels(edit, node) or edit.bytes(source) <= edit.least:
            continue
        try:
            summands = list(_summands(edit, source))
        except _NotAlike:
            continue
        if source not in summands:
            _MeanWriter(edit, node, summands).write()
            found.append(node)
    return found


def _is_of_pixels(edit: ModelEdit, node: ir.Node) -> bool:
    """Return whether a node takes the mean over rows and columns alone."""
    sizes, made = edit.sizes(node.inputs[0]) if node.inputs[0] else None, edit.sizes(node.outputs[0])
    if sizes is None or made is None or len(sizes) <= _SPATIAL:
        return False
    if node.op_type == "GlobalAveragePool":
        return len(sizes) == _RANK
    return _reduced(edit, node) == {len(sizes) - 2, len(sizes) - 1}


def _reduced(edit: ModelEdit, node: ir.Node) -> set[int]:
    """Return the axes that a reduction goes over; empty where they are not known."""
    facts = OperatorFacts(node, edit.shapes, edit.constants, edit.opset)
    rank = len(edit.sizes(node.inputs[0]) or ()) if node.inputs[0] is not None else 0
    try:
        axes = facts.numbers(1) if len(facts.inputs) > 1 else facts.ints("axes", ())
    except Uncut:
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
    some = node.inputs if node.op_type in {"Add", "Concat", "Sum"} else node.inputs[:1]
    return [value for value in some if value is not None]


def _is_linear(edit: ModelEdit, node: ir.Node) -> bool:
    """Return whether the mean of the node's result is the node's result of the means, and nothing else reads a sum."""
    if node.domain not in {"", "ai.onnx"} or node.op_type not in _SUMS | _MOVES or len(node.outputs) > 1:
        return False
    made = node.outputs[0]
    after = edit.sizes(made) or ()
    shapes = [edit.sizes(value) or () for value in _operands(node)]
    if any(one[-_SPATIAL:] != after[-_SPATIAL:] or len(one) <= _SPATIAL for one in shapes):
        return False
    if node.op_type in _SUMS and (len(made.uses()) > 1 or made.is_graph_output()):
        return False
    if node.op_type in {"ReduceMean", "ReduceSum"}:
        reduced = _reduced(edit, node)
        return bool(reduced) and max(reduced) < len(shapes[0]) - _SPATIAL
    if node.op_type == "Concat":
        return node.attributes.get_int("axis", 1) % len(after) < len(after) - _SPATIAL
    return node.op_type not in {"Add", "Sum"} or all(one == after for one in shapes)


class _MeanWriter:
    """Writes the means of `summands`, and the operators between them and one `mean` over these means."""

    def __init__(self, edit: ModelEdit, mean: ir.Node, summands: list[ir.Value]) -> None:
        self.edit, self.mean = edit, mean
        self.means: dict[ir.Value, ir.Value] = {}
        for value in dict.fromkeys(summands):
            result = self._value(value)
            self.means[value] = edit.add(mean, "GlobalAveragePool", [value], result)

    def write(self) -> None:
        """Write all, and let the readers of the mean take the result."""
        source, made = self.mean.inputs[0], self.mean.outputs[0]
        assert source is not None
        result, sizes = self._over(source), self.edit.sizes(made)
        if sizes is not None and sizes != self.edit.sizes(result):
            numbers = self.edit.constant(f"{made.name}/sizes", np.asarray(sizes, np.int64))
            flat = self.edit.value(f"{made.name}/mean", sizes, self.edit.dtype(made))
            result = self.edit.add(self.mean, "Reshape", [result, numbers], flat)
        self.edit.replace(made, result)
        self.edit.model.graph.remove(self.mean, safe=True)

    def _value(self, value: ir.Value) -> ir.Value:
        sizes = (self.edit.sizes(value) or ())[:-_SPATIAL] + (1,) * _SPATIAL
        return self.edit.value(f"{value.name}/mean", sizes, self.edit.dtype(value))

    def _over(self, value: ir.Value) -> ir.Value:
        """Return the mean of a value, from those of its summands."""
        node = value.producer()
        if value not in self.means:
            assert node is not None
            given = set(_operands(node))
            inputs = [self._over(one) if one in given else one for one in node.inputs if one is not None]
            self.means[value] = self._value(value)
            self.edit.again(self.mean, node, inputs, [self.means[value]])
        return self.means[value]
