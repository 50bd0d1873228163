"""The searches of the orders of one graph, each done once, and the lower bound of every plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import field
from itertools import pairwise

from onnxtile.kernels.kernel_graph import IN_PLACE, ByteSpan, KernelGraph, Schedule, Share, TensorRead
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.ordering.search import (
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

# The ordering problem of a graph: the bytes of its tensors, in units that are written and read as a whole.


def ordering_problem(graph: KernelGraph, alignment: int, workspaces: Iterable[WorkspaceBuffer] = ()) -> OrderingProblem:
    """Return the problem of ordering the kernels of `graph`, where every alias between tensors in the arena is taken.

    Aliases may exclude each other, so no plan has a lower peak than the best order of this problem. Tensors with the same content have the
    same units; a Slice reads only its own bytes. A tensor without parts takes multiples of `alignment` bytes, as `workspaces` do.
    """
    units = _Units(graph, alignment)
    touches = []
    for kernel in graph.kernels:
        written = (unit for tensor in kernel.makes for unit in units.of(tensor))
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
            results.setdefault(share.result, []).append(units.of(share.operand))
    kept = frozenset(unit for tensor in graph.kept for unit in units.of(tensor))
    # An input that no kernel reads is dead after the first step, whichever that is.
    used_later = kept.union(*touches)
    return OrderingProblem(
        graph.after,
        tuple(touches),
        tuple(all_sizes),
        kept,
        frozenset(unit for tensor in graph.given for unit in units.of(tensor)) & used_later,
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
        in_parts = {groups.of(share.result) for same in known.values() for share in same if share.kind != "view"}
        units: list[int] = []
        self._starts: dict[int, tuple[int, list[int]]] = {}
        for origin, places in cuts.items():
            starts = sorted(places)
            self._starts[origin] = (len(units), starts)
            bytes_of = [end - start for start, end in pairwise(starts)]
            whole = len(bytes_of) == 1 and groups.of(origin) not in in_parts
            units += [align(bytes_of[0], alignment)] if whole else bytes_of
        self.sizes = tuple(units)

    def of(self, tensor: int) -> tuple[int, ...]:
        """Return the units of `tensor`; none of one outside the arena."""
        if tensor not in self._whole:
            size = self._contents.sizes.get(tensor)
            self._whole[tensor] = () if size is None else tuple(self._at(tensor, ByteSpan(0, size)))
        return self._whole[tensor]

    def read(self, read: TensorRead) -> tuple[int, ...]:
        """Return the units of the bytes that are read."""
        if read.spans is None or read.tensor not in self._contents.sizes:
            return self.of(read.tensor)
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

    def of(self, value: int) -> int:
        """Return the representative of all tensors that aliases connect with `value`."""
        path = []
        while self._known.get(value, value) != value:
            path.append(value)
            value = self._known[value]
        self._known.update(dict.fromkeys(path, value))
        return value

    def join(self, first: int, second: int) -> None:
        """Connect two tensors."""
        self._known[self.of(first)] = self.of(second)


@dataclass
class OrderSearch:
    """The searches of the orders of `graph`. Buffers take multiples of `alignment` bytes.

    With `peak_first`, the first order has the least peak, and the second has the least before and after its peak, too. Finding the second
    takes longer than placing the first, which most often needs no more bytes. Without, the second comes first.
    """

    graph: KernelGraph
    alignment: int
    peak_first: bool = True
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
            self._order_of[id(problem)] = search(problem)
        return self._order_of[id(problem)]
