"""Writes the nodes of one site, with their marks; says which copies the arena has room for, and adds up the partial sums of a block."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model import keys
from onnxtile.model.graph_writer import GraphWriter, GridPlace
from onnxtile.operators.node_view import Dims
from onnxtile.system.dataclass import dataclass
from onnxtile.tiling.contraction import FLOATS, Contraction, TensorOperand
from onnxtile.tiling.grid import TensorCuts, TileGrid, Workload, is_contiguous
from onnxtile.tiling.limits import Accumulation

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
    return (
        bool(copied > Workload.from_contraction(contraction).held(*_steps(contraction, grid)))
        and copied > contraction.free()
    )


def may_copy_result(contraction: Contraction) -> bool:
    """Return whether the arena has room for a copy of the whole result, so that Concat joins blocks of any cuts."""
    sizes = [size for size in contraction.dims if isinstance(size, int)]
    return prod(sizes) * contraction.result_dtype.itemsize <= contraction.free()


def keeps_copies(contraction: Contraction, grid: TileGrid, opset: int) -> bool:
    """Return whether the arena has room for copies of all blocks of both operands, beside that of the result where Concat joins it."""
    operands = (contraction.left, contraction.right)
    if any(not isinstance(size, int) for operand in operands for size in operand.dims):
        return False
    copied = _window_bytes(contraction, grid) + sum(_bytes(operand) for operand in operands if not operand.constant)
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
    work = Workload.from_contraction(contraction)
    window = work.blocks(*_steps(contraction, grid))[0] * contraction.left.element_bytes
    return int(window) * grid.groups.count * grid.shape[0] * grid.k.count


def _bytes(operand: TensorOperand) -> int:
    return int(prod(size for size in operand.dims if isinstance(size, int)) * operand.element_bytes)


def _steps(contraction: Contraction, grid: TileGrid) -> tuple[int, list[int], int, int]:
    """Return the groups, outputs along each sliding axis, channels and filters of a full tile."""
    work = Workload.from_contraction(contraction)
    steps = [axis.step or out for axis, out in zip(grid.sliding, work.outs, strict=True)]
    return grid.groups.step or 1, steps, grid.k.step or work.channels, grid.n.step or work.filters


@dataclass
class Writer(GraphWriter):
    """Collects the nodes and constants that replace one site, in the order in which they are made; the graph is not changed."""

    op: str = field(kw_only=True)
    contraction: Contraction = field(kw_only=True)
    grid: TileGrid = field(kw_only=True)

    @property
    def usual_dtype(self) -> ir.DataType:
        """The element type of the product."""
        return self.contraction.dtype

    def domain(self, op: str) -> str:
        """Return the domain of the operator of a node."""
        return self.contraction.tile_domain if op == self.contraction.tile else ""

    def metadata(self, stem: str, position: GridPlace) -> dict[str, str]:
        """Return the mark of a node: the original node, and the part of it that the new node computes (JSON)."""
        at = ", ".join(f'"{axis}": {index}' for axis, index in position.items())
        levels = "" if self.grid.outer_order is None else f", {json.dumps(self._levels(position))[1:-1]}"
        return {keys.TILE: f'{self._mark[:-1]}, "part": "{stem}", "at": {{{at}}}{levels}}}'}

    def _levels(self, position: GridPlace) -> dict[str, dict[str, int]]:
        """Return the place of the outer tile, and the place inside it, along the axes of `position`."""
        axes = {"m": self.grid.rows, "k": self.grid.k, "n": self.grid.n}
        places = {axis: axes[axis].place(index) for axis, index in position.items() if axis in axes}
        return {
            level: {axis: stretch[side] for axis, stretch in places.items()}
            for side, level in enumerate(("outer", "inner"))
        }

    @cached_property
    def _mark(self) -> str:
        sizes = {"m": self.contraction.m, "k": self.contraction.k, "n": self.contraction.n}
        outer = {} if self.grid.outer_order is None else {"outer_grid": list(self.grid.outer_shape)}
        return json.dumps({"node": self.site, "op": self.op, **sizes, "grid": list(self.grid.shape), **outer})

    def concat(self, blocks: Sequence[ir.Value], axis: int | None, position: GridPlace, dims: Dims) -> ir.Value:
        """Write a Concat of `blocks`; a single block is returned as it is."""
        if axis is None or len(blocks) == 1:
            return blocks[0]
        axis_of = [ir.AttrInt64("axis", axis)]
        return self.node("Concat", blocks, "concat", position, dims, axis_of, self.contraction.result_dtype)

    def cut_off(self, value: ir.Value, position: GridPlace, dims: Dims, wanted: Dims) -> ir.Value:
        """Write a Slice that leaves the first elements along each axis of a block of `dims`, as many as `wanted` has there."""
        axes = [axis for axis, (have, want) in enumerate(zip(dims, wanted, strict=True)) if have != want]
        ends = [size for size in (wanted[axis] for axis in axes) if isinstance(size, int)]
        if not axes:
            return value
        index = {axis: slice(0, end) for axis, end in zip(axes, ends, strict=True)}
        return self.slice((value, self.contraction.result_dtype), index, "cut_off", position, wanted)

    @cached_property
    def result(self) -> TensorCuts:
        """The cuts of the result: along each sliding axis, and along N in all groups."""
        return TensorCuts(self.contraction.dims, *self.grid.of_result(self.contraction))

    @cached_property
    def keeps_copies(self) -> bool:
        """Whether the arena has room for the copies of all blocks of the operands."""
        return keeps_copies(self.contraction, self.grid, self.opset)


# The partial sums of one block of the result: added all at once, one after another, in a tree, or in Gemm's C.

_WIDEST = 256
"""Operands of a Sum: of more the result rounds further off, and onnxruntime takes long to load it."""


def fitting(wanted: Accumulation, contraction: Contraction) -> Accumulation:
    """Return `wanted`, or `chain` where the operator that it takes has no such operands.

    Gemm multiplies matrices of floats only: onnxruntime has no kernel for integers; and its C has the type of its result. Sum takes
    no integers in any opset; Add does, and integer addition is exact in any order.
    """
    floats = contraction.dtype in FLOATS
    if (wanted is Accumulation.SUM and not floats) or (
        wanted is Accumulation.GEMM and not (floats and contraction.matrices and contraction.sums is None)
    ):
        return Accumulation.CHAIN
    return wanted


def additions(how: Accumulation, terms: Any, contraction: Contraction, outer: tuple[Any, Any] = (1, 1)) -> Any:
    """Return the number of nodes that add up the partial sums of one block, as `fitting` has it, at most; arrays for arrays.

    `outer` are the outer stretches of K, and the terms of a full one.
    """
    casts = 0 if contraction.sums is None else (terms > 1) * (terms + 1)
    way, (stretches, inside) = fitting(how, contraction), outer
    if way is Accumulation.SUM:
        nested = stretches * ((inside > 1) + (inside - 1) // _WIDEST) + 1 + (stretches - 1) // _WIDEST
        return casts + np.where(stretches > 1, nested, (terms > 1) * 1 + (terms - 1) // _WIDEST)
    return casts + (0 if way is Accumulation.GEMM else terms - 1)


def roundings(how: Accumulation, terms: int, outer: int = 1) -> int:
    """Return how often a total is rounded on its way from the first product to the result, at most.

    The `terms` are in `outer` stretches of K, and each of these is added up first.
    """
    if outer > 1 and how is not Accumulation.GEMM:
        return roundings(how, terms) + roundings(how, outer)
    if how is Accumulation.SUM:
        return 1 + (terms - 1) // _WIDEST
    return terms.bit_length() if how is Accumulation.TREE else terms


@dataclass
class PartialSums:
    """One block of the result, at `position` (its m and n), of size `dims`, while its products are written.

    Of more than 256 products, sums and chains of 256 are added at the end: a single one of thousands rounds further off. A tree has sums
    of 1, 2, 4 ... products, as the digits of a binary counter: two of a size become one of the next at once.

    With two levels, the products of each outer stretch of K are added up first, then the sums of these, in the same way; Gemm's C takes
    one product after another.
    """

    how: Accumulation
    writer: Writer
    position: GridPlace
    dims: Dims
    _terms: list[ir.Value] = field(default_factory=list)
    """The products and sums that are still to be added; of a chain one."""
    _sizes: list[int] = field(default_factory=list)
    """How often the products in each of them doubled, in a tree."""
    _whole: list[ir.Value] = field(default_factory=list)
    """Sums of 256 products each; the one chain of all of them."""
    _count: int = 0
    """The products since the last of these."""
    _first: int = 0
    """The stretch of the first of these."""
    _last: int = 0
    """The stretch of the last product."""
    _inside: int = 0
    """The products of the outer stretch of K that is not complete yet."""
    _outer: PartialSums | None = None
    """The sums of complete outer stretches, where there is more than one."""
    _stem: str = "sum"

    def multiply(self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr] = ()) -> None:
        """Write the product of stretch `k`, a node with these attributes, and the sums whose terms are there."""
        if self.how is Accumulation.GEMM:
            self._terms = [self._product([*inputs, *self._terms], k, attributes, "Gemm" if self._terms else None)]
            return
        self._make_room()
        self._add(self._product(inputs, k, attributes), k)
        along, self._inside = self.writer.grid.k, self._inside + 1
        if along.outer_count > 1 and self._inside == len(along.inside(along.place(k)[0])):
            self._end_outer()

    def _make_room(self) -> None:
        """Put aside the sum of 256 products."""
        if self._count == _WIDEST and self.how in {Accumulation.SUM, Accumulation.CHAIN}:
            self._close()

    def _add(self, term: ir.Value, k: int) -> None:
        """Take one more term, of which stretch `k` is the last, and write the sums whose terms are there."""
        self._terms.append(term)
        self._first = k if self._count == 0 else self._first
        self._count, self._last = self._count + 1, k
        if self.how is Accumulation.CHAIN and len(self._terms) > 1:
            self._terms = [self._sum("Add", self._terms, k=k)]
        elif self.how is Accumulation.TREE:
            self._sizes.append(0)
            while len(self._sizes) > 1 and self._sizes[-1] == self._sizes[-2]:
                self._carry()

    def result(self) -> ir.Value:
        """Write the sums that are left; return the sum of all products, in the type of the contraction."""
        total = (self if self._outer is None else self._outer)._reduced()
        return self._cast(total, "narrow", self.position, self.writer.contraction.dtype) if self._is_wide else total

    def _end_outer(self) -> None:
        """Add the sum of the outer stretch that ends to those before."""
        if self._outer is None:
            self._outer = PartialSums(self.how, self.writer, self.position, self.dims, _stem="outer_sum")
        self._outer._make_room()
        self._outer._add(self._reduced(), self._last)
        self._terms, self._sizes, self._whole, self._count, self._inside = [], [], [], 0, 0

    def _reduced(self) -> ir.Value:
        """Write the sums that are left; return the sum of all terms."""
        while len(self._sizes) > 1:
            self._carry()
        return self._total()

    def _total(self) -> ir.Value:
        terms = [*self._whole, *self._terms]
        return terms[0] if len(terms) == 1 else self._sum("Sum" if self.how is Accumulation.SUM else "Add", terms)

    def _close(self) -> None:
        """Put aside the sum of the last 256 products."""
        if self.how is Accumulation.SUM:
            self._whole.append(self._sum("Sum", self._terms, k=self._first))
        else:
            self._whole = [self._total()]
        self._terms, self._count = [], 0

    def _carry(self) -> None:
        """Add the last two terms of a tree."""
        size = self._sizes[-2] + 1
        self._terms[-2:] = [self._sum("Add", self._terms[-2:], f"_level{size}", k=self._last)]
        self._sizes[-2:] = [size]

    @property
    def _is_wide(self) -> bool:
        """Whether products are added in another type than their own; a single product is not added."""
        return self.writer.contraction.sums is not None and self.writer.grid.shape[1] > 1

    def _product(
        self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr], op: str | None = None
    ) -> ir.Value:
        at = {axis: index for axis, index in self.position.items() if axis != "n"} | {"k": k, "n": self.position["n"]}
        value = self.writer.node(op or self.writer.contraction.tile, inputs, "tile", at, self.dims, attributes)
        return self._cast(value, "wide", at, self.writer.contraction.sums) if self._is_wide else value

    def _cast(self, value: ir.Value, stem: str, position: GridPlace, dtype: ir.DataType | None) -> ir.Value:
        assert dtype is not None
        return self.writer.node("Cast", [value], stem, position, self.dims, [ir.AttrInt64("to", int(dtype))], dtype)

    def _sum(self, op: str, terms: Sequence[ir.Value], stem: str = "", *, k: int | None = None) -> ir.Value:
        dtype = self.writer.contraction.sums if self._is_wide else None
        position = self.position if k is None else self.position | {"k": k}
        return self.writer.node(op, terms, f"{self._stem}{stem}", position, self.dims, dtype=dtype)
