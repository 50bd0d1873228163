"""Chooses the tensors that leave the fast memory between two uses, so that the fewest bytes are copied, and when copies start.

The steps are walked in order. In a step without room for all tensors, every least set of tensors that makes room is tried. Of two ways
to the same step, one is dropped if it has copied no fewer bytes, and has neither freed nor stored more. The choice is exact unless the
number of ways is cut. Belady (A study of replacement algorithms, 1966) is the case of tensors of one size that are never written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import NamedTuple, TypeAlias

import numpy as np

from onnxtile.model.topology import least_cost_flow
from onnxtile.system.dataclass import dataclass

# The problem of movement as plain data: tensors between two uses, and the bytes that are free in each step meanwhile.


@dataclass(frozen=True)
class Gap:
    """The steps from `first` to `last` inclusive between two uses of a tensor, which takes `size` bytes if it stays in the fast memory.

    If it does not stay, `loaded` bytes are copied back before the next use. Its bytes are copied out once for all gaps with its `store`, a
    number of `MovementProblem.stores`; None for a tensor that is in the slow memory already.
    """

    first: int
    last: int
    size: int
    loaded: int
    store: int | None = None


@dataclass(frozen=True)
class MovementProblem:
    """The gaps of all tensors, of which those that stay in the fast memory fit the bytes that are `free` in each step.

    `stores` has the bytes of each copy into the slow memory.
    """

    free: tuple[int, ...]
    gaps: tuple[Gap, ...]
    stores: tuple[int, ...] = ()

    @cached_property
    def full_steps(self) -> tuple[int, ...]:
        """The steps in which not all tensors can stay."""
        return tuple(step for step, held in enumerate(self.held(range(len(self.gaps)))) if held > self.free[step])

    def held(self, kept: Collection[int]) -> list[int]:
        """Return for each step the bytes of the gaps numbered `kept`."""
        change = [0] * (len(self.free) + 1)
        for number in kept:
            gap = self.gaps[number]
            change[gap.first] += gap.size
            change[gap.last + 1] -= gap.size
        return list(accumulate(change))[:-1]

    def cost(self, evicted: Collection[int]) -> int:
        """Return the bytes that are copied if the gaps numbered `evicted` do not stay."""
        stores = {self.gaps[number].store for number in evicted} - {None}
        loaded = sum(self.gaps[number].loaded for number in evicted)
        return loaded + sum(self.stores[store] for store in stores if store is not None)


# A lower bound on the bytes copied: tensors may stay in the fast memory in part, which makes the choice a flow of least cost.
#
# Each byte that stays flows from the first full step of its gap to the step after the last. All bytes that a step has free flow through it.
# Source: Carlisle and Lloyd, On the k-coloring of intervals (1995), with the bytes of a gap as intervals. A copy into the slow memory that
# several gaps share is divided among them, so that the bound stays a lower bound.

_UNIT = 1 << 12
"""Costs of a byte are whole numbers of this part of a copied byte, rounded down."""
_MOST = 4_000
"""The most full steps and gaps: the flow takes a time that grows with their product."""


def least_bytes(problem: MovementProblem) -> int | None:
    """Return bytes that every choice of gaps copies; None for a problem that is too large."""
    steps = problem.full_steps
    spells = [(bisect_left(steps, g.first), bisect_right(steps, g.last), g) for g in problem.gaps]
    spells = [spell for spell in spells if spell[0] < spell[1]]
    if len(steps) + len(spells) > _MOST:
        return None
    if not spells:
        return 0
    shares = Counter(gap.store for *_, gap in spells)
    free = [problem.free[step] for step in steps]
    most = max(free)
    demand = [0] * (len(steps) + 1)
    demand[0], demand[-1] = -most, most
    edges = []
    # Of the bytes that flow through a step, at least those above its free ones take the edge that costs nothing.
    for index, room in enumerate(free):
        demand[index] += most - room
        demand[index + 1] -= most - room
        edges.append((index, index + 1, most, 0))
    total = 0
    for low, high, gap in spells:
        stored = 0 if gap.store is None else problem.stores[gap.store] // shares[gap.store]
        price = (gap.loaded + stored) * _UNIT // gap.size
        total += price * gap.size
        edges.append((low, high, gap.size, -price))
    return max(0, -(-(total + least_cost_flow(demand, edges)) // _UNIT))


_WAYS = 300
"""The most ways that are kept from one step to the next, and the most sets of tensors that are tried in one step of one way."""
_MANY_WAYS = 4_000
"""The same where a choice is to be proved."""
_LARGEST = 60_000
"""The most full steps times gaps for which that is tried."""
_FEWEST = 30
_ALL_WAYS = 20_000
"""The most ways of all steps together, but for those that every step may have."""
_MANY_IN_ALL = 160_000
"""The same where a choice is to be proved."""
_SETS = 1_000_000
"""The most sets of tensors that are tried in all."""


@dataclass(frozen=True)
class Eviction:
    """The numbers of the gaps in which tensors do not stay, the bytes copied for them, and whether no choice copies fewer."""

    evicted: frozenset[int]
    cost: int
    exact: bool


@dataclass(frozen=True)
class _Way:
    """Choices up to a step: the bytes copied, the gaps evicted and the stores made as bits, and all gaps evicted as a linked list."""

    cost: int
    evicted: int
    stored: int
    chosen: _Evictions


_Evictions: TypeAlias = "tuple[_Evictions, tuple[int, ...]] | None"


@dataclass(frozen=True)
class _Spell:
    """A gap with the places among the full steps, from `low` up to `high`, in which it takes bytes."""

    number: int
    low: int
    high: int
    size: int
    loaded: int
    store: int | None

    @property
    def bit(self) -> int:
        """Its bit in the sets of a way."""
        return 1 << self.number


def choose_evictions(problem: MovementProblem) -> Eviction:
    """Return the gaps of `problem` to evict. All its steps must have free bytes of at least 0."""
    steps = len(problem.full_steps)
    walk = _EvictionWalk(problem, max(_FEWEST, min(_WAYS, _ALL_WAYS // max(steps, 1))))
    for index in range(steps):
        walk.step(index)
    return walk.best()


def proved_evictions(problem: MovementProblem, known: Eviction) -> Eviction:
    """Return gaps of `problem` to evict for which no more bytes are copied than for those `known`, exact where that can be proved.

    More ways are kept than at first, but none that must copy as many bytes as are known to be enough.
    """
    steps = len(problem.full_steps)
    if known.exact or steps * len(problem.gaps) > _LARGEST:
        return known
    rests = [least_bytes(_from(problem, index)) or 0 for index in range(steps)]
    if rests[:1] == [known.cost]:
        return replace(known, exact=True)
    walk = _EvictionWalk(problem, min(_MANY_WAYS, _MANY_IN_ALL // max(steps, 1)), known.cost, [*rests, 0])
    for index in range(steps):
        walk.step(index)
    if not walk.ways:
        return replace(known, exact=walk.exact)
    eviction = walk.best()
    return eviction if eviction.cost <= known.cost else replace(known, exact=walk.exact)


def _from(problem: MovementProblem, index: int) -> MovementProblem:
    """Return the problem of the gaps that begin at the full step at `index` or later. Stores that earlier gaps may have made are free."""
    steps = problem.full_steps
    after = steps[index - 1] if index else -1
    later = [gap for gap in problem.gaps if gap.first > after]
    early = {gap.store for gap in problem.gaps if gap.first <= after}
    free = tuple(replace(gap, store=None) if gap.store in early else gap for gap in later)
    return MovementProblem(problem.free, free, problem.stores)


class _EvictionWalk:
    """The ways to make room in the steps walked so far, at most `most`.

    None is kept that copies `limit` bytes (None: no limit) with the least number that is still to come, `rests` by place.
    """

    def __init__(
        self, problem: MovementProblem, most: int, limit: int | None = None, rests: Sequence[int] = ()
    ) -> None:
        self.exact = True
        self._most, self._limit, self._rests, self._sets_left = most, limit, rests, _SETS
        self.ways = [_Way(0, 0, 0, None)]
        self._problem = problem
        steps = problem.full_steps
        self._active: list[list[_Spell]] = [[] for _ in steps]
        for number, gap in enumerate(problem.gaps):
            low, high = bisect_left(steps, gap.first), bisect_right(steps, gap.last)
            spell = _Spell(number, low, high, gap.size, gap.loaded, gap.store)
            for index in range(low, high):
                self._active[index].append(spell)
        for active in self._active:
            active.sort(key=lambda spell: (-spell.size, -spell.high, spell.number))
        last = {s.store: index for index, active in enumerate(self._active) for s in active if s.store is not None}
        # No later gap asks for these stores, so that ways need not differ in them.
        self._done = [0] * len(steps)
        for store, index in last.items():
            self._done[index] |= 1 << store

    def best(self) -> Eviction:
        """Return the choice of the way with the fewest copied bytes."""
        way = min(self.ways, key=lambda way: (way.cost, way.evicted))
        evicted = _without_needless(self._problem, set(_all_chosen(way.chosen)))
        return Eviction(frozenset(evicted), self._problem.cost(evicted), self.exact)

    def step(self, index: int) -> None:
        """Make room in the full step at `index` in every way, and keep the best ways."""
        active = self._active[index]
        mask = sum(spell.bit for spell in active)
        wanted = sum(spell.size for spell in active) - self._problem.free[self._problem.full_steps[index]]
        new_ways: dict[tuple[int, int], _Way] = {}
        for way in self.ways:
            left = way.evicted & mask
            there = [spell for spell in active if not left & spell.bit]
            over = wanted - sum(spell.size for spell in active if left & spell.bit)
            for chosen in self._sets(there, over):
                new = self._after(way, left, chosen, index)
                if self._limit is not None and new.cost + self._rests[index + 1] >= self._limit:
                    continue
                known = new_ways.get((new.evicted, new.stored))
                if known is None or new.cost < known.cost:
                    new_ways[new.evicted, new.stored] = new
        self.ways = self._best(list(new_ways.values()), active, index)

    def _after(self, way: _Way, left: int, chosen: Sequence[_Spell], index: int) -> _Way:
        cost, stored = way.cost, way.stored
        for spell in chosen:
            cost += spell.loaded
            left |= spell.bit
            if spell.store is not None and not stored >> spell.store & 1:
                cost += self._problem.stores[spell.store]
                stored |= 1 << spell.store
        stored &= ~self._done[index]
        numbers = tuple(spell.number for spell in chosen)
        return _Way(cost, left, stored, (way.chosen, numbers) if numbers else way.chosen)

    def _sets(self, there: Sequence[_Spell], over: int) -> Iterator[Sequence[_Spell]]:
        """Yield the least sets of `there`, which are in order of size, that have `over` bytes; some of them where there are too many."""
        if over <= 0:
            yield ()
            return
        for count, chosen in enumerate(_least_sets(there, over)):
            if count >= self._most or not self._sets_left:
                self.exact = False
                yield from _greedy_sets(there, over)
                return
            self._sets_left -= 1
            yield chosen

    def _best(self, ways: list[_Way], active: Sequence[_Spell], index: int) -> list[_Way]:
        """Return the ways of which no other is as good in all respects; the most promising where they are too many.

        The bytes copied for a gap count in proportion to the steps that it has passed.
        """
        rest = {s.bit: s.loaded * (s.high - 1 - index) / (s.high - s.low) for s in active}

        def promise(way: _Way) -> tuple[float, int, int]:
            return way.cost - sum(cost for bit, cost in rest.items() if way.evicted & bit), way.evicted, way.stored

        ordered = sorted(ways, key=lambda way: (way.cost, -way.evicted.bit_count(), way.evicted, way.stored))
        kept = [ordered[index] for index in islice(self._not_dropped(ordered), 4 * self._most)]
        if len(kept) >= 4 * self._most:
            self.exact = False
        if len(kept) > self._most:
            self.exact = False
            kept = sorted(kept, key=promise)[: self._most]
        return kept

    def _not_dropped(self, ordered: Sequence[_Way]) -> Iterator[int]:
        """Yield the places of ways of which none before has freed and stored all the same, and maybe more."""
        gaps = len(self._problem.gaps)
        words = (gaps + len(self._problem.stores)) // 64 + 1
        bits = b"".join((way.evicted | way.stored << gaps).to_bytes(8 * words, "little") for way in ordered)
        rows = np.frombuffer(bits, "<u8").reshape(len(ordered), words)
        lacking, count = np.empty((words, len(ordered)), np.uint64), 0
        for index, row in enumerate(rows):
            more = np.zeros(count, np.uint64)
            for word, lacks in zip(row, lacking[:, :count], strict=True):
                more |= lacks & word
            if more.all():
                lacking[:, count], count = ~row, count + 1
                yield index


def _least_sets(there: Sequence[_Spell], over: int) -> Iterator[tuple[_Spell, ...]]:
    """Yield each set of `there`, which are in order of size, that has at least `over` bytes, and fewer without any one of them."""
    after = [0]
    for spell in reversed(there):
        after.append(after[-1] + spell.size)
    after.reverse()
    todo: list[tuple[int, int, tuple[_Spell, ...]]] = [(0, over, ())]
    while todo:
        at, missing, chosen = todo.pop()
        if missing <= 0:
            yield chosen
        elif after[at] >= missing:
            todo.append((at + 1, missing, chosen))
            todo.append((at + 1, missing - there[at].size, (*chosen, there[at])))


def _greedy_sets(there: Sequence[_Spell], over: int) -> Iterator[tuple[_Spell, ...]]:
    """Yield sets of `there` with at least `over` bytes: those used last, those of the most bytes and steps, the cheapest."""
    for key in (
        lambda s: (-s.high, -s.size, s.number),
        lambda s: (-s.size * (s.high - s.low), s.number),
        lambda s: (s.store is not None, -s.high, s.number),
        lambda s: (abs(s.size - over), s.number),
    ):
        chosen, missing = [], over
        for spell in sorted(there, key=key):
            if missing <= 0:
                break
            chosen.append(spell)
            missing -= spell.size
        for spell in sorted(chosen, key=lambda s: (s.size, s.number)):
            if missing + spell.size <= 0:
                chosen.remove(spell)
                missing += spell.size
        yield tuple(chosen)


def _all_chosen(chosen: _Evictions) -> Iterator[int]:
    while chosen is not None:
        chosen, numbers = chosen
        yield from numbers


def _without_needless(problem: MovementProblem, evicted: set[int]) -> set[int]:
    """Return `evicted` without gaps for which there is room, those that cost the most first."""
    held = problem.held(set(range(len(problem.gaps))) - evicted)
    for number in sorted(evicted, key=lambda n: (-problem.gaps[n].loaded, n)):
        gap = problem.gaps[number]
        steps = range(gap.first, gap.last + 1)
        if all(held[step] + gap.size <= problem.free[step] for step in steps):
            evicted = evicted - {number}
            for step in steps:
                held[step] += gap.size
    return evicted


# When copies start: as early as their bytes are there, room for them is free, and the one engine that copies is idle.
#
# Kernels run in their order beside the engine. When the engine is idle, it takes the copy that is needed first of those that can start. A
# copy to the fast memory can start where there is room for its bytes until a kernel reads them. So successive
# weights use the room in turn, as in a ring buffer. Room is counted in sums of bytes; offsets come later.


_CANDIDATES = 1_000
"""The most copies that are looked at for the next one."""


class WantedCopy(NamedTuple):
    """A copy of `copied` bytes into the fast memory (a load) or out of it.

    It takes `size` bytes of the fast memory: a load from its start, a store up to its end. It starts after the kernel at the place `after`
    (-1: at once), and after the copy numbered `source`, if any. The kernel at the place `before` comes after it; it waits for a load.
    """

    is_load: bool
    size: int
    copied: int
    after: int
    before: int | None
    source: int | None = None


@dataclass
class Timetable:
    """By place, the numbers of the copies that are made beside its kernel or right before it, in the order of the engine.

    The place after the last kernel has those that are made afterwards. `held` has for stores the last place whose kernel starts before
    they end.
    """

    copies: dict[int, list[int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)


class CopyEngine:
    """The engine that makes the copies `wanted` beside the kernels of a schedule, which take so many `seconds` at each place.

    `room` has the bytes that the needs of each kernel and waiting tensors leave. `reserve` bytes of it stay free of early copies; with
    None, none is early.
    """

    def __init__(
        self,
        seconds: Sequence[float],
        room: Sequence[int],
        wanted: Sequence[WantedCopy],
        seconds_per_byte: float,
        reserve: int | None,
    ) -> None:
        self._seconds, self._wanted, self._pace, self._reserve = seconds, wanted, seconds_per_byte, reserve
        self._room = list(room)
        self._table = Timetable()
        self._ends: dict[int, float] = {}
        self._idle_at = self._clock = 0.0
        self._loads = sorted((n for n, copy in enumerate(wanted) if copy.is_load), key=self._needed)
        self._due: dict[int, list[int]] = {}
        self._ready: dict[int, list[int]] = {}
        for number, copy in enumerate(wanted):
            if copy.before is not None:
                self._due.setdefault(copy.before, []).append(number)
            if not copy.is_load:
                self._ready.setdefault(copy.after, []).append(number)
        self._stores: list[int] = []
        self._open: list[tuple[float, int]] = []
        """Stores that may not have ended, by their ends."""

    def _needed(self, number: int) -> tuple[int, int]:
        before = self._wanted[number].before
        return len(self._seconds) if before is None else before, number

    def timetable(self) -> Timetable:
        """Return when the copies are made."""
        for position in range(len(self._seconds)):
            self._run(position)
        for number in list(self._stores):
            self._issue(number, len(self._seconds), self._clock)
        return self._table

    def _run(self, position: int) -> None:
        """Run the kernel at `position`, with the copies that it waits for, and those that are made beside it."""
        start = self._with_room(position)
        for number in self._due.get(position, ()):
            if number not in self._ends:
                self._issue(number, position, start)
        loads = (number for number in self._due.get(position, ()) if self._wanted[number].is_load)
        start = max((start, *(self._ends[number] for number in loads)))
        self._hold(position, start)
        self._clock = start + self._seconds[position]
        while (
            self._reserve is not None and self._idle_at < self._clock and (chosen := self._next(position)) is not None
        ):
            self._issue(chosen, position, start)
        self._stores += self._ready.get(position, ())

    def _with_room(self, position: int) -> float:
        """Return when the stores that are not done leave room for the kernel at `position`; those in its way are made first."""
        start = self._clock
        self._open = [(end, number) for end, number in self._open if end > start]
        taken = sum(self._wanted[number].size for _, number in self._open)
        taken += sum(self._wanted[number].size for number in self._stores)
        while taken > self._room[position] or (self._reserve is None and self._stores):
            if not self._open:
                self._issue(self._stores[0], position, start)
            end, number = self._open.pop(0)
            start = max(start, end)
            taken -= self._wanted[number].size
        return start

    def _hold(self, position: int, start: float) -> None:
        """Take room beside the kernel at `position` for the stores that have not ended when it starts."""
        self._open = [(end, number) for end, number in self._open if end > start]
        for number in (*(number for _, number in self._open), *self._stores):
            self._room[position] -= self._wanted[number].size
            self._table.held[number] = position

    def _issue(self, number: int, position: int, earliest: float) -> None:
        copy = self._wanted[number]
        if copy.source is not None and copy.source not in self._ends:
            self._issue(copy.source, position, earliest)
        end = max(self._idle_at, earliest) + copy.copied * self._pace
        self._idle_at = self._ends[number] = end
        self._table.copies.setdefault(position, []).append(number)
        if not copy.is_load:
            self._stores.remove(number)
            insort(self._open, (end, number))
            return
        self._loads.remove(number)
        for held in range(position, self._needed(number)[0]):
            self._room[held] -= copy.size

    def _next(self, position: int) -> int | None:
        """Return the copy to make beside the kernel at `position`: a load for the next one, a store, or another load; None for none."""
        load = self._next_load(position)
        is_urgent = load is not None and self._wanted[load].before == position + 1
        if self._stores and not (is_urgent and self._has_room_for_store(position + 1)):
            return self._stores[0]
        return load

    def _has_room_for_store(self, position: int) -> bool:
        """Return whether the first store may still run beside the kernel at `position`."""
        return position < len(self._room) and self._room[position] >= self._wanted[self._stores[0]].size

    def _next_load(self, position: int) -> int | None:
        assert self._reserve is not None
        room, seen = self._room[position] - self._reserve, position
        for number in self._loads[:_CANDIDATES]:
            size, before = self._wanted[number].size, self._needed(number)[0]
            room = min((room, *(self._room[held] - self._reserve for held in range(seen + 1, before))))
            seen = max(seen, before - 1)
            if room <= 0:
                return None
            if size <= room and self._can_start(number, position):
                return number
        return None

    def _can_start(self, number: int, position: int) -> bool:
        copy = self._wanted[number]
        return copy.after < position and (copy.source is None or copy.source in self._ends)
