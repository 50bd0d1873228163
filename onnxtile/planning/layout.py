"""The layout of a graph, before offsets: schedule, live ranges, aliases, and the buffers to be placed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import cache, cached_property, partial
from typing import Any, TypeAlias

import onnx_ir as ir

from onnxtile.declare.layout_rules import FIXED, FixedRules
from onnxtile.declare.values import Unreadable
from onnxtile.kernels.kernel_graph import (
    ARENA,
    GraphKernel,
    InSteps,
    KernelGraph,
    LivePart,
    LiveRange,
    Precedence,
    Schedule,
    live_parts,
    live_ranges,
    union,
    with_states,
)
from onnxtile.model.topology import all_values
from onnxtile.planning.offsets.memories import Allocation, Memory
from onnxtile.planning.offsets.problem import Buffer, Ended, OptimalityProof, OverCapacity, PinOverlap, Problem, align
from onnxtile.planning.order_search import Claim, InEveryOrder, OrderSearch, clique, conflicts
from onnxtile.planning.orders import Order, SchedulingContext
from onnxtile.planning.sharing import FixedBytes, Sharing, Timeline, choose
from onnxtile.planning.workspaces import NO_NEEDS, Needs, WorkspaceBuffer
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError, unknown

# The rules for tensors and workspaces of a graph that a user names, in the memories of a plan.


@dataclass(frozen=True, kw_only=True)
class RulesInMemories(FixedRules):
    """Rules for named tensors, with the bytes of each memory (None: no limit)."""

    capacities: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def from_rules(cls, rules: FixedRules, model: ir.Model, memories: Iterable[Memory]) -> RulesInMemories:
        """Return `rules` with those in the metadata of the values of `model`; one of `rules` replaces a mark of the same tensor.

        Raises UsageError for a mark that says nothing.
        """
        capacities = {memory.name: memory.capacity for memory in memories}
        return cls(**rules.over(_marked(model)).fixed_fields, capacities=capacities)

    def require_known(self, model: ir.Model, graph: KernelGraph, workspaces: Collection[str]) -> None:
        """Raise UsageError for a name that is no tensor or workspace of the main `graph` of `model` with an address in an arena."""
        if not self.fixed_names:
            return
        of_tensors = {
            name for rule, of in self.fixed_entries.items() if not FIXED[rule].takes_workspaces for name in of
        }
        tensors = {tensor.name for tensor in graph.tensors if tensor.role == ARENA}
        reasons = {tensor.name: tensor.reason or "a constant" for tensor in graph.tensors if tensor.role != ARENA}
        for name in self.fixed_names:
            if name in tensors or (name in workspaces and name not in of_tensors):
                continue
            if name in workspaces:
                raise UsageError(f"{name!r} is a workspace, not a tensor", hint="its rule may say unique")
            if name in reasons:
                inside = reasons[name] in {"a graph input", "a graph output"}
                raise UsageError(
                    f"{name!r} has no address in an arena: {reasons[name]}", hint="add --io inside" if inside else None
                )
            if any(value.name == name for value in all_values(model)):
                raise _inside(name)
            raise unknown("tensor", name, {*tensors, *workspaces})

    def limit(self, name: str) -> int | None:
        """Return the capacity of the memory of the pinned tensor `name`, in bytes; None for a tensor without a pin or a limit."""
        if name not in self.pins:
            return None
        return self.capacities.get(self.places.get(name) or next(iter(self.capacities), ""))

    def require_addresses(self, sizes: Mapping[str, int], alignment: int) -> None:
        """Raise UsageError for a pin of one of `sizes` that is not aligned, or leaves the capacity of its memory."""
        for name, size in sizes.items():
            if name in self.pins:
                Problem((Buffer(name, size, 0, 1, pin=self.pins[name]),), alignment, self.limit(name))

    def require_memories(self) -> None:
        """Raise UsageError for a place that is none of the memories, and a pin whose memory is not known."""
        names = tuple(self.capacities)
        for name, memory in self.places.items():
            if memory not in names:
                error = unknown("memory", memory, names)
                raise UsageError(f"the place {memory!r} of {name!r} has no capacity", hint=error.hint)
        for name in self.pins if len(names) > 1 else ():
            if name not in self.places:
                raise UsageError(
                    f"the pin of {name!r} is an offset in one of several memories", hint=f"choose {', '.join(names)}"
                )

    def require_agreement(self, graph: KernelGraph) -> None:
        """Raise UsageError for a view that must have another address or memory than its source."""
        by_root: dict[int, list[str]] = {}
        for number, tensor in enumerate(graph.tensors) if self.pins or self.places else ():
            if tensor.role == ARENA and (tensor.name in self.pins or tensor.name in self.places):
                by_root.setdefault(graph.root(number), []).append(tensor.name)
        for names in by_root.values():
            for wanted in (self.pins, self.places):
                stated = [name for name in names if name in wanted]
                other = next((name for name in stated if wanted[name] != wanted[stated[0]]), None)
                if other is not None:
                    raise UsageError(
                        f"{stated[0]!r} and {other!r} are views of one another, and cannot be at {wanted[stated[0]]} and {wanted[other]}"
                    )

    def on(self, buffer: Buffer) -> Buffer:
        """Return the buffer of a workspace with its pin and its memory."""
        if buffer.name not in self.pins and buffer.name not in self.places:
            return buffer
        return replace(buffer, pin=self.pins.get(buffer.name), memory=self.places.get(buffer.name))


NO_FIXED = RulesInMemories()
"""No tensor is named."""


def _marked(model: ir.Model) -> dict[str, dict[str, Any]]:
    """Return the entries of each rule in the metadata of the values of `model`. Raises UsageError for a mark that says nothing."""
    marks: dict[str, dict[str, Any]] = {name: {} for name in FIXED}
    main = {*model.graph.inputs, *(value for node in model.graph for value in node.outputs)}
    for value in all_values(model):
        for name, rule in FIXED.items():
            text = value.metadata_props.get(rule.mark)
            if text is None:
                continue
            if value not in main:
                raise _inside(value.name or "")
            try:
                entry = rule.read_mark(text)
            except Unreadable as error:
                reason = f"the metadata {rule.mark!r} of {value.name!r} {error.reason}"
                raise UsageError(reason, hint=error.hint) from None
            if entry is not None:
                marks[name][value.name or ""] = entry
    return marks


def _inside(name: str) -> UsageError:
    return UsageError(f"{name!r} has no address of its own in the main graph: it is made in a body or function")


_MOST = 2**53
"""The largest sum of the bytes of all buffers: it fits in 64 bits, and readers of JSON keep it exact."""


@dataclass(frozen=True)
class Layout:
    """A schedule of `graph`, the live range of each tensor, and the alias sets; `order` says which tensor is dead before another is made.

    `buffers` are to be placed: one for each alias set, and one for each of the `workspaces`. `make_whole` returns the layout of the same
    schedule in which all bytes of a buffer are live in its whole live range. That of `make_loose` has parts only where they lower the peak.
    """

    graph: KernelGraph
    schedule: Schedule
    live_ranges: Mapping[int, LiveRange]
    order: Precedence
    sharing: Sharing
    buffers: tuple[Buffer, ...]
    workspaces: tuple[WorkspaceBuffer, ...]
    alignment: int
    make_whole: Callable[[], Layout]
    make_loose: Callable[[], Layout]
    make_outlines: Callable[[], tuple[Buffer, ...]]

    @property
    def kernels(self) -> Iterator[GraphKernel]:
        """The kernels in the order of the schedule."""
        return (self.graph.kernels[number] for number in self.schedule.order)

    @cached_property
    def problem(self) -> Problem:
        """The buffers to be placed, and the conflicts between them."""
        return Problem(self.buffers, self.alignment, conflicts=self.conflicts, clique=self.clique)

    @cached_property
    def bounding(self) -> Layout:
        """The layout with the same aliases in which buffers have no outlines."""
        return replace(self, buffers=self.problem.bounding.buffers)

    @cached_property
    def conflicts(self) -> frozenset[tuple[str, str]]:
        """Pairs of buffers that share no step of this schedule, but may in another order, by name."""
        return conflicts(self._claims, self.order) if isinstance(self.order, InEveryOrder) else frozenset()

    @cached_property
    def clique(self) -> frozenset[str]:
        """The names of the heaviest set of buffers that pairwise share no byte in some order; empty for a layout of one order."""
        if not isinstance(self.order, InEveryOrder):
            return frozenset()
        size = {buffer.name: align(buffer.size, self.alignment) for buffer in self.buffers}
        return clique(self._claims, [size[claim.name] for claim in self._claims], self.conflicts)

    @cached_property
    def _claims(self) -> list[Claim]:
        assert isinstance(self.order, InEveryOrder)
        order = self.order
        alias_sets = {id(alias_set): alias_set for alias_set in self.sharing.alias_sets.of.values()}.values()
        names = self.graph.tensors
        claims = [
            order.claim(names[alias_set.owner].name, alias_set.live_range, alias_set.tensors)
            for alias_set in alias_sets
        ]
        for workspace in self.workspaces:
            users = tuple(map(order.number, workspace.users))
            claims.append(Claim(workspace.buffer.name, (workspace.buffer.lower, workspace.buffer.upper), users, users))
        return claims


def layouts(
    search: OrderSearch,
    order: Order,
    streams: int,
    needs: Needs = NO_NEEDS,
    *,
    in_parts: bool = True,
    fixed: RulesInMemories = NO_FIXED,
) -> Iterator[Layout]:
    """Return a layout for each candidate schedule of `order`, with up to `streams` nodes in one step, made one by one.

    `needs` are the bytes of workspaces. Parts of a buffer have their own live ranges if `in_parts`. `fixed` has the rules for named tensors
    and workspaces.

    Raises ModelError for a cycle, or more bytes than can be counted. Raises UsageError for fewer than one stream, or several streams with
    the order "any". It does so, too, where nodes that may run at the same time are to share one workspace.
    """
    if order.every and streams > 1:
        raise UsageError(
            f"the order {order.name!r} already holds for any number of streams", hint="leave --streams out"
        )
    if needs.together and (order.every or streams > 1):
        raise UsageError(
            "nodes that may run at the same time cannot share one workspace",
            hint="leave 'shared' out of the rules",
        )
    parts = in_parts and not order.every
    terms = _LayoutTerms(search.graph, search.alignment, order.every, needs, parts, fixed)

    def searched() -> Iterator[Schedule]:
        return search.orders(needs)

    graph = search.graph
    context = SchedulingContext(graph.own_order, graph.after, streams, searched, search.is_wide)
    return map(terms.layout, order.candidates(context))


@dataclass(frozen=True)
class _LayoutTerms:
    """The inputs of a layout apart from its schedule."""

    graph: KernelGraph
    alignment: int
    every: bool
    needs: Needs
    in_parts: bool
    fixed: RulesInMemories = NO_FIXED
    saves_copies: bool = True

    def layout(self, schedule: Schedule) -> Layout:
        graph = self.graph
        self._require_countable()
        ranges = live_ranges(graph, schedule)
        # In another order, another part may be the first to die: a buffer for every order is live as a whole.
        parts = live_parts(graph, schedule, ranges) if self.in_parts else None
        order = InEveryOrder(graph, schedule) if self.every else InSteps(graph, schedule, ranges, parts)
        # The order of reads and writes is that of the graph, but the bytes of a state are held throughout.
        ranges = with_states(ranges, graph, schedule)
        workspaces = tuple(
            replace(workspace, buffer=self.fixed.on(workspace.buffer))
            for workspace in self.needs.workspaces(graph, schedule)
        )
        used = [workspace.buffer for workspace in workspaces]
        timeline = Timeline(graph, schedule, ranges, order, used, parts, self.saves_copies, self._fixed())
        sharing = choose(timeline, self.alignment)
        apart = [state for state in graph.states if graph.repeats and not sharing.is_one(*state)]
        if apart:
            return replace(self, graph=graph.without(apart)).layout(schedule)
        buffers = (*_buffers(sharing, graph, self.alignment), *used)
        whole = cache(partial(replace(self, in_parts=False).layout, schedule))
        loose = cache(partial(replace(self, saves_copies=False).layout, schedule))
        outlines = partial(self._with_outlines, buffers, sharing, schedule, ranges)
        common = (graph, schedule, ranges, order, sharing, buffers, workspaces)
        return Layout(*common, self.alignment, whole, loose, outlines)

    def _with_outlines(
        self, buffers: Iterable[Buffer], sharing: Sharing, schedule: Schedule, ranges: Mapping[int, LiveRange]
    ) -> tuple[Buffer, ...]:
        """Return `buffers` in which each byte lives while a tensor of `sharing` over it does, part by part."""
        ends = live_parts(self.graph, schedule, ranges)
        lives: dict[str, list[LivePart]] = {}
        for tensor, alias_set in sharing.alias_sets.of.items():
            size, start = sharing.alias_sets.size(tensor), alias_set.start(tensor)
            parts = ends.get(tensor, (LivePart(0, size, *ranges[tensor]),))
            pieces = lives.setdefault(self.graph.tensors[alias_set.owner].name, [])
            pieces += (part._replace(start=part.start + start, end=part.end + start) for part in parts)
        return tuple(
            replace(buffer, outline=union(lives[buffer.name])) if buffer.name in lives else buffer for buffer in buffers
        )

    def _fixed(self) -> dict[int, FixedBytes]:
        fixed, names = self.fixed, self.fixed.pins.keys() | self.fixed.places.keys()
        tensors = enumerate(self.graph.tensors) if names else ()
        return {
            number: FixedBytes(fixed.pins.get(tensor.name), fixed.places.get(tensor.name), fixed.limit(tensor.name))
            for number, tensor in tensors
            if tensor.role == ARENA and tensor.name in names
        }

    def _require_countable(self) -> None:
        sizes = [tensor.bytes or 0 for tensor in self.graph.tensors if tensor.role == ARENA]
        sizes += self.needs.sizes
        total = sum(align(size, self.alignment) for size in sizes)
        if total > _MOST:
            raise ModelError(
                f"tensors and workspaces of {total:,} bytes are too many: {_MOST:,} can be planned",
                hint="smaller sizes (--dim, --shape), workspaces or alignment take less",
            )


def _buffers(sharing: Sharing, graph: KernelGraph, alignment: int) -> Iterator[Buffer]:
    """Yield a buffer for each alias set, aligned at least to its elements."""
    granules: dict[int, int] = {}
    for tensor, alias_set in sharing.alias_sets.of.items():
        granules[alias_set.owner] = max(graph.tensors[tensor].granule, granules.get(alias_set.owner, 1))
    for owner, unit in granules.items():
        alias_set, larger_unit = sharing.alias_sets.of[owner], unit if unit > alignment else None
        name, live_range, outline = graph.tensors[owner].name, alias_set.live_range, alias_set.outline
        pin, memory = alias_set.pin, alias_set.fixed.memory
        yield Buffer(name, alias_set.size, *live_range, larger_unit, outline=outline, pin=pin, memory=memory)


# The layout with the smallest arena, of several layouts of one graph.

_MANY = 500
"""Buffers above which placing takes so long that a layout that can hardly be smaller is left out."""
_FAR = 1.1
"""An arena above this multiple of the smallest one seldom gets below it with more effort."""

Allocator: TypeAlias = Callable[[Problem], Allocation]
"""Plans a problem."""


def smallest(layouts: Iterable[Layout], allocators: Sequence[Allocator], least: int) -> tuple[Layout, Allocation]:
    """Return the layout with the smallest arena and what the last of `allocators` that ran found for its problem; of equals, the first.

    Each of `allocators` plans a problem, the quickest first: all layouts are placed by one before any is placed by the next. One whose
    lower bound is no smaller is not placed, nor one again that took far more bytes than the smallest. Every layout needs at least `least`
    bytes: an arena of that size is the smallest, and no further layout is made. Outlines are left out where the arena reaches the lower
    bound without them. Buffers with outlines may leave gaps that cost more than their outlines save: where the arena is above the lower
    bound of such a layout, it is also placed with whole buffers. Raises OverCapacity where no arena fits its capacity, PinOverlap where
    pinned tensors are live together in every layout.
    """
    best = _Smallest(allocators[0])
    tried: list[Layout] = []
    higher: list[Layout] = []
    for layout in layouts:
        if layout.problem.lower_bound > least:
            higher.append(layout)
            continue
        tried.append(layout)
        best.enter(layout)
        if best.has_reached(least):
            return best.result
    # A smaller peak need not be a smaller arena: gaps between buffers may cost more than the order saves.
    for layout in sorted(higher, key=lambda layout: layout.problem.lower_bound):
        tried.append(layout)
        best.enter(layout)
    best.enter_wholes(tried)
    for allocate in allocators[1:]:
        best.allocate, best.over = allocate, None
        best.placed.clear()
        for layout in tried:
            best.enter(layout)
            if best.has_reached(least):
                return best.result
        best.enter_wholes(tried)
    return best.result


@dataclass
class _Smallest:
    """The layout with the smallest arena so far; `over` is the error of the first that did not fit."""

    allocate: Allocator
    best: tuple[Layout, Allocation] | None = None
    over: OverCapacity | PinOverlap | None = None
    sizes: dict[tuple[Buffer, ...], int] = field(default_factory=dict)
    """The arena of each layout that was placed, by its buffers."""
    placed: dict[Problem, Allocation] = field(default_factory=dict)
    """What the allocator placed: layouts with other parts may have the same whole buffers."""

    @property
    def result(self) -> tuple[Layout, Allocation]:
        """The best layout and its arenas. Raises the error of the first layout where none fits its capacity."""
        if self.best is None:
            assert self.over is not None
            raise self.over
        return self.best

    def has_reached(self, least: int) -> bool:
        """Return whether the best arena takes `least` bytes."""
        return self.best is not None and self.best[1].size <= least

    def can_be_smaller(self, layout: Layout) -> bool:
        """Return whether an arena of the lower bound of `layout` would be the smallest."""
        return self.best is None or layout.problem.lower_bound < self.best[1].size

    def is_open(self, layout: Layout) -> bool:
        """Return whether `layout` is placed: not where that gives no smaller arena, or gave one far above the smallest before."""
        if self.best is None or layout.buffers not in self.sizes:
            return self.can_be_smaller(layout)
        return self.sizes[layout.buffers] <= _FAR * self.best[1].size and self.can_be_smaller(layout)

    def enter(self, layout: Layout) -> None:
        """Place `layout`, if its arena may be the smallest: first without outlines, where their lower bound is no smaller."""
        if not self.is_open(layout):
            return
        least = layout.problem.lower_bound
        if layout.problem.has_outlines and layout.problem.bounding.lower_bound == least:
            with suppress(OverCapacity, PinOverlap):
                placed = self._allocated(layout.bounding.problem)
                if placed.size == least:
                    self.best = (layout.bounding, placed)
                    return
        try:
            self._keep(layout, self._allocated(layout.problem))
        except (OverCapacity, PinOverlap) as error:
            self.over = self.over or error

    def enter_wholes(self, layouts: Iterable[Layout]) -> None:
        """Enter with whole buffers those of `layouts` with outlines whose arenas may yet be smaller; for every order, with fewer parts.

        A part that adds to no step of one order may be in conflict with more tensors over all orders.
        """
        for layout in layouts:
            if isinstance(layout.order, InEveryOrder):
                loose = layout.make_loose()
                if loose.problem != layout.problem:
                    self.enter(loose)
            elif layout.problem.has_outlines and self.can_be_smaller(layout):
                self.enter_whole(layout)

    def enter_whole(self, layout: Layout) -> None:
        """Place `layout` with parts only where they lower the peak, then with whole buffers: these prove nothing of outlines."""
        whole = layout.make_whole()
        if not _is_large_and_tight(layout):
            loose = layout.make_loose()
            if loose.problem != layout.problem:
                self.enter(loose)
            if whole.buffers == loose.buffers:
                return
        if not self.is_open(whole):
            return
        with suppress(OverCapacity, PinOverlap):
            placed = self._allocated(whole.problem)
            if layout.problem.lower_bound < placed.proof.lower_bound:
                ended: Ended = "effort" if self.best is None else self.best[1].proof.ended
                least, kind = layout.problem.lower_bound, layout.problem.bound
                if kind == "peak" and least < whole.problem.peak[0]:
                    # With whole buffers, other tensors may share bytes: the bound holds for these, too.
                    kind = "parts"
                    least = min(least, replace(whole.problem, buffers=whole.make_outlines()).lower_bound)
                placed = replace(placed, proof=OptimalityProof(least, kind, ended))
            self._keep(whole, placed)

    def _allocated(self, problem: Problem) -> Allocation:
        if problem not in self.placed:
            self.placed[problem] = self.allocate(problem)
        return self.placed[problem]

    def _keep(self, layout: Layout, placed: Allocation) -> None:
        self.sizes[layout.buffers] = placed.size
        if self.best is None or _worth(placed) < _worth(self.best[1]):
            self.best = (layout, placed)


def _is_large_and_tight(layout: Layout) -> bool:
    """Return whether `layout` has many buffers, and parts do not lower its peak: then parts that do would save nothing."""
    problem = layout.problem
    return problem.bounding.lower_bound == problem.lower_bound and len(problem.buffers) > _MANY


def _worth(placed: Allocation) -> tuple[int, int]:
    """Return a key that is least for the smallest arenas, of equals for those with the highest bound."""
    return placed.size, -placed.proof.lower_bound
