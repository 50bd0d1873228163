"""The exact search for offsets below a capacity: depth first, from the floor up.

Any placement can be lowered until each buffer lies on another or at 0, and be built in the order of its offsets. So the search places
buffers only at the floor, and misses nothing. Pinned buffers are there from the start: a buffer may also be lowered through one, so each
lies at the lowest offset that those below it and the pinned ones leave. A search node picks one section and branches on it: each of its
buffers at the floor is placed there, and in the last branch none of them is. They are then barred from that offset until a neighbour raises
them, so no placement is met twice. A branch ends as soon as some section cannot hold its unplaced bytes. Where unplaced buffers fall into
parts without overlap, each part is searched by itself; a part without a solution does not ask the others for another one.

Lowered placements and parts are ideas of MiniMalloc: Moffitt, ASPLOS 2023, doi 10.1145/3623278.3624752. The module state has a drawing and
a glossary. Plain functions over flat lists: offsets.compiled compiles them unchanged.
"""

from __future__ import annotations

from onnxtile.planning.offsets.exact_state import SearchState

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
