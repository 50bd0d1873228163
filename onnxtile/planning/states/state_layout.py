"""The layout of states: the strides of one that grows are those of its largest size at every length, so that none of its rows moves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

import onnx_ir as ir

from onnxtile.model.size_formula import SizeFormula, product_of
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


@dataclass(frozen=True)
class Strides:
    """The bytes from one element of a tensor to the next on each axis, and these as formulas of a range (None without one)."""

    sizes: tuple[int, ...]
    formulas: tuple[SizeFormula, ...] | None


def spread_strides(pair: StatePair, facts: LayoutFacts) -> dict[ir.Value, Strides]:
    """Return the strides of the tensors of a growing state at one address that are not contiguous; none of another state."""
    own = strides(pair, facts)
    if own is None or pair.axis is None:
        return {}
    root = facts.root(pair.output)
    ends = Strides(own, tuple(map(SizeFormula.number, own)))
    found: dict[ir.Value, Strides] = {}
    for value in _spread(pair, root, facts):
        if value in {pair.input, pair.output}:
            found[value] = ends
        elif (axes := _row_axes(value, pair, facts)) is not None:
            found[value] = _of_rows(value, axes, own[pair.axis - 1], facts)
    return found


def _of_rows(value: ir.Value, axes: int, pitch: int, facts: LayoutFacts) -> Strides:
    """Return the strides of `value`, whose first `axes` axes number rows that are `pitch` bytes apart."""
    sizes, dtype = facts.shapes.sizes(value), facts.shapes.dtype(value)
    assert sizes is not None and dtype is not None
    formulas = facts.shapes.formulas(value)

    def apart(shape: Sequence[SizeFormula]) -> tuple[SizeFormula, ...]:
        ends = [(axes, pitch) if axis < axes else (len(shape), dtype.bitwidth // 8) for axis in range(len(shape))]
        return tuple(product_of(shape[axis + 1 : end]) * unit for axis, (end, unit) in enumerate(ends))

    largest = tuple(stride.constant or 0 for stride in apart([SizeFormula.number(size) for size in sizes]))
    return Strides(largest, None if formulas is None else apart(formulas))


def _spread(pair: StatePair, root: ir.Value, facts: LayoutFacts) -> Iterator[ir.Value]:
    """Yield the tensors of a growing state that are not contiguous at all lengths, with their views that have the same rows."""
    shape = facts.shapes.sizes(pair.input) or ()
    if math.prod(shape[: pair.axis]) < 2:
        return
    todo = [pair.input, root] if facts.shapes.is_bound(root) else [pair.input]
    while todo:
        value = todo.pop()
        yield value
        shown = (alias for node in value.consumers() for alias in views(node, facts) if alias.source is value)
        todo += (alias.value for alias in shown if _row_axes(alias.value, pair, facts) is not None)


def _row_axes(value: ir.Value, pair: StatePair, facts: LayoutFacts) -> int | None:
    """Return how many first axes of `value` number the rows of the state `pair`, at all sizes; None where none do."""
    shapes = facts.shapes
    sizes, rows = shapes.sizes(value) or (), math.prod((shapes.sizes(pair.input) or ())[: pair.axis])
    formulas, state = shapes.formulas(value), shapes.formulas(pair.input)
    if shapes.is_bound(value) and None in (formulas, state) and value is not facts.root(pair.output):
        return None
    for axes in range(1, len(sizes) + 1):
        is_equal = formulas is None or state is None or product_of(formulas[:axes]) == product_of(state[: pair.axis])
        if math.prod(sizes[:axes]) == rows and is_equal:
            return axes
    return None
