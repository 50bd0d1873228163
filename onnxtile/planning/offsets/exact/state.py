"""What the search works on: flat lists of integers, so that it runs as it is, and compiled where numba is installed.

Time is cut into sections. Only those count in which the live buffers are not all live in a neighbouring one as well (the maximal cliques of
the interval graph): a plan that is sound in them is sound. Bytes are counted in grains, of which the offset of every buffer that
rests on others is a multiple.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from onnxtile.planning.offsets.problem import Buffer, Problem


class SearchState(NamedTuple):
    """One group of buffers that overlap in time, directly or by way of others, and where the search stands.

    Buffers are counted in the order of their first section, from 0. The fields of one depth of the search have one entry a depth; there
    is a depth for each placed buffer. Lists of lists are flat, with a list of where each begins.
    """

    # The problem: of each buffer the sections [begin, end) it lives in, its size, what its offset must be a multiple of.
    begin: list[int]
    end: list[int]
    size: list[int]
    unit: list[int]
    # Of each buffer the sections [reach_begin, reach_end) from the first to the last of its own and of those it is in conflict with.
    reach_begin: list[int]
    reach_end: list[int]
    # The first buffer that begins in a section or later; the buffers live in each section; those that overlap each buffer, or are in
    # conflict with it.
    first: list[int]
    member: list[int]
    member_at: list[int]
    neighbour: list[int]
    neighbour_at: list[int]
    # Of each buffer those of the same life that could change places with it.
    equivalent: list[int]
    equivalent_at: list[int]
    # Of each buffer: the lowest offset it can have on top of those placed, whether it is placed, whether it is barred from that offset,
    # what decides ties, past failures, and a neighbour that can still raise it.
    offset: list[int]
    placed: list[int]
    barred: list[int]
    rank: list[int]
    failures: list[float]
    raiser: list[int]
    # Of each section: bytes still to be placed, how many of these buffers reach into the next one, a buffer that can still start low,
    # and how many ways there are to go on.
    unplaced: list[int]
    crossing: list[int]
    low_start: list[int]
    branches: list[int]
    # What a look at one depth finds: the buffers that can be placed at the ground, and those that are barred.
    floor_list: list[int]
    barred_list: list[int]
    # Of each depth: the sections [low, high) it looks at, the depth to go back to when nothing is left to try, and which buffer it placed.
    low: list[int]
    high: list[int]
    back: list[int]
    choice: list[int]
    # Of each depth: its candidates (one list for all, with the begin, the end, and the next one to try), and the trail of old
    # offsets, and of what was barred.
    candidate: list[int]
    candidate_at: list[int]
    candidate_end: list[int]
    next: list[int]
    trail: list[int]
    trail_offset: list[int]
    trail_barred: list[int]
    trail_at: list[int]
    # Sections that wait for their turn, as a linked list that a depth only adds to: its head, and the first free place.
    waiting: list[int]
    free: list[int]
    wait_low: list[int]
    wait_high: list[int]
    wait_back: list[int]
    wait_next: list[int]


def groups(problem: Problem) -> list[list[int]]:
    """Return the groups of buffers of `problem` that have bytes, by their places in it; no buffer of a group can be in another's way."""
    lower, upper = problem.live_ranges
    order = np.flatnonzero(problem.footprints)
    order = order[np.argsort(lower[order], kind="stable")]
    if not len(order):
        return []
    latest = np.maximum.accumulate(upper[order])
    begins = np.flatnonzero(lower[order][1:] >= latest[:-1]) + 1
    return _merged_by_conflicts(problem, [group.tolist() for group in np.split(order, begins)])


def _merged_by_conflicts(problem: Problem, groups: list[list[int]]) -> list[list[int]]:
    """Return `groups`, of which those between which there is a conflict are one."""
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
    """Return a number of bytes of which every size, and every offset of a buffer that rests on others, is a multiple.

    That is the smallest alignment, or, where every alignment divides all sizes, what these have in common.
    """
    common = gcd(*problem.footprints)
    widest = max(problem.alignments, default=problem.granule)
    return common if common and common % widest == 0 else problem.granule


def state_of(problem: Problem, members: Sequence[int], grain: int) -> tuple[SearchState, tuple[int, ...]]:
    """Return the state of a search over the buffers `members` of `problem`, and which of them each of its buffers is."""
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
    equivalent, equivalent_at = _flat(_equivalents(zip(begin, end, reach_begin, reach_end, units, strict=True), sizes))
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
        equivalent=equivalent,
        equivalent_at=equivalent_at,
        offset=[0] * n,
        placed=[0] * n,
        barred=[0] * n,
        rank=[0] * n,
        failures=[0.0] * n,
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


# A buffer is raised once at most by each of its neighbours, and barred once at most before each of these times and after the last.
_PER_STEP = ("trail", "trail_offset", "trail_barred")
_PER_DEPTH = ("low", "high", "back", "choice", "candidate_at", "candidate_end", "next", "trail_at", "waiting", "free")
_PER_WAIT = ("wait_low", "wait_high", "wait_back", "wait_next")


def _sections(buffers: Sequence[Buffer]) -> list[int]:
    """Return the first step of each section: the last birth before a death."""
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
    """Return for each buffer the others that overlap it: those live where it begins, and those that begin while it lives."""
    found = []
    for buffer, (low, high) in enumerate(zip(begin, end, strict=True)):
        others = [other for other in live[low] if other != buffer]
        others += range(first[low + 1], first[high])
        found.append(others)
    return found


def _extra_conflicts(problem: Problem, members: Sequence[int]) -> dict[int, list[int]]:
    """Return what each of `members` is in conflict with, both by their places among these."""
    at = {i: k for k, i in enumerate(members)}
    found = {k: [at[other] for other in problem.extra_conflicts.get(i, ()) if other in at] for i, k in at.items()}
    return {k: others for k, others in found.items() if others}


def _equivalents(live_ranges: Iterable[tuple[int, int, int, int, int]], sizes: Sequence[int]) -> list[list[int]]:
    """Return for each buffer the others of the same life that it can change places with, whichever stands on the other.

    `lives` are the sections of each, those it reaches by its conflicts, and its unit. It has twins only if the two are the same, so that
    it has no conflicts; and if its size is a multiple of the unit, so that what stands on it need not be raised further.
    """
    alike: dict[tuple[int, ...], list[int]] = {}
    for buffer, (live_range, size) in enumerate(zip(live_ranges, sizes, strict=True)):
        begin, end, reach_begin, reach_end, unit = live_range
        is_unique = (begin, end) != (reach_begin, reach_end) or size % unit
        alike.setdefault((buffer,) if is_unique else live_range, []).append(buffer)
    found: list[list[int]] = [[] for _ in sizes]
    for buffers in alike.values():
        for buffer in buffers:
            found[buffer] = [other for other in buffers if other != buffer]
    return found


def _flat(lists: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    flat: list[int] = []
    at = [0]
    for items in lists:
        flat.extend(items)
        at.append(len(flat))
    return flat, at


def as_arrays(state: SearchState) -> SearchState:
    """Return `state` in arrays of 64-bit numbers instead of lists, as compiled code takes it."""
    arrays: Any = (np.array(v, np.float64 if name == "blame" else np.int64) for name, v in state._asdict().items())
    return SearchState(*arrays)
