"""The state of the exact search: flat lists of integers, which run as plain Python and, where numba is installed, compiled.

A partial placement in the search, bytes upwards, sections to the right:

    offset
      ^
      |  . . . . . . . . . . . . . . . . . . . .   capacity
      |                 +---------+
      |                 |    d    |                d: unplaced, its offset is raised to the top of b
      |      +----------+--+------+
      |      |      b      |                       b: placed on a
    f +- - - +----+--------+ - - - - - - - - - -   f: the floor, the lowest offset of an unplaced buffer that is not barred
      |      | a  |   | c |                        c: unplaced at the floor, a candidate
      +------+----+---+---+-----------------> section
        0      1    2    3    4    5

Glossary

- section: a stretch of time. Only maximal sets of live buffers count (the maximal cliques of the interval graph): a placement without
  overlap in these sections has none anywhere.
- grain: the unit of bytes. Every size, and every offset of a buffer on top of others, is a multiple.
- member of a section: a buffer that is live in it.
- neighbour of a buffer: another that is live in one of its sections, or in conflict with it.
- wall of a buffer: the bytes of pinned buffers that it must not meet. A pinned buffer has no number of its own.
- offset of an unplaced buffer: the lowest that its placed neighbours and its walls leave.
- floor: the lowest offset of an unplaced buffer that is not barred. Buffers are placed at the floor only.
- barred: an unplaced buffer that was not placed at its offset. It has to be raised by a neighbour first.
- search node (depth): one partial placement. It branches on one section: each of the section's buffers at the floor, or none of them.
- crossing: unplaced buffers that are live in a section and the next. Where there are none, both sides are searched by themselves.
- failures: how often a buffer was unplaced in a section that turned out overfull.
- trail: the values that a search node changed, in order, to undo them on the way back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from onnxtile.planning.offsets.problem import Buffer, Problem


class SearchState(NamedTuple):
    """A group of buffers connected by overlaps in time or by conflicts, and the position of the search; the module has a glossary.

    Buffers are numbered from 0 by their first section. A list of lists is one flat list, with a second list `..._at` of where each begins.
    """

    # Problem, by buffer: its sections [begin, end), its size in grains, and the number of grains that divides its offset.
    begin: list[int]
    end: list[int]
    size: list[int]
    unit: list[int]
    # Problem, by buffer: the sections [reach_begin, reach_end) from the first to the last of its own and of its conflicts'.
    reach_begin: list[int]
    reach_end: list[int]
    # Problem, by section: the first buffer that begins there or later, and the members. By buffer: the neighbours.
    first: list[int]
    member: list[int]
    member_at: list[int]
    neighbour: list[int]
    neighbour_at: list[int]
    # Problem, by buffer: its lowest offset, and the starts and ends of its walls, the lowest first.
    lowest: list[int]
    wall: list[int]
    wall_end: list[int]
    wall_at: list[int]
    # Problem, by buffer: others of the same live range that are interchangeable with it.
    equivalent: list[int]
    equivalent_at: list[int]
    # Position, by buffer: its offset, whether it is placed, whether it is barred, its rank among candidates (0 first), its failures, and
    # the neighbour that was last found able to raise it.
    offset: list[int]
    placed: list[int]
    barred: list[int]
    rank: list[int]
    failures: list[int]
    raiser: list[int]
    # Position, by section: unplaced bytes, crossing buffers, the member last found able to start low enough, and the branches at the floor.
    unplaced: list[int]
    crossing: list[int]
    low_start: list[int]
    branches: list[int]
    # Found at one search node: the buffers at the floor, and the barred ones.
    floor_list: list[int]
    barred_list: list[int]
    # By depth: the sections [low, high) that it searches, the depth to return to when it has no candidate left, and the buffer it placed.
    low: list[int]
    high: list[int]
    back: list[int]
    choice: list[int]
    # By depth: the range of its candidates in one list for all depths, the next one to try, and the start of its part of the trail. By
    # entry of the trail: a buffer, with its offset and whether it was barred before.
    candidate: list[int]
    candidate_at: list[int]
    candidate_end: list[int]
    next: list[int]
    trail: list[int]
    trail_offset: list[int]
    trail_barred: list[int]
    trail_at: list[int]
    # Sections [wait_low, wait_high) still to be searched, as a linked list that depths only add to. By depth: its head, and the first free
    # entry.
    waiting: list[int]
    free: list[int]
    wait_low: list[int]
    wait_high: list[int]
    wait_back: list[int]
    wait_next: list[int]


def groups(problem: Problem) -> list[list[int]]:
    """Return the buffers of `problem` that have bytes and no pin, by number, in groups without overlap or conflict between them."""
    lower, upper = problem.live_ranges
    is_free = np.array(problem.footprints, np.int64) > 0
    is_free[list(problem.pinned)] = False
    order = np.flatnonzero(is_free)
    order = order[np.argsort(lower[order], kind="stable")]
    if not len(order):
        return []
    latest = np.maximum.accumulate(upper[order])
    begins = np.flatnonzero(lower[order][1:] >= latest[:-1]) + 1
    return _merged_by_conflicts(problem, [group.tolist() for group in np.split(order, begins)])


def _merged_by_conflicts(problem: Problem, groups: list[list[int]]) -> list[list[int]]:
    """Return `groups` with those merged that have a conflict between them."""
    if not problem.extra_conflicts:
        return groups
    of = {i: group for group in groups for i in group}
    for i, others in problem.extra_conflicts.items():
        for other in others:
            if i in of and other in of and of[i] is not of[other]:
                of[i].extend(of[other])
                of.update(dict.fromkeys(of[other], of[i]))
    return list({id(group): group for group in of.values()}.values())


def grain_of(problem: Problem) -> int:
    """Return the grain in bytes: it divides every size, and every offset of a buffer on top of others.

    It is the smallest alignment, or, where every alignment divides all sizes, their greatest common divisor.
    """
    common = gcd(*problem.footprints, *(problem.buffers[i].pin or 0 for i in problem.pinned))
    widest = max(problem.alignments, default=problem.granule)
    return common if common and common % widest == 0 else problem.granule


def state_of(problem: Problem, members: Sequence[int], grain: int) -> tuple[SearchState, tuple[int, ...]]:
    """Return the state of a search over the buffers `members` of `problem`, and the member that each of its buffers is."""
    buffers = [problem.buffers[i] for i in members]
    starts = _sections(buffers)
    spans = [(bisect_left(starts, b.lower), bisect_left(starts, b.upper)) for b in buffers]
    order = sorted(range(len(members)), key=lambda k: (spans[k], -buffers[k].size, members[k]))
    begin, end = [spans[k][0] for k in order], [spans[k][1] for k in order]
    first = [bisect_left(begin, section) for section in range(len(starts) + 1)]
    live = _live(begin, end, len(starts))
    member, member_at = _flat(live)
    neighbours = _neighbours(begin, end, first, live)
    reach_begin, reach_end = list(begin), list(end)
    for buffer, others in _extra_conflicts(problem, [members[k] for k in order]).items():
        neighbours[buffer] += others
        reach_begin[buffer] = min(begin[k] for k in (buffer, *others))
        reach_end[buffer] = max(end[k] for k in (buffer, *others))
    neighbour, neighbour_at = _flat(neighbours)
    sizes = [problem.footprint(buffers[k]) // grain for k in order]
    units = [max(1, problem.alignment_of(buffers[k]) // grain) for k in order]
    walls = [_walls(problem, members[k], grain) for k in order]
    # Below a pinned buffer, sizes matter; and of two buffers in the same sections, one may be live beside it and the other not.
    alike = [(size, *wall) for size, wall in zip(sizes, walls, strict=True)] if problem.pinned else [()] * len(sizes)
    equivalent, equivalent_at = _flat(
        _equivalents(zip(begin, end, reach_begin, reach_end, units, alike, strict=True), sizes)
    )
    wall_at = [0, *accumulate(map(len, walls))]
    n, m, depths, steps = len(members), len(starts), len(members) + 2, 2 * len(neighbour) + len(members) + 1
    state = SearchState(
        begin=begin,
        end=end,
        size=sizes,
        unit=units,
        reach_begin=reach_begin,
        reach_end=reach_end,
        first=first,
        member=member,
        member_at=member_at,
        neighbour=neighbour,
        neighbour_at=neighbour_at,
        lowest=[_lowest(wall, size, unit) for wall, size, unit in zip(walls, sizes, units, strict=True)],
        wall=[start for wall in walls for start, _ in wall],
        wall_end=[end for wall in walls for _, end in wall],
        wall_at=wall_at,
        equivalent=equivalent,
        equivalent_at=equivalent_at,
        offset=[0] * n,
        placed=[0] * n,
        barred=[0] * n,
        rank=[0] * n,
        failures=[0] * n,
        raiser=[(others or [buffer])[0] for buffer, others in enumerate(neighbours)],
        unplaced=[0] * m,
        crossing=[0] * m,
        low_start=[member[at] for at in member_at[:-1]],
        branches=[0] * m,
        floor_list=[0] * n,
        barred_list=[0] * n,
        candidate=[0] * (n * (n + 1) // 2 + 1),
        **{field: [0] * steps for field in _PER_STEP},
        **{field: [0] * depths for field in _PER_DEPTH},
        **{field: [0] * (m + depths) for field in _PER_WAIT},
    )
    return state, tuple(members[k] for k in order)


# Each neighbour raises a buffer at most once. A buffer is barred at most once before each time, and once after the last.
_PER_STEP = ("trail", "trail_offset", "trail_barred")
_PER_DEPTH = ("low", "high", "back", "choice", "candidate_at", "candidate_end", "next", "trail_at", "waiting", "free")
_PER_WAIT = ("wait_low", "wait_high", "wait_back", "wait_next")


def _sections(buffers: Sequence[Buffer]) -> list[int]:
    """Return the first step of each section: the last start of a live range before an end."""
    births, deaths = {b.lower for b in buffers}, {b.upper for b in buffers}
    steps = sorted(births | deaths)
    starts, born = [], False
    for step, following in pairwise(steps):
        born = born or step in births
        if born and following in deaths:
            starts.append(step)
            born = False
    return starts


def _live(begin: Sequence[int], end: Sequence[int], sections: int) -> list[list[int]]:
    live: list[list[int]] = [[] for _ in range(sections)]
    for buffer, (low, high) in enumerate(zip(begin, end, strict=True)):
        for section in range(low, high):
            live[section].append(buffer)
    return live


def _neighbours(
    begin: Sequence[int], end: Sequence[int], first: Sequence[int], live: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the neighbours of each buffer: those live in its first section, and those that begin in a later one of its sections."""
    neighbours = []
    for buffer, (low, high) in enumerate(zip(begin, end, strict=True)):
        others = [other for other in live[low] if other != buffer]
        others += range(first[low + 1], first[high])
        neighbours.append(others)
    return neighbours


def _extra_conflicts(problem: Problem, members: Sequence[int]) -> dict[int, list[int]]:
    """Return the conflicts of each of `members`, both numbered by their places among these."""
    at = {i: k for k, i in enumerate(members)}
    conflicts = {k: [at[other] for other in problem.extra_conflicts.get(i, ()) if other in at] for i, k in at.items()}
    return {k: others for k, others in conflicts.items() if others}


def _walls(problem: Problem, member: int, grain: int) -> list[tuple[int, int]]:
    """Return the bytes of pinned buffers that `member` must not meet, in grains, the lowest first, none of which touch."""
    buffer, others = problem.buffers[member], problem.extra_conflicts.get(member, ())
    walls: list[tuple[int, int]] = []
    for i in sorted(problem.pinned, key=lambda i: problem.buffers[i].pin or 0):
        pinned = problem.buffers[i]
        if i in others or (pinned.lower < buffer.upper and buffer.lower < pinned.upper):
            start = (pinned.pin or 0) // grain
            end = start + problem.footprints[i] // grain
            if walls and start <= walls[-1][1]:
                start, end = walls[-1][0], max(walls.pop()[1], end)
            walls.append((start, end))
    return walls


def _lowest(walls: Iterable[tuple[int, int]], size: int, unit: int) -> int:
    offset = 0
    for start, end in walls:
        if offset < end and start < offset + size:
            offset = -(-end // unit) * unit
    return offset


def _equivalents(
    live_ranges: Iterable[tuple[int, int, int, int, int, Hashable]], sizes: Sequence[int]
) -> list[list[int]]:
    """Return the buffers of the same live range that are interchangeable with each buffer, whichever is on top.

    `live_ranges` has for each its sections, those it reaches by conflicts, its unit, and what else has to be equal. A buffer
    with conflicts has none: the two ranges differ. Nor has one whose size is not a multiple of its unit: a buffer on top of it would have
    to be raised.
    """
    alike: dict[Hashable, list[int]] = {}
    for buffer, (live_range, size) in enumerate(zip(live_ranges, sizes, strict=True)):
        begin, end, reach_begin, reach_end, unit, _ = live_range
        is_unique = (begin, end) != (reach_begin, reach_end) or size % unit
        alike.setdefault((buffer,) if is_unique else live_range, []).append(buffer)
    equivalents: list[list[int]] = [[] for _ in sizes]
    for buffers in alike.values():
        for buffer in buffers:
            equivalents[buffer] = [other for other in buffers if other != buffer]
    return equivalents


def _flat(lists: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    flat: list[int] = []
    at = [0]
    for items in lists:
        flat.extend(items)
        at.append(len(flat))
    return flat, at


def as_arrays(state: SearchState) -> SearchState:
    """Return `state` with arrays of 64-bit numbers in place of lists, for compiled code."""
    arrays: Any = (np.array(numbers, np.int64) for numbers in state)
    return SearchState(*arrays)
