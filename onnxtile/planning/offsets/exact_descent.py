"""The exact search for offsets below a capacity: depth first, from the floor up.

Any placement can be lowered until each buffer lies on another or at 0, and be built in the order of its offsets. So the search places
buffers only at the floor, and misses nothing. Pinned buffers are there from the start: a buffer may also be lowered through one, so each
lies at the lowest offset that those below it and the pinned ones leave. A search node picks one section and branches on it: each of its
buffers at the floor is placed there, and in the last branch none of them is. They are then barred from that offset until a neighbour raises
them, so no placement is met twice. A branch ends as soon as some section cannot hold its unplaced bytes. Where unplaced buffers fall into
parts without overlap, each part is searched by itself; a part without a solution does not ask the others for another one.

Lowered placements and parts are ideas of MiniMalloc: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752.

The state is flat lists of integers. The functions of the search run on it as plain Python and, where numba is installed, compiled.

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
    """A group of buffers connected by overlaps in time or by conflicts, and the position of the search; the glossary above has the terms.

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


# The search.

SOLVED, IMPOSSIBLE, STOPPED = 1, 0, -1


def descend(state: SearchState, capacity: int, nodes: int, looks: int) -> tuple[int, int]:
    """Search offsets with every buffer below `capacity` (grains), and leave them in `state.offset`.

    Return the ending and the number of looks. The ending is SOLVED, IMPOSSIBLE (no such offsets exist), or STOPPED after `nodes`
    placements or `looks` at buffers and sections. Looks measure the work, so that a budget ends at the same node on every machine.
    """
    depth = trail = placed = start(state)
    for section in range(len(state.unplaced)):
        if state.unplaced[section] > capacity:
            return IMPOSSIBLE, 0
    if not focus(state, depth):
        return SOLVED, 0
    seen = open_depth(state, depth, capacity)
    while placed < nodes and seen < looks:
        if state.next[depth] < state.candidate_end[depth]:
            buffer = state.candidate[state.next[depth]]
            state.next[depth] += 1
            if breaks_symmetry(state, buffer):
                continue
            seen += state.neighbour_at[buffer + 1] - state.neighbour_at[buffer]
            trail = place(state, buffer, depth, trail)
            depth += 1
            placed += 1
            inherit(state, depth)
            if not focus(state, depth):
                return SOLVED, seen
            seen += open_depth(state, depth, capacity)
        elif state.candidate_end[depth] > state.candidate_at[depth]:
            trail = bar_candidates(state, depth, trail)
            seen += open_depth(state, depth, capacity)
        else:
            depth, trail = step_back(state, depth, trail)
            if depth < 0:
                return IMPOSSIBLE, seen
    return STOPPED, seen


def start(state: SearchState) -> int:
    """Reset `state` to no buffer placed, and return its depth, 0: for a literal 0, numba would compile the others once more."""
    for section in range(len(state.unplaced)):
        state.unplaced[section] = 0
        state.crossing[section] = 0
    for buffer in range(len(state.size)):
        state.offset[buffer] = state.lowest[buffer]
        state.placed[buffer] = 0
        state.barred[buffer] = 0
        for section in range(state.begin[buffer], state.end[buffer]):
            state.unplaced[section] += state.size[buffer]
        for section in range(state.reach_begin[buffer], state.reach_end[buffer] - 1):
            state.crossing[section] += 1
    state.low[0] = 0
    state.high[0] = len(state.unplaced)
    state.back[0] = 0
    state.waiting[0] = -1
    state.free[0] = 0
    state.candidate_at[0] = 0
    return state.low[0]


def breaks_symmetry(state: SearchState, buffer: int) -> bool:
    """Return whether placing `buffer` now only repeats a placement with an interchangeable buffer of better rank in its place.

    That is so on top of the other, and where the other is unplaced and has the same size. Exchanging two such buffers gives a placement
    of the same size. Of all these placements the search keeps the one with the fewest pairs out of rank.
    """
    for k in range(state.equivalent_at[buffer], state.equivalent_at[buffer + 1]):
        other = state.equivalent[k]
        if state.rank[other] > state.rank[buffer]:
            if state.placed[other] == 1 and state.offset[other] + state.size[other] == state.offset[buffer]:
                return True
        elif state.placed[other] == 0 and state.size[other] == state.size[buffer]:
            return True
    return False


def place(state: SearchState, buffer: int, depth: int, trail: int) -> int:
    """Place `buffer` at its offset, raise its unplaced neighbours to its top, and return the new end of the trail."""
    size = state.size[buffer]
    top = state.offset[buffer] + size
    state.choice[depth] = buffer
    state.placed[buffer] = 1
    state.trail_at[depth] = trail
    for section in range(state.begin[buffer], state.end[buffer]):
        state.unplaced[section] -= size
    for section in range(state.reach_begin[buffer], state.reach_end[buffer] - 1):
        state.crossing[section] -= 1
    for k in range(state.neighbour_at[buffer], state.neighbour_at[buffer + 1]):
        other = state.neighbour[k]
        if state.offset[other] < top and state.placed[other] == 0:
            state.trail[trail] = other
            state.trail_offset[trail] = state.offset[other]
            state.trail_barred[trail] = state.barred[other]
            state.offset[other] = above_walls(state, other, -(-top // state.unit[other]) * state.unit[other])
            state.barred[other] = 0
            trail += 1
    return trail


def above_walls(state: SearchState, buffer: int, offset: int) -> int:
    """Return the lowest offset of `buffer`, `offset` or above, at which it meets no pinned buffer."""
    for k in range(state.wall_at[buffer], state.wall_at[buffer + 1]):
        if offset < state.wall_end[k] and state.wall[k] < offset + state.size[buffer]:
            offset = -(-state.wall_end[k] // state.unit[buffer]) * state.unit[buffer]
    return offset


def bar_candidates(state: SearchState, depth: int, trail: int) -> int:
    """Bar all candidates of `depth`, none of which led to a solution, from their offsets; return the new end of the trail."""
    for k in range(state.candidate_at[depth], state.candidate_end[depth]):
        buffer = state.candidate[k]
        state.trail[trail] = buffer
        state.trail_offset[trail] = state.offset[buffer]
        state.trail_barred[trail] = 0
        state.barred[buffer] = 1
        trail += 1
    return trail


def take_back(state: SearchState, depth: int, trail: int) -> int:
    """Undo `place` at `depth`, and every change after it; return the new end of the trail."""
    buffer = state.choice[depth]
    size = state.size[buffer]
    state.placed[buffer] = 0
    for section in range(state.begin[buffer], state.end[buffer]):
        state.unplaced[section] += size
    for section in range(state.reach_begin[buffer], state.reach_end[buffer] - 1):
        state.crossing[section] += 1
    while trail > state.trail_at[depth]:
        trail -= 1
        other = state.trail[trail]
        state.offset[other] = state.trail_offset[trail]
        state.barred[other] = state.trail_barred[trail]
    return trail


def step_back(state: SearchState, depth: int, trail: int) -> tuple[int, int]:
    """Return to the depth whose next candidate may help, with the end of its trail; the depth is -1 where none is left."""
    target = state.back[depth] - 1
    while depth > target and depth > 0:
        depth -= 1
        trail = take_back(state, depth, trail)
    return (depth if target >= 0 else -1), trail


def inherit(state: SearchState, depth: int) -> None:
    """Start `depth`, reached by placing a buffer, with the sections of the depth before it."""
    above = depth - 1
    state.low[depth] = state.low[above]
    state.high[depth] = state.high[above]
    state.back[depth] = depth
    state.waiting[depth] = state.waiting[above]
    state.free[depth] = state.free[above]
    state.candidate_at[depth] = state.candidate_end[above]


def focus(state: SearchState, depth: int) -> bool:
    """Limit `depth` to one part of its sections and queue the others; return whether any buffer is unplaced."""
    low, high = state.low[depth], state.high[depth]
    while True:
        while low < high and state.unplaced[low] == 0:
            low += 1
        if low < high:
            break
        turn = state.waiting[depth]
        if turn < 0:
            return False
        low, high = state.wait_low[turn], state.wait_high[turn]
        state.back[depth] = state.wait_back[turn]
        state.waiting[depth] = state.wait_next[turn]
    end = low + 1
    while end < high and state.crossing[end - 1] > 0:
        end += 1
    state.low[depth] = low
    state.high[depth] = end
    while end < high and state.unplaced[end] == 0:
        end += 1
    if end < high:
        enqueue(state, depth, end, high)
    return True


def enqueue(state: SearchState, depth: int, low: int, high: int) -> None:
    """Queue the sections [low, high) at `depth`."""
    turn = state.free[depth]
    state.wait_low[turn] = low
    state.wait_high[turn] = high
    # A part that is split again returns to the same depth as the parts before it: the last at which they were one.
    state.wait_back[turn] = state.back[depth]
    state.wait_next[turn] = state.waiting[depth]
    state.waiting[depth] = turn
    state.free[depth] = turn + 1


def open_depth(state: SearchState, depth: int, capacity: int) -> int:
    """List the candidates of `depth`, best rank first; none where the branch has no solution. Return the number of looks."""
    low, high = state.low[depth], state.high[depth]
    begin = state.candidate_at[depth]
    state.next[depth] = begin
    state.candidate_end[depth] = begin
    looks = state.first[high] - state.first[low] + high - low
    floor, best, raised, at_floor, barred = survey(state, low, high, capacity)
    if best < 0:
        return looks
    for k in range(barred):
        if not can_be_raised(state, state.barred_list[k], raised):
            return looks
    section = overfull(state, low, high, raised, capacity)
    if section >= 0:
        for k in range(state.member_at[section], state.member_at[section + 1]):
            if state.placed[state.member[k]] == 0:
                state.failures[state.member[k]] += 1
        return looks
    section, more = find_section(state, best, floor, raised, at_floor, capacity)
    end = begin
    for k in range(at_floor):
        buffer = state.floor_list[k]
        if state.begin[buffer] <= section < state.end[buffer]:
            end = insert(state, buffer, begin, end)
    state.candidate_end[depth] = end
    return looks + more


def survey(state: SearchState, low: int, high: int, capacity: int) -> tuple[int, int, int, int, int]:
    """Look at the unplaced buffers that begin in the sections [low, high).

    Return the floor; its buffer of the best rank, -1 where the branch has no solution; the lowest top that a buffer can have; the number
    of buffers at the floor (listed in `state.floor_list`), and of barred buffers (in `state.barred_list`).

    A barred buffer has to lie on one placed later, at the floor or above. Where all of those start above its top, it could be lowered to
    the offset that it is barred from. So the branch has no solution once the floor reaches the top of a barred buffer.
    """
    floor = raised = ceiling = thinnest = capacity + 1
    best = -1
    at_floor = barred = 0
    for buffer in range(state.first[low], state.first[high]):
        if state.placed[buffer] == 1:
            continue
        offset, size = state.offset[buffer], state.size[buffer]
        if state.barred[buffer] == 1:
            state.barred_list[barred] = buffer
            barred += 1
            thinnest = min(thinnest, size)
            ceiling = min(ceiling, offset + size)
            continue
        raised = min(raised, offset + size)
        if offset < floor:
            floor, best, at_floor = offset, -1, 0
        if offset == floor:
            state.floor_list[at_floor] = buffer
            at_floor += 1
            if best < 0 or state.rank[buffer] < state.rank[best]:
                best = buffer
    if floor >= ceiling:
        best = -1
    return floor, best, min(raised, floor + thinnest), at_floor, barred


def can_be_raised(state: SearchState, buffer: int, raised: int) -> bool:
    """Return whether an unplaced neighbour can start below the top of `buffer`, which is barred; see `survey`."""
    top = state.offset[buffer] + state.size[buffer]
    if lowest_start(state, state.raiser[buffer], raised, top) < top:
        return True
    for k in range(state.neighbour_at[buffer], state.neighbour_at[buffer + 1]):
        other = state.neighbour[k]
        if lowest_start(state, other, raised, top) < top:
            state.raiser[buffer] = other
            return True
    return False


def lowest_start(state: SearchState, buffer: int, raised: int, otherwise: int) -> int:
    """Return the lowest start of `buffer`, `otherwise` if it is placed. A barred one starts on top of another, at `raised` or above."""
    if state.placed[buffer] == 1:
        return otherwise
    return state.offset[buffer] if state.barred[buffer] == 0 else raised


def overfull(state: SearchState, low: int, high: int, raised: int, capacity: int) -> int:
    """Return one of the sections [low, high) that cannot hold its unplaced bytes; -1 where all can.

    In a section that can, one buffer starts so low that all unplaced ones fit above its start.
    """
    for section in range(low, high):
        if state.unplaced[section] > 0 and not can_start_by(state, section, raised, capacity - state.unplaced[section]):
            return section
    return -1


def can_start_by(state: SearchState, section: int, raised: int, limit: int) -> bool:
    """Return whether a buffer of `section` can start at `limit` or lower; the one found last is tried first."""
    if lowest_start(state, state.low_start[section], raised, limit + 1) <= limit:
        return True
    for k in range(state.member_at[section], state.member_at[section + 1]):
        buffer = state.member[k]
        if lowest_start(state, buffer, raised, limit + 1) <= limit:
            state.low_start[section] = buffer
            return True
    return False


def find_section(
    state: SearchState, buffer: int, floor: int, raised: int, at_floor: int, capacity: int
) -> tuple[int, int]:
    """Return the section of `buffer`, which is at the floor, with the fewest branches, and the number of looks.

    Each of its buffers at the floor is a branch; that none of them starts there is another, if the section can hold all above the floor.
    Ties go to the section with the most unplaced bytes.
    """
    begin, end = state.begin[buffer], state.end[buffer]
    for section in range(begin, end):
        state.branches[section] = 0
    for k in range(at_floor):
        other = state.floor_list[k]
        for section in range(max(begin, state.begin[other]), min(end, state.end[other])):
            state.branches[section] += 1
    looks = at_floor + end - begin
    best, fewest = -1, len(state.size) + 2
    for section in range(begin, end):
        branches = state.branches[section]
        if branches <= fewest:
            looks += state.member_at[section + 1] - state.member_at[section]
            if can_wait(state, section, floor, raised, capacity - state.unplaced[section]):
                branches += 1
            if branches < fewest or (branches == fewest and state.unplaced[section] > state.unplaced[best]):
                best, fewest = section, branches
    return best, looks


def can_wait(state: SearchState, section: int, floor: int, raised: int, limit: int) -> bool:
    """Return whether a buffer of `section` can start above the floor, at `limit` or lower."""
    if limit <= floor:
        return False
    for k in range(state.member_at[section], state.member_at[section + 1]):
        if floor < lowest_start(state, state.member[k], raised, floor) <= limit:
            return True
    return False


def insert(state: SearchState, buffer: int, begin: int, end: int) -> int:
    """Insert `buffer` into the candidates [begin, end), which are sorted by rank; return their new end."""
    at = end
    while at > begin and state.rank[state.candidate[at - 1]] > state.rank[buffer]:
        state.candidate[at] = state.candidate[at - 1]
        at -= 1
    state.candidate[at] = buffer
    return end + 1
