"""Quantised islands as single kernels: what is between their nodes is never stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxtile.fitting.network import FitKernel, FitTensor
from onnxtile.operators.reads import AxisLink, AxisLinks


def runs_as_one(nodes: Sequence[ir.Node], inside: Collection[ir.Value]) -> list[list[ir.Node]]:
    """Return the nodes that run as one kernel each, in the order of the last node of each: those linked by values `inside` of islands.

    Nodes of an island stay apart where another node reads what it stores before its last node.
    """
    places = {node: place for place, node in enumerate(nodes)}
    groups = {node: [node] for node in nodes}
    for node in nodes:
        for value in node.inputs:
            maker = None if value is None or value not in inside else value.producer()
            if maker in groups and groups[maker] is not groups[node]:
                joined = groups[maker] + groups[node]
                groups.update(dict.fromkeys(joined, joined))
    runs: list[list[ir.Node]] = []
    for group in {id(group): group for group in groups.values()}.values():
        group.sort(key=places.__getitem__)
        runs += [group] if _is_one(group, places, inside) else [[node] for node in group]
    return sorted(runs, key=lambda run: places[run[-1]])


def _is_one(group: Sequence[ir.Node], places: Mapping[ir.Node, int], inside: Collection[ir.Value]) -> bool:
    """Return whether all that reads what a group stores comes after the group."""
    members, last = set(group), places[group[-1]]
    stored = (value for node in group for value in node.outputs if value not in inside)
    readers = (use.node for value in stored for use in value.uses() if use.node not in members)
    return all(places.get(reader, -1) > last for reader in readers)


def as_one(
    parts: Sequence[FitKernel], tensors: Sequence[FitTensor], over: Collection[int] = (), *, is_join: bool = False
) -> FitKernel:
    """Return the kernel that runs the nodes of `parts`.

    Its result may be written over operands of `over`, and is these one after the other where it `is_join`.
    """
    reads, links = _reads(parts, tensors)
    order = _joined(parts, reads) if is_join else None
    if order is not None:
        links = None if links is None else tuple(links[reads.index(tensor)] for tensor in order)
        reads = order
    named = next((part for part in parts if not _converts(part)), parts[-1])
    unalike = "" if links is not None else "its nodes read rows in ways that are not those of one kernel"
    return replace(
        named,
        reads=tuple(reads),
        makes=tuple(tensor for part in parts for tensor in part.makes if not tensors[tensor].is_inside),
        links=links,
        macs=sum(part.macs for part in parts),
        overwrites=frozenset(place for place, tensor in enumerate(reads) if tensor in over and order is None),
        is_view=False,
        is_join=order is not None,
        is_split=False,
        reason=next((part.reason for part in parts if part.reason), unalike),
        is_random=any(part.is_random for part in parts),
        parts=tuple(parts),
    )


def _converts(part: FitKernel) -> bool:
    """Return whether a node only quantises or dequantises."""
    node = part.source.node
    return node is None or node.op_type in {"QuantizeLinear", "DequantizeLinear"}


def _reads(parts: Sequence[FitKernel], tensors: Sequence[FitTensor]) -> tuple[list[int], AxisLinks | None]:
    """Return the operands of an island, with the link of each to the rows of the results; None where rows are not those of one kernel."""
    made = {tensor for part in parts for tensor in part.makes}
    reads = list(dict.fromkeys(tensor for part in parts for tensor in part.reads if tensor not in made))
    needs: dict[int, AxisLink | None] = {
        tensor: AxisLink(tensors[tensor].axis or 0) for tensor in made if not tensors[tensor].is_inside
    }
    for part in reversed(parts):
        asked = {needs[tensor] for tensor in part.makes if tensor in needs}
        if part.links is None or len(asked) != 1:
            return reads, None
        need = asked.pop()
        for tensor, link in zip(part.reads, part.links, strict=True):
            is_cut = need is not None and link is not None and link.axis == tensors[tensor].axis
            through = _through(need, link) if is_cut and need is not None and link is not None else None
            if (is_cut and through is None) or needs.setdefault(tensor, through) != through:
                return reads, None
    return reads, tuple(needs[tensor] for tensor in reads)


def _through(need: AxisLink, link: AxisLink) -> AxisLink | None:
    """Return the link of an operand of a node whose result has the link `need`; None where both have windows."""
    if need == AxisLink(need.axis):
        return link
    return replace(need, axis=link.axis) if link == AxisLink(link.axis) else None


def _joined(parts: Sequence[FitKernel], reads: Collection[int]) -> list[int] | None:
    """Return the operands of an island in the order in which it joins them; None where one is not joined, or more than once."""
    given = {part.makes[0]: part.reads[0] for part in parts if len(part.reads) == 1}
    join = next((part for part in parts if len(part.reads) > 1), parts[-1])
    order = [given.get(tensor, tensor) for tensor in join.reads]
    return order if len(order) == len(reads) and set(order) == set(reads) else None
