"""A wide tensor that waits long for its last readers is made again for them, from narrower tensors or from inputs.

So it is in no memory meanwhile. The first level of a U-Net, which skips all others, is of this kind: it is made again from the image, strip
by strip, together with what reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import onnx_ir as ir

from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.rewrites.means import SecondPass, makers_from_narrower, run_again
from onnxtile.model import keys
from onnxtile.system.dataclass import dataclass

_LONG = 8
"""Kernels that run while a tensor waits, at least."""
_PART = 8
"""A tensor of this part of the largest sum of live bytes may be made again, and none of fewer bytes."""
_NARROWER = 2
"""What a tensor is made from again takes at most this part of its bytes."""


@dataclass(frozen=True)
class LongSkip:
    """What runs again so that a tensor need not wait, the bytes that this spares, and the multiply-accumulates that are done again."""

    again: SecondPass
    spared: int
    macs: int


def long_skips(edit: ModelEdit, regions: Regions, nodes: Mapping[ir.Node, ir.Node]) -> list[LongSkip]:
    """Return the tensors that may be made again, those first that spare most bytes for their multiply-accumulates.

    `nodes` has the nodes of `edit` for those of the `regions`.
    """
    skips = list(_long_skips(edit, regions, nodes))
    return sorted(skips, key=lambda skip: (-skip.spared / max(skip.macs, 1), skip.again.nodes[-1].name or ""))


def make_again(edit: ModelEdit, skips: list[LongSkip]) -> list[ir.Node]:
    """Let the late readers of tensors read copies that are made for them; return the nodes that make these tensors."""
    for skip in sorted(skips, key=lambda skip: len(skip.again.nodes)):
        run_again(edit, skip.again)
    return [skip.again.nodes[-1] for skip in skips]


def _long_skips(edit: ModelEdit, regions: Regions, nodes: Mapping[ir.Node, ir.Node]) -> Iterator[LongSkip]:
    network = regions.network
    readers: dict[int, list[int]] = {}
    for index, kernel in enumerate(network.kernels):
        for tensor in dict.fromkeys(kernel.reads):
            readers.setdefault(tensor, []).append(index)
    least = max((region.peak for region in regions.whole), default=0) // _PART
    made = [nodes.get(kernel.source.node) for kernel in network.kernels]
    macs = {node: kernel.macs for node, kernel in zip(made, network.kernels, strict=True) if node is not None}
    sizes = {about.name: about.size for about in network.tensors}
    places = {node: place for place, node in enumerate(edit.model.graph)}
    for tensor, maker in regions.makers.items():
        about, node = network.tensors[tensor], made[maker]
        before = _last_before_gap(readers.get(tensor, []))
        if before is None or node is None or about.size < max(least, 1) or about.is_kept:
            continue
        cone = makers_from_narrower(edit, node.outputs[0])
        last = made[before]
        if cone is None or last is None or not _is_made_once_more(cone):
            continue
        given = {value.name for member in cone for value in member.inputs if value is not None}
        given -= {value.name for member in cone for value in member.outputs}
        kept = sum(sizes.get(name or "", 0) for name in given)
        if kept * _NARROWER <= about.size:
            again = SecondPass(last, tuple(sorted(cone, key=places.__getitem__)))
            yield LongSkip(again, about.size - kept, sum(macs.get(member, 0) for member in cone))


def _last_before_gap(readers: list[int]) -> int | None:
    """Return the last of the first readers of a tensor, after which it waits longest; None where it does not wait long."""
    gaps = [(later - earlier, -earlier) for earlier, later in pairwise(readers)]
    longest, earlier = max(gaps, default=(0, 0))
    return -earlier if longest > _LONG else None


def _is_made_once_more(cone: set[ir.Node]) -> bool:
    """Return whether nodes may read their operands again: the rows of an input that comes row by row come once."""
    read = (value for node in cone for value in node.inputs if value is not None)
    return not any(keys.STREAM in value.metadata_props for value in read)
