"""Searches the order of least peak, best first over the ideals of the graph, with a proof that no order has a lower one.

The ideal with the fewest live bytes is continued, by nodes that need at most `limit` bytes. Where no such node is left, no order stays
within the limit, and the limit rises to the least that a node needs: it is a lower bound of every order. Live bytes are a submodular
function of the nodes that have run. So the first ideal with no more live bytes than the one that the search began with is on some order
of least peak. The search begins again from there. The same holds for the order in reverse, where other graphs are
easy. Ideals as search nodes follow Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge
Devices", MLSys 2020; the search from valley to valley is that of Liu, "An application of generalized tree pebbling to sparse matrix
factorization", SIAM J. Alg. Disc. Meth. 1987, doi 10.1137/0608031, for any graph.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from functools import cached_property
from itertools import chain, count, islice
from typing import NamedTuple, TypeAlias

from onnxtile.system.dataclass import dataclass

# The problem of ordering as plain data: nodes, their predecessors, and the units of bytes that they write and read.

Operands: TypeAlias = tuple[tuple[int, ...], ...]
"""The operands that one result may be written over, each as its units of bytes."""


@dataclass(frozen=True)
class OrderingProblem:
    """Nodes and units of bytes by number; the numbering of nodes is a valid order.

    Node n comes after the nodes `after[n]`, and writes or reads the units `touches[n]`. A unit of `sizes[u]` bytes is live from the first
    node that touches it to the last; from the start of the run if it is in `given`, to its end if it is in `kept`. `over[n]` has the
    operands that each result of n may be written over: while n runs, the units of one of them need no bytes beside the result, as far as
    no later node touches them.
    """

    after: tuple[tuple[int, ...], ...]
    touches: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    kept: frozenset[int] = frozenset()
    given: frozenset[int] = frozenset()
    over: Mapping[int, tuple[Operands, ...]] = field(default_factory=dict)

    @cached_property
    def followers(self) -> tuple[tuple[int, ...], ...]:
        """The nodes directly after each node."""
        followers: list[list[int]] = [[] for _ in self.after]
        for node, before in enumerate(self.after):
            for other in before:
                followers[other].append(node)
        return tuple(map(tuple, followers))

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that touch each unit."""
        users: list[list[int]] = [[] for _ in self.sizes]
        for node, touched in enumerate(self.touches):
            for unit in touched:
                users[unit].append(node)
        return tuple(map(tuple, users))

    @cached_property
    def floor(self) -> int:
        """The bytes that every order needs: the largest sum of units that one node touches, or that are given, or kept."""
        alone = (
            sum(self._sizes_of(touched)) - (self.saved(node, frozenset(touched)) if node in self.over else 0)
            for node, touched in enumerate(self.touches)
        )
        return max(*map(sum, map(self._sizes_of, (self.given, self.kept))), max(alone, default=0))

    def _sizes_of(self, units: Iterable[int]) -> Iterable[int]:
        return (self.sizes[unit] for unit in units)

    def saved(self, node: int, ending: Container[int]) -> int:
        """Return the bytes that results of `node` save when they are written over operands; no later node touches the units `ending`."""
        return sum(
            max(sum(self.sizes[unit] for unit in units if unit in ending) for units in operands)
            for operands in self.over.get(node, ())
        )

    def forced(self, node: int) -> int:
        """Return the bytes that are live while `node` runs in every order.

        They are the units that it touches, and those that nodes on a path to it and from it touch. Takes one pass over the graph.
        """
        before = self._reached(node, self.after)
        behind = self._reached(node, self.followers)
        early = self.given.union(*(self.touches[other] for other in before))
        late = self.kept.union(*(self.touches[other] for other in behind))
        ending = {unit for unit in self.touches[node] if unit not in late}
        return sum(self._sizes_of((early & late).union(self.touches[node]))) - self.saved(node, ending)

    def _reached(self, node: int, edges: Sequence[Sequence[int]]) -> set[int]:
        """Return the nodes that paths of one edge or more lead to from `node`."""
        reached: set[int] = set()
        todo = [node]
        while todo:
            new = set(edges[todo.pop()]) - reached
            reached |= new
            todo += new
        return reached

    def without_units_below(self, least: int) -> OrderingProblem:
        """Return the problem in which units of fewer than `least` bytes have none."""
        sizes = tuple(size if size >= least else 0 for size in self.sizes)
        touches = tuple(tuple(unit for unit in touched if sizes[unit]) for touched in self.touches)
        return replace(self, touches=touches, sizes=sizes)

    def between(self, done: AbstractSet[int], nodes: Sequence[int]) -> OrderingProblem:
        """Return the problem of the order of `nodes`, in a valid order, which run after the nodes `done` and before all others.

        Node n of it is `nodes[n]`. Units that none of `nodes` touches are left out.
        """
        number = {node: index for index, node in enumerate(nodes)}
        units = dict.fromkeys(unit for node in nodes for unit in self.touches[node])
        renamed = {unit: index for index, unit in enumerate(units)}
        given = frozenset(renamed[u] for u in units if u in self.given or any(user in done for user in self.users[u]))
        kept = frozenset(
            renamed[u]
            for u in units
            if u in self.kept or any(user not in number and user not in done for user in self.users[u])
        )
        over = {
            number[node]: tuple(
                tuple(tuple(renamed[u] for u in operand) for operand in result) for result in self.over[node]
            )
            for node in nodes
            if node in self.over
        }
        return OrderingProblem(
            tuple(tuple(number[other] for other in self.after[node] if other in number) for node in nodes),
            tuple(tuple(renamed[unit] for unit in self.touches[node]) for node in nodes),
            tuple(self.sizes[unit] for unit in units),
            kept,
            given,
            over,
        )


# Sets of nodes that have run, as bits of a whole number: the live bytes beside them, and the nodes that may run next.

Trail: TypeAlias = "tuple[Trail, list[int]] | None"
"""The nodes that have run, the last ones first."""


class Ideal(NamedTuple):
    """The nodes `done`, which contain the predecessors of each, the `live` bytes between two steps, and the nodes `ready` to run next."""

    done: int
    live: int
    ready: int


class Effect(NamedTuple):
    """The effect of a node on the live bytes: while it runs and after it, against those before.

    After it, the nodes `cheaper` take fewer bytes, and those `freed` are ready.
    """

    during: int
    after: int
    cheaper: int
    freed: int


class Ideals:
    """The ideals of the graph of `problem`: sets of nodes that contain all predecessors of each.

    With `backward`, nodes run from the last to the first: a node is ready when all its followers have run.
    """

    def __init__(self, problem: OrderingProblem, *, backward: bool = False) -> None:
        count = len(problem.after)
        self._backward = backward
        given, kept = (problem.kept, problem.given) if backward else (problem.given, problem.kept)
        # A bit more for the caller before the run, and another for the caller after it.
        users = [_bits(nodes) for nodes in problem.users]
        users = [bits | (unit in given) << count | (unit in kept) << count + 1 for unit, bits in enumerate(users)]
        waits = problem.followers if backward else problem.after
        self._next = problem.after if backward else problem.followers
        self._waits = [_bits(nodes) for nodes in waits]
        sized = [[(problem.sizes[unit], users[unit]) for unit in touched] for touched in problem.touches]
        self._touched = sized
        self._over = {
            node: [[[(problem.sizes[u], users[u]) for u in units] for units in operands] for operands in results]
            for node, results in problem.over.items()
        }
        self._nodes = (1 << count) - 1
        self._near = [self._span(node) for node in range(count)]
        self._effects: list[dict[int, Effect]] = [{} for _ in range(count)]
        ready = sum(1 << node for node, bits in enumerate(self._waits) if not bits)
        self.start = Ideal(1 << count, sum(problem.sizes[unit] for unit in given), ready)
        self.all = (1 << count + 1) - 1
        self.steps = 0

    def _span(self, node: int) -> tuple[int, int]:
        """Return the nodes that decide the effect of `node`, as bits, and the number of zeros below them, which are left out."""
        near = 0
        for _, users in self._touched[node]:
            near |= users
        for other in self._next[node]:
            near |= self._waits[other]
        for operands in self._over.get(node, ()):
            for _, users in chain.from_iterable(operands):
                near |= users
        near &= self._nodes  # the bits of the caller never change
        low = max((near & -near).bit_length() - 1, 0)
        return low, near >> low

    def effect(self, done: int, node: int) -> Effect:
        """Return what `node` changes where it runs after the nodes `done`."""
        self.steps += 1
        # Only the nodes near `node` matter, and ideals share most of these: each case is computed once.
        low, near = self._near[node]
        return self._effects[node].get(done >> low & near) or self._computed(done, node)

    def _computed(self, done: int, node: int) -> Effect:
        """Return the effect of `node`, and keep it."""
        later = done | 1 << node
        during = after = cheaper = 0
        for size, users in self._touched[node]:
            left = users & ~later
            first, last = not users & done, not left
            during += size * first
            after += size * (first - last)
            # A unit that they touch is live by then, or they are the last to touch it.
            if first or not left & (left - 1):
                cheaper |= left
        during -= self._saved(node, done, later) if node in self._over else 0
        freed = 0
        for other in self._next[node]:
            waits = self._waits[other]
            if waits & later == waits:
                freed |= 1 << other
        low, near = self._near[node]
        effect = self._effects[node][done >> low & near] = Effect(during, after, cheaper, freed)
        return effect

    def _saved(self, node: int, done: int, later: int) -> int:
        """Return the bytes that results of `node` save when they are written over operands that no later node touches."""
        saved = 0
        for operands in self._over[node]:
            if self._backward:
                saved += max(sum(size for size, users in units if not users & done) for units in operands)
            else:
                saved += max(sum(size for size, users in units if users & later == users) for units in operands)
        return saved

    def run_safely(self, ideal: Ideal, fresh: int, limit: int, run: list[int]) -> Ideal:
        """Return the ideal after every safe node, of `fresh` and of those whose price they change; append these to `run`.

        A node is safe if it leaves no more bytes live than before and needs at most `limit`: no later node then meets more live bytes.
        """
        done, live, ready = ideal
        near_of, effects = self._near, self._effects
        todo, steps = fresh, 0
        while todo:
            bit = todo & -todo
            todo ^= bit
            node = bit.bit_length() - 1
            steps += 1
            # As `effect` does, without a call: most of the time of a search goes here.
            low, near = near_of[node]
            during, after, cheaper, freed = effects[node].get(done >> low & near) or self._computed(done, node)
            if after <= 0 and live + during <= limit:
                done, live, ready = done | bit, live + after, ready ^ bit | freed
                run.append(node)
                todo |= freed | cheaper & ready
        self.steps += steps
        return Ideal(done, live, ready)

    def run(self, ideal: Ideal, node: int, effect: Effect, limit: int) -> tuple[Ideal, list[int]]:
        """Return the ideal after `node` and every safe node after it, and these nodes in the order in which they run."""
        _, after, cheaper, freed = effect
        bit = 1 << node
        ready = ideal.ready ^ bit | freed
        run = [node]
        further = Ideal(ideal.done | bit, ideal.live + after, ready)
        return self.run_safely(further, freed | cheaper & ready, limit, run), run


def members(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, the lowest first."""
    while bits:
        bit = bits & -bits
        yield bit.bit_length() - 1
        bits ^= bit


def unrolled(trail: Trail) -> list[int]:
    """Return the nodes of `trail` in the order in which they ran."""
    runs = []
    while trail is not None:
        trail, run = trail
        runs.append(run)
    return [node for run in reversed(runs) for node in run]


_FEW = 8
"""Bits, at most, that are set one by one: each takes a pass over the bytes of the number."""


def _bits(nodes: Sequence[int]) -> int:
    """Return a number with the bits `nodes` set, where they are many in one pass over its bytes."""
    if len(nodes) <= _FEW:
        number = 0
        for node in nodes:
            number |= 1 << node
        return number
    bits = bytearray(max(nodes) // 8 + 1)
    for node in nodes:
        bits[node // 8] |= 1 << node % 8
    return int.from_bytes(bits, "little")


BUDGET = 200_000
"""The default budget in steps; a step looks at one node after an ideal. They take about a second."""

WIDEST = 20_000
"""Nodes of a graph, at most, whose orders are searched: each ideal takes a bit for each node."""

_MOST_PEAKS = 8
"""Peaks of the given order, at most, at which the bytes that every order needs are counted; each takes a pass over the graph."""
_ROUNDS = 4
"""Searches in each direction; each takes four times as many steps as the one before."""
_SHARES = (4096, 256)
"""Units smaller than these shares of the bound, as 1/n, are left out where the search of the whole problem does not end quickly."""
_CLOSE = 2048
"""A peak above the bound by this share of it, as 1/n, at most, is not searched further."""
_LARGE = 1000
"""Nodes of a graph, at most, of which a last and longest search begins although those before it have found nothing."""
_STEPS_OF_A_NODE = 4
"""Steps for each node of the graph, at least, that a search may take: with fewer it would not reach the end."""
_NODES_OF_A_STEP = 4
"""Nodes of the graph for each step, at least, that the first proof of the given order may take."""
_LEVELS = 8
"""Limits between the bound and the peak of the given order that are tried one by one where the search does not end."""
_NEAR = 8
"""Outside the exact search, the number of ready nodes to choose from: the first ones, and as many that became ready last."""
_BEFORE_A_TRY = 200
"""Steps of the search, at least, before all nodes that are left are tried in one go."""


@dataclass(frozen=True)
class FoundOrder:
    """The best order found, its peak, and a lower bound of the peak of every order, both in bytes; `steps` were taken to find it."""

    order: tuple[int, ...]
    peak: int
    bound: int
    steps: int = field(default=0, compare=False)

    @property
    def exact(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak == self.bound


def search(problem: OrderingProblem, budget: int = BUDGET) -> FoundOrder:
    """Return an order of `problem` whose peak is at most the one of the given order; the result is deterministic.

    A graph of more than WIDEST nodes is searched in stretches of the given order.
    """
    given = tuple(range(len(problem.after)))
    during = heights(problem, given)
    best = FoundOrder(given, max(during, default=problem.floor), bound_of(problem, during))
    if best.exact:
        return best
    if len(given) > WIDEST:
        return replace(best, order=_in_stretches(problem, budget))
    few = min(max(budget // 16, _STEPS_OF_A_NODE * len(given)), budget // 4)
    known, best = best, _both_ways(problem, best, few)
    first, rounds = best, _ROUNDS
    for share in _SHARES:
        if _is_close(best):
            return best
        best = _roughly(problem, best, best.bound // share, budget // 4)
    if best == first:
        best = _both_ways(problem, best, budget // 4, 1)
        # Searches that ended without an order and a better bound would do so again with more steps.
        has_ended = budget // 4 >= _STEPS_OF_A_NODE * len(given)
        rounds = 0 if has_ended and best == known and len(given) > _LARGE else 1
    if _is_close(best):
        return best
    return _both_ways(problem, best, budget, rounds, to_the_end=True)


def others(problem: OrderingProblem, best: FoundOrder) -> Iterator[tuple[int, ...]]:
    """Yield orders with the peak of `best`, which is the least, as the searches in both directions find them.

    Their buffers may leave smaller gaps in an arena.
    """
    for backward in (False, True):
        above = replace(best, peak=best.peak + 1)
        other = _Direction(problem, backward=backward).least(above, BUDGET // 4)
        if other.peak == best.peak:
            yield other.order


def _both_ways(
    problem: OrderingProblem, given: FoundOrder, budget: int, rounds: int = _ROUNDS, *, to_the_end: bool = False
) -> FoundOrder:
    """Return the best order that is found from the first node, or from the last, within `budget` steps each; at worst `given`.

    With `to_the_end`, orders that are quickly made are tried where the searches do not end.
    """
    best = given
    if best.exact:
        return best
    directions = [_Direction(problem, backward=backward) for backward in (False, True)]
    # From the last node, few steps most often prove the given order where many from the first do not.
    proof = directions[1].least(given, len(problem.after) // _NODES_OF_A_STEP)
    if proof.exact and proof.peak == given.peak:
        return proof
    best = replace(best, steps=proof.steps)
    budgets = [budget // 4**level for level in reversed(range(rounds))]
    for steps in (steps for steps in budgets if steps >= _STEPS_OF_A_NODE * len(problem.after)):
        for direction in directions:
            trial = direction.least(best, steps)
            if trial.exact:
                return trial
            best = replace(best, bound=max(best.bound, trial.bound), steps=trial.steps)
    if not to_the_end:
        return best
    quick = [direction.quickly(best, budget) for direction in directions]
    taken = sum(trial.steps - best.steps for trial in quick)
    return replace(min(quick, key=lambda trial: trial.peak), steps=best.steps + taken)


def _roughly(problem: OrderingProblem, given: FoundOrder, least: int, budget: int) -> FoundOrder:
    """Return the best order that is found where units of fewer than `least` bytes count nothing; at worst `given`.

    A bound without some units is one with them. Many small tensors, such as those of a computed shape, hide how few orders matter.
    """
    if all(size >= least for size in problem.sizes if size):
        return given
    rough = problem.without_units_below(least)
    during = heights(rough, given.order)
    rough_bound = bound_of(rough, heights(rough, range(len(during))))
    improved = _both_ways(rough, FoundOrder(given.order, max(during), rough_bound, given.steps), budget)
    bound = max(given.bound, improved.bound)
    peak = max(heights(problem, improved.order))
    best = improved if peak < given.peak else given
    return FoundOrder(best.order, min(peak, given.peak), bound, improved.steps)


def _is_close(order: FoundOrder) -> bool:
    """Return whether no order has a peak lower than that of `order` by more than a small share."""
    return order.peak - order.bound <= order.bound // _CLOSE


def heights(problem: OrderingProblem, order: Sequence[int]) -> list[int]:
    """Return the live bytes while each node of `order` runs."""
    sizes, over = problem.sizes, problem.over
    left = [len(users) + (unit in problem.kept) for unit, users in enumerate(problem.users)]
    born = [unit in problem.given for unit in range(len(left))]
    live = sum(sizes[unit] for unit in problem.given)
    sums = []
    for node in order:
        ending = []
        for unit in problem.touches[node]:
            if not born[unit]:
                born[unit] = True
                live += sizes[unit]
            if left[unit] == 1:
                ending.append(unit)
            left[unit] -= 1
        sums.append(live - problem.saved(node, frozenset(ending)) if node in over else live)
        for unit in ending:
            live -= sizes[unit]
    return sums


def bound_of(problem: OrderingProblem, during: Sequence[int]) -> int:
    """Return the bytes that every order needs at a peak of the given order, whose live bytes are `during`, or to run any one node."""
    peak = max(during, default=0)
    bound = max(problem.floor, 0)
    for node in islice((node for node, bytes_of in enumerate(during) if bytes_of == peak), _MOST_PEAKS):
        if bound >= peak:  # no bound is higher
            break
        bound = max(bound, problem.forced(node))
    return bound


def _in_stretches(problem: OrderingProblem, budget: int) -> tuple[int, ...]:
    """Return an order in which each stretch of WIDEST nodes of the given order has the least peak that is found."""
    order: list[int] = []
    for first in range(0, len(problem.after), WIDEST):
        nodes = range(first, min(first + WIDEST, len(problem.after)))
        part = problem.between(set(range(first)), nodes)
        order += (nodes[index] for index in search(part, budget).order)
    return tuple(order)


class _Direction:
    """The search of the orders of `problem` from the first node, or `backward` from the last."""

    def __init__(self, problem: OrderingProblem, *, backward: bool) -> None:
        self._problem = problem
        self._backward = backward

    @cached_property
    def _ideals(self) -> Ideals:
        return Ideals(self._problem, backward=self._backward)

    def least(self, given: FoundOrder, budget: int) -> FoundOrder:
        """Return the order of least peak; where `budget` steps do not suffice, `given` with the bound that is proved by then.

        The steps that are taken are added to those of `given`.
        """
        ideals = self._ideals
        ideals.steps = 0
        order: list[int] = []
        at = ideals.run_safely(ideals.start, ideals.start.ready, given.bound, order)
        limit = given.bound
        while at.done != ideals.all:
            valley = _Valley(ideals, at, limit)
            reached = valley.next(given.peak, budget)
            limit = valley.limit
            if limit >= given.peak or reached is None:
                return replace(given, bound=min(limit, given.peak), steps=given.steps + ideals.steps)
            at, run = reached
            order += run
        return self._ordered(order, limit, given)

    def quickly(self, given: FoundOrder, budget: int) -> FoundOrder:
        """Return an order with a peak not far above the bound of `given`, without going back; else `given`.

        No further try begins after `budget` steps.
        """
        self._ideals.steps = 0
        for level in range(_LEVELS):
            if self._ideals.steps > budget:
                break
            limit = given.bound + (given.peak - given.bound) * level // _LEVELS
            run = dive(self._ideals, self._ideals.start, limit)
            if run is not None:
                return self._ordered(run, given.bound, given)
        return replace(given, steps=given.steps + self._ideals.steps)

    def _ordered(self, run: Sequence[int], bound: int, given: FoundOrder) -> FoundOrder:
        order = tuple(reversed(run) if self._backward else run)
        peak = max(heights(self._problem, order), default=self._problem.floor)
        return FoundOrder(order, peak, bound, given.steps + self._ideals.steps)


class _Valley:
    """The search for the next ideal on an order of least peak, from the ideal `start`; no node may need more than `limit` bytes.

    Nodes that need more are kept, until no others are left: then the limit rises.
    """

    def __init__(self, ideals: Ideals, start: Ideal, limit: int) -> None:
        self.limit = limit
        self._ideals = ideals
        self._start = start
        self._numbers = count()
        self._seen = {start.done}
        self._open: list[tuple[int, int, int, Ideal, Trail]] = []
        self._blocked: list[tuple[int, int, Ideal, int, Trail]] = []
        self._put(start, None)

    def next(self, most: int, budget: int) -> tuple[Ideal, list[int]] | None:
        """Return the next ideal, and the nodes that lead to it; None where the limit reaches `most`, or the `budget` ends."""
        ideals = self._ideals
        next_try = ideals.steps + _BEFORE_A_TRY
        while ideals.steps < budget and self._rises(most):
            _, _, number, ideal, trail = heapq.heappop(self._open)
            if number and (ideal.live <= self._start.live or ideal.done == self._ideals.all):
                return ideal, unrolled(trail)
            if ideals.steps >= next_try:
                steps = ideals.steps
                run = dive(ideals, ideal, self.limit)
                if run is not None:
                    return ideal._replace(done=ideals.all), [*unrolled(trail), *run]
                # As many steps are spent on these tries as on the search itself.
                next_try = 2 * ideals.steps - steps + _BEFORE_A_TRY
            for node in members(ideal.ready):
                self._continue(ideal, node, trail)
        return None

    def _rises(self, most: int) -> bool:
        """Raise the limit until an ideal can be continued; return whether it stays below `most`."""
        while not self._open:
            self.limit = self._blocked[0][0]
            if self.limit >= most:
                return False
            while self._blocked and self._blocked[0][0] <= self.limit:
                _, _, ideal, node, trail = heapq.heappop(self._blocked)
                self._continue(ideal, node, trail)
        return True

    def _continue(self, ideal: Ideal, node: int, trail: Trail) -> None:
        ideals = self._ideals
        done = ideal.done | 1 << node
        if done in self._seen:
            return
        effect = ideals.effect(ideal.done, node)
        during = ideal.live + effect.during
        if during > self.limit:
            heapq.heappush(self._blocked, (during, next(self._numbers), ideal, node, trail))
            return
        self._seen.add(done)
        further, run = ideals.run(ideal, node, effect, self.limit)
        if further.done == done or further.done not in self._seen:
            self._seen.add(further.done)
            self._put(further, (trail, run))

    def _put(self, ideal: Ideal, trail: Trail) -> None:
        # Of equals, the one with more nodes first: so no two ideals tie that matter to the proof.
        heapq.heappush(self._open, (ideal.live, -ideal.done.bit_count(), next(self._numbers), ideal, trail))


def dive(ideals: Ideals, ideal: Ideal, limit: int) -> list[int] | None:
    """Return the nodes after `ideal` in an order in which none needs more than `limit` bytes; None where the first try finds none.

    Of a few ready nodes, the one that leaves the fewest live bytes runs next.
    """
    run: list[int] = []
    ideal = ideals.run_safely(ideal, ideal.ready, limit, run)
    while ideal.ready:
        effects = ((node, ideals.effect(ideal.done, node)) for node in _few(ideal.ready))
        ways = [(node, effect) for node, effect in effects if ideal.live + effect.during <= limit]
        if not ways:
            return None
        node, effect = min(ways, key=lambda way: (way[1].after, -way[0]))
        ideal, further = ideals.run(ideal, node, effect, limit)
        run += further
    return run


def _few(ready: int) -> list[int]:
    """Return the first and the last few of the nodes `ready`."""
    few = []
    for _ in range(_NEAR):
        if ready:
            bit = ready & -ready
            few.append(bit.bit_length() - 1)
            ready ^= bit
    for _ in range(_NEAR):
        if ready:
            few.append(ready.bit_length() - 1)
            ready ^= 1 << few[-1]
    return few


# Orders the nodes before and after a peak so that they have the least peak there, too, and so on within them.

_BUDGET = 200_000
"""The budget in steps: each look at a stretch of nodes counts its nodes, and the steps that its search took."""
_SHORTEST = 2
"""Nodes of a stretch, at least, that is searched."""
_STEPS_OF_A_PART = 50
"""Steps for each node of a stretch that its search may take."""
_LEAST_OF_A_NODE = 80
"""Steps of the budget for each node of the graph, at least: of larger graphs, few stretches could be searched."""


def refined(problem: OrderingProblem, order: Sequence[int]) -> tuple[int, ...]:
    """Return `order` with the nodes before and after its peak in an order of less peak, recursively; the peak stays the same.

    The nodes before the peak stay before it, so that only their order changes. The result is deterministic. A graph with too many nodes
    for the budget stays in `order`.
    """
    budget = _BUDGET
    if len(order) * _LEAST_OF_A_NODE > budget:
        return tuple(order)
    improved: list[int] = []
    done: set[int] = set()
    # Nodes that run one after the other, and whether their order has the least peak already.
    todo: list[tuple[Sequence[int], bool]] = [(order, True)]
    while todo:
        nodes, is_searched = todo.pop()
        if len(nodes) < _SHORTEST or budget < len(nodes):
            improved += nodes
            done.update(nodes)
            continue
        budget -= len(nodes)
        part = problem.between(done, nodes)
        places: Sequence[int] = range(len(nodes))
        if not is_searched:
            best = search(part, _STEPS_OF_A_PART * len(nodes))
            places, budget = best.order, budget - best.steps
        during = heights(part, places)
        at = during.index(max(during))
        nodes = [nodes[index] for index in places]
        todo += [(nodes[at + 1 :], False), (nodes[at : at + 1], True), (nodes[:at], False)]
    return tuple(improved)
