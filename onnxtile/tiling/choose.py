"""An exact search for the tiles that move the fewest bytes with so many nodes (the cost model: onnxtile.tiling.grid).

Bytes depend only on the number of stretches, so of all steps that give as many only the shortest counts; for each step along the
sliding axes and N the longest K that fits is the best in any order. That leaves about 4·√(M·N) pairs times six orders for a matrix
product. Tiles of several whole groups are searched beside tiles of one group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from functools import partial
from itertools import product
from math import isqrt, lcm, prod
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.operators.node_view import NotApplicable, ReasonCode
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Infeasible
from onnxtile.tiling.contraction import FLOATS, WITHIN, Contraction, TensorOperand, TilingFacts
from onnxtile.tiling.grid import ORDERS, Nest, TileGrid, Workload, bias_bytes
from onnxtile.tiling.limits import Accumulation, AxisBounds, Limits, TilingPolicy, bounds_of
from onnxtile.tiling.result import Chosen, Counts, SkippedNode, TileChoice, TileLevel, best_of, share, trade
from onnxtile.tiling.write import NODES_OF_SCATTER, count_nodes, most_nodes, reads_of
from onnxtile.tiling.writer import may_copy_result, may_scatter

NodeCount = Callable[..., Any]
"""The number of nodes for so many stretches along groups, each sliding axis, K and N (arrays), in an order of loops (the last argument)."""


def front(workload: Workload, limits: Limits, bounds: AxisBounds, nodes: NodeCount) -> tuple[TileChoice, ...]:
    """Return the choices within `limits` that no other beats in both nodes and bytes, from the fewest nodes to the fewest bytes.

    It is empty where nothing fits. Of equal choices the first order of `ORDERS` counts, then the tile that holds less.
    """
    work = workload.filled(bounds.quanta)
    tiles = np.concatenate([_of_one_group(work, limits, bounds), _group_tiles(work, limits, bounds)], axis=1)
    counts = [-(-size // step) for size, step in zip(work.sizes, tiles, strict=True)]
    single = (np.prod(counts, axis=0) == 1) & (not bounds.fills)
    return _best(work, tiles, [np.where(single, 1, nodes(*counts, order)) for order in ORDERS])


def front_of_outer(
    workload: Workload, memory: int, bounds: AxisBounds, nest: Nest, nodes: Callable[..., Any]
) -> tuple[TileChoice, ...]:
    """Return the choices of `front` for the outer tiles that fit into `memory`; `nodes` takes their steps along M, K and N,
    and how many blocks of left and right operand are read inside them.

    Along each axis, multiples of the tiles of `nest` are compared beside all steps that move the fewest bytes: they leave fewer tiles.
    Of equal choices the fewest outer tiles count, then the fewest bytes inside them.
    """
    work, limits = workload.filled(bounds.quanta), Limits(memory=memory)
    rows, middle, columns = (
        sorted({multiple, multiple if tile >= size else lcm(multiple, tile)})
        for multiple, tile, size in zip(bounds.multiples, nest.tile, nest.sizes, strict=True)
    )
    ways = (replace(bounds, multiples=multiples) for multiples in product(rows, middle, columns))
    tiles = np.concatenate([_of_one_group(work, limits, way) for way in ways], axis=1)
    outer = tiles[1], tiles[2], tiles[3]
    single = (np.prod(nest.counts(outer), axis=0) == 1) & (not bounds.fills)
    inside = nest.best(outer)
    number = np.where(single, 1, nodes(outer, inside.reads))
    return _best(work, tiles, [number] * len(ORDERS), (inside.count, inside.moved))


def _best(work: Workload, tiles: Counts, nodes: Sequence[Any], ties: Sequence[Counts] = ()) -> tuple[TileChoice, ...]:
    """Return the tiles that no other beats in both nodes, an array for each order, and bytes."""
    if not tiles.shape[1]:
        return ()
    groups, *steps, channels, filters = tiles
    moved = [work.moved((steps, channels, filters), order) for order in ORDERS]
    return best_of(tuple(tiles), np.asarray(work.held(groups, steps, channels, filters)), nodes, moved, ties)


def smallest(workload: Workload, bounds: AxisBounds) -> tuple[int, int]:
    """Return the bytes of the smallest tile that bounds and multiples allow, and the elements of its largest block."""
    work = workload.filled(bounds.quanta)
    m, k, n = bounds.multiples
    tile = 1, [min(m, out) for out in work.outs], min(k, work.channels), min(n, work.filters)
    return int(work.held(*tile)), int(max(work.blocks(*tile)))


def shortest_steps(size: int, bound: int | None = None, multiple: int = 1) -> Counts:
    """Return the shortest step, a multiple, for each possible number of stretches of an axis, up to `bound`."""
    units = -(-size // multiple)
    few = np.arange(1, min(isqrt(units) + 1, units) + 1, dtype=np.int64)
    steps: Counts = np.minimum(np.unique(np.concatenate([few, -(-units // few)])) * multiple, size)
    return steps if bound is None else steps[steps <= bound]


def pairs_at_most(workload: Workload, bounds: AxisBounds) -> int:
    """Return how many steps along the sliding axes and N the search compares at most, in all combinations."""
    first, _, last = bounds.multiples
    axes = [*((out, bound, first) for out, bound in zip(workload.outs, bounds.sliding, strict=True))]
    axes += [(workload.filters, bounds.filters, last)]
    counts = (
        min(2 * isqrt(-(-size // multiple)) + 2, size if bound is None else bound) for size, bound, multiple in axes
    )
    return prod(counts)


def _along(work: Workload, bounds: AxisBounds) -> list[Counts]:
    """Return the steps along each sliding axis, all combinations."""
    multiple = bounds.multiples[0]
    steps = [shortest_steps(out, bound, multiple) for out, bound in zip(work.outs, bounds.sliding, strict=True)]
    return [axis.ravel() for axis in np.meshgrid(*steps, indexing="ij")]


def _combined(along: list[Counts], others: Counts) -> tuple[list[Counts], Counts]:
    """Return each of `along` with each of `others`."""
    at, other = (axis.ravel() for axis in np.meshgrid(np.arange(len(along[0])), others, indexing="ij"))
    return [axis[at] for axis in along], other


def _of_one_group(work: Workload, limits: Limits, bounds: AxisBounds) -> Counts:
    """Return tiles of one group each, with the longest channels that fit, as rows of steps."""
    steps, n = _combined(_along(work, bounds), shortest_steps(work.filters, bounds.filters, bounds.multiples[2]))
    most = np.full(n.shape, work.channels if bounds.channels is None else bounds.channels, np.int64)
    window, weight, output = (np.asarray(x) for x in work.blocks(1, steps, 1, n))
    a, b, c = work.bytes
    for limit, (x, w, y) in ((limits.largest_elements, (1, 1, 1)), (limits.largest_bytes, work.bytes)):
        if limit is not None:
            most = np.minimum(most, np.minimum(limit // (window * x), limit // (weight * w)))
            most = np.where(output * y <= limit, most, 0)
    if limits.memory is not None:
        left = limits.memory - output * c - n * work.column - np.prod(steps, axis=0) * work.row
        most = np.minimum(most, left // (window * a + weight * b))
    if bounds.pixels is not None:
        most = np.where(np.prod(steps, axis=0) <= bounds.pixels, most, 0)
    k = _shortest_of_longest(most, work.channels, bounds.multiples[1])
    return np.stack([np.ones_like(n), *steps, k, n])[:, k > 0]


def _shortest_of_longest(most: Counts, size: int, multiple: int) -> Counts:
    """Return the shortest step that cuts `size` into as few stretches as a step up to `most` does; 0 where there is none."""
    units = -(-size // multiple)
    longest = np.where(most >= size, units, np.minimum(np.maximum(most, 0) // multiple, units))
    stretches = -(-units // np.maximum(longest, 1))
    return np.where(longest > 0, np.minimum(-(-units // stretches) * multiple, size), 0).astype(np.int64)


def _group_tiles(work: Workload, limits: Limits, bounds: AxisBounds) -> Counts:
    """Return tiles of two or more whole groups, as rows of steps."""
    together = shortest_steps(work.groups, bounds.groups(work.groups, work.channels, work.filters))
    steps, groups = _combined(_along(work, bounds), together[together > 1])
    k, n = np.full_like(groups, work.channels), np.full_like(groups, work.filters)
    fits = np.ones(groups.shape, bool)
    blocks = [np.asarray(block) for block in work.blocks(groups, steps, k, n)]
    for block, size in zip(blocks, work.bytes, strict=True):
        fits &= limits.largest_elements is None or block <= limits.largest_elements
        fits &= limits.largest_bytes is None or block * size <= limits.largest_bytes
    if limits.memory is not None:
        fits &= work.held(groups, steps, k, n) <= limits.memory
    if bounds.pixels is not None:
        fits &= np.prod(steps, axis=0) <= bounds.pixels
    return np.stack([groups, *steps, k, n])[:, fits]


def _limited_by(work: Workload, limits: Limits, bounds: AxisBounds, choice: TileChoice) -> tuple[str | None, ...]:
    """Return for each axis of the tile which limit a step with one stretch fewer breaks: see `Chosen`."""
    m, k, n = bounds.multiples
    groups = bounds.groups(work.groups, work.channels, work.filters)
    most = (groups, *bounds.sliding, bounds.channels, bounds.filters)
    multiples = (1, *(m for _ in bounds.sliding), k, n)
    reasons: list[str | None] = []
    for axis, (size, step, bound, multiple) in enumerate(zip(work.sizes, choice.tile, most, multiples, strict=True)):
        if step >= size:
            reasons.append(None)
            continue
        longer = min(-(-size // (-(-size // step) - 1) // multiple) * multiple, size)
        # A tile of several groups has these whole.
        tile = [*choice.tile[:-2], work.channels, work.filters] if axis == 0 else list(choice.tile)
        tile[axis] = longer
        reasons.append("max" if bound is not None and longer > bound else _broken_by(work, limits, bounds, tile))
    return tuple(reasons)


def _broken_by(work: Workload, limits: Limits, bounds: AxisBounds, tile: Sequence[int]) -> str:
    """Return which limit of several axes a tile breaks; "choice" for none."""
    groups, *steps, k, n = tile
    blocks = work.blocks(groups, steps, k, n)
    if bounds.pixels is not None and prod(steps) > bounds.pixels:
        return "max" if len(steps) == 1 else "m"
    for largest, sizes in ((limits.largest_elements, (1, 1, 1)), (limits.largest_bytes, work.bytes)):
        if largest is not None and any(block * size > largest for block, size in zip(blocks, sizes, strict=True)):
            return "largest"
    fits = limits.memory is None or work.held(groups, steps, k, n) <= limits.memory
    return "choice" if fits else "memory"


# Reasons why a contraction cannot be cut as the limits ask.

_MOST_PRODUCTS = 2**60
"""Of one matrix product: years of work for any machine."""


def require_cuttable(contraction: Contraction, limits: Limits, facts: TilingFacts, operator: str) -> None:
    """Raise NotApplicable, with the reason, where `contraction`, of an `operator`, cannot be cut within `limits` by any tile."""
    if contraction.windows:
        _require_asked(contraction, limits, operator)
    _require_countable(contraction)
    _require_dtypes((contraction.left, contraction.right), limits)
    if contraction.windows:
        _require_window_limits(limits, operator)
    if limits.asks_for_choice:
        _require_batch(contraction, facts)
    _require_known(contraction, limits, facts)


def _require_countable(contraction: Contraction) -> None:
    """Raise NotApplicable where the products are too many to be computed at all: numbers of tiles are counted in 64 bits."""
    sizes = [size for size in (contraction.m, contraction.k, contraction.n) if isinstance(size, int)]
    if prod(sizes) > _MOST_PRODUCTS:
        raise NotApplicable(f"its sizes {' x '.join(map(str, sizes))} are more than any machine multiplies")


def _require_asked(contraction: Contraction, limits: Limits, operator: str) -> None:
    """Raise NotApplicable for a convolution where the limits do not request that convolutions are cut."""
    if limits.window is not None:
        return
    sizes = (contraction.m, contraction.k, contraction.n)
    within = all(
        bound is None or (isinstance(size, int) and size <= bound)
        for size, bound in zip(sizes, limits.bounds, strict=True)
    )
    if within and not limits.asks_for_choice:
        raise NotApplicable(WITHIN, ReasonCode.WITHIN_LIMITS)
    raise NotApplicable(
        f"convolutions are cut only on request: --conv, or [operator.{operator}] in the limits file",
        ReasonCode.NOT_REQUESTED,
    )


def _require_window_limits(limits: Limits, operator: str) -> None:
    """Raise NotApplicable where the limits need tiles that a convolution cannot be cut into."""
    if limits.pad:
        raise NotApplicable(
            "a convolution is not filled up to tiles of one size (pad = true): "
            f"[operator.{operator}] with pad = false in the limits file has it cut"
        )
    if limits.multiples[0] > 1:
        raise NotApplicable("the rows and columns of a convolution are not cut into multiples")


def _require_dtypes(factors: Iterable[TensorOperand], limits: Limits) -> None:
    """Raise NotApplicable where the limits do not have the element type of a factor."""
    for operand in factors:
        name = np.dtype(operand.dtype.numpy()).name
        if limits.dtypes is not None and name not in limits.dtypes:
            raise NotApplicable(
                f"the limits are for {', '.join(sorted(limits.dtypes))}, and {operand.value.name!r} is {name}",
                ReasonCode.ELEMENT_TYPE,
            )


def _require_batch(contraction: Contraction, facts: TilingFacts) -> None:
    """Raise NotApplicable, with the dimension to bind, where the size of a batch, and so its memory, is not known."""
    for operand, batch in zip((contraction.left, contraction.right), contraction.batches, strict=False):
        for axis, size in enumerate(batch):
            if not isinstance(size, int):
                raise facts.unknown(operand.value, axis)


def _require_known(contraction: Contraction, limits: Limits, facts: TilingFacts) -> None:
    """Raise NotApplicable, with the dimension to bind, where a limit holds for an axis of unknown size."""
    left, right = contraction.left, contraction.right
    bounds = bounds_of(contraction, limits)
    cut = [bound is not None or limits.needs_size(0) for bound in bounds.sliding]
    for axis, sliding, is_cut in zip(contraction.left_axes, contraction.sliding, cut, strict=True):
        # Where one axis is cut, the window of a tile says where it lies along the other, too.
        if any(cut) and axis is not None and not sliding.is_known:
            raise facts.unknown(left.value, axis)
        if is_cut and limits.asks_for_choice:
            sliding.require_reachable()
    if limits.needs_size(1) and not isinstance(contraction.channels, int):
        positions = [(left.value, left.stored_axis(1)), (right.value, right.stored_axis(0))]
        raise facts.unknown(*next((position for position in positions if facts.can_bind(*position)), positions[0]))
    if limits.needs_size(2) and not isinstance(contraction.filters, int):
        raise facts.unknown(right.value, right.stored_axis(1))


def require_fillable(contraction: Contraction, filled: tuple[bool, bool, bool], facts: TilingFacts) -> None:
    """Raise NotApplicable where a tile cannot be filled up with zeros; `filled` says along which of M, K and N it would be."""
    m, k, n = filled
    a, b = contraction.left, contraction.right
    axes = [(a, 0, m), (a, 1, k), (b, 0, k), (b, 1, n)]
    if b.zero is not None and b.zero.axes[1] is not None:
        axes.append((b.zero, 1, n))
    for operand, side, fills in axes:
        if fills and operand.axes[side] is None:
            raise NotApplicable(f"the vector {operand.value.name!r} cannot be filled up to a matrix")
        if fills and not operand.constant and operand.dtype not in FLOATS and facts.opset < 11:
            raise NotApplicable(
                f"opset {facts.opset} cannot fill up {operand.value.name!r}, which is not a float: raise the model to 11",
                ReasonCode.OPSET,
            )
    if not k or a.zero is None:
        return
    # Where both factors are filled up, one of them must be so with its zero point for the product to stay as it is.
    if a.constant and not a.zero.constant:
        raise NotApplicable(
            f"{a.value.name!r} cannot be filled up with the zero point {a.zero.value.name!r}, which is not a constant"
        )


# The contractions of a model, with the cuts that each of them gets.

MOST_NODES = 250_000
"""All tiles together have so many nodes unless more are allowed: more take minutes and gigabytes to write and to load."""


@dataclass(frozen=True)
class TileSite:
    """A node, the contraction that it computes, and its cuts."""

    node: ir.Node
    name: str
    contraction: Contraction
    grid: TileGrid
    chosen: Chosen | None = None


@dataclass(frozen=True)
class Candidate:
    """A node, the contraction that it computes, the choices for it, and how each of them cuts it."""

    node: ir.Node
    name: str
    contraction: Contraction
    choices: tuple[TileChoice, ...]
    grid_of: Callable[[TileChoice], TileGrid]
    searched: bool = False
    """Whether the choices come from a search; the limits leave only one otherwise."""
    lower_bound: float | None = None
    """The bytes that any schedule moves, where a memory is given."""
    levels_of: Callable[[TileChoice], tuple[TileLevel, ...]] = field(default=lambda _: ())
    """What each level does with a choice; nothing where there is one level."""
    limited_by: Callable[[TileChoice], tuple[str | None, ...]] = field(default=lambda _: ())
    """What keeps each axis of a choice from a longer step; nothing where there are two levels."""

    def site(self, taken: int) -> TileSite | SkippedNode:
        """Return the contraction with the cuts of one of the choices, or without any."""
        contraction, choice = self.contraction, self.choices[taken]
        grid = self.grid_of(choice)
        if not grid.is_cut:
            return SkippedNode(
                self.name, WITHIN, ReasonCode.WITHIN_LIMITS, (contraction.m, contraction.k, contraction.n)
            )
        chosen = None
        if self.searched:
            shown, levels = trade(self.choices, taken), self.levels_of(choice)
            chosen = Chosen(choice, self.lower_bound, shown, levels, self.limited_by(choice))
        return TileSite(self.node, self.name, contraction, grid, chosen)


def choose(candidates: Iterable[Candidate | SkippedNode], options: TilingPolicy) -> list[TileSite | SkippedNode]:
    """Return the cuts with the fewest nodes within 5 % of the fewest bytes, and no more nodes in all than the options allow.

    Where the options do not say, and the limits leave a choice, that is `MOST_NODES`. Raises Infeasible.
    """
    entries = list(candidates)
    fronts = [entry.choices for entry in entries if isinstance(entry, Candidate)]
    most = options.nodes_at_most
    if most is None and sum(choices[0].nodes for choices in fronts) <= MOST_NODES:
        most = MOST_NODES
    taken = iter(share(fronts, most))
    return [entry.site(next(taken)) if isinstance(entry, Candidate) else entry for entry in entries]


# From limits to the choices for one contraction.


def with_quantized(contraction: Contraction, limits: Limits) -> Contraction:
    """Return `contraction` with the DequantizeLinear of each operand that one makes from initializers.

    Where it has a scale for each block, the right operand is cut between blocks, or, within limits smaller than a block, as floats.
    """
    bias, right = contraction.tile_bias, _quantized(contraction.right)
    units = _units(right)
    bounds = bounds_of(contraction, limits)
    pairs = zip(units, (bounds.channels, bounds.filters), strict=True)
    if units != (1, 1) and (limits.pad or any(bound is not None and bound < unit for unit, bound in pairs)):
        right, units = contraction.right, (1, 1)
    left = _quantized(contraction.left)
    return replace(
        contraction,
        left=left if _units(left) == (1, 1) else contraction.left,
        right=right,
        tile_bias=None if bias is None else _quantized(bias),
        units=units if right.packed is None else contraction.units,
    )


def _quantized(operand: TensorOperand) -> TensorOperand:
    node = operand.value.producer() if operand.constant else None
    if node is None or node.op_type != "DequantizeLinear" or node.domain:
        return operand
    held = all(value is not None and value.is_initializer() for value in node.inputs)
    return replace(operand, dequantize=node) if held else operand


def _units(operand: TensorOperand) -> tuple[int, int]:
    """Return how many elements along rows and columns have one scale in common, where these are more than one and fewer than all."""
    node = operand.dequantize
    size = 0 if node is None else node.attributes.get_int("block_size", 0)
    if node is None or not size:
        return 1, 1
    axis = node.attributes.get_int("axis", 1) % len(operand.dims)
    sides = [side for side in (0, 1) if operand.axes[side] is not None and operand.stored_axis(side) == axis]
    return (size if sides == [0] else 1), (size if sides == [1] else 1)


_MOST_PAIRS = 2**22
"""Steps along the sliding axes and N in all combinations that are compared at most: they take about 1 GB."""


def examine(
    name: str, node: ir.Node, contraction: Contraction, limits: Limits, facts: TilingFacts, how: Accumulation
) -> Candidate:
    """Return the choices for a contraction. Raises NotApplicable with the reason where it cannot be cut, Infeasible where nothing fits."""
    limits = limits.of_one_level if contraction.windows else limits
    require_cuttable(contraction, limits, facts, node.op_type)
    bounds = bounds_of(contraction, limits)
    if bounds.channels == 0:
        kernel = contraction.kernel
        raise Infeasible(
            f"no tile of {name!r} is within the limits: its kernel has {kernel} elements, and K is {limits.k} at most",
            hint=f"raise K of --max to {kernel}, or K of [operator.{node.op_type}] in the limits file",
        )
    if not limits.asks_for_choice:
        grid = TileGrid.fullest(contraction, bounds)
        _require_tiles(contraction, grid, facts)
        # The limits leave one choice.
        number = most_nodes(contraction, grid, how, facts.opset) if grid.is_cut else 1
        return Candidate(node, name, contraction, (TileChoice((), grid.order, number, 0, 0),), lambda _: grid)
    if bounds.fills:
        require_fillable(contraction, (True, True, True), facts)
    if limits.outer_memory is not None:
        return _examine_levels(name, node, contraction, limits, facts, how)

    def nodes(groups: Any, *rest: Any) -> Any:
        *sliding, k, n, order = rest
        counts = (groups, tuple(sliding), k, n)
        reads = reads_of(counts, order)
        return count_nodes(
            contraction, counts, reads, how, fills=bounds.fills, joins=_joins(contraction, counts, facts)
        )

    def grid_of(choice: TileChoice) -> TileGrid:
        return TileGrid.chosen(contraction, bounds, choice.tile, choice.order)

    work = Workload.from_contraction(contraction)
    if pairs_at_most(work, bounds) > _MOST_PAIRS:
        raise NotApplicable(f"its sizes leave more than {_MOST_PAIRS:,} tiles to compare")
    choices = front(work, limits, bounds, nodes)
    if not choices:
        raise _infeasible(name, contraction, limits, bounds)
    bound = None if limits.memory is None else work.lower_bound(limits.memory)
    limited_by = partial(_limited_by, work.filled(bounds.quanta), limits, bounds)
    return Candidate(node, name, contraction, choices, grid_of, True, bound, limited_by=limited_by)


def _joins(contraction: Contraction, counts: tuple[Any, tuple[Any, ...], Any, Any], facts: TilingFacts) -> Any:
    """Return how many nodes join the blocks of so many stretches in place, at most; None where Concat joins them."""
    if not may_scatter(contraction, facts.opset) or may_copy_result(contraction):
        return None
    groups, sliding, _, n = counts
    return NODES_OF_SCATTER * groups * np.prod(sliding, axis=0) * n


def _examine_levels(
    name: str, node: ir.Node, contraction: Contraction, limits: Limits, facts: TilingFacts, how: Accumulation
) -> Candidate:
    """Return the choices of outer tiles, each cut into tiles within the limits. Raises as `examine`."""
    memory, bounds = limits.outer_memory, bounds_of(contraction, limits)
    assert memory is not None
    around = replace(bounds, pixels=None, sliding=(None,), channels=None, filters=None)
    work, cut = Workload.from_contraction(contraction), TileGrid.fullest(contraction, bounds)
    filled = work.filled(bounds.quanta)
    nest = Nest.from_tile(filled, (cut.rows.step or 1, cut.k.step or 1, cut.n.step or 1))

    def nodes(outer: Any, reads: tuple[Any, Any]) -> Any:
        m, k, n = nest.counts(outer)
        counts = (1, (m,), k, n)
        joins, stretches = _joins(contraction, counts, facts), -(-nest.sizes[1] // outer[1])
        return count_nodes(
            contraction,
            counts,
            reads,
            how,
            fills=bounds.fills,
            joins=joins,
            outer=(stretches, -(-outer[1] // nest.tile[1])),
        )

    def grid_of(choice: TileChoice) -> TileGrid:
        outer = TileGrid.chosen(contraction, around, choice.tile, choice.order)
        return cut.inside(outer, nest.best(choice.tile[1:]).loops)

    if 2 ** len(nest.tile) * pairs_at_most(filled, around) > _MOST_PAIRS:
        raise NotApplicable(f"its sizes leave more than {_MOST_PAIRS:,} tiles to compare")
    choices = front_of_outer(work, memory, around, nest, nodes)
    if not choices:
        raise _infeasible(name, contraction, limits.of_one_level, around)
    return Candidate(
        node, name, contraction, choices, grid_of, True, filled.lower_bound(memory),
        partial(levels_of, filled, nest, limits.bounds, memory),
    )  # fmt: skip


def _require_tiles(contraction: Contraction, grid: TileGrid, facts: TilingFacts) -> None:
    """Raise NotApplicable where a tile of `grid` cannot be filled up, or would read padding only."""
    require_fillable(contraction, (any(axis.fills for axis in grid.sliding), grid.k.fills, grid.n.fills), facts)
    for axis, cuts in zip(contraction.sliding, grid.sliding, strict=True):
        # More of them are refused once the nodes of all sites are counted.
        count = cuts.count if cuts.is_cut and cuts.count <= MOST_NODES else 0
        axis.require_input(cuts.stretch(index) for index in range(count))


def _infeasible(name: str, contraction: Contraction, limits: Limits, bounds: AxisBounds) -> Infeasible:
    """Return the error that says how much the smallest tile needs."""
    none = f"no tile of {name!r} is within the limits: the smallest"
    least, largest = smallest(Workload.from_contraction(contraction), bounds)
    if limits.memory is not None and least > limits.memory:
        bias = " with its part of the bias" if any(bias_bytes(contraction)) else ""
        reason = f"{none}{bias} holds {least:,} bytes, and the memory is {limits.memory:,}"
        return Infeasible(reason, hint=f"raise the memory to {least} bytes or more")
    return Infeasible(
        f"{none} has a block of {largest:,} elements, more than the largest tensor", hint="raise the limits"
    )


def levels_of(
    work: Workload, nest: Nest, bounds: Sequence[int | None], memory: int, choice: TileChoice
) -> tuple[TileLevel, TileLevel]:
    """Return what the level of the memory and that of the array do, where the outer tile is `choice`."""
    m, k, n = choice.tile[1:]
    outer = m, k, n
    best = nest.best(outer)
    rows, middle, columns = (min(step, tile) for step, tile in zip(outer, nest.tile, strict=True))
    held = int(work.held(1, [rows], middle, columns))
    whole = [_reason_of_cut(work, memory, nest.sizes, outer, axis) for axis in range(3)]
    inner = [
        "max" if bound is not None and tile < size and step >= tile else limit
        for bound, tile, size, step, limit in zip(bounds, nest.tile, nest.sizes, outer, whole, strict=True)
    ]
    return (
        TileLevel(
            "outer", outer, choice.order, choice.held, choice.bytes_moved, work.lower_bound(memory), _three(whole)
        ),
        TileLevel(
            "inner", (rows, middle, columns), best.loops, held, int(best.moved), work.lower_bound(held),
            _three(inner),
        ),
    )  # fmt: skip


def _reason_of_cut(work: Workload, memory: int, sizes: Sequence[int], outer: Sequence[int], axis: int) -> str | None:
    """Return why an axis of outer tiles is cut: whether a tile with the whole axis would fit into the memory."""
    if outer[axis] >= sizes[axis]:
        return None
    m, k, n = (size if at == axis else step for at, (size, step) in enumerate(zip(sizes, outer, strict=True)))
    return "memory" if work.held(1, [m], k, n) > memory else "choice"


def _three(limits: Sequence[str | None]) -> tuple[str | None, str | None, str | None]:
    m, k, n = limits
    return m, k, n
