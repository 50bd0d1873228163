"""The layout of a graph, before offsets: schedule, live ranges, aliases, and the buffers to be placed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import onnx_ir as ir

from onnxtile.errors import ModelError, UsageError
from onnxtile.planning.layout.aliases.alias_sets import FixedBytes
from onnxtile.planning.layout.aliases.byte_reads import early_ends
from onnxtile.planning.layout.aliases.find import Alias, LayoutFacts
from onnxtile.planning.layout.aliases.sharing import Sharing, Timeline, choose
from onnxtile.planning.layout.bytes import granule, tensor_bytes
from onnxtile.planning.layout.live_ranges import LiveRange, find_live_ranges, with_states
from onnxtile.planning.layout.ordering.every_order import Claim, InEveryOrder, clique, conflicts
from onnxtile.planning.layout.ordering.order_search import OrderSearch
from onnxtile.planning.layout.ordering.precedence import InSteps, Precedence
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.pins import NO_PINS, Pins
from onnxtile.planning.layout.roles import Roles
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.layout.workspaces import NO_NEEDS, Needs, WorkspaceBuffer
from onnxtile.planning.offsets.problem import Buffer, Problem, align
from onnxtile.planning.order import Order, SchedulingContext

_MOST = 2**53
"""The largest sum of the bytes of all buffers: it fits in 64 bits, and readers of JSON keep it exact."""


@dataclass(frozen=True)
class Layout:
    """A schedule, the role and live range of each value, and the alias sets; `order` says which value is dead before another is made.

    `buffers` are to be placed: one for each alias set, and one for each of the `workspaces`. `make_whole` returns the layout of the same
    schedule in which all bytes of a buffer are live in its whole live range, `make_loose` one with parts only where they lower the peak.
    """

    scope: PlanScope
    schedule: Schedule
    roles: Roles
    live_ranges: Mapping[ir.Value, LiveRange]
    order: Precedence
    sharing: Sharing
    buffers: tuple[Buffer, ...]
    workspaces: tuple[WorkspaceBuffer, ...]
    alignment: int
    make_whole: Callable[[], Layout]
    make_loose: Callable[[], Layout]

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
        claims = [
            order.claim(alias_set.owner.name or "", alias_set.live_range, alias_set.tensors) for alias_set in alias_sets
        ]
        for workspace in self.workspaces:
            users = tuple(map(order.number, workspace.nodes))
            claims.append(Claim(workspace.buffer.name, (workspace.buffer.lower, workspace.buffer.upper), users, users))
        return claims


def layouts(
    search: OrderSearch,
    order: Order,
    streams: int,
    rules: Collection[str],
    needs: Needs = NO_NEEDS,
    *,
    in_parts: bool = True,
    pins: Pins = NO_PINS,
) -> Iterator[Layout]:
    """Return a layout for each candidate schedule of `order`, with up to `streams` nodes in one step, made one by one.

    `rules` name the kinds of aliases in use, `needs` the bytes of workspaces. Parts of a buffer have their own live ranges if `in_parts`.
    `pins` has the addresses and memories that tensors and workspaces must have.

    Raises ModelError for a cycle, or more bytes than can be counted. Raises UsageError for fewer than one stream, for several streams with
    the order "any", and where nodes that may run at the same time are to share one workspace.
    """
    if order.every and streams > 1:
        raise UsageError(
            f"the order {order.name!r} already holds for any number of streams", hint="leave --streams out"
        )
    if needs.has_common and (order.every or streams > 1):
        raise UsageError(
            "nodes that may run at the same time cannot share one workspace",
            hint="leave --share-workspaces out" if needs.shared else "leave 'shared' out of the rules",
        )
    terms = _LayoutTerms(
        search.facts,
        search.scope,
        search.alignment,
        frozenset(rules),
        order.every,
        needs,
        search.roles,
        in_parts and not order.every,
        pins,
    )

    def searched() -> Iterator[Schedule]:
        return search.orders({*rules, "view"}, needs)

    return map(terms.layout, order.candidates(SchedulingContext(search.own, streams, searched, search.is_wide)))


@dataclass(frozen=True)
class _LayoutTerms:
    """The inputs of a layout apart from its schedule."""

    facts: LayoutFacts
    scope: PlanScope
    alignment: int
    rules: frozenset[str]
    every: bool
    needs: Needs
    roles: Callable[[Schedule], Roles]
    in_parts: bool
    pins: Pins = NO_PINS
    saves_copies: bool = True

    def layout(self, schedule: Schedule) -> Layout:
        scope, facts = self.scope, self.facts
        roles = self.roles(schedule)
        self._require_countable(roles)
        live_ranges = find_live_ranges(scope, schedule)
        # In another order, another part may be the first to die: a buffer for every order is live as a whole.
        parts = early_ends(scope, schedule, facts, live_ranges) if self.in_parts else None
        order = self._in_every_order(schedule, roles) if self.every else InSteps(schedule, live_ranges, parts)
        # The order of reads and writes is that of the graph, but the bytes of a state are held throughout.
        live_ranges = with_states(live_ranges, scope, schedule)
        states = tuple(Alias(pair.output, pair.input, "state") for pair in scope.states)
        workspaces = tuple(
            replace(workspace, buffer=self.pins.on(workspace.buffer)) for workspace in self.needs.workspaces(schedule)
        )
        used = [workspace.buffer for workspace in workspaces]
        held = (scope.kept, used, parts, self.saves_copies, self._fixed(roles), states, not scope.repeats)
        timeline = Timeline(schedule, live_ranges, order, *held)
        sharing = choose(timeline, facts, tuple(roles.tensors), self.alignment, self.rules)
        apart = [pair for pair in scope.states if scope.repeats and not sharing.is_one(pair.input, pair.output)]
        if apart:
            left = tuple(pair for pair in scope.states if pair not in apart)
            return replace(self, scope=replace(scope, states=left)).layout(schedule)
        buffers = (*_buffers(sharing, facts, self.alignment), *(workspace.buffer for workspace in workspaces))
        whole = partial(replace(self, in_parts=False).layout, schedule)
        loose = partial(replace(self, saves_copies=False).layout, schedule)
        found = (roles, live_ranges, order, sharing, buffers, workspaces)
        return Layout(scope, schedule, *found, self.alignment, whole, loose)

    def _fixed(self, roles: Roles) -> dict[ir.Value, FixedBytes]:
        pins = self.pins
        named = {value.name or "": value for value in roles.tensors} if pins.names else {}
        return {
            named[name]: FixedBytes(pins.offsets.get(name), pins.places.get(name), name in pins.kept, pins.limit(name))
            for name in pins.names
            if name in named
        }

    def _in_every_order(self, schedule: Schedule, roles: Roles) -> InEveryOrder:
        constants, tensors = self.facts.constants, roles.tensors
        computed = {n for n in schedule.nodes if all(v in constants and v not in tensors for v in n.outputs)}
        return InEveryOrder(self.scope, schedule, computed)

    def _require_countable(self, roles: Roles) -> None:
        sizes = [tensor_bytes(value, self.facts.shapes) or 0 for value in roles.tensors]
        sizes += self.needs.sizes
        total = sum(align(size, self.alignment) for size in sizes)
        if total > _MOST:
            raise ModelError(
                f"tensors and workspaces of {total:,} bytes are too many: {_MOST:,} can be planned",
                hint="smaller sizes (--dim, --shape), workspaces or alignment take less",
            )


def _buffers(sharing: Sharing, facts: LayoutFacts, alignment: int) -> tuple[Buffer, ...]:
    """Return a buffer for each alias set, aligned at least to its elements."""
    granules: dict[ir.Value, int] = {}
    for value, alias_set in sharing.alias_sets.of.items():
        dtype = facts.shapes.dtype(value)
        assert dtype is not None
        granules[alias_set.owner] = max(granule(dtype), granules.get(alias_set.owner, 1))
    found = []
    for owner, wanted in granules.items():
        alias_set, own = sharing.alias_sets.of[owner], wanted if wanted > alignment else None
        name, live_range, outline = owner.name or "", alias_set.live_range, alias_set.outline
        pin, memory = alias_set.pin, alias_set.fixed.memory
        found.append(Buffer(name, alias_set.size, *live_range, own, outline=outline, pin=pin, memory=memory))
    return tuple(found)
