"""Hidden channels in chunks: a wide tensor between an expanding and a reducing kernel is made and used up part by part.

The reducing kernel of each chunk makes a partial sum, which is added to the sum of those before it. Where the last kernel is a pooling that
makes much less than it reads, its chunks are joined instead. No product is computed twice. Chunks of quantised channels are only joined:
a sum in parts would be rounded in parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod

import onnx_ir as ir

from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.fitting.read_network import KernelSource
from onnxtile.fitting.strips import ChunkedKernels, PatchRange, shares
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import dequantises
from onnxtile.operators.node_view import NodeView, NotApplicable, operator_name
from onnxtile.operators.reads import AxisLink, AxisLinks
from onnxtile.operators.table import axis_links, factors_of
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass

_CONVOLUTIONS = frozenset({"Conv", "QLinearConv"})
_PRODUCTS = _CONVOLUTIONS | {"Gemm", "MatMul"}
"""The products whose channels are cut."""
_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SMALLER = 4
"""A pooling that ends a group makes at most this part of what it reads."""
_SOME = 3
"""Equal chunks, of which more are counted by as many."""
_LONGEST = 24
"""Kernels between the first and the last of a group, at most."""


@dataclass(frozen=True)
class HiddenGroup:
    """The kernels that make and use up hidden channels, by their places: the first expands, the last reduces.

    A kernel that gives back floats for the first alone stands before it. `tensors` are those with hidden channels, `channels` their
    number, `axis` their axis. `slices` has, for each node of each kernel, the axis of each constant operand along which it has hidden
    channels, by the place of the operand. `is_joined` says that the results of the last kernel are joined, not added.
    """

    places: tuple[int, ...]
    tensors: frozenset[int]
    channels: int
    axis: int
    slices: Mapping[int, Sequence[Mapping[int, int]]]
    is_joined: bool = False

    def after(self, count: int) -> int | None:
        """Return the next larger number of chunks, one that divides the channels if there is one; None for no more."""
        more = [count_above for count_above in _COUNTS if count_above > count and count_above <= self.channels]
        even = [count_above for count_above in more if self.channels % count_above == 0]
        return next(iter(even or more), None)


class HiddenGroups:
    """Finds the groups of a network whose constants are known; without `sums`, only those whose chunks are joined."""

    def __init__(
        self, network: Network, shapes: Shapes, constants: Constants, opset: int, *, sums: bool = True
    ) -> None:
        self._shapes, self._constants, self._opset, self._sums = shapes, constants, opset, sums
        self._kernel_of = [number for number, kernel in enumerate(network.kernels) for _ in kernel.members]
        # Groups are found node by node.
        self._network = network = Network(
            network.tensors, [part for kernel in network.kernels for part in kernel.members]
        )
        self._makers = {result: index for index, kernel in enumerate(network.kernels) for result in kernel.makes}
        self._readers: dict[int, list[int]] = {}
        for index, kernel in enumerate(network.kernels):
            for tensor in dict.fromkeys(kernel.reads):
                self._readers.setdefault(tensor, []).append(index)

    def found(self) -> dict[int, HiddenGroup]:
        """Return the groups by the place of their first kernel."""
        by_kernel = (self._from(index) for index in range(len(self._network.kernels)))
        groups = (self._of_kernels(group) for group in by_kernel if group is not None)
        return {group.places[0]: group for group in groups if group is not None}

    def _of_kernels(self, group: HiddenGroup) -> HiddenGroup | None:
        """Return a group of nodes as one of kernels; None where it has only some nodes of an island."""
        slices: dict[int, list[Mapping[int, int]]] = {}
        for node in sorted(group.places):
            slices.setdefault(self._kernel_of[node], []).extend(group.slices[node])
        if any(len(of_nodes) < self._kernel_of.count(number) for number, of_nodes in slices.items()):
            return None
        return replace(group, places=tuple(slices), slices=slices)

    def _from(self, first: int) -> HiddenGroup | None:
        kernel = self._network.kernels[first]
        node = self._product(kernel)
        if node is None:
            return None
        axis = 1 if node.op_type in _CONVOLUTIONS else len(self._network.tensors[kernel.makes[0]].dims) - 1
        slices = {first: self._slices(kernel, axis, frozenset())}
        if slices[first] is None:
            return None
        hidden, places = {kernel.makes[0]}, [first]
        if self._network.tensors[kernel.reads[0]].is_inside:
            before = self._makers[kernel.reads[0]]
            if not dequantises(self._network.kernels[before].source.node):
                return None
            places, slices[before] = [before, first], {}
        is_smaller = False
        joined: HiddenGroup | None = None
        ended: HiddenGroup | None = None
        for index in range(first + 1, min(first + _LONGEST, len(self._network.kernels))):
            reader = self._network.kernels[index]
            if hidden.isdisjoint(reader.reads):
                continue
            places.append(index)
            reduced = self._reduced(reader, hidden, axis)
            slices[index] = self._slices(reader, axis, hidden) if reduced is None else reduced
            if slices[index] is None:
                break
            carried = is_smaller and any(self._network.tensors[tensor].is_inside for tensor in reader.reads)
            is_smaller = carried or self._is_smaller(reader)
            known = {p: [s] for p, s in slices.items() if s is not None}
            group = self._closed(list(places), frozenset(hidden), axis, known)
            if reduced is not None:
                return group or joined or ended
            if group is not None:
                # Channels that a gate reads as a whole are joined there; what they are made of is not kept.
                ended = replace(group, is_joined=True)
                joined = joined or (ended if is_smaller else None)
            hidden.update(reader.makes)
        return joined or ended

    def _is_smaller(self, kernel: FitKernel) -> bool:
        """Return whether the result of a kernel is much smaller than each of its operands."""
        tensors = self._network.tensors
        elements = prod(tensors[kernel.makes[0]].dims) * _SMALLER
        return all(elements <= prod(tensors[tensor].dims) for tensor in kernel.reads)

    def _closed(
        self, places: list[int], hidden: Collection[int], axis: int, slices: Mapping[int, Sequence[Mapping[int, int]]]
    ) -> HiddenGroup | None:
        """Return the group, unless a kernel outside of it reads a hidden tensor."""
        network = self._network
        last = network.kernels[places[-1]].makes[0]
        if network.tensors[last].is_inside or all(network.tensors[tensor].is_inside for tensor in hidden):
            return None
        if any(network.last_reads[tensor] > places[-1] or network.tensors[tensor].is_kept for tensor in hidden):
            return None
        if any(reader not in places for tensor in hidden for reader in self._readers.get(tensor, ())):
            return None
        # The result of the product has the lowest number: the others are made of it.
        channels = network.tensors[min(hidden)].dims[axis]
        return HiddenGroup(tuple(places), frozenset(hidden), channels, axis, slices) if channels > 1 else None

    def _product(self, kernel: FitKernel) -> ir.Node | None:
        source: KernelSource = kernel.source
        node = source.node
        factors = None if node is None or operator_name(node) not in _PRODUCTS else factors_of(node)
        if node is None or factors is None:
            return None
        weights = node.inputs[factors[1]]
        plain = node.op_type not in _CONVOLUTIONS or node.attributes.get_int("group", 1) == 1
        return node if plain and source.places == (0,) and weights in self._constants else None

    def _slices(self, kernel: FitKernel, axis: int, hidden: Collection[int]) -> dict[int, int] | None:
        """Return the axes of the constants of a kernel that works channel by channel, or expands where `hidden` is empty."""
        source: KernelSource = kernel.source
        node = source.node
        if node is None or kernel.is_view or kernel.is_join or len(kernel.makes) > 1:
            return None
        try:
            links = axis_links(NodeView(node, self._shapes, self._constants, self._opset), axis)
        except NotApplicable:
            return None
        given = {index: tensor for index, tensor in zip(source.places, kernel.reads, strict=True) if index is not None}
        slices = {}
        for index, link in enumerate(links):
            if index in given:
                wanted = AxisLink(axis) if given[index] in hidden else None
                if link != wanted or (hidden and given[index] not in hidden):
                    return None
            elif link is not None:
                slices[index] = link.axis
        return slices if all(self._is_cut(node, index) for index in slices) else None

    def _is_cut(self, node: ir.Node, index: int) -> bool:
        """Return whether a part of a constant operand is written as the whole is: integers and their scales, if that is its form."""
        value = node.inputs[index]
        maker = None if value is None else value.producer()
        if self._sums or maker is None or maker.op_type == "Constant":
            return True
        return dequantises(maker) and not maker.attributes.get_int("block_size", 0)

    def _reduced(self, kernel: FitKernel, hidden: Collection[int], axis: int) -> dict[int, int] | None:
        """Return the axis of the weights of a product that sums over the hidden channels; None for any other kernel."""
        node = self._product(kernel) if self._sums else None
        if node is None or node.op_type == "QLinearConv" or kernel.reads[0] not in hidden:
            return None
        if node.op_type == "Conv":
            return {1: 1} if axis == 1 else None
        turned = node.attributes.get_int("transA", 0)
        if axis != len(self._network.tensors[kernel.reads[0]].dims) - 1 or turned:
            return None
        rank = len(self._shapes.sizes(node.inputs[1]) or ())  # type: ignore[arg-type]
        if node.op_type == "MatMul":
            return {1: rank - 2} if rank > 1 else None
        return {1: 1 if node.attributes.get_int("transB", 0) else 0}


class ChunkedGroups:
    """The kernels of groups in chunks: each number of chunks of a group is made once.

    `tensors` are those of the network, and the parts of all groups after them.
    """

    def __init__(self, network: Network, groups: Mapping[int, HiddenGroup]) -> None:
        self.network, self.groups = network, groups
        self.tensors = list(network.tensors)
        self._parts = cache(self._new_parts)

    def region(
        self, start: int, stop: int, chunks: Sequence[tuple[int, int]], *, all_chunks: bool = True
    ) -> ChunkedKernels:
        """Return the kernels from `start` to `stop`, with hidden channels in chunks.

        Without `all_chunks`, the first, the largest and the last chunk of each group stand for all: enough to count the costs.
        """
        region = ChunkedKernels([], self.tensors)
        taken = {index for first, _ in chunks for index in self.groups[first].places}
        ends = {self.groups[first].places[-1]: (first, count) for first, count in chunks}
        for index in range(start, stop):
            if index in ends:
                region.extend(self._parts(*ends[index], all_chunks), start)
            elif index not in taken:
                region.add(self.network.kernels[index], index - start)
        return region

    def _new_parts(self, first: int, count: int, all_chunks: bool) -> ChunkedKernels:
        """Return the kernels of one group in chunks; the bases are places in the network."""
        parts, group = ChunkedKernels([], self.tensors), self.groups[first]
        _add_chunks(parts, self.network.kernels, group, _shares(group, count, all_chunks=all_chunks))
        return parts


def _shares(group: HiddenGroup, count: int, *, all_chunks: bool) -> list[tuple[PatchRange, int]]:
    """Return the channels of each chunk, and the number of chunks that it stands for."""
    ranges = [share for share in shares(group.channels, count) if share is not None]
    if all_chunks or group.is_joined or group.channels % count or len(ranges) <= _SOME:
        return [(share, 1) for share in ranges]
    # Between the first and the last chunk, all cost the same.
    return [(ranges[0], 1), (ranges[1], len(ranges) - 2), (ranges[-1], 1)]


def _add_chunks(
    region: ChunkedKernels, kernels: Sequence[FitKernel], group: HiddenGroup, some: Sequence[tuple[PatchRange, int]]
) -> None:
    """Append the kernels of a group in chunks to a region that has places of the network as bases."""
    tensors, base = region.tensors, group.places[-1]
    last = kernels[base]
    result = last.makes[0]
    partial: list[int] = []
    so_far: int | None = None
    for number, (share, weight) in enumerate(some):
        parts: dict[int, int] = {}
        for index in group.places:
            kernel = kernels[index]
            for tensor in (written for part in kernel.members for written in part.makes):
                about = tensors[tensor]
                if tensor in group.tensors or (group.is_joined and tensor == result):
                    dims = list(about.dims)
                    dims[group.axis] = share[1] - share[0]
                    about = replace(about, dims=tuple(dims))
                about = replace(about, name=f"{about.name}/c{number}", is_kept=False)
                parts[tensor] = region.add_tensor(about)
            region.add(_part(kernel, index, group, share, parts, is_first=not number), index, weight)
        partial.append(parts[result])
        region.partial.add(parts[result])
        if group.is_joined:
            continue
        if so_far is None:
            so_far = parts[result]
            continue
        total = result
        if number < len(some) - 1:
            about = replace(tensors[result], name=f"{tensors[result].name}/sum{number}", is_kept=False)
            total = region.add_tensor(about)
            region.partial.add(total)
        region.sums.add(len(region.kernels))
        region.add(_sum(f"{last.name}/sum", (so_far, parts[result]), total, tensors), base, weight)
        so_far = total
    if group.is_joined:
        region.sums.add(len(region.kernels))
        region.add(_join(f"{last.name}/join", partial, result, tensors, group.axis), base)


def _part(
    kernel: FitKernel,
    index: int,
    group: HiddenGroup,
    share: tuple[int, int],
    parts: Mapping[int, int],
    *,
    is_first: bool,
) -> FitKernel:
    has_bias = index == group.places[-1] and not is_first and not group.is_joined
    left_out = frozenset({2}) if has_bias else frozenset[int]()

    def part(kernel: FitKernel, slices: Mapping[int, int]) -> FitKernel:
        start, stop = (kernel.macs * end // group.channels for end in share)
        cut = {operand: (axis, *share) for operand, axis in slices.items()}
        return replace(
            kernel,
            reads=tuple(parts.get(tensor, tensor) for tensor in kernel.reads),
            makes=tuple(parts[tensor] for tensor in kernel.makes),
            macs=stop - start,
            source=replace(kernel.source, slices=cut, left_out=left_out),
        )

    if not kernel.parts:
        return part(kernel, group.slices[index][0])
    members = tuple(part(member, slices) for member, slices in zip(kernel.parts, group.slices[index], strict=True))
    return replace(part(kernel, {}), parts=members)


def _sum(name: str, reads: tuple[int, int], total: int, tensors: Sequence[FitTensor]) -> FitKernel:
    source = KernelSource(None, (0, 1), None)
    links = _same_rows(tensors[total], 2)
    return FitKernel(name, reads, (total,), links, overwrites=frozenset({0, 1}), source=source)


def _join(name: str, reads: Sequence[int], whole: int, tensors: Sequence[FitTensor], axis: int) -> FitKernel:
    about = tensors[whole]
    is_join = all(size == 1 for size in about.dims[:axis])
    source = KernelSource(None, tuple(range(len(reads))), None, join_axis=axis)
    return FitKernel(name, tuple(reads), (whole,), _same_rows(about, len(reads)), is_join=is_join, source=source)


def _same_rows(about: FitTensor, count: int) -> AxisLinks | None:
    """Return the links of operands whose rows are those of the result; a sum has rows of none of its axes."""
    if about.axis is None and not about.folds:
        return None
    return (AxisLink(about.axis or 0),) * count
