"""Dimensions of inputs that nobody gave a size, and that operators join with others: exporters write several names for one length."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.model.binding import free_inputs, rename_symbols, symbols
from onnxtile.model.formula import Extreme, SizeFormula
from onnxtile.planning.aliases import operands_of_state
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import Shapes, resolve

_JoinedSizes: TypeAlias = Iterator[tuple[SizeFormula, SizeFormula]]
_ANY = (1, 2**15)
"""The range of a size of which nothing is known: products of four of them are numbers of 64 bits."""


def with_equal_dims(model: ir.Model, sized: Collection[str]) -> dict[str, str]:
    """Replace in `model` (in place) names of dimensions by those that operators join them with; return what replaces each.

    `sized` are the names that have sizes. A name without one is replaced by one of them, or by a sum of them, "past + seq". Operators that
    need equal sizes count first: MatMul, Gemm, Concat, and the keys and values of attention. Then those that broadcast: there
    one of two sizes might also be 1.
    """
    found: dict[str, str] = {}
    while open_ := _open(model, sized):
        names = {*open_, *(name for name in sized if name.isidentifier())}
        shapes = resolve(model, ranges=dict.fromkeys(sorted(names), _ANY))
        news: dict[str, str] = {}
        for joins in (_contracted(model, shapes), _broadcast(model, shapes)):
            for first, second in joins:
                solved = _solved(first, second, open_)
                if solved is not None:
                    news.setdefault(*solved)
            if news:
                break
        if not news:
            break
        rename_symbols(model, news)
        found |= news
    return found


def _open(model: ir.Model, sized: Collection[str]) -> frozenset[str]:
    return frozenset(name for name in symbols(free_inputs(model)) if name.isidentifier() and name not in sized)


def _contracted(model: ir.Model, shapes: Shapes) -> _JoinedSizes:
    """Yield pairs of sizes that operators need to be equal."""
    for node in model.graph:
        sizes = [None if value is None else shapes.formulas(value) for value in node.inputs]
        is_standard = node.domain in {"", "ai.onnx"}
        if is_standard and node.op_type == "Concat":
            yield from _beside(node.attributes.get_int("axis", 0), [one for one in sizes if one])
        elif is_standard and node.op_type in {"MatMul", "Gemm"}:
            yield from _inner(node, sizes[0] or (), sizes[1] or ())
        elif node.op_type.endswith("Attention"):
            places = operands_of_state(node, is_standard=is_standard).values()
            held = [sizes[place] or () for place in places if place < len(sizes)]
            if len(held) == 2:
                yield from zip(held[0][:-1], held[1][:-1], strict=False)


def _beside(axis: int, operands: list[tuple[SizeFormula, ...]]) -> _JoinedSizes:
    for sizes in operands[1:]:
        if len(sizes) == len(operands[0]):
            pairs = enumerate(zip(operands[0], sizes, strict=True))
            yield from (pair for place, pair in pairs if place != axis % len(sizes))


def _inner(node: ir.Node, first: tuple[SizeFormula, ...], second: tuple[SizeFormula, ...]) -> _JoinedSizes:
    if not first or not second:
        return
    column = 0 if node.attributes.get_int("transA", 0) else -1
    row = -1 if node.attributes.get_int("transB", 0) or len(second) == 1 else -2
    yield first[column], second[row]


def _broadcast(model: ir.Model, shapes: Shapes) -> _JoinedSizes:
    """Yield pairs of sizes that are broadcast to the larger one: inference writes that one as a maximum."""
    for value in values(model):
        factors = (f for size in shapes.formulas(value) or () for product, _ in size.terms for f in product)
        for factor in factors:
            if isinstance(factor, Extreme) and factor.kind == "max":
                first, *others = factor.operands
                yield from ((first, other) for other in others)


def _solved(first: SizeFormula, second: SizeFormula, open_: frozenset[str]) -> tuple[str, str] | None:
    """Return the name in `open_` that is a sum of others where both sizes are equal, and the sum; None where none is."""
    for difference in (first - second, second - first):
        for name in sorted(open_):
            rest = SizeFormula.symbol(name) - difference
            if (name,) in dict(difference.terms) and _is_sum(rest, open_):
                return name, str(rest)
    return None


def _is_sum(size: SizeFormula, open_: frozenset[str]) -> bool:
    """Return whether `size` is a sum of names that have sizes, each once, and of a number that is not negative."""
    named = [(product, times) for product, times in size.terms if product]
    return (
        bool(named)
        and all(times == 1 and len(product) == 1 and isinstance(product[0], str) for product, times in named)
        and open_.isdisjoint(size.symbols)
        and sum(times for product, times in size.terms if not product) >= 0
    )
