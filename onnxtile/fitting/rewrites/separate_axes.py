"""Operators that interpolate or mirror along rows and columns at once work along one axis after the other, so that rows can be cut."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.operators.families.movement import is_mirrored, pad_sizes
from onnxtile.operators.families.resizing import interpolates, resize_scales
from onnxtile.operators.node_view import STANDARD, NodeView, NotApplicable

_OF_SIZES = frozenset({"axes", "keep_aspect_ratio_policy", "pads"})
"""Attributes about the axes that a node changes."""


def separate_axes(edit: ModelEdit, *, exact: bool) -> list[ir.Node]:
    """Let each Resize and Pad whose rows depend on neighbours change its rows first, then the other axes; return those that did both.

    Sums along one axis after the other differ in the last bits, so with `exact` only copies are taken apart.
    """
    separated = []
    for node in list(edit.model.graph):
        facts = edit.view(node)
        if node.domain in STANDARD and edit.bytes(node.outputs[0]) > edit.least and _is_apart(facts, exact=exact):
            _take_apart(edit, facts)
            separated.append(node)
    return separated


def _is_apart(facts: NodeView, *, exact: bool) -> bool:
    """Return whether a node changes several axes, the first by interpolating or mirroring."""
    changed = _changed(facts)
    if len(changed) < 2:
        return False
    try:
        if facts.node.op_type == "Pad":
            return is_mirrored(facts) and min(pad_sizes(facts)) >= 0
        sums = facts.node.attributes.get_string("mode", "nearest") != "nearest"
        return interpolates(facts, changed[0]) and not (sums and exact)
    except NotApplicable:
        return False


def _changed(facts: NodeView) -> list[int]:
    before, after = facts.sizes(0) or (), facts.shapes.sizes(facts.node.outputs[0]) or ()
    if len(before) != len(after):
        return []
    return [axis for axis, size in enumerate(before) if size != after[axis]]


def _take_apart(edit: ModelEdit, facts: NodeView) -> None:
    node, changed = facts.node, _changed(facts)
    value = node.inputs[0]
    assert value is not None
    sizes = list(facts.operand(0))
    for axes in (changed[:1], changed[1:]):
        for axis in axes:
            sizes[axis] = facts.result[axis]
        result = edit.value(f"{node.outputs[0].name}/axis{axes[0]}", sizes, edit.dtype(node.outputs[0]))
        kept = [attribute for attribute in node.attributes.values() if attribute.name not in _OF_SIZES]
        operands, pads = (
            edit.pads(_pads(facts, axes)) if node.op_type == "Pad" else (_scaling(edit, facts, axes, sizes), [])
        )
        value = edit.add(node, node.op_type, [value, *operands], result, kept + pads)
    edit.replace(node.outputs[0], value)
    edit.model.graph.remove(node)


def _pads(facts: NodeView, axes: Sequence[int]) -> list[int]:
    rank = len(facts.result)
    return [size if index % rank in axes else 0 for index, size in enumerate(pad_sizes(facts))]


def _scaling(edit: ModelEdit, facts: NodeView, axes: Sequence[int], sizes: Sequence[int]) -> list[ir.Value | None]:
    """Return the operands after the first of a Resize along `axes` alone: scales or sizes, as the node has them."""
    scales = resize_scales(facts)
    # Before opset 13 operands that are not given are empty tensors.
    none = None if edit.opset > 12 else edit.constant("none", np.zeros(0, np.float32))
    if scales is None:
        return [none, none, edit.numbers(sizes)]
    wanted = [scale if axis in axes else 1.0 for axis, scale in enumerate(scales)]
    return [none, edit.constant("scales", np.asarray(wanted, np.float32))]
