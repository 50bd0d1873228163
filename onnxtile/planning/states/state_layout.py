"""The layout of states: the strides of one that grows are those of its largest size at every length, so that none of its rows moves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from operator import mul

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import LayoutFacts, views
from onnxtile.planning.states.state_pair import StatePair


def with_states(facts: LayoutFacts, pairs: Iterable[StatePair]) -> LayoutFacts:
    """Return `facts` with the states `pairs`: the tensors that their operators may write over them, and those that are spread."""
    roots, spread = {}, set()
    for pair in pairs:
        root = facts.root(pair.output)
        if pair.axis is None:
            roots[pair.input] = root
            continue
        own = set(_spread(pair, root, facts))
        # Through a view that no strides describe, the output has bytes of its own.
        if root not in own or pair.output in own:
            roots[pair.input] = root
        spread |= own
    return LayoutFacts(facts.model, facts.shapes, facts.constants, roots, frozenset(spread))


def strides(pair: StatePair, facts: LayoutFacts) -> tuple[int, ...] | None:
    """Return the bytes from one element to the next on each axis of a state to which its operator appends in place; None for others."""
    sizes, dtype = facts.shapes.sizes(pair.output), facts.shapes.dtype(pair.output)
    if pair.axis is None or pair.input not in facts.states or sizes is None or dtype is None or dtype.bitwidth < 8:
        return None
    return (*reversed([*accumulate(sizes[:0:-1], mul, initial=dtype.bitwidth // 8)]),)


def _spread(pair: StatePair, root: ir.Value, facts: LayoutFacts) -> Iterator[ir.Value]:
    """Yield the tensors of a growing state that are not contiguous at all lengths, with their views that have the same rows."""
    shape = facts.shapes.sizes(pair.input) or ()
    rows = math.prod(shape[: pair.axis])
    if rows < 2:
        return
    begun = [pair.input, root] if facts.shapes.is_bound(root) else [pair.input]
    todo = list(begun)
    while todo:
        value = todo.pop()
        yield value
        shown = (alias for node in value.consumers() for alias in views(node, facts) if alias.source is value)
        todo += (alias.value for alias in shown if _has_rows(facts.shapes.sizes(alias.value), rows))


def _has_rows(sizes: Collection[int] | None, rows: int) -> bool:
    """Return whether the first axes of a tensor of these `sizes` number its `rows`."""
    return rows in accumulate(sizes or (), mul)
