"""The mean over rows and columns of a pointwise convolution is the convolution of the mean.

So the wide result of the convolution needs not exist as a whole: its mean comes from the narrow operand.
"""

from __future__ import annotations

from math import prod

import onnx_ir as ir

from onnxtile.fitting.unblocking.editing import ModelEdit

_PIXELS = 256
"""Pixels below which the product with one more pixel would count."""


def pool_early(edit: ModelEdit) -> list[ir.Node]:
    """Take the means of operands of pointwise convolutions instead of those of their results; return the poolings that went."""
    found = []
    for node in list(edit.model.graph):
        if node.op_type != "GlobalAveragePool" or node.domain not in {"", "ai.onnx"}:
            continue
        chain = _pointwise(edit, node)
        if not chain:
            continue
        _move(edit, node, chain)
        for one in (node, *chain):
            if not any(value.uses() or value.is_graph_output() for value in one.outputs):
                edit.model.graph.remove(one, safe=True)
        found.append(node)
    return found


def _pointwise(edit: ModelEdit, pool: ir.Node) -> list[ir.Node]:
    """Return the pointwise convolutions and normalisations between a pooling and the smallest tensor, the last one first."""
    found: list[ir.Node] = []
    source = pool.inputs[0]
    sizes = () if source is None else edit.sizes(source) or ()
    if prod(sizes[2:]) < _PIXELS:
        return []
    size = 0 if source is None else edit.bytes(source)
    best = 0
    while source is not None and (maker := source.producer()) is not None and _is_linear(edit, maker):
        found.append(maker)
        source = maker.inputs[0]
        if source is not None and source not in edit.constants and 0 < edit.bytes(source) < size:
            best, size = len(found), edit.bytes(source)
    return found[:best]


def _is_linear(edit: ModelEdit, node: ir.Node) -> bool:
    """Return whether the mean of the node's result is the node's result of the mean: each pixel of it is the same sum of channels."""
    if node.domain not in {"", "ai.onnx"} or node.outputs[0].is_graph_output():
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
    value = _mean(edit, source, chain[-1])
    for node in reversed(chain):
        made = node.outputs[0]
        sizes = edit.sizes(made)
        assert sizes is not None
        result = edit.value(f"{made.name}/mean", (*sizes[:2], *(1 for _ in sizes[2:])), edit.dtype(made))
        attributes = [one for one in node.attributes.values() if one.name != "auto_pad"]
        value = edit.add(pool, node.op_type, [value, *node.inputs[1:]], result, attributes)
    edit.replace(pool.outputs[0], value)


def _mean(edit: ModelEdit, source: ir.Value, before: ir.Node) -> ir.Value:
    sizes = edit.sizes(source)
    assert sizes is not None
    result = edit.value(f"{source.name}/mean", (*sizes[:2], *(1 for _ in sizes[2:])), edit.dtype(source))
    return edit.add(before, "GlobalAveragePool", [source], result)
