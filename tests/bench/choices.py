"""A query with its choices written out: how often each quantifier applies, and which input each `<*` is.

Where Aidge takes the first way and stays with it, it finds with one of these what a search that goes back finds with the query itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from onnxtile.query.language import ONCE, Alternative, Clause, Edge, Node, Parallel, QueryBlock, Sequence, parse

_INPUTS = 8
_TURNS = 3
_MOST = 600


def written_out(query: str) -> list[str]:
    """Return the queries that `query` stands for, at most a few hundred."""
    return list(dict.fromkeys(islice(_variants(query), _MOST)))


def _variants(query: str) -> Iterator[str]:
    parts = [part for clause in parse(query).clauses for part in _parts(clause)]
    for edge, item in parts:
        if isinstance(item, Node | QueryBlock) and item.repeat != ONCE and edge is not None:
            for text in _turns(query, edge, item):
                yield from _variants(text)
            return
    apart = _apart(query)
    if apart is not None:
        yield from _variants(apart)
        return
    for edge, _ in parts:
        if edge is not None and not edge.forward and edge.input is None:
            sign, output = "-" if edge.exclusive else "~", "*" if edge.output is None else str(edge.output)
            for position in range(_INPUTS):
                start, stop = edge.span
                yield from _variants(f"{query[:start]}<{position}-{output}{sign}{query[stop:]}")
            return
    yield query


def _apart(query: str) -> str | None:
    """Return the query with a parallel after `<*` as clauses of their own: each member may come from another input."""
    for clause in parse(query).clauses:
        items, edges = (clause.items, clause.edges) if isinstance(clause, Sequence) else ((), ())
        for before, edge, block in zip(items, edges, items[1:], strict=False):
            if edge.forward or edge.input is not None or not isinstance(before, Node):
                continue
            if isinstance(block, QueryBlock) and isinstance(block.body, Parallel):
                anchor = before.key or f"{before.type}#apart"
                step = query[slice(*edge.span)]
                branches = [query[slice(*branch.span)] for branch in block.body.branches]
                head, tail = query[: before.span[0]], query[block.span[1] :]
                return head + ";".join(f"{anchor}{step}{branch}" for branch in branches) + tail
    return None


def _turns(query: str, edge: Edge, item: Node | QueryBlock) -> Iterator[str]:
    """Yield the query with `item` left out, once, twice ..."""
    step, (start, stop) = query[slice(*edge.span)], item.span
    written = query[start:stop].rstrip()
    plain = written[: written.rindex("{")] if written.endswith("}") else written[:-1]
    most = _TURNS if item.repeat.most is None else item.repeat.most
    for times in range(item.repeat.least, most + 1):
        yield query[: edge.span[0]] + f"{step}{plain}" * times + query[stop:]


def _parts(clause: Clause, edge: Edge | None = None) -> Iterator[tuple[Edge | None, Clause]]:
    """Yield every item of a clause with the edge into it."""
    yield edge, clause
    match clause:
        case Sequence():
            for item, before in zip(clause.items, (None, *clause.edges), strict=True):
                yield from _parts(item, before)
        case QueryBlock():
            yield from _parts(clause.body)
        case Parallel() | Alternative():
            for branch in clause.branches:
                yield from _parts(branch)
        case _:
            return
