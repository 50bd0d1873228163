"""Chooses the aliases of a plan, to lower the peak and avoid copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import onnx_ir as ir

from onnxtile import keys
from onnxtile.planning.layout.aliases.alias_sets import AliasSets, Contents, FixedBytes, Merged
from onnxtile.planning.layout.aliases.byte_columns import LiveChange
from onnxtile.planning.layout.aliases.find import Alias, LayoutFacts
from onnxtile.planning.layout.aliases.rewriting import rewriting
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.live_ranges import LiveRange
from onnxtile.planning.layout.ordering.precedence import Precedence
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.offsets.outline import LivePart
from onnxtile.planning.offsets.problem import Buffer, Ints, align


@dataclass(frozen=True)
class Sharing:
    """The alias sets, and for each tensor the aliases through which it shares bytes with operands of its node."""

    alias_sets: AliasSets
    shares: Mapping[ir.Value, tuple[Alias, ...]]

    def is_one(self, one: ir.Value, other: ir.Value) -> bool:
        """Return whether both are in the arena, at one address."""
        of = self.alias_sets.of
        return one in of and of.get(other) is of[one] and of[one].start(one) == of[one].start(other)


@dataclass(frozen=True)
class Timeline:
    """The steps of `schedule`, the live ranges, and the workspaces of kernels and bodies.

    `order` says which tensors are dead before others are made; `kept` tensors are never written over. `parts` has the live ranges of the
    bytes of tensors that die part by part; with None, all bytes of a buffer count as live in its whole live range. Without `saves_copies`,
    parts other than tiles are only taken to lower the peak. `fixed` has the addresses that tensors must have, and `states` put the
    output of a state at the address of its input. With `copies_states`, outputs at another address are copied after the run.
    """

    schedule: Schedule
    live_ranges: Mapping[ir.Value, LiveRange]
    order: Precedence
    kept: frozenset[ir.Value]
    workspaces: Sequence[Buffer] = ()
    parts: Mapping[ir.Value, Sequence[LivePart]] | None = None
    saves_copies: bool = True
    fixed: Mapping[ir.Value, FixedBytes] = field(default_factory=dict)
    states: Sequence[Alias] = ()
    copies_states: bool = True


def choose(
    timeline: Timeline, facts: LayoutFacts, tensors: Sequence[ir.Value], alignment: int, rules: frozenset[str]
) -> Sharing:
    """Return the aliases by `rules` of `tensors`, which are in the order in which they are made.

    Apart from tiles, no alias raises the peak of the schedule, workspaces included.

    A view always has the bytes of its source. A result is written over an operand wherever that is lawful: one buffer in place of two of
    the same size adds live bytes to no step. Tiles are always parts of their whole, since they are addressed so. Other parts are
    taken, first, while they lower the peak; then wherever they do not raise it. A value that would then be written into live bytes is
    excluded, as is a result of the run in bytes that a state is copied into, and the choice starts again.
    """
    sizes = {value: tensor_bytes(value, facts.shapes) or 0 for value in tensors}
    apart: frozenset[ir.Value] = frozenset()
    alone: frozenset[ir.Value] = frozenset()
    while True:
        chooser = _Chooser(timeline, facts, sizes, alignment, rules | {"view"})
        chooser.leave_apart(apart)
        chooser.leave_alone(alone)
        chooser.share_views()
        chooser.share_states()
        chooser.share_in_place()
        chooser.share_tiles()
        chooser.limit_pinned()
        chooser.lower_the_peak()
        if timeline.saves_copies:
            chooser.save_copies()
        found, lost = (
            chooser.rewriting() - apart,
            chooser.lost(timeline.kept if timeline.copies_states else frozenset()) - alone,
        )
        if not found and not lost:
            return Sharing(chooser.alias_sets, chooser.shares())
        apart |= found
        alone |= lost


class _Chooser:
    def __init__(
        self,
        timeline: Timeline,
        facts: LayoutFacts,
        sizes: Mapping[ir.Value, int],
        alignment: int,
        rules: frozenset[str],
    ) -> None:
        schedule, order = timeline.schedule, timeline.order
        found = [alias for node in schedule.nodes for alias in facts.lawful(node)]
        usable = [a for a in found if a.rule in rules and a.value in sizes and a.source in sizes]
        known = [alias for alias in usable if alias.rule != "in place"]
        self._views = [alias for alias in known if alias.rule == "view"]
        self._in_place = [alias for alias in usable if alias.rule == "in place"]
        self._parts = _by_node(alias for alias in known if alias.rule != "view")
        contents = Contents(sizes)
        self._known: dict[ir.Value, list[Alias]] = {}
        for alias in known:
            self._known.setdefault(alias.value, []).append(alias)
        for value in sizes:
            contents.add(value, self._known.get(value, ()))
        self.alias_sets = AliasSets(
            sizes, timeline.live_ranges, order, timeline.kept, contents, alignment, timeline.parts, timeline.fixed
        )
        for alias in self._in_place:
            self.alias_sets.allow(alias)
        self._order = order
        self._states = [alias for alias in timeline.states if alias.value in sizes and alias.source in sizes]
        # By step, the change of the live bytes: a merge changes four numbers, however long the live ranges are.
        self._change: Ints = np.zeros(schedule.end + 2, np.int64)
        self._known_live: Ints | None = None
        for alias_set in self.alias_sets.of.values():
            self._count(self.alias_sets.live_bytes(alias_set), 1)
        for workspace in timeline.workspaces:
            self._change[workspace.lower] += align(workspace.size, alignment)
            self._change[workspace.upper] -= align(workspace.size, alignment)

    def leave_apart(self, values: frozenset[ir.Value]) -> None:
        """Exclude `values` from parts, wholes, and operands that are written over."""
        groups = ([a for a in group if values.isdisjoint((a.value, a.source))] for group in self._parts)
        self._parts = [group for group in groups if group]
        self._in_place = [alias for alias in self._in_place if alias.source not in values]

    def leave_alone(self, values: frozenset[ir.Value]) -> None:
        """Exclude `values` from all aliases: they have bytes of their own."""
        self.leave_apart(values)
        self._views = [alias for alias in self._views if alias.value not in values]
        self._in_place = [alias for alias in self._in_place if alias.value not in values]

    def share_views(self) -> None:
        for alias in self._views:
            self._join([alias])

    def share_states(self) -> None:
        """Put the output of each state at the address of its input, where that is possible; their bytes are then held in all steps."""
        for alias in self._states:
            self._join([alias])
            held = self.alias_sets.of[alias.source]
            if held is self.alias_sets.of[alias.value]:
                self._count(self.alias_sets.live_bytes(held), -1)
                self.alias_sets.hold(held)
                self._count(self.alias_sets.live_bytes(held), 1)

    def share_in_place(self) -> None:
        """Write results over operands: over the operand made first, so that a residual stream stays in one buffer."""
        for _, group in groupby(self._in_place, key=lambda alias: alias.value.producer()):
            for alias in sorted(group, key=self._since_and_until):
                self._join([alias])

    def _since_and_until(self, alias: Alias) -> tuple[int, int]:
        alias_sets = self.alias_sets.of
        return alias_sets[alias.source].live_range[0], -alias_sets[alias.value].live_range[1]

    def share_tiles(self) -> None:
        for group in self._parts:
            node = group[0].value.producer()
            if node is not None and keys.TILE in node.metadata_props:
                self._join(group)

    def limit_pinned(self) -> None:
        """Allow no further alias by which a pinned buffer ends above the peak and the pinned buffers of now."""
        self.alias_sets.ceiling = max(self.alias_sets.pinned_end, int(self._live().max()))

    def lower_the_peak(self) -> None:
        """Take the group that lowers the first step of the peak most, until none does."""
        while True:
            step = int(self._live().argmax())
            trials = [(self._height(group, step), i) for i, group in enumerate(self._choices())]
            height, best = min(((h, i) for h, i in trials if h is not None), default=(None, 0))
            if height is None:
                return
            self._join(list(self._choices())[best])

    def save_copies(self) -> None:
        """Take all groups that do not raise the peak."""
        peak = int(self._live().max())
        for group in self._choices():
            changed = self._tried(group)
            if changed is not None and changed.max() <= peak:
                self._join(group)

    def shares(self) -> dict[ir.Value, tuple[Alias, ...]]:
        found: dict[ir.Value, list[Alias]] = {}
        parts = (alias for group in self._parts for alias in group)
        for alias in (*self._views, *parts, *self._in_place):
            if self._is_used(alias):
                found.setdefault(alias.value, []).append(alias)
        return {value: tuple(used) for value, used in found.items()}

    def rewriting(self) -> frozenset[ir.Value]:
        """Return the values that would be written into live bytes of the same content."""
        return rewriting(self._known, self.alias_sets, self._order)

    def lost(self, kept: frozenset[ir.Value]) -> frozenset[ir.Value]:
        """Return the `kept` values in bytes of a state whose output is at another address: it is copied there after the run."""
        found: set[ir.Value] = set()
        for alias in self._states:
            held, other = self.alias_sets.of[alias.source], self.alias_sets.of[alias.value]
            if held is other and held.start(alias.source) == other.start(alias.value):
                continue
            start, end = held.start(alias.source), held.start(alias.source) + self.alias_sets.size(alias.source)
            inside = (value for value in held.tensors if value in kept and value is not alias.source)
            found.update(v for v in inside if held.start(v) < end and start < held.start(v) + self.alias_sets.size(v))
        return frozenset(found)

    def _is_used(self, alias: Alias) -> bool:
        alias_sets = self.alias_sets
        if alias_sets.of[alias.source] is not alias_sets.of[alias.value]:
            return False
        if alias.rule == "in place" and not self._order.until(alias.source, alias.value):
            return False
        return alias_sets.start(alias.value) == alias_sets.start(alias.source) + alias.at

    def _choices(self) -> Iterator[list[Alias]]:
        """Yield the groups that may be taken: all parts of a node, then each part by itself."""
        for group in self._parts:
            if len(group) > 1:
                yield group
            yield from ([alias] for alias in group)

    def _height(self, group: list[Alias], step: int) -> int | None:
        """Return the peak with `group`; None where it does not lower the live bytes of `step`, or raises others above them."""
        if not any(self._touches(alias, step) for alias in group):
            return None
        changed = self._tried(group)
        if changed is None or changed[step] >= self._live()[step]:
            return None
        height = int(changed.max())
        return height if height <= self._live()[step] else None

    def _touches(self, alias: Alias, step: int) -> bool:
        alias_sets = (self.alias_sets.of[alias.source], self.alias_sets.of[alias.value])
        return any(alias_set.live_range[0] <= step < alias_set.live_range[1] for alias_set in alias_sets)

    def _tried(self, group: Iterable[Alias]) -> Ints | None:
        """Return the live bytes of all steps if `group` were taken; None where it holds nothing to take."""
        before = self._known_live
        done = self._join(group)
        live = self._live() if done else None
        for merged in reversed(done):
            self._undo(merged)
        self._known_live = before
        return live

    def _join(self, group: Iterable[Alias]) -> list[Merged]:
        """Take the aliases of `group` that are possible; return the merges, to be undone from the last to the first."""
        done = []
        for alias in group:
            merge = self.alias_sets.possible(alias)
            if merge is None:
                continue
            done.append(self.alias_sets.merge(merge))
            self._count(done[-1].changes, 1)
        return done

    def _undo(self, done: Merged) -> None:
        self.alias_sets.undo(done)
        self._count(done.changes, -1)

    def _count(self, changes: Iterable[LiveChange], sign: int) -> None:
        for size, lower, upper in changes:
            self._change[lower] += sign * size
            self._change[upper] -= sign * size
        self._known_live = None

    def _live(self) -> Ints:
        """Return the live bytes of each step."""
        if self._known_live is None:
            self._known_live = np.cumsum(self._change)
        return self._known_live


def _by_node(found: Iterable[Alias]) -> list[list[Alias]]:
    groups: dict[ir.Node | None, list[Alias]] = {}
    for alias in found:
        groups.setdefault(alias.value.producer(), []).append(alias)
    return list(groups.values())
