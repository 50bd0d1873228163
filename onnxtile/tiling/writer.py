"""Makes the nodes and constants of one site, each with its name, its type and its mark."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.topology import all_nodes, all_values
from onnxtile.system.runtime import Array
from onnxtile.tiling.contraction import Contraction, TensorDims, TensorOperand
from onnxtile.tiling.grid import TensorCuts, TileGrid, Workload, is_contiguous

# Names for the nodes and values that tile writes, and for the nodes that it reports.


class Names:
    """The names of a model: the name of each node, and the names that are still free.

    Values and nodes of all graphs count, since a body sees the values of the graphs around it.
    """

    def __init__(self, model: ir.Model) -> None:
        self._nodes = Counter(node.name for node in all_nodes(model))
        self._there = {name for name in self._nodes if name}
        self._there.update(value.name for value in all_values(model) if value.name)
        self._taken: set[str] = set()
        self._numbers: dict[str, int] = {}

    def apart(self) -> Names:
        """Return names of the same model of which none is taken that it did not have at first."""
        other = copy(self)
        other._taken, other._numbers = set(), {}
        return other

    def of(self, node: ir.Node) -> str:
        """Return the name of `node`, or its first output where the name is empty or repeated."""
        if node.name and self._nodes[node.name] == 1:
            return node.name
        return next((value.name for value in node.outputs if value.name), "")

    def within(self, node: ir.Node) -> str:
        """Return the name of `node` within its function."""
        return node.name or next((value.name for value in node.outputs if value.name), "")

    def fresh(self, wanted: str) -> str:
        """Return `wanted`, with a number behind it where the model uses that name already, and take it."""
        # All numbers up to the last one given for `wanted` are taken: a search from 1 would grow with each name.
        number = self._numbers.get(wanted, 0)
        name = f"{wanted}_{number}" if number else wanted
        while name in self._taken or name in self._there:
            number += 1
            name = f"{wanted}_{number}"
        self._numbers[wanted] = number
        self._taken.add(name)
        return name


# Constants read one after another, so that the bytes of one only are in memory.


class ConstantReader:
    """The one constant whose bytes are at hand: blocks are read when they are written, one constant after another."""

    def __init__(self) -> None:
        self._tensor: ir.TensorProtocol | None = None
        self._array: Array | None = None

    def array(self, tensor: ir.TensorProtocol) -> Array:
        """Return the elements of `tensor`, and keep them until another constant is read; the mapped file of the last one is closed."""
        if self._array is None or self._tensor is not tensor:
            self._let_go()
            self._tensor, self._array = tensor, tensor.numpy()
        return self._array

    def _let_go(self) -> None:
        self._array = None
        if isinstance(self._tensor, ir.ExternalTensor):
            # A mapped file with other readers stays open until the last of them ends.
            with suppress(BufferError):
                self._tensor.release()


# The copies that tiles make of their operands and of their result, and whether the arena has room for them.
#
# A Concat along the first axis that is not 1 takes no copy, since its parts lie one after another in memory. Any other Concat has all its
# parts alive beside its result. A ScatterND that overwrites its data takes one block at a time. A block of an operand that does not lie in
# one piece is copied by Slice; kept until the last tile reads it, it is copied once.

SCATTER_OPSET = 11
"""ScatterND came with it."""


def may_scatter(contraction: Contraction, opset: int) -> bool:
    """Return whether ScatterND can join the blocks: where all dimensions are known, of types that onnxruntime's Pad takes."""
    known = all(isinstance(size, int) for size in contraction.dims)
    return opset >= SCATTER_OPSET and contraction.result_dtype is not ir.DataType.BFLOAT16 and known


def scatters(contraction: Contraction, grid: TileGrid, opset: int) -> bool:
    """Return whether Concat would keep more bytes beside its result than one tile holds, and than the arena has free.

    Sizes that are not known count as small.
    """
    if not may_scatter(contraction, opset) or contraction.column_axis is None or None in contraction.row_axes:
        return False
    sizes = (*contraction.left.dims, *contraction.right.dims)
    copied = _joined_bytes(contraction, grid)
    if not copied or not all(isinstance(size, int) for size in sizes):
        return False  # the bytes of a tile are not known
    return bool(copied > Workload.of(contraction).held(*_steps(contraction, grid))) and copied > contraction.free()


def may_copy_result(contraction: Contraction) -> bool:
    """Return whether the arena has room for a copy of the whole result, so that Concat joins blocks of any cuts."""
    sizes = [size for size in contraction.dims if isinstance(size, int)]
    return prod(sizes) * contraction.result_dtype.itemsize <= contraction.free()


def keeps_copies(contraction: Contraction, grid: TileGrid, opset: int) -> bool:
    """Return whether the arena has room for copies of all blocks of both operands, beside that of the result where Concat joins it."""
    operands = (contraction.left, contraction.right)
    if any(not isinstance(size, int) for operand in operands for size in operand.dims):
        return False
    copied = _window_bytes(contraction, grid) + sum(_bytes(one) for one in operands if not one.constant)
    joined = 0 if scatters(contraction, grid, opset) else _joined_bytes(contraction, grid)
    return copied + joined <= contraction.free()


def _joined_bytes(contraction: Contraction, grid: TileGrid) -> int:
    """Return the bytes that a Concat of blocks copies, as far as sizes are known."""
    rows, columns = grid.cuts_rows, grid.outputs.is_cut
    whole = prod(size for size in contraction.dims if isinstance(size, int))
    copied = whole if rows or columns else 0
    (first, *others) = contraction.row_axes
    if rows and not others and first is not None and is_contiguous(contraction.dims, first):
        copied = whole // (grid.rows.size or 1) * (grid.rows.step or 1) if columns else 0
    elif columns and not rows and is_contiguous(contraction.dims, contraction.column_axis or 0):
        copied = 0
    return int(copied * contraction.result_dtype.itemsize)


def _window_bytes(contraction: Contraction, grid: TileGrid) -> int:
    """Return the bytes of all windows of the left operand; 0 where tiles read none."""
    if not contraction.windows:
        return 0
    work = Workload.of(contraction)
    window = work.blocks(*_steps(contraction, grid))[0] * contraction.left.element_bytes
    return int(window) * grid.groups.count * grid.shape[0] * grid.k.count


def _bytes(operand: TensorOperand) -> int:
    return int(prod(size for size in operand.dims if isinstance(size, int)) * operand.element_bytes)


def _steps(contraction: Contraction, grid: TileGrid) -> tuple[int, list[int], int, int]:
    """Return the groups, outputs along each sliding axis, channels and filters of a full tile."""
    work = Workload.of(contraction)
    steps = [axis.step or out for axis, out in zip(grid.sliding, work.outs, strict=True)]
    return grid.groups.step or 1, steps, grid.k.step or work.channels, grid.n.step or work.filters


SplitPart = tuple[str, TensorDims]
"""The stem of an output's name, and its dimensions."""
GridPlace = dict[str, int]
"""The place of a node in the grid: the number of the stretch along "m", "k" and "n", as far as the node has one."""


def label(stem: str, place: GridPlace) -> str:
    """Return a readable name for something at `place`: tile_m0_k1_n2."""
    return "_".join((stem, *(f"{axis}{index}" for axis, index in place.items())))


@dataclass
class Writer:
    """Collects the nodes and constants that replace one site, in the order in which they are made; the graph is not changed."""

    site: str
    op: str
    contraction: Contraction
    grid: TileGrid
    opset: int
    names: Names = field(repr=False)
    reader: ConstantReader = field(default_factory=ConstantReader, repr=False)
    nodes: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)
    sizes: list[ir.Value] = field(default_factory=list)
    """Those of the constants that are sizes, which Split, Pad and Slice take."""

    def __post_init__(self) -> None:
        sizes = {"m": self.contraction.m, "k": self.contraction.k, "n": self.contraction.n}
        self._mark = json.dumps({"node": self.site, "op": self.op, **sizes, "grid": list(self.grid.shape)})
        self._shapes: dict[TensorDims, ir.Shape] = {}
        self._known: dict[tuple[int, ...], ir.Value] = {}

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        stem: str,
        place: GridPlace,
        dims: TensorDims,
        attributes: Iterable[ir.Attr] = (),
        dtype: ir.DataType | None = None,
    ) -> ir.Value:
        """Write a node with one output of size `dims`, of the product's type by default; return the output, which is called as the node."""
        name = self.fresh(label(stem, place))
        output = self._value(name, dims, dtype or self.contraction.dtype)
        self._add(op, inputs, attributes, [output], name, (stem, place))
        return output

    def concat(self, blocks: Sequence[ir.Value], axis: int | None, place: GridPlace, dims: TensorDims) -> ir.Value:
        """Write a Concat of `blocks`; a single block is returned as it is."""
        if axis is None or len(blocks) == 1:
            return blocks[0]
        axis_of = [ir.AttrInt64("axis", axis)]
        return self.node("Concat", blocks, "concat", place, dims, axis_of, self.contraction.result_dtype)

    def split(
        self,
        operand: tuple[ir.Value, ir.DataType],
        axis: int,
        sizes: ir.Value | list[int],
        stem: str,
        place: GridPlace,
        parts: Sequence[SplitPart],
    ) -> list[ir.Value]:
        """Write a Split of a value of some type along `axis` into `parts`; `sizes` as `split_sizes` made them."""
        value, dtype = operand
        outputs = [self._value(self.fresh(name), dims, dtype) for name, dims in parts]
        attributes = [ir.AttrInt64("axis", axis)]
        inputs: list[ir.Value | None] = [value]
        if isinstance(sizes, ir.Value):
            inputs.append(sizes)
        else:
            attributes.append(ir.AttrInt64s("split", sizes))
        self._add("Split", inputs, attributes, outputs, self.fresh(label(stem, place)), (stem, place))
        return outputs

    def pad(
        self,
        operand: tuple[ir.Value, ir.DataType],
        after: list[int],
        stem: str,
        place: GridPlace,
        dims: TensorDims,
        fill: ir.Value | None,
        *,
        before: Sequence[int] = (),
    ) -> ir.Value:
        """Write a Pad of a value of some type by so many elements around each axis: zeros, or the element that `fill` holds.

        The numbers are an input since opset 11, an attribute before; `fill` is only for opsets that have it as an input.
        """
        value, dtype = operand
        pads = [*(before or [0] * len(after)), *after]
        if self.opset < 11:
            return self.node("Pad", [value], stem, place, dims, [ir.AttrInt64s("pads", pads)], dtype)
        sizes = self.int64s(pads, f"{label(stem, place)}_sizes")
        return self.node("Pad", [value, sizes, *([] if fill is None else [fill])], stem, place, dims, (), dtype)

    def cut_off(self, value: ir.Value, place: GridPlace, dims: TensorDims, wanted: TensorDims) -> ir.Value:
        """Write a Slice that leaves the first elements along each axis of a block of `dims`, as many as `wanted` has there."""
        axes = [axis for axis, (have, want) in enumerate(zip(dims, wanted, strict=True)) if have != want]
        ends = [size for size in (wanted[axis] for axis in axes) if isinstance(size, int)]
        if not axes:
            return value
        index = {axis: slice(0, end) for axis, end in zip(axes, ends, strict=True)}
        return self.slice((value, self.contraction.result_dtype), index, "cut_off", place, wanted)

    def slice(
        self,
        operand: tuple[ir.Value, ir.DataType],
        index: Mapping[int, slice],
        stem: str,
        place: GridPlace,
        dims: TensorDims,
    ) -> ir.Value:
        """Write a Slice of a value of some type: for each axis in `index` that range, of the others all. An input since opset 10."""
        value, dtype = operand
        content = {
            "starts": [part.start for part in index.values()],
            "ends": [part.stop for part in index.values()],
            "axes": list(index),
        }
        if self.opset < 10:
            attributes = [ir.AttrInt64s(name, numbers) for name, numbers in content.items()]
            return self.node("Slice", [value], stem, place, dims, attributes, dtype)
        name = label(stem, place)
        made = [self.int64s(numbers, f"{name}_{part}") for part, numbers in content.items()]
        return self.node("Slice", [value, *made], stem, place, dims, (), dtype)

    def split_sizes(self, sizes: list[int], stem: str) -> ir.Value | list[int]:
        """Return the sizes in the form that Split takes in this opset: an input since 13, an attribute before.

        One constant serves every Split of the same sizes.
        """
        if self.opset < 13:
            return sizes
        return self.int64s(sizes, stem)

    def constant(self, tensor: ir.TensorProtocol, stem: str) -> ir.Value:
        """Write an initializer that holds `tensor`."""
        tensor.name = name = self.fresh(stem)
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.constants.append(value)
        return value

    def cut(self, read: Callable[[], Array], dtype: ir.DataType, dims: TensorDims, stem: str) -> ir.Value:
        """Write an initializer whose elements `read` returns when it is saved."""
        return self.constant(ir.LazyTensor(lambda: ir.Tensor(read(), dtype), dtype, ir.Shape(dims)), stem)

    def int64s(self, sizes: list[int], stem: str) -> ir.Value:
        """Return an initializer of these sizes, which stay inline when weights are external; equal sizes share one."""
        key = tuple(sizes)
        if key not in self._known:
            self._known[key] = self.constant(ir.tensor(sizes, dtype=ir.DataType.INT64), stem)
            self.sizes.append(self._known[key])
        return self._known[key]

    @cached_property
    def result(self) -> TensorCuts:
        """The cuts of the result: along each sliding axis, and along N in all groups."""
        return TensorCuts(self.contraction.dims, *self.grid.of_result(self.contraction))

    @cached_property
    def keeps_copies(self) -> bool:
        """Whether the arena has room for the copies of all blocks of the operands."""
        return keeps_copies(self.contraction, self.grid, self.opset)

    def fresh(self, stem: str) -> str:
        """Return a name for something of this site that the model does not use yet."""
        return self.names.fresh(f"{self.site}/{stem}")

    def mark(self, part: str, place: GridPlace) -> str:
        """Return the mark of a node: the original node, and the part of it that the new node computes (JSON)."""
        at = ", ".join(f'"{axis}": {index}' for axis, index in place.items())
        return f'{self._mark[:-1]}, "part": "{part}", "at": {{{at}}}}}'

    def _value(self, name: str, dims: TensorDims, dtype: ir.DataType) -> ir.Value:
        if dims not in self._shapes:
            self._shapes[dims] = ir.Shape(dims, frozen=True)
        return ir.Value(name=name, shape=self._shapes[dims], type=ir.TensorType(dtype))

    def _add(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Iterable[ir.Attr],
        outputs: Sequence[ir.Value],
        name: str,
        part: tuple[str, GridPlace],
    ) -> None:
        stem, place = part
        mark = self.mark(stem, place)
        domain = self.contraction.tile_domain if op == self.contraction.tile else ""
        node = ir.Node(domain, op, inputs, attributes, outputs=outputs, name=name, metadata_props={keys.TILE: mark})
        self.nodes.append(node)
