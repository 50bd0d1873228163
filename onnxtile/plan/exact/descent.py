"""The search itself: depth first, each buffer resting on another or on the ground, offsets never falling along a branch.

Every sound plan can be let down until each buffer rests, and its buffers then be taken in the order of their offsets: so nothing is
missed. A branch is given up as soon as some section cannot hold what is still to come. Where the buffers still to be placed fall into
parts that are never in each other's way, each part is searched by itself; when one has no solution, the others are not asked for
another of theirs. The idea of canonical plans and of parts is MiniMalloc's: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752.

Plain functions over flat lists: plan.compiled compiles them as they are.
"""

from __future__ import annotations

from onnxtile.plan.exact.state import State

SOLVED, IMPOSSIBLE, STOPPED = 1, 0, -1


def descend(state: State, capacity: int, nodes: int, looks: int) -> tuple[int, int]:
    """Search offsets with every buffer below `capacity`; leave them in `state.offset`. Return how it ended, and the looks it took.

    It ends SOLVED, IMPOSSIBLE (there are none), or STOPPED after `nodes` placements or `looks` at a buffer, whatever comes first. Looks at
    buffers and sections measure the work: a budget in them ends a search at the same place on every machine.
    """
    start(state)
    for section in range(len(state.rest)):
        if state.rest[section] > capacity:
            return IMPOSSIBLE, 0
    depth = trail = placed = seen = 0
    if not open_depth(state, 0, capacity):
        return SOLVED, 0
    while placed < nodes and seen < looks:
        if state.next[depth] >= state.candidate_end[depth]:
            depth, trail = step_back(state, depth, trail)
            if depth < 0:
                return IMPOSSIBLE, seen
            continue
        buffer = state.candidate[state.next[depth]]
        state.next[depth] += 1
        seen += state.first[state.high[depth]] - state.first[state.low[depth]] + state.high[depth] - state.low[depth]
        seen += state.neighbour_at[buffer + 1] - state.neighbour_at[buffer]
        trail = place(state, buffer, depth, trail)
        depth += 1
        placed += 1
        hand_down(state, depth, buffer)
        if not open_depth(state, depth, capacity):
            return SOLVED, seen
    return STOPPED, seen


def start(state: State) -> None:
    """Set `state` back to nothing placed."""
    for section in range(len(state.rest)):
        state.rest[section] = 0
        state.bridges[section] = 0
    for buffer in range(len(state.size)):
        state.offset[buffer] = 0
        state.placed[buffer] = 0
        for section in range(state.begin[buffer], state.end[buffer]):
            state.rest[section] += state.size[buffer]
        for section in range(state.reach_begin[buffer], state.reach_end[buffer] - 1):
            state.bridges[section] += 1
    state.low[0] = 0
    state.high[0] = len(state.rest)
    state.floor[0] = 0
    state.last[0] = -1
    state.back[0] = 0
    state.waiting[0] = -1
    state.free[0] = 0
    state.candidate_at[0] = 0


def place(state: State, buffer: int, depth: int, trail: int) -> int:
    """Place `buffer` at its lowest offset, raise its neighbours above it, and return the new end of the trail."""
    size = state.size[buffer]
    top = state.offset[buffer] + size
    state.choice[depth] = buffer
    state.placed[buffer] = 1
    state.trail_at[depth] = trail
    for section in range(state.begin[buffer], state.end[buffer]):
        state.rest[section] -= size
    for section in range(state.reach_begin[buffer], state.reach_end[buffer] - 1):
        state.bridges[section] -= 1
    for k in range(state.neighbour_at[buffer], state.neighbour_at[buffer + 1]):
        other = state.neighbour[k]
        if state.offset[other] < top and state.placed[other] == 0:
            state.trail[trail] = other
            state.trail_offset[trail] = state.offset[other]
            state.offset[other] = -(-top // state.unit[other]) * state.unit[other]
            trail += 1
    return trail


def take_back(state: State, depth: int, trail: int) -> int:
    """Undo what `place` did at `depth`; return the new end of the trail."""
    buffer = state.choice[depth]
    size = state.size[buffer]
    state.placed[buffer] = 0
    for section in range(state.begin[buffer], state.end[buffer]):
        state.rest[section] += size
    for section in range(state.reach_begin[buffer], state.reach_end[buffer] - 1):
        state.bridges[section] += 1
    while trail > state.trail_at[depth]:
        trail -= 1
        state.offset[state.trail[trail]] = state.trail_offset[trail]
    return trail


def step_back(state: State, depth: int, trail: int) -> tuple[int, int]:
    """Return the depth at which the next candidate may help, and the end of the trail there; the depth is -1 where there is none."""
    target = state.back[depth] - 1
    while depth > target and depth > 0:
        depth -= 1
        trail = take_back(state, depth, trail)
    return (depth if target >= 0 else -1), trail


def hand_down(state: State, depth: int, buffer: int) -> None:
    """Let `depth`, which has just been reached by placing `buffer`, begin where the depth before it stands."""
    above = depth - 1
    state.low[depth] = state.low[above]
    state.high[depth] = state.high[above]
    state.floor[depth] = state.offset[buffer]
    state.last[depth] = buffer
    state.back[depth] = depth
    state.waiting[depth] = state.waiting[above]
    state.free[depth] = state.free[above]
    state.candidate_at[depth] = state.candidate_end[above]


def open_depth(state: State, depth: int, capacity: int) -> bool:
    """Find what can be placed at `depth`; return whether anything is left to place at all."""
    if not focus(state, depth):
        return False
    section = hopeless(state, depth, capacity)
    if section < 0:
        find_candidates(state, depth, capacity)
        return True
    for k in range(state.member_at[section], state.member_at[section + 1]):
        if state.placed[state.member[k]] == 0:
            state.blame[state.member[k]] += 1.0
    state.next[depth] = state.candidate_at[depth]
    state.candidate_end[depth] = state.candidate_at[depth]
    return True


def focus(state: State, depth: int) -> bool:
    """Let `depth` look at one part of the sections only, and the others wait; return whether anything is left to place."""
    low, high = state.low[depth], state.high[depth]
    while True:
        while low < high and state.rest[low] == 0:
            low += 1
        if low < high:
            break
        turn = state.waiting[depth]
        if turn < 0:
            return False
        low, high = state.wait_low[turn], state.wait_high[turn]
        state.floor[depth] = state.wait_floor[turn]
        state.last[depth] = state.wait_last[turn]
        state.back[depth] = state.wait_back[turn]
        state.waiting[depth] = state.wait_next[turn]
    end = low + 1
    while end < high and state.bridges[end - 1] > 0:
        end += 1
    state.low[depth] = low
    state.high[depth] = end
    while end < high and state.rest[end] == 0:
        end += 1
    if end < high:
        let_wait(state, depth, end, high)
    return True


def let_wait(state: State, depth: int, low: int, high: int) -> None:
    """Put the sections [low, high) in the queue, as they stand at `depth`."""
    turn = state.free[depth]
    state.wait_low[turn] = low
    state.wait_high[turn] = high
    state.wait_floor[turn] = state.floor[depth]
    state.wait_last[turn] = state.last[depth]
    # A part that is split again goes back to where its elder parts go: the depth at which they all were last whole.
    state.wait_back[turn] = state.back[depth]
    state.wait_next[turn] = state.waiting[depth]
    state.waiting[depth] = turn
    state.free[depth] = turn + 1


def hopeless(state: State, depth: int, capacity: int) -> int:
    """Return a section, of those that `depth` looks at, that cannot hold what it must still take; -1 where there is none.

    A section has room only if one of its buffers can start so low that all of them fit above it. One that has been passed by, below
    the floor, has to be raised by another first: it starts no lower than the lowest top that anything still to be placed can have.
    """
    low, high, floor = state.low[depth], state.high[depth], state.floor[depth]
    raised = capacity + 1
    for buffer in range(state.first[low], state.first[high]):
        if state.placed[buffer] == 0:
            raised = min(raised, max(state.offset[buffer], floor) + state.size[buffer])
    for section in range(low, high):
        if state.rest[section] > 0 and not has_room(state, section, floor, raised, capacity - state.rest[section]):
            return section
    return -1


def has_room(state: State, section: int, floor: int, raised: int, limit: int) -> bool:
    """Return whether a buffer of `section` can start at `limit` or lower; the one found last is asked first."""
    buffer = state.witness[section]
    if state.placed[buffer] == 0 and (state.offset[buffer] if state.offset[buffer] >= floor else raised) <= limit:
        return True
    for k in range(state.member_at[section], state.member_at[section + 1]):
        buffer = state.member[k]
        if state.placed[buffer] == 0 and (state.offset[buffer] if state.offset[buffer] >= floor else raised) <= limit:
            state.witness[section] = buffer
            return True
    return False


def find_candidates(state: State, depth: int, capacity: int) -> None:
    """List what may be placed next at `depth`: the lowest first, ties by rank.

    Nothing is placed so high that another buffer would fit in below it: that one could be let down later.
    """
    first, after = state.first[state.low[depth]], state.first[state.high[depth]]
    ceiling = capacity + 1
    for buffer in range(first, after):
        if state.placed[buffer] == 0:
            ceiling = min(ceiling, state.offset[buffer] + state.size[buffer])
    begin = state.candidate_at[depth]
    end = begin
    for buffer in range(first, after):
        offset = state.offset[buffer]
        if state.placed[buffer] == 0 and state.floor[depth] <= offset < ceiling and not is_late(state, depth, buffer):
            end = insert(state, buffer, begin, end)
    state.next[depth] = begin
    state.candidate_end[depth] = end


def is_late(state: State, depth: int, buffer: int) -> bool:
    """Return whether `buffer` should have been placed before the last one: of two at one offset that never meet, the order is fixed."""
    last = state.last[depth]
    if last < 0 or state.offset[buffer] != state.floor[depth] or state.rank[buffer] > state.rank[last]:
        return False
    return state.reach_end[buffer] <= state.begin[last] or state.end[last] <= state.reach_begin[buffer]


def insert(state: State, buffer: int, begin: int, end: int) -> int:
    """Insert `buffer` into the sorted candidates [begin, end); return their new end."""
    offset, rank = state.offset[buffer], state.rank[buffer]
    at = end
    while at > begin:
        other = state.candidate[at - 1]
        if state.offset[other] < offset or (state.offset[other] == offset and state.rank[other] < rank):
            break
        state.candidate[at] = other
        at -= 1
    state.candidate[at] = buffer
    return end + 1
