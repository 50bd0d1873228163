"""Tensors whose means over rows and columns scale them again are made twice: once for the means, once to be scaled.

So no such tensor exists as a whole. For the means it is made some channels at a time; the second time it is made strip by strip, together
with what reads it. Squeeze-and-excitation and global response normalisation (ConvNeXt V2, arXiv:2301.00808) are of this kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.fitting.unblocking.editing import ModelEdit
from onnxtile.model.draws import may_draw
from onnxtile.model.walk import dependencies, has_body

_REDUCTIONS = (
    "GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceSum ReduceSumSquare"
)
_SMALLER = 16
"""The result of a reduction is at most this part of its operand."""
_NARROWER = 2
"""The tensors from which a wide one is made again are at most this part of it."""
_LONGEST = 24
"""Nodes that are run again for one reduction, at most."""
_STANDARD = {"", "ai.onnx"}


@dataclass(frozen=True)
class SecondPass:
    """A `reduction`, and the `nodes` that run once more behind it, in their order, for readers of their results that wait for it."""

    reduction: ir.Node
    nodes: tuple[ir.Node, ...]


def second_passes(edit: ModelEdit, reductions: Collection[ir.Node]) -> Iterator[SecondPass]:
    """Yield what would run twice so that no operand of these `reductions` exists as a whole."""
    places = {node: place for place, node in enumerate(edit.model.graph)}
    taken: set[ir.Node] = set()
    for node in edit.model.graph:
        if node in reductions and node.op_type in _REDUCTIONS.split() and node.domain in _STANDARD:
            cone = _cone(edit, node) or set()
            wanted = _behind(node, cone, places) if taken.isdisjoint(cone) else []
            if wanted:
                taken |= cone
                yield SecondPass(node, tuple(sorted(_makers(wanted, cone), key=places.__getitem__)))


def run_again(edit: ModelEdit, again: SecondPass) -> None:
    """Add the second pass before the first node that waits for the reduction and reads it."""
    places = {node: place for place, node in enumerate(edit.model.graph)}
    cone = set(again.nodes)
    readers = [
        (use.node, use.idx, value)
        for node in again.nodes
        for value in node.outputs
        for use in value.uses()
        if use.node not in cone and places.get(use.node, -1) > places[again.reduction]
    ]
    first = min((reader for reader, _, _ in readers), key=places.__getitem__)
    made: dict[ir.Value, ir.Value] = {}
    for node in again.nodes:
        results = [edit.value(f"{one.name}/again", edit.sizes(one) or (), edit.dtype(one)) for one in node.outputs]
        edit.again(first, node, [one if one is None else made.get(one, one) for one in node.inputs], results)
        made.update(zip(node.outputs, results, strict=True))
    for reader, place, value in readers:
        reader.replace_input_with(place, made[value])


def _cone(edit: ModelEdit, reduction: ir.Node) -> set[ir.Node] | None:
    """Return the nodes that make the operand of a reduction from much narrower tensors; None where there are no such nodes."""
    source = reduction.inputs[0]
    if source is None or sum(map(edit.bytes, reduction.outputs)) * _SMALLER > edit.bytes(source):
        return None
    wide, found = edit.bytes(source), set[ir.Node]()
    given = {source: wide}
    while len(found) < _LONGEST:
        if found and sum(given.values()) * _NARROWER <= wide:
            return found
        widest = max(given, key=lambda value: (given[value], value.name or ""))
        maker = widest.producer()
        if not given[widest] or maker is None or not _may_run_twice(maker):
            return None
        found.add(maker)
        read = [value for value in maker.inputs if value is not None and value.producer() not in found]
        given.update((value, edit.bytes(value)) for value in read)
        given = {value: size for value, size in given.items() if value.producer() not in found}
        if not given:
            return None
    return None


def _may_run_twice(node: ir.Node) -> bool:
    """Return whether a node of one result gives the same each time."""
    if node.domain not in _STANDARD or has_body(node) or len(node.outputs) > 1 or may_draw(node):
        return False
    return not node.outputs[0].is_graph_output()


def _behind(reduction: ir.Node, cone: Collection[ir.Node], places: Mapping[ir.Node, int]) -> list[ir.Value]:
    """Return the results of `cone` that nodes behind the reduction read; none where others outside of it read some."""
    found: list[ir.Value] = []
    for value in (value for node in cone for value in node.outputs):
        others = [use.node for use in value.uses() if use.node not in cone and use.node is not reduction]
        if any(places.get(one, -1) < places[reduction] for one in others):
            return []
        found += [value] if others else []
    return found


def _makers(wanted: Collection[ir.Value], cone: Collection[ir.Node]) -> set[ir.Node]:
    """Return the nodes of `cone` that make the values `wanted`."""
    found: set[ir.Node] = set()
    pending = list(wanted)
    while pending:
        maker = pending.pop().producer()
        if maker is not None and maker in cone and maker not in found:
            found.add(maker)
            pending += dependencies(maker)
    return found
