"""Clauses read from their far end, for clauses whose anchor is there: `Relu->Add#1` is `Add#1<-Relu`."""

from __future__ import annotations

from dataclasses import replace

from onnxtile.errors import QueryError
from onnxtile.query.syntax import ONCE, Alternative, Clause, End, Item, Parallel, QueryBlock, Sequence


def turned(clause: Clause, text: str) -> Clause:
    """Return `clause` with the same nodes and edges, entered from the other side.

    Raises QueryError for `$` and parallels, which say where to go on, and where a repetition would mean something else.
    """
    match clause:
        case Sequence():
            _require_same_edges(clause, text)
            edges = tuple(replace(edge, forward=not edge.forward) for edge in reversed(clause.edges))
            return Sequence(tuple(_turned_item(item, text) for item in reversed(clause.items)), edges, clause.span)
        case Alternative():
            return replace(clause, branches=tuple(turned(branch, text) for branch in clause.branches))
        case Parallel():
            raise _misplaced(clause, text)
    return _turned_item(clause, text)


def _turned_item(item: Item, text: str) -> Item:
    if isinstance(item, End):
        raise _misplaced(item, text)
    return replace(item, body=turned(item.body, text)) if isinstance(item, QueryBlock) else item


def _misplaced(clause: Parallel | End, text: str) -> QueryError:
    hint = "start the clause with its anchor"
    return QueryError("this cannot stand before the clause's anchor", text, clause.span, hint=hint)


def _require_same_edges(sequence: Sequence, text: str) -> None:
    """Raise QueryError where an item may be skipped, and with it the edge before it, while the other edge is another one."""
    plain = [replace(edge, span=(0, 0)) for edge in sequence.edges]
    for before, item, after in zip(plain, sequence.items[1:], plain[1:], strict=False):
        if not isinstance(item, End) and item.repeat != ONCE and before != after:
            reason = "a repetition before the clause's anchor needs the same edge on both sides"
            raise QueryError(reason, text, item.span, hint="start the clause with its anchor")
