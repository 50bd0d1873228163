"""The searches of the orders of one graph, each done once, the lower bound of every plan, and precedence in every order."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from onnxtile.kernels.kernel_graph import IN_PLACE, ByteSpan, Ints, KernelGraph, LiveRange, Schedule, Share, TensorRead
from onnxtile.model.topology import MOST_ELEMENTS, dependencies, heaviest_antichain
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.peak_search import (
    BUDGET,
    WIDEST,
    FoundOrder,
    OrderingProblem,
    bound_of,
    heights,
    others,
    refined,
    search,
)
from onnxtile.planning.sharing import Contents
from onnxtile.planning.workspaces import Needs, WorkspaceBuffer
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError

# Precedence of nodes in every order that the graph allows, by chains: paths that together hold every node once.
#
# The nodes before a node are the first few of each chain. One number for each chain says how many: n·k numbers for n nodes on k chains,
# where a set for each node takes n² bits. k is about the number of nodes that may run at the same time. After Jagadish, "A compression
# technique to materialize transitive closure", TODS 1990, doi 10.1145/99935.99944.

MOST_NUMBERS = 50_000_000
"""The largest n·k: 200 MB."""
MOST_PAIRS = 20_000_000
"""The largest number of unordered pairs of nodes."""

_HINT = "plan for one order instead (--order model or min-peak), or for nodes that run at once (--streams N)"


def require_narrow(after: Sequence[Sequence[int]]) -> None:
    """Raise UsageError for a graph that `Chains` would refuse, where that is seen in one pass over its nodes.

    Nodes at the same distance from the first ones, counted along the longest path, are unordered: that is a lower bound on all pairs.
    """
    depths: list[int] = []
    for before in after:
        depths.append(1 + max((depths[other] for other in before), default=-1))
    pairs = sum(count * (count - 1) // 2 for count in Counter(depths).values())
    _require(pairs, MOST_PAIRS, f"{len(after):,} nodes have too many unordered pairs")


class Chains:
    """The chains of a graph whose node n comes after the nodes `after[n]`, all of lower numbers.

    `chain[n]` is the chain of node n, `place[n]` its place there, and `through[n, c]` how many nodes of chain c are before it.
    Raises UsageError for a graph with too many unordered pairs of nodes.
    """

    def __init__(self, after: Sequence[Sequence[int]]) -> None:
        count = len(after)
        self.chain = np.zeros(count, np.int64)
        self.place = np.zeros(count, np.int64)
        self._through = np.zeros((count, 8), np.int32)
        self._lengths = np.zeros(8, np.int32)
        self.count = 0
        pairs = 0
        for node, before in enumerate(after):
            row = self._through[node]
            for other in before:
                np.maximum(row, self._through[other], out=row)
            for other in before:
                chain = self.chain[other]
                row[chain] = max(row[chain], self.place[other] + 1)
            pairs += int((self._lengths - row).sum())
            _require(pairs, MOST_PAIRS, f"{count:,} nodes have too many unordered pairs")
            self._append(node, self._ended(before, row))
        self.through = self._through[:, : self.count]

    def _ended(self, before: Sequence[int], row: np.ndarray[tuple[int], np.dtype[np.int32]]) -> int:
        """Return a chain that ends before the node of `row`, preferably of a node directly `before` it; or a new chain."""
        for other in before:
            chain = int(self.chain[other])
            if self.place[other] + 1 == self._lengths[chain]:
                return chain
        ended = np.flatnonzero(row[: self.count] == self._lengths[: self.count])
        return int(ended[0]) if len(ended) else self.count

    def _append(self, node: int, chain: int) -> None:
        if chain == self.count:
            self.count += 1
            numbers = self.count * len(self.chain)
            _require(numbers, MOST_NUMBERS, f"{len(self.chain):,} nodes form {self.count:,} chains")
        if chain == len(self._lengths):
            self._through = np.pad(self._through, ((0, 0), (0, chain)))
            self._lengths = np.pad(self._lengths, (0, chain))
        self.chain[node] = chain
        self.place[node] = self._lengths[chain]
        self._lengths[chain] += 1

    def is_before(self, node: int, other: int) -> bool:
        """Return whether `node` is before `other` in every order."""
        return bool(self.through[other, self.chain[node]] > self.place[node])

    def ends(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Return the last of `nodes` on each chain: a node after these is after all of `nodes`."""
        last: dict[int, int] = {}
        for node in nodes:
            chain = int(self.chain[node])
            if chain not in last or self.place[last[chain]] < self.place[node]:
                last[chain] = node
        return tuple(last.values())

    def before_all(self, nodes: Sequence[int]) -> Ints:
        """Return the number of nodes of each chain that are before all of `nodes`, which must not be empty."""
        least: Ints = self.through[list(nodes)].min(axis=0).astype(np.int64)
        return least


def _require(number: int, most: int, what: str) -> None:
    if number > most:
        raise UsageError(
            f"the graph is too wide for the order 'any': {what} ({number:,}, at most {most:,})", hint=_HINT
        )


MOST_CONFLICTS = 2_000_000
"""The largest number of conflicts: pairs of buffers that only another order needs at the same time."""
_MEASURING = frozenset({"Shape", "Size"})
"""Operators whose results depend on sizes alone."""


def require_orderable(graph: ir.Graph) -> None:
    """Raise UsageError for a graph that is too wide to be planned for every order, before anything is inferred of it.

    Nodes count that depend on an input of the graph: others may be computed before the run, as may all that is made of Shape or Size alone.
    """
    given = {value for value in graph.inputs if not value.is_initializer()}
    numbers: dict[ir.Node, int] = {}
    after: list[tuple[int, ...]] = []
    for node in graph:
        makers = dict.fromkeys(value.producer() for value in dependencies(node))
        before = tuple(numbers[maker] for maker in makers if maker in numbers)
        if node.op_type not in _MEASURING and (before or not given.isdisjoint(dependencies(node))):
            numbers[node] = len(after)
            after.append(before)
    require_narrow(after)


class InEveryOrder:
    """Precedence in every order that `graph` allows: a kernel is before another if a path leads from the first to the second.

    Kernels that make constants outside the arena run before all others. `steps` has the step of each other kernel in `schedule`, by its
    number in the chains. Raises UsageError for a graph that is too wide (see `Chains`).
    """

    def __init__(self, graph: KernelGraph, schedule: Schedule) -> None:
        self._graph = graph
        kernels = [number for number in schedule.order if not graph.makes_constants(graph.kernels[number])]
        self._number = {kernel: number for number, kernel in enumerate(kernels)}
        self.steps = tuple(schedule.steps[kernel] for kernel in kernels)
        before = ([self._number[other] for other in graph.after[kernel] if other in self._number] for kernel in kernels)
        self.chains = Chains([tuple(others) for others in before])
        uses: dict[int, list[int]] = {}
        for kernel, number in self._number.items():
            known = graph.kernels[kernel]
            for tensor in dict.fromkeys((*(read.tensor for read in known.reads), *known.makes)):
                uses.setdefault(tensor, []).append(number)
        self._uses = uses
        self._ends = {tensor: self.chains.ends(numbers) for tensor, numbers in uses.items()}
        # The caller reads it after every kernel.
        self._kept = graph.kept

    def claim(self, name: str, live_range: LiveRange, tensors: Iterable[int]) -> Claim:
        """Return the claim of a buffer that holds `tensors`."""
        tensors = tuple(tensors)
        makers = tuple(dict.fromkeys(map(self._maker, tensors)))
        users = sorted({use for tensor in tensors for use in self._uses.get(tensor, ())})
        return Claim(name, live_range, tuple(users), makers)

    def number(self, kernel: int) -> int:
        """Return the number of `kernel` in the chains."""
        return self._number[kernel]

    def before(self, a: int, b: int) -> bool:
        """Return whether every node that uses `a` is before the one that makes `b`."""
        maker = self._maker(b)
        if maker is None or a in self._kept:
            return False
        return all(self.chains.is_before(end, maker) for end in self._ends.get(a, ()))

    def before_in(self, _span: ByteSpan, a: int, b: int) -> bool:
        """Return whether every node that uses `a` is before the one that makes `b`; bytes are not told apart."""
        return self.before(a, b)

    def until(self, a: int, b: int) -> bool:
        """Return whether every other node that uses `a` is before the one that makes `b`."""
        maker = self._maker(b)
        if maker is None or a in self._kept:
            return False
        return all(end == maker or self.chains.is_before(end, maker) for end in self._ends.get(a, ()))

    def made_before(self, a: int, b: int) -> bool:
        """Return whether a path leads from the node that makes `a`, or the caller, to the one that makes `b`."""
        first, second = self._maker(a), self._maker(b)
        return second is not None and (first is None or self.chains.is_before(first, second))

    def _maker(self, tensor: int) -> int | None:
        return self._number.get(self._graph.makers[tensor])


@dataclass(frozen=True)
class Claim:
    """The use of a buffer: its live range in the schedule, the nodes that use it, and those that make its values (None: the caller)."""

    name: str
    live_range: LiveRange
    uses: tuple[int, ...]
    makers: tuple[int | None, ...]


def conflicts(claims: Sequence[Claim], order: InEveryOrder) -> frozenset[tuple[str, str]]:
    """Return the pairs of names of buffers that some order needs at the same time, but the schedule does not.

    It takes c·k steps for c claims on k chains, and one for each pair. Raises UsageError for too many pairs.
    """
    pairs: list[tuple[str, str]] = []
    for number, conflicting in _unordered(claims, order):
        pairs += ((claims[other].name, claims[number].name) for other in conflicting.tolist())
        if len(pairs) > MOST_CONFLICTS:
            raise UsageError(
                f"the graph is too wide for the order 'any': more than {MOST_CONFLICTS:,} pairs of buffers are unordered",
                hint="plan for one order instead (--order model or min-peak)",
            )
    return frozenset(pairs)


def _unordered(claims: Sequence[Claim], order: InEveryOrder) -> Iterator[tuple[int, Ints]]:
    """Yield each claim with the claims that end before it in the schedule, but not in every order.

    On some chain, such a claim has a user that runs earlier in the schedule, and comes after all nodes that are before the makers.
    """
    chains = order.chains
    sequence = np.lexsort((chains.place, chains.chain))
    first = np.searchsorted(chains.chain[sequence], np.arange(chains.count))
    users: list[list[int]] = [[] for _ in sequence]
    for number, claim in enumerate(claims):
        for use in claim.uses:
            users[use].append(number)
    flat = np.fromiter((claim for node in sequence for claim in users[node]), np.int64)
    offsets = np.cumsum([0, *(len(users[node]) for node in sequence)])
    ends = np.array([claim.live_range[1] for claim in claims], np.int64)
    run, count = np.zeros(chains.count, np.int64), 0
    for number in sorted(range(len(claims)), key=lambda n: claims[n].live_range[0]):
        start, makers = claims[number].live_range[0], [maker for maker in claims[number].makers if maker is not None]
        while count < len(order.steps) and order.steps[count] < start:
            run[chains.chain[count]] += 1
            count += 1
        if not makers or None in claims[number].makers:
            continue  # it is live before the first step: no claim ends before it
        low, high = offsets[first + chains.before_all(makers)], offsets[first + run]
        spans = [flat[low[c] : high[c]] for c in np.flatnonzero(low < high)]
        if spans:
            others = np.unique(np.concatenate(spans))
            yield number, others[ends[others] <= start]


def clique(claims: Sequence[Claim], weights: Sequence[int], apart: Collection[tuple[str, str]]) -> frozenset[str]:
    """Return the names of the heaviest set of claims that pairwise need their bytes at the same time in some order.

    `weights` has the bytes of each claim; `apart` are the conflicts. Empty for more than 4,000 claims, because it takes c³ steps of numpy.
    """
    if not 0 < len(claims) <= MOST_ELEMENTS:
        return frozenset()
    starts, ends = (np.array([claim.live_range[side] for claim in claims], np.int64) for side in (0, 1))
    before = ends[:, None] <= starts[None, :]
    positions = {claim.name: number for number, claim in enumerate(claims)}
    for first, second in apart:
        before[positions[first], positions[second]] = before[positions[second], positions[first]] = False
    return frozenset(claims[i].name for i in heaviest_antichain(weights, before))


# The ordering problem of a graph: the bytes of its tensors, in units that are written and read as a whole.


def ordering_problem(graph: KernelGraph, alignment: int, workspaces: Iterable[WorkspaceBuffer] = ()) -> OrderingProblem:
    """Return the problem of ordering the kernels of `graph`, where every alias between tensors in the arena is taken.

    Aliases may exclude each other, so no plan has a lower peak than the best order of this problem. Tensors with the same content have the
    same units; a Slice reads only its own bytes. A tensor without parts takes multiples of `alignment` bytes, as `workspaces` do.
    """
    units = _Units(graph, alignment)
    touches = []
    for kernel in graph.kernels:
        written = (unit for tensor in kernel.makes for unit in units.units_of(tensor))
        read = (unit for read in kernel.reads for unit in units.read(read))
        touches.append(tuple(dict.fromkeys((*written, *read))))
    all_sizes = list(units.sizes)
    for workspace in workspaces:
        for user in workspace.users:
            touches[user] += (len(all_sizes),)
        all_sizes.append(align(workspace.buffer.size, alignment))
    over: dict[int, dict[int, list[tuple[int, ...]]]] = {}
    for share in units.taken:
        if share.kind == IN_PLACE:
            results = over.setdefault(graph.makers[share.result], {})
            results.setdefault(share.result, []).append(units.units_of(share.operand))
    kept = frozenset(unit for tensor in graph.kept for unit in units.units_of(tensor))
    # An input that no kernel reads is dead after the first step, whichever that is.
    used_later = kept.union(*touches)
    return OrderingProblem(
        graph.after,
        tuple(touches),
        tuple(all_sizes),
        kept,
        frozenset(unit for tensor in graph.given for unit in units.units_of(tensor)) & used_later,
        {kernel: tuple(map(tuple, results.values())) for kernel, results in over.items()},
    )


class _Units:
    """The units of bytes of the tensors of `graph` in the arena; unit n has `sizes[n]` bytes. Aliases are `taken`.

    A unit holds bytes of one tensor, its origin: no other tensor and no read of a part has some of them and not the others. Tensors that
    aliases or states connect may lie in one buffer, where a tensor need not be aligned once another has parts.
    """

    def __init__(self, graph: KernelGraph, alignment: int) -> None:
        sizes = graph.sizes(graph.own_order)
        self.taken = [share for share in graph.shares() if share.result in sizes and share.operand in sizes]
        known: dict[int, list[Share]] = {}
        groups = _Groups()
        for first, second in (*((share.result, share.operand) for share in self.taken), *graph.states):
            groups.join(first, second)
        for share in self.taken:
            if share.kind != IN_PLACE:
                known.setdefault(share.result, []).append(share)
        self._whole: dict[int, tuple[int, ...]] = {}
        self._contents = Contents(sizes)
        for tensor in sizes:
            self._contents.add(tensor, known.get(tensor, ()))
        cuts: dict[int, set[int]] = {}
        spans = {tensor: [ByteSpan(0, size)] for tensor, size in sizes.items()}
        for read in graph.partial_reads:
            spans.get(read.tensor, []).extend(read.spans or ())
        for tensor, span in ((tensor, span) for tensor, of_tensor in spans.items() for span in of_tensor):
            for origin, start, end in self._ranges(tensor, span):
                cuts.setdefault(origin, set()).update((start, end))
        in_parts = {groups.group_of(share.result) for same in known.values() for share in same if share.kind != "view"}
        units: list[int] = []
        self._starts: dict[int, tuple[int, list[int]]] = {}
        for origin, places in cuts.items():
            starts = sorted(places)
            self._starts[origin] = (len(units), starts)
            bytes_of = [end - start for start, end in pairwise(starts)]
            whole = len(bytes_of) == 1 and groups.group_of(origin) not in in_parts
            units += [align(bytes_of[0], alignment)] if whole else bytes_of
        self.sizes = tuple(units)

    def units_of(self, tensor: int) -> tuple[int, ...]:
        """Return the units of `tensor`; none of one outside the arena."""
        if tensor not in self._whole:
            size = self._contents.sizes.get(tensor)
            self._whole[tensor] = () if size is None else tuple(self._at(tensor, ByteSpan(0, size)))
        return self._whole[tensor]

    def read(self, read: TensorRead) -> tuple[int, ...]:
        """Return the units of the bytes that are read."""
        if read.spans is None or read.tensor not in self._contents.sizes:
            return self.units_of(read.tensor)
        return tuple(unit for span in read.spans for unit in self._at(read.tensor, span))

    def _at(self, tensor: int, span: ByteSpan) -> Iterator[int]:
        for origin, start, end in self._ranges(tensor, span):
            first, starts = self._starts[origin]
            yield from range(first + bisect_left(starts, start), first + bisect_left(starts, end))

    def _ranges(self, tensor: int, span: ByteSpan) -> Iterator[tuple[int, int, int]]:
        """Yield the bytes `span` of `tensor` as ranges of the tensors that they are bytes of."""
        for piece in self._contents.pieces(tensor):
            start, end = max(piece.start, span.start), min(piece.end, span.end)
            if start < end:
                yield piece.origin, piece.begin + start - piece.start, piece.begin + end - piece.start


@dataclass
class _Groups:
    """The tensors that aliases connect."""

    def __post_init__(self) -> None:
        self._known: dict[int, int] = {}

    def group_of(self, value: int) -> int:
        """Return the representative of all tensors that aliases connect with `value`."""
        path = []
        while self._known.get(value, value) != value:
            path.append(value)
            value = self._known[value]
        self._known.update(dict.fromkeys(path, value))
        return value

    def join(self, first: int, second: int) -> None:
        """Connect two tensors."""
        self._known[self.group_of(first)] = self.group_of(second)


@dataclass
class OrderSearch:
    """The searches of the orders of `graph`. Buffers take multiples of `alignment` bytes.

    With `peak_first`, the first order has the least peak, and the second has the least before and after its peak, too. Finding the second
    takes longer than placing the first, which most often needs no more bytes. Without, the second comes first. `budget` is in steps.
    """

    graph: KernelGraph
    alignment: int
    peak_first: bool = True
    budget: int = BUDGET
    _problems: list[tuple[Needs, OrderingProblem]] = field(default_factory=list, init=False)
    _order_of: dict[int, FoundOrder] = field(default_factory=dict, init=False)

    @property
    def is_wide(self) -> bool:
        """Whether the graph has too many kernels to search all its orders."""
        return len(self.graph.kernels) > WIDEST

    def orders(self, needs: Needs) -> Iterator[Schedule]:
        """Yield orders of the least peak that is found where all aliases are taken, each once."""
        yielded: set[tuple[int, ...]] = set()
        for order in self._orders(self._problem(needs)):
            if order not in yielded:
                yielded.add(order)
                yield Schedule(order)

    def _orders(self, problem: OrderingProblem) -> Iterator[tuple[int, ...]]:
        best = self._search(problem)
        if self.peak_first:
            yield tuple(best.order)
        yield refined(problem, best.order)
        if best.exact and not self.is_wide:
            yield from others(problem, best)

    def bound(self, needs: Needs) -> int:
        """Return a number of bytes that every arena needs, over all orders of the nodes and all lawful aliases.

        `needs` are the workspaces, with the least bytes of bodies. All aliases count as taken, also where two exclude each other, so the
        bound may be too low, never too high. It is exact where the search ends and all aliases are possible.
        """
        problem = self._problem(needs)
        if self.is_wide:
            return align(bound_of(problem, heights(problem, range(len(problem.after)))), self.alignment)
        return align(self._search(problem).bound, self.alignment)

    def known_peak(self, needs: Needs) -> int:
        """Return the peak of the orders that `orders` yields, which is no larger than that of the file's order; 0 if not searched yet."""
        for of, problem in self._problems:
            if of == needs and id(problem) in self._order_of:
                return self._order_of[id(problem)].peak
        return 0

    def _problem(self, needs: Needs) -> OrderingProblem:
        for of, problem in self._problems:
            if of == needs:
                return problem
        workspaces = needs.workspaces(self.graph, self.graph.own_order)
        problem = ordering_problem(self.graph, self.alignment, workspaces)
        self._problems.append((needs, problem))
        return problem

    def _search(self, problem: OrderingProblem) -> FoundOrder:
        if id(problem) not in self._order_of:
            self._order_of[id(problem)] = search(problem, self.budget)
        return self._order_of[id(problem)]
