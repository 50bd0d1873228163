"""The search itself: depth first, from the ground up, each buffer resting on another or on the ground.

Every sound plan can be let down until each buffer rests, and its buffers then be taken in the order of their offsets: so nothing is
missed. At each depth one section is asked which of its buffers stands at the lowest offset that is left, the ground; each is tried, and
then that none does: these are barred from there until another raises them. So each plan is met once, and what fails in a section is
not tried again with all that could happen elsewhere. A branch is given up as soon as some section cannot hold what is still to come.
Where the buffers still to be placed fall into parts that are never in each other's way, each part is searched by itself; when one has no
solution, the others are not asked for another of theirs. The idea of canonical plans and of parts is MiniMalloc's: Moffitt, ASPLOS 2023,
doi 10.1145/3623278.3624752.

Plain functions over flat lists: plan.compiled compiles them as they are.
"""

from __future__ import annotations

from onnxtile.planning.offsets.exact.state import SearchState

SOLVED, IMPOSSIBLE, STOPPED = 1, 0, -1


def descend(state: SearchState, capacity: int, nodes: int, looks: int) -> tuple[int, int]:
    """Search offsets with every buffer below `capacity`; leave them in `state.offset`. Return how it ended, and the looks it took.

    It ends SOLVED, IMPOSSIBLE (there are none), or STOPPED after `nodes` placements or `looks` at a buffer, whatever comes first. Looks at
    buffers and sections measure the work: a budget in them ends a search at the same place on every machine.
    """
    start(state)
    for section in range(len(state.unplaced)):
        if state.unplaced[section] > capacity:
            return IMPOSSIBLE, 0
    depth = trail = placed = 0
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


def start(state: SearchState) -> None:
    """Set `state` back to nothing placed."""
    for section in range(len(state.unplaced)):
        state.unplaced[section] = 0
        state.crossing[section] = 0
    for buffer in range(len(state.size)):
        state.offset[buffer] = 0
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


def breaks_symmetry(state: SearchState, buffer: int) -> bool:
    """Return whether `buffer`, placed now, would stand on its twin, or where its twin could, and the twin has the better rank.

    Twins have the same life and could change places: with two that touch, or two of one size, the plan would be as good. Of such plans
    the one with the fewest pairs that are out of rank has none of these, and is enough.
    """
    for k in range(state.equivalent_at[buffer], state.equivalent_at[buffer + 1]):
        equivalent = state.equivalent[k]
        if state.rank[equivalent] > state.rank[buffer]:
            if (
                state.placed[equivalent] == 1
                and state.offset[equivalent] + state.size[equivalent] == state.offset[buffer]
            ):
                return True
        elif state.placed[equivalent] == 0 and state.size[equivalent] == state.size[buffer]:
            return True
    return False


def place(state: SearchState, buffer: int, depth: int, trail: int) -> int:
    """Place `buffer` at its lowest offset, raise its neighbours above it, and return the new end of the trail."""
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
            state.offset[other] = -(-top // state.unit[other]) * state.unit[other]
            state.barred[other] = 0
            trail += 1
    return trail


def bar_candidates(state: SearchState, depth: int, trail: int) -> int:
    """Bar the candidates of `depth`, none of which helped, from where they could be placed; return the new end of the trail."""
    for k in range(state.candidate_at[depth], state.candidate_end[depth]):
        buffer = state.candidate[k]
        state.trail[trail] = buffer
        state.trail_offset[trail] = state.offset[buffer]
        state.trail_barred[trail] = 0
        state.barred[buffer] = 1
        trail += 1
    return trail


def take_back(state: SearchState, depth: int, trail: int) -> int:
    """Undo what `place` did at `depth`, and all since; return the new end of the trail."""
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
    """Return the depth at which the next candidate may help, and the end of the trail there; the depth is -1 where there is none."""
    target = state.back[depth] - 1
    while depth > target and depth > 0:
        depth -= 1
        trail = take_back(state, depth, trail)
    return (depth if target >= 0 else -1), trail


def inherit(state: SearchState, depth: int) -> None:
    """Let `depth`, which has just been reached by placing a buffer, begin where the depth before it stands."""
    above = depth - 1
    state.low[depth] = state.low[above]
    state.high[depth] = state.high[above]
    state.back[depth] = depth
    state.waiting[depth] = state.waiting[above]
    state.free[depth] = state.free[above]
    state.candidate_at[depth] = state.candidate_end[above]


def focus(state: SearchState, depth: int) -> bool:
    """Let `depth` look at one part of the sections only, and the others wait; return whether anything is left to place."""
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
    """Put the sections [low, high) in the queue, as they stand at `depth`."""
    turn = state.free[depth]
    state.wait_low[turn] = low
    state.wait_high[turn] = high
    # A part that is split again goes back to where its elder parts go: the depth at which they all were last whole.
    state.wait_back[turn] = state.back[depth]
    state.wait_next[turn] = state.waiting[depth]
    state.waiting[depth] = turn
    state.free[depth] = turn + 1


def open_depth(state: SearchState, depth: int, capacity: int) -> int:
    """Find what may be placed next at `depth`, the best rank first: nothing where no plan goes on from here. Return the looks it took."""
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
                state.failures[state.member[k]] += 1.0
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
    """Look through what is still to be placed in the sections [low, high).

    Return the ground, the lowest offset of those that are not barred; the one of the best rank there, -1 where there is none; the lowest
    top that any can have; how many are at the ground (listed in `state.lowest`), and how many are barred (in `state.passed`).

    What is barred has to stand on something that is placed later, on the ground or above: if all of that starts above its top, it could
    be let down to where it was barred from. So there is no plan where the ground has reached such a top.
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
    """Return whether a neighbour still to be placed can start below the top of `buffer`, which is barred; see `survey`."""
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
    """Return where `buffer` starts at the lowest, `otherwise` if it is placed: what is barred starts on top of another at least."""
    if state.placed[buffer] == 1:
        return otherwise
    return state.offset[buffer] if state.barred[buffer] == 0 else raised


def overfull(state: SearchState, low: int, high: int, raised: int, capacity: int) -> int:
    """Return one of the sections [low, high) that cannot hold what it must still take; -1 where there is none.

    A section has room only if one of its buffers can start so low that all of them fit above it.
    """
    for section in range(low, high):
        if state.unplaced[section] > 0 and not has_room(state, section, raised, capacity - state.unplaced[section]):
            return section
    return -1


def has_room(state: SearchState, section: int, raised: int, limit: int) -> bool:
    """Return whether a buffer of `section` can start at `limit` or lower; the one found last is asked first."""
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
    """Return the section of `buffer`, which is at the ground, that leaves the fewest ways to go on, and the looks it took.

    Each of its buffers at the ground is a way; that none of them stands there is another, if the section can spare it. Ties go to the
    section that has the most still to come.
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
    """Return whether a buffer of `section` can start above the ground, at `limit` or lower."""
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
