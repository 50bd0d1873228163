"""Adds the partial sums of one block of the result: all at once, one after another, in a tree, or in Gemm's C."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import onnx_ir as ir

from onnxtile.tiling.contraction import FLOATS, Contraction, TensorDims
from onnxtile.tiling.limits import Accumulation
from onnxtile.tiling.writer import GridPlace, Writer

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


def additions(how: Accumulation, terms: Any, contraction: Contraction) -> Any:
    """Return the number of nodes that add up the partial sums of one block, as `fitting` has it; arrays for arrays."""
    casts = 0 if contraction.sums is None else (terms > 1) * (terms + 1)
    return casts + _adding(fitting(how, contraction), terms)


def _adding(how: Accumulation, terms: Any) -> Any:
    if how is Accumulation.SUM:
        return (terms > 1) * 1 + (terms - 1) // _WIDEST
    return 0 if how is Accumulation.GEMM else terms - 1


def roundings(how: Accumulation, terms: int) -> int:
    """Return how often a total is rounded on its way from the first product to the result, at most."""
    if how is Accumulation.SUM:
        return 1 + (terms - 1) // _WIDEST
    return terms.bit_length() if how is Accumulation.TREE else terms


@dataclass
class PartialSums(ABC):
    """One block of the result, at `place`, while its products are written."""

    how: ClassVar[Accumulation]
    writer: Writer
    place: GridPlace
    dims: TensorDims

    @abstractmethod
    def multiply(self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr] = ()) -> None:
        """Write the product of stretch `k`, a node with these attributes, and the sums whose terms are there."""

    @abstractmethod
    def total(self) -> ir.Value:
        """Write the sums that are left; return the sum of all products, in the type in which they are added."""

    def result(self) -> ir.Value:
        """Write the sums that are left; return the sum of all products, in the type of the contraction."""
        total = self.total()
        return self._cast(total, "narrow", self.place, self.writer.contraction.dtype) if self._is_wide else total

    @property
    def _is_wide(self) -> bool:
        """Whether products are added in another type than their own; a single product is not added."""
        return self.writer.contraction.sums is not None and self.writer.grid.shape[1] > 1

    def _product(
        self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr], op: str | None = None
    ) -> ir.Value:
        at = {axis: index for axis, index in self.place.items() if axis != "n"} | {"k": k, "n": self.place["n"]}
        made = self.writer.node(op or self.writer.contraction.tile, inputs, "tile", at, self.dims, attributes)
        return self._cast(made, "wide", at, self.writer.contraction.sums) if self._is_wide else made

    def _cast(self, value: ir.Value, stem: str, place: GridPlace, dtype: ir.DataType | None) -> ir.Value:
        assert dtype is not None
        to = ir.AttrInt64("to", int(dtype))
        return self.writer.node("Cast", [value], stem, place, self.dims, [to], dtype)

    def _sum(self, op: str, terms: Sequence[ir.Value], stem: str, place: GridPlace) -> ir.Value:
        dtype = self.writer.contraction.sums if self._is_wide else None
        return self.writer.node(op, terms, stem, place, self.dims, dtype=dtype)

    def _add(self, first: ir.Value, second: ir.Value, stem: str, k: int) -> ir.Value:
        return self._sum("Add", [first, second], stem, self.place | {"k": k})


@dataclass
class _AtOnce(PartialSums):
    how = Accumulation.SUM
    _terms: list[ir.Value] = field(default_factory=list)
    _sums: list[ir.Value] = field(default_factory=list)

    def multiply(self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr] = ()) -> None:
        if len(self._terms) == _WIDEST:
            place = self.place | {"k": k - _WIDEST}
            self._sums.append(self._sum("Sum", self._terms, "sum", place))
            self._terms = []
        self._terms.append(self._product(inputs, k, attributes))

    def total(self) -> ir.Value:
        terms = [*self._sums, *self._terms]
        return terms[0] if len(terms) == 1 else self._sum("Sum", terms, "sum", self.place)


@dataclass
class _Chain(PartialSums):
    """A chain for each 256 products, and one of their sums: a single one of thousands rounds further off."""

    how = Accumulation.CHAIN
    _chains: ir.Value | None = None
    _total: ir.Value | None = None
    _terms: int = 0

    def multiply(self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr] = ()) -> None:
        if self._terms == _WIDEST:
            self._chains, self._total, self._terms = self.total(), None, 0
        product = self._product(inputs, k, attributes)
        self._total = product if self._total is None else self._add(self._total, product, "sum", k)
        self._terms += 1

    def total(self) -> ir.Value:
        assert self._total is not None
        return self._total if self._chains is None else self._sum("Add", [self._chains, self._total], "sum", self.place)


@dataclass
class _Tree(PartialSums):
    """Sums of 1, 2, 4 ... products, as the digits of a binary counter: two of a size become one of the next at once."""

    how = Accumulation.TREE
    _digits: list[tuple[int, int, ir.Value]] = field(default_factory=list)

    def multiply(self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr] = ()) -> None:
        self._digits.append((0, k, self._product(inputs, k, attributes)))
        while len(self._digits) > 1 and self._digits[-1][0] == self._digits[-2][0]:
            self._carry()

    def total(self) -> ir.Value:
        while len(self._digits) > 1:
            self._carry()
        return self._digits[0][2]

    def _carry(self) -> None:
        (level, _, first), (_, k, second) = self._digits[-2:]
        total = self._add(first, second, f"sum_level{level + 1}", k)
        self._digits[-2:] = [(level + 1, k, total)]


@dataclass
class _InGemm(PartialSums):
    how = Accumulation.GEMM
    _total: ir.Value | None = None

    def multiply(self, inputs: Sequence[ir.Value | None], k: int, attributes: Sequence[ir.Attr] = ()) -> None:
        if self._total is None:
            self._total = self._product(inputs, k, attributes)
        else:
            self._total = self._product([*inputs, self._total], k, attributes, "Gemm")

    def total(self) -> ir.Value:
        assert self._total is not None
        return self._total


_KINDS: dict[Accumulation, type[PartialSums]] = {kind.how: kind for kind in (_AtOnce, _Chain, _Tree, _InGemm)}


def partial_sums(how: Accumulation, writer: Writer, place: GridPlace, dims: TensorDims) -> PartialSums:
    """Return the block of the result at `place` (its m and n), of size `dims`, with no product in it yet."""
    return _KINDS[how](writer, place, dims)
