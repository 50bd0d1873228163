"""What a plan over ranges of dimensions claims at one size of each: its formulas, evaluated here.

Fixed offsets hold at all sizes if they hold at the largest, and no tensor is larger at another size. A formula that grows with each
dimension is largest there. For the rest, plans are checked at all corners of the ranges and at sizes between, which are always the same.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias

from onnxtile.check.addresses import Holder, SizedBuffer, overlaps
from onnxtile.check.reading import RangedValue
from onnxtile.declare.plan_document import (
    NO_SHAPE,
    UNSAID,
    WORKSPACE,
    Arena,
    ArenaFormula,
    Excluded,
    PlanDocument,
    PlanFailure,
    PlannedBody,
    PlannedBuffer,
    PlannedInput,
    SizeText,
    columns,
)
from onnxtile.model.formula import SizeFormula, product_of, read_size
from onnxtile.system.dataclass import dataclass

BETWEEN = 5
"""Sizes between the corners of the ranges at which a plan is proved."""

SizeOfSymbols: TypeAlias = Mapping[str, int]
"""One size for each dimension, by name."""
_FRACTIONS = (0.5, 0.236, 0.854, 0.382, 0.708, 0.146, 0.618, 0.927, 0.073, 0.326)
"""Fractions of a range, chosen so that dimensions and steps get different sizes."""
_HIGHEST_POWER = 64
_FURTHER = 256
"""Sizes at which formulas are compared without the model, at most."""
_GOLDEN = 0.6180339887498949
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}
_CALLS: Mapping[str, Callable[[Iterable[int]], int]] = {"max": max, "min": min}


@dataclass(frozen=True, kw_only=True, repr=False)
class DocumentAtSizes(PlanDocument):
    """A plan over ranges at one size of each dimension, with its fixed offsets or, where it `is_scaled`, with scaled ones."""

    is_scaled: bool


class WrongFormula(ValueError):  # a fault of the plan that is checked
    """A text in a plan cannot be read as a formula of the dimensions of its ranges."""


def proved_sizes(ranges: Mapping[str, tuple[int, int]]) -> list[dict[str, int]]:
    """Return the sizes at which a plan over `ranges` is proved: all corners, the largest first, then five between them."""
    corners = [
        dict(zip(ranges, ends, strict=True)) for ends in product(*((high, low) for low, high in ranges.values()))
    ]
    all_sizes = list(corners)
    for sizes in _between(ranges):
        if sizes not in all_sizes:
            all_sizes.append(sizes)
        if len(all_sizes) == len(corners) + BETWEEN:
            break
    return all_sizes


def _between(ranges: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, int]]:
    for start in range(len(_FRACTIONS)):
        parts = (_FRACTIONS[(start + 3 * number) % len(_FRACTIONS)] for number in range(len(ranges)))
        yield {
            name: low + round((high - low) * part)
            for (name, (low, high)), part in zip(ranges.items(), parts, strict=True)
        }
    for steps in range(1, 1 + BETWEEN):
        yield {name: min(low + steps, high) for name, (low, high) in ranges.items()}


def further_sizes(ranges: Mapping[str, tuple[int, int]]) -> Iterator[dict[str, int]]:
    """Yield sizes at which formulas are compared without the model: all where these are few, else some, which are always the same."""
    count = math.prod(high - low + 1 for low, high in ranges.values())
    for number in range(count) if count <= _FURTHER else (round(i * _GOLDEN * count) % count for i in range(_FURTHER)):
        sizes, rest = {}, number
        for name, (low, high) in ranges.items():
            rest, step = divmod(rest, high - low + 1)
            sizes[name] = low + step
        yield sizes


def listed(sizes: SizeOfSymbols) -> str:
    """Return sizes as `--dim` takes them: "batch=1 seq=512"."""
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def evaluated(text: str, sizes: SizeOfSymbols) -> int:
    """Return the number that the Python expression `text` has at these `sizes`. Raises WrongFormula."""
    try:
        return _number(_parsed(text), sizes)
    except (ArithmeticError, RecursionError, ValueError):
        raise WrongFormula(f"{text!r} cannot be read as a formula of {', '.join(sizes)}") from None


@lru_cache(maxsize=4096)
def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except (MemoryError, RecursionError, SyntaxError, ValueError):
        raise WrongFormula from None


def _number(tree: ast.expr, sizes: SizeOfSymbols) -> int:
    match tree:
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            return number
        case ast.Name(id=name) if name in sizes:
            return sizes[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            numbers = _number(left, sizes), _number(right, sizes)
            if isinstance(op, ast.Pow) and not 0 <= numbers[1] <= _HIGHEST_POWER:
                raise WrongFormula
            return _OPERATORS[type(op)](*numbers)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if args and name in _CALLS:
            return _CALLS[name]([_number(arg, sizes) for arg in args])
    raise WrongFormula


def claimed_at(claims: PlanDocument, sizes: SizeOfSymbols, *, scaled: bool) -> DocumentAtSizes:
    """Return what `claims`, a plan over ranges, say of these `sizes`, with fixed or scaled offsets.

    A tensor without a formula has the size of the graph. Raises WrongFormula.
    """
    formulas = {formula.name: formula for formula in claims.formulas or ()}
    arenas = tuple(_arena(arena, formulas.get(arena.name), sizes, scaled) for arena in claims.arenas)
    # The figures of the largest sizes are not claimed of others.
    figures = ("peak", "peak_step", "lower_bound", "activation_bytes", "in_place")
    lists = ("copies", "totals", "gap", "optimal", "formulas")
    left_out: dict[str, Any] = {**dict.fromkeys(figures, UNSAID), **dict.fromkeys(lists), "bound": "", "ranges": {}}
    is_smaller = any(sizes[name] < high for name, (_, high) in claims.ranges.items())
    if is_smaller:
        left_out["states"] = tuple(replace(state, size=UNSAID, copied=UNSAID) for state in claims.states)
    claimed = {field.name: getattr(claims, field.name) for field in fields(PlanDocument)}
    at_sizes: dict[str, Any] = dict(
        dims={**claims.dims, **sizes},
        arenas=arenas,
        buffers=tuple(_row(row, sizes, scaled, is_smaller) for row in claims.buffers),
        bodies=tuple(_body(body, sizes, scaled, is_smaller) for body in claims.bodies),
        inputs=None if claims.inputs is None else tuple(_end(end, sizes) for end in claims.inputs),
        outputs=None if claims.outputs is None else tuple(_end(end, sizes) for end in claims.outputs),
        outside=None if claims.outside is None else tuple(map(_without_shape, claims.outside)),
        unplanned=None if claims.unplanned is None else tuple(map(_without_shape, claims.unplanned)),
    )
    return DocumentAtSizes(**{**claimed, **left_out, **at_sizes}, is_scaled=scaled)


def _end(end: PlannedInput, sizes: SizeOfSymbols) -> PlannedInput:
    shape = _numbers(end.shape_formula, sizes)
    return replace(end, shape=NO_SHAPE if shape is None else shape, shape_formula=None)


def _without_shape(reason: Excluded) -> Excluded:
    return replace(reason, shape=NO_SHAPE)


def _arena(arena: Arena, formula: ArenaFormula | None, sizes: SizeOfSymbols, scaled: bool) -> Arena:
    if formula is None:
        raise WrongFormula(f"formulas lack the arena {arena.name!r}")
    size = formula.scaled if scaled and formula.scaled is not None else formula.fixed
    peak = UNSAID if formula.peak is None else largest(formula.peak, sizes)
    return replace(arena, size=largest(size, sizes), peak=peak)


def largest(pieces: SizeText, sizes: SizeOfSymbols) -> int:
    """Return the largest of the pieces. Raises WrongFormula where the whole formula has another value."""
    size = max((evaluated(piece, sizes) for piece in pieces.pieces), default=0)
    if size != evaluated(pieces.bytes, sizes):
        raise WrongFormula(f"{pieces.bytes!r} is not the largest of its pieces")
    return size


def _body(body: PlannedBody, sizes: SizeOfSymbols, scaled: bool, is_smaller: bool) -> PlannedBody:
    rows = tuple(_row(row, sizes, scaled, is_smaller) for row in body.buffers)
    inner = tuple(_body(nested, sizes, scaled, is_smaller) for nested in body.bodies)
    return replace(body, buffers=rows, bodies=inner, size=UNSAID)


def _row(row: PlannedBuffer, sizes: SizeOfSymbols, scaled: bool, is_smaller: bool) -> SizedBuffer:
    """Return `row` at `sizes`. Its parts lie elsewhere where `is_smaller`: then the check takes the live bytes from the graph."""
    is_fixed = row.kind == WORKSPACE
    size = evaluated(row.size_formula, sizes) if row.size_formula else row.size if is_fixed else UNSAID
    shape, strides = _numbers(row.shape_formula, sizes), _numbers(row.strides_formula, sizes)
    offset = evaluated(row.scaled_offset, sizes) if scaled and row.scaled_offset else row.offset
    lives = {"parts": None, "first": UNSAID, "last": UNSAID} if row.parts and is_smaller else {}
    if size > row.size:
        raise WrongFormula(
            f"{row.name!r} has {size} bytes at {listed(sizes)}, more than the {row.size} of the largest sizes"
        )
    entries: dict[str, Any] = {
        **{name: getattr(row, name) for name in columns(PlannedBuffer)},
        "offset": offset,
        "size": size,
        **lives,
    }
    entries["shape"] = (row.shape if is_fixed else NO_SHAPE) if shape is None else shape
    entries["strides"] = row.strides if strides is None else strides
    return SizedBuffer(**entries, most=row.size)


def _numbers(formulas: tuple[str, ...] | None, sizes: SizeOfSymbols) -> tuple[int, ...] | None:
    return None if formulas is None else tuple(evaluated(text, sizes) for text in formulas)


def wrong_ranges(claims: PlanDocument, words: Mapping[str, str]) -> Iterator[PlanFailure]:
    """Yield ranges that are none, and those that do not end with the sizes in `dims`; then formulas without a range.

    `words` are the names in formulas of dimensions whose own names no formula can have.
    """
    sizes = {words.get(name, name): size for name, size in claims.dims.items()}
    for name, (low, high) in claims.ranges.items():
        if not 0 <= low <= high:
            yield PlanFailure(f"ranges: {low} to {high} cannot be the range of {name!r}")
        elif sizes.get(name) != high:
            yield PlanFailure(f"ranges: that of {name!r} ends at {high}, but dims has {sizes.get(name)}")
    yield from _wrong_sums(claims, sizes)
    yield from _wrong_formulas(claims)


def _wrong_sums(claims: PlanDocument, sizes: SizeOfSymbols) -> Iterator[PlanFailure]:
    """Yield dimensions that are sums of others, and have another size in `dims` than the sum has at the largest sizes."""
    for name, text in claims.sums.items():
        if name in claims.dims:
            try:
                right = evaluated(text, sizes)
            except WrongFormula as error:
                yield PlanFailure(f"sums: that of {name!r} is wrong: {error}")
                continue
            if claims.dims[name] != right:
                yield PlanFailure(f"dims: {name!r} is {claims.dims[name]}, and the sum {text} is {right}")


def _wrong_formulas(claims: PlanDocument) -> Iterator[PlanFailure]:
    """Yield formulas that a plan without ranges, or a row of another kind, cannot have, and arenas without one."""
    if bool(claims.ranges) != (claims.formulas is not None):
        yield PlanFailure("formulas are those of a plan over ranges, which needs them")
    if claims.sums and not claims.ranges:
        yield PlanFailure("sums are those of a plan over ranges")
    ends = [end for end in (*(claims.inputs or ()), *(claims.outputs or ())) if end.shape_formula is not None]
    if ends and not claims.ranges:
        yield PlanFailure(f"shape_formula of {ends[0].name!r} is that of a plan over ranges", (ends[0].name,))
    names = [formula.name for formula in claims.formulas or ()]
    if claims.ranges and sorted(names) != sorted(arena.name for arena in claims.arenas):
        yield PlanFailure("formulas are not those of the arenas")
    is_scaled = any(formula.scaled is not None for formula in claims.formulas or ())
    for row in _all_rows(claims):
        for name in _without_reason(row, claims, is_scaled=is_scaled):
            yield PlanFailure(f"{row.name!r} has {name}, which no such row or plan has", (row.name,))


def _all_rows(claims: PlanDocument) -> Iterator[PlannedBuffer]:
    yield from claims.buffers
    todo = list(claims.bodies)
    while todo:
        body = todo.pop()
        yield from body.buffers
        todo += body.bodies


def _without_reason(row: PlannedBuffer, claims: PlanDocument, *, is_scaled: bool) -> Iterator[str]:
    """Yield the formulas of `row` that such a row, or a plan without ranges or scaled arenas, cannot have."""
    formulas = ("size_formula", "shape_formula", "strides_formula", "scaled_offset")
    for name in (name for name in formulas if getattr(row, name)):
        is_tensors = row.kind != WORKSPACE or name == "scaled_offset"
        is_wanted = {"strides_formula": row.strides is not None, "scaled_offset": is_scaled}.get(name, True)
        if not (claims.ranges and is_tensors and is_wanted):
            yield name


# The check of the formulas of a plan over ranges between the sizes at which the model is inferred.
#
# Sizes and shapes are compared with the formulas that inference finds over the ranges. Two formulas that are polynomials are equal if they
# have one normal form, so that equality at all sizes is proved; others are compared at many sizes. Scaled offsets are checked at these
# sizes, too: no two buffers that are live together overlap, and none leaves its arena.


def wrong_between(claims: PlanDocument, over: Mapping[str, RangedValue]) -> Iterator[PlanFailure]:
    """Yield the formulas of `claims` that are wrong somewhere in the ranges. `over` has the values over them. Raises WrongFormula."""
    sizes = list(further_sizes(claims.ranges))
    for row in claims.buffers:
        if row.name in over and row.kind != WORKSPACE:
            yield from _wrong_row(row, over[row.name], claims, sizes)
    for end in (*(claims.inputs or ()), *(claims.outputs or ())):
        shape = over[end.name].shape if end.name in over else None
        if end.shape_formula is not None and not _are_equal(end.shape_formula, shape, claims, sizes):
            yield PlanFailure(f"shape_formula of {end.name!r} is not that of the graph", (end.name,))
    for formula in claims.formulas or ():
        for pieces in (formula.fixed, formula.scaled, formula.peak):
            _ = pieces and [largest(pieces, at) for at in sizes]
    if any(formula.scaled is not None for formula in claims.formulas or ()):
        yield from _overlapping(claims, sizes)


def _wrong_row(
    row: PlannedBuffer, value: RangedValue, claims: PlanDocument, sizes: Sequence[SizeOfSymbols]
) -> Iterator[PlanFailure]:
    shape, bits = value
    if row.shape_formula is not None and not _are_equal(row.shape_formula, shape, claims, sizes):
        yield PlanFailure(f"shape_formula of {row.name!r} is not that of the graph", (row.name,))
    if shape is None or bits is None:
        return
    size = (product_of(shape) * bits + 7) // 8
    if row.size_formula and not _are_equal((row.size_formula,), (size,), claims, sizes):
        yield PlanFailure(f"size_formula of {row.name!r} is not that of the graph", (row.name,))


def _are_equal(
    texts: Sequence[str], formulas: Sequence[SizeFormula] | None, claims: PlanDocument, sizes: Sequence[SizeOfSymbols]
) -> bool:
    """Return whether `texts` have the values of `formulas`; also where these are not known."""
    if formulas is None:
        return True
    if len(texts) != len(formulas):
        return False
    known: Mapping[str, tuple[int, int]] = claims.ranges
    left = [(text, formula) for text, formula in zip(texts, formulas, strict=True) if read_size(text, known) != formula]
    return all(evaluated(text, at) == formula.at(at) for text, formula in left for at in sizes)


def _overlapping(claims: PlanDocument, sizes: Sequence[SizeOfSymbols]) -> Iterator[PlanFailure]:
    """Yield the buffers with scaled offsets that overlap or leave their arena at the first of `sizes` where some do."""
    for at in sizes:
        document = claimed_at(claims, at, scaled=True)
        ends = {arena.name: arena.size for arena in document.arenas}
        inside: dict[str, list[SizedBuffer]] = {}
        rows = [row for row in document.buffers if isinstance(row, SizedBuffer)]
        for row in rows:
            inside.setdefault(row.alias or row.name, []).append(row)
        owners = [row for row in rows if row.alias is None and row.first != UNSAID]
        holders = [_holder(row, inside[row.name]) for row in owners]
        outside = [
            holder.row
            for holder in holders
            if holder.row.size and not 0 <= holder.row.offset <= holder.row.end <= ends.get(holder.row.arena, 0)
        ]
        failures = [*overlaps(holders), *(PlanFailure(f"{row.place} leaves its arena", (row.name,)) for row in outside)]
        if failures:
            where = f"at {listed(at)} with scaled offsets: "
            yield from (PlanFailure(where + failure.reason, failure.names, failure.step) for failure in failures)
            return


def _holder(row: SizedBuffer, members: Sequence[SizedBuffer]) -> Holder:
    """Return the holder of the owner `row` of `members`. A tensor without a formula may have its largest size."""
    ends = ((other.offset - row.offset + (other.most if other.size == UNSAID else other.size)) for other in members)
    return Holder(replace(row, size=max(ends), parts=None), (), row.first, row.last, 1)
