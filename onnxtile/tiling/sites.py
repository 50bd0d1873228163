"""From limits to grids: each product of a model with the cuts it gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx_ir as ir

from onnxtile.errors import Infeasible
from onnxtile.tiling.accumulate import Accumulation
from onnxtile.tiling.choice import Choice, Chosen, Work, front, share, smallest, trade
from onnxtile.tiling.emit import count_nodes, most_nodes
from onnxtile.tiling.grid import TileGrid
from onnxtile.tiling.layers import Cuts, Layer
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.options import Options
from onnxtile.tiling.product import (
    Facts,
    Operand,
    Product,
    require_batch,
    require_dtypes,
    require_fillable,
    require_known,
    times_sign,
)
from onnxtile.tiling.result import SkippedNode

MOST_NODES = 1_000_000
"""A model of more nodes than this loads nowhere in reasonable time."""


@dataclass(frozen=True)
class Site:
    """A product or a convolution, and its cuts."""

    node: ir.Node
    name: str
    product: Layer
    grid: Cuts
    chosen: Chosen | None = None


@dataclass(frozen=True)
class Candidate:
    """A product or a convolution, the choices for it, and how each of them cuts it."""

    node: ir.Node
    name: str
    product: Layer
    choices: tuple[Choice, ...]
    grid_of: Callable[[Choice], Cuts]
    searched: bool = False
    """Whether the choices come from a search; the limits leave only one otherwise."""
    lower_bound: float | None = None
    """The bytes that any schedule moves, where a memory is given."""

    def site(self, taken: int) -> Site | SkippedNode:
        """Return the product with the cuts of one of the choices, or without any."""
        product, choice = self.product, self.choices[taken]
        grid = self.grid_of(choice)
        if not grid.is_cut:
            return SkippedNode(self.name, f"{times_sign((product.m, product.k, product.n))} is within the limits")
        chosen = Chosen(choice, self.lower_bound, trade(self.choices, taken)) if self.searched else None
        return Site(self.node, self.name, product, grid, chosen)


def examine(name: str, node: ir.Node, product: Product, limits: Limits, facts: Facts, how: Accumulation) -> Candidate:
    """Return the choices for a product. Raises NotTiled with the reason where it cannot be cut, Infeasible where nothing fits."""
    require_dtypes((product.a, product.b), limits)
    require_known(product, limits, facts)
    if not limits.asks_for_choice:
        m, k, n = (size if isinstance(size, int) else None for size in (product.m, product.k, product.n))
        grid = TileGrid.of(m, k, n, limits)
        require_fillable(product, (grid.m.fills, grid.k.fills, grid.n.fills), facts)
        # One choice, which costs what it costs.
        number = most_nodes(product, grid, how) if grid.is_cut else 1
        return Candidate(node, name, product, (Choice((), grid.order, number, 0, 0),), lambda _: grid)
    require_batch(product, facts)
    if limits.pad:
        require_fillable(product, (True, True, True), facts)

    def nodes(gm: Any, gk: Any, gn: Any, order: str) -> Any:
        # Filling up takes a node for each operand and one for the result.
        return count_nodes(product, (gm, gk, gn), order, how) + 3 * limits.pad

    work = work_of(product)
    choices = front(work, limits, nodes)
    if not choices:
        raise _infeasible(name, product, limits)
    bound = None if limits.memory is None else work.lower_bound(limits.memory)
    return Candidate(node, name, product, choices, lambda choice: choice.grid(work, limits), True, bound)


def choose(found: Iterable[Candidate | SkippedNode], options: Options) -> list[Site | SkippedNode]:
    """Return the cuts with the fewest nodes within 5 % of the fewest bytes, and no more nodes in all than the options allow.

    Where the limits leave a choice, no more than a million nodes are chosen in any case. Raises Infeasible.
    """
    entries = list(found)
    fronts = [entry.choices for entry in entries if isinstance(entry, Candidate)]
    most = options.nodes_at_most
    if most is None and sum(choices[0].nodes for choices in fronts) <= MOST_NODES:
        most = MOST_NODES
    taken = iter(share(fronts, most))
    return [entry.site(next(taken)) if isinstance(entry, Candidate) else entry for entry in entries]


def work_of(product: Product) -> Work:
    """Return what a product of known sizes asks of the memory."""
    m, k, n = (size if isinstance(size, int) else 0 for size in (product.m, product.k, product.n))
    a, b = product.a, product.b
    result = product.dims[: len(product.dims) - sum(axis is not None for axis in product.axes)]
    batch = (_count(a.batch), _count(b.batch), _count(result))
    zero = b.zero.dtype.itemsize if b.zero is not None and b.zero.axes[1] is not None else 0
    row, column = _bias(product)
    return Work((m, k, n), (_size(a), _size(b), int(product.dtype.itemsize)), batch, int(zero) + column, row)


def _bias(product: Product) -> tuple[int, int]:
    """Return the bytes of the bias that belong to each row and to each column: of one that is the same along the other axis."""
    if product.bias is None or not product.adds_bias:
        return 0, 0
    rows, columns = (1, 1, *product.bias.dims)[-2:]
    size = int(product.dtype.itemsize)
    if rows == 1:
        return 0, (size if columns != 1 else 0)
    return (size if columns == 1 else 0), 0


def _count(dims: tuple[int | str | None, ...]) -> int:
    return prod(dim for dim in dims if isinstance(dim, int))


def _size(operand: Operand) -> int:
    return int(operand.dtype.itemsize)


def _infeasible(name: str, product: Product, limits: Limits) -> Infeasible:
    """Return the error that says what the smallest tile needs."""
    none = f"no tile of {name!r} is within the limits: the smallest"
    least, largest = smallest(work_of(product), limits)
    if limits.memory is not None and least > limits.memory:
        bias = " with its part of the bias" if any(_bias(product)) else ""
        reason = f"{none}{bias} holds {least:,} bytes, and the memory is {limits.memory:,}"
        return Infeasible(reason, hint=f"raise the memory to {least} bytes or more")
    return Infeasible(
        f"{none} has a block of {largest:,} elements, more than the largest tensor", hint="raise the limits"
    )
