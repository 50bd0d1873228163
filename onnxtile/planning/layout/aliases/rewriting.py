"""Finds nodes that would write into live bytes, even if they write the same content.

Two Concats of one tensor may overlap, since they have the same content, as long as the tensor lies in place in both. Where an operand does
not lie in place, its Concat copies it there, into bytes that may be live by then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from onnxtile.planning.layout.aliases.alias_sets import AliasSet, AliasSets
from onnxtile.planning.layout.aliases.byte_reads import ByteSpan
from onnxtile.planning.layout.aliases.find import Alias
from onnxtile.planning.layout.ordering.precedence import Precedence


def rewriting(
    known: Mapping[ir.Value, Iterable[Alias]], alias_sets: AliasSets, order: Precedence
) -> frozenset[ir.Value]:
    """Return the values with `known` views or parts that are written, at least partly, into live bytes of their alias set."""
    return frozenset(
        value
        for value, aliases in known.items()
        if len(alias_sets.of[value].tensors) > 1
        and any(_is_in_use(span, value, alias_sets, order) for span in _written(value, aliases, alias_sets))
    )


def _written(value: ir.Value, aliases: Iterable[Alias], alias_sets: AliasSets) -> Iterator[ByteSpan]:
    """Yield the bytes of the alias set that the node of `value` writes: all except those already in place."""
    alias_set = alias_sets.of[value]
    start = alias_set.start(value)
    end = start + alias_sets.size(value)
    for low, high in sorted(_in_place(value, aliases, alias_set, alias_sets)):
        if start < low:
            yield ByteSpan(start, low)
        start = max(start, high)
    if start < end:
        yield ByteSpan(start, end)


def _in_place(
    value: ir.Value, aliases: Iterable[Alias], alias_set: AliasSet, alias_sets: AliasSets
) -> Iterator[ByteSpan]:
    at = alias_set.start(value)
    for alias in aliases:
        place = alias_set.start(alias.source) if alias.source in alias_set.tensors else None
        if place is not None and place + alias.at == at:
            yield ByteSpan(max(at, place), min(at + alias_sets.size(value), place + alias_sets.size(alias.source)))


def _is_in_use(span: ByteSpan, value: ir.Value, alias_sets: AliasSets, order: Precedence) -> bool:
    alias_set = alias_sets.of[value]
    starts = ((other, alias_set.start(other)) for other in alias_set.tensors if other is not value)
    return any(
        start < span[1] and span[0] < start + alias_sets.size(other) and _is_read(other, value, order)
        for other, start in starts
    )


def _is_read(other: ir.Value, value: ir.Value, order: Precedence) -> bool:
    """Return whether `other` may be live when `value` is made."""
    return not (order.before(other, value) or order.made_before(value, other))
