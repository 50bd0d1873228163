"""Regions of quantised models that a float pattern describes: its nodes, and between them all that quantises and dequantises."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import onnx_ir as ir

from onnxtile.fusion.quantised_operators import scales_of
from onnxtile.fusion.region import FusedRegion, Refusal, region
from onnxtile.model.constants import Constants
from onnxtile.model.quantising import dequantises, quantises, quantises_at_run


def region_through(members: Sequence[ir.Node], constants: Constants) -> FusedRegion | Refusal:
    """Return the region of `members` and of the nodes that quantise and dequantise between them.

    Scales and zero points are inputs of it, whatever their size. A node that dequantises for others, too, is copied.
    """
    between = _between(members)
    part = region([*members, *between], constants)
    if isinstance(part, Refusal):
        return part
    scales = dict.fromkeys(value for node in part.nodes for value in scales_of(node))
    read = {*part.inputs, *part.constants}
    inputs = (*(value for value in part.inputs if value not in scales), *(value for value in scales if value in read))
    inside = tuple(value for value in part.constants if value not in scales)
    copied = part.copied | {node for node in between if dequantises(node)}
    own = replace(part, inputs=inputs, constants=inside, copied=copied)
    return replace(own, outputs=_outputs(own)) if copied else own


def _outputs(part: FusedRegion) -> tuple[ir.Value, ...]:
    """Return the values of the nodes that leave the graph which others read: a dequantiser that stays reads a stored one."""
    leaving = set(part.own)
    read = dict.fromkeys(value for value in part.outputs if value.producer() in leaving)
    read |= dict.fromkeys(value for node in part.own for value in node.outputs if _is_read_outside(value, leaving))
    return tuple(read)


def _is_read_outside(value: ir.Value, members: Collection[ir.Node]) -> bool:
    return value.is_graph_output() or any(reader not in members for reader in value.consumers())


def _between(members: Iterable[ir.Node]) -> list[ir.Node]:
    """Return the nodes that quantise results of `members` for them, that dequantise these, and that quantise for them alone."""
    own = set(members)
    found: dict[ir.Node, None] = {}
    for node in members:
        for value in node.inputs:
            found |= dict.fromkeys(_way(None if value is None else value.producer(), own))
    return list(found)


def _way(maker: ir.Node | None, own: Collection[ir.Node]) -> Sequence[ir.Node]:
    """Return the nodes on the way from one of `own` to the result of `maker`, where all of them quantise or dequantise."""
    if maker is None or maker in own:
        return ()
    if quantises_at_run(maker):
        readers = (reader for value in maker.outputs for reader in value.consumers())
        return (maker,) if all(reader in own for reader in readers) else ()
    way: list[ir.Node] = []
    for kind in (dequantises, quantises):
        if maker is not None and maker not in own and kind(maker):
            way.insert(0, maker)
            maker = None if maker.inputs[0] is None else maker.inputs[0].producer()
    return way if maker in own else ()
