"""The search for the order of least peak and its bound, held against trying all orders."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.planning import peak_search as searching
from onnxtile.planning.peak_search import (
    Effect,
    FoundOrder,
    Ideals,
    OrderingProblem,
    bound_of,
    heights,
    refined,
    search,
)
from tests.draws import draws
from tests.planning.conftest import Case

WIDE_FIRST = OrderingProblem(
    # Two branches from one node, of which each grows before it shrinks: one after the other is better than in turns.
    after=((), (0,), (0,), (1,), (2,), (3, 4)),
    touches=((0,), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3, 4)),
    sizes=(1, 100, 100, 1, 1, 1),
    kept=frozenset({5}),
)


_EITHER: st.SearchStrategy[bool] = st.booleans()


@st.composite
def works(draw: st.DrawFn, most: int = 5) -> OrderingProblem:
    """Graphs whose nodes write units of their own and read those of others, some also without a path; some write over an operand."""
    count = draw(st.integers(1, most))
    sets = [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(count)]
    after = tuple(tuple(sorted(before)) for before in sets)
    units = [tuple(range(2 * n, 2 * n + draw(st.integers(1, 2)))) for n in range(count)]
    sizes = tuple(draw(st.integers(0, 4)) for _ in range(2 * count + 2))
    given_units = draw(st.sets(st.sampled_from([2 * count, 2 * count + 1])))
    touches, over = [], {}
    for node in range(count):
        read = {unit for other in after[node] for unit in units[other] if unit % 2 == 0}
        read |= {unit for other in after[node] for unit in units[other] if draw(_EITHER)}
        read |= draw(st.sets(st.sampled_from([2 * count, 2 * count + 1])))
        touches.append((*units[node], *sorted(read)))
        operands = tuple(tuple(u for u in units[other] if u in read) for other in after[node])
        bytes_of = sum(sizes[unit] for unit in units[node])
        lawful = tuple(own for own in operands if own and sum(sizes[unit] for unit in own) <= bytes_of)
        if draw(_EITHER) and lawful:
            over[node] = (lawful,)
    kept = frozenset(draw(st.sets(st.integers(0, 2 * count + 1), max_size=2)))
    touched = {unit for row in touches for unit in row}
    return OrderingProblem(after, tuple(touches), sizes, kept & touched, frozenset(given_units & touched), over)


def orders(work: OrderingProblem, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(done) == len(work.after):
        yield done
    for node, before in enumerate(work.after):
        if node not in done and set(before) <= set(done):
            yield from orders(work, (*done, node))


def during(work: OrderingProblem, order: Sequence[int]) -> list[int]:
    """Return the live bytes of each step of `order`, from the definition: over all units."""
    place = {node: step for step, node in enumerate(order)}
    uses = [[place[n] for n, touched in enumerate(work.touches) if unit in touched] for unit in range(len(work.sizes))]
    first = [-1 if unit in work.given else min(steps, default=0) for unit, steps in enumerate(uses)]
    last = [len(order) if unit in work.kept else max(steps, default=-1) for unit, steps in enumerate(uses)]
    found = []
    for step, node in enumerate(order):
        live = sum(work.sizes[unit] for unit in range(len(uses)) if uses[unit] and first[unit] <= step <= last[unit])
        saved = [
            max(sum(work.sizes[unit] for unit in operand if last[unit] == step) for operand in operands)
            for operands in work.over.get(node, ())
        ]
        found.append(live - sum(saved))
    return found


def peak(work: OrderingProblem, order: Sequence[int]) -> int:
    return max(during(work, order))


@draws(40, 160)
@given(works())
def test_the_search_finds_the_least_peak_of_all_orders(work: OrderingProblem) -> None:
    found = search(work)
    assert sorted(found.order) == list(range(len(work.after)))
    assert found.peak == peak(work, found.order) == min(peak(work, order) for order in orders(work))
    assert found.exact


@given(works(), st.integers(0, 60))
def test_with_few_steps_the_bound_is_true_and_the_order_not_worse(work: OrderingProblem, budget: int) -> None:
    found = search(work, budget)
    place = {node: step for step, node in enumerate(found.order)}
    assert all(place[other] < place[node] for node, before in enumerate(work.after) for other in before)
    assert found.peak == peak(work, found.order) <= peak(work, range(len(work.after)))
    assert found.bound <= min(peak(work, order) for order in orders(work))


@pytest.mark.parametrize("backward", [False, True])
@draws(25, 100)
@given(work=works())
def test_each_direction_alone_finds_the_least_peak(backward: bool, work: OrderingProblem) -> None:
    own = tuple(range(len(work.after)))
    # Above the peak of every order, so that nothing ends the search early; and from no bound at all.
    given_order = FoundOrder(own, sum(work.sizes) + 1, 0)
    found = searching._Direction(work, backward=backward).least(given_order, 10**9)
    assert found.peak == found.bound == peak(work, found.order) == min(peak(work, order) for order in orders(work))


@given(works())
def test_bytes_that_every_order_needs(work: OrderingProblem) -> None:
    least = min(peak(work, order) for order in orders(work))
    own = heights(work, range(len(work.after)))
    assert own == during(work, range(len(work.after)))
    assert work.floor <= bound_of(work, own) <= least
    for node in range(len(work.after)):
        assert work.forced(node) <= min(during(work, order)[order.index(node)] for order in orders(work))


def test_branches_run_one_after_the_other() -> None:
    found = search(WIDE_FIRST)
    assert (found.peak, found.exact) == (102, True)
    assert peak(WIDE_FIRST, (0, 1, 2, 3, 4, 5)) == 201


def test_what_the_given_order_cannot_be_bettered_in_is_left() -> None:
    chain = OrderingProblem(((), (0,), (1,)), ((0,), (1, 0), (2, 1)), (4, 4, 4))
    assert search(chain) == FoundOrder((0, 1, 2), 8, 8)


def test_the_order_of_wide_and_long_graphs_is_found_without_trying_all() -> None:
    # 100 branches of 30 nodes, each of which is 8 bytes wide inside: in turns they take 100 times as much.
    branches, length = 100, 30
    after: list[tuple[int, ...]] = [()]
    after += [(0,) if n < branches else (n - branches + 1,) for n in range(branches * length)]
    count = len(after)
    touches = [(0,)] + [(n, *after[n]) for n in range(1, count)]
    sizes = [1] + [8 if n < branches * (length - 1) else 1 for n in range(count - 1)]
    found = search(OrderingProblem(tuple(after), tuple(touches), tuple(sizes)), budget=10_000)
    assert found.peak <= 2 * 8 + 1 < 100 * 8


def tangled(count: int) -> OrderingProblem:
    """A graph whose search takes very many steps: each node reads results of three of the last twenty, of about equal size."""
    draw = random.Random(count)
    after = [tuple(sorted(draw.sample(range(max(n - 20, 0), n), min(n, 3)))) for n in range(count)]
    touches = tuple((n, *before) for n, before in enumerate(after))
    return OrderingProblem(tuple(after), touches, tuple(draw.randrange(90, 110) for _ in range(count)))


def test_no_search_is_done_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[bool, int, int]] = []
    least = searching._Direction.least

    def noted(self: searching._Direction, given: FoundOrder, budget: int) -> FoundOrder:
        done.append((self._backward, budget, given.bound))
        return least(self, given, budget)

    monkeypatch.setattr(searching._Direction, "least", noted)
    found = search(tangled(100), budget=8_000)
    assert not found.exact
    assert len(done) == len(set(done)) > 2


def test_the_steps_of_a_search_are_those_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    made = Ideals.__init__

    class Counted(dict[int, Effect]):
        """The known effects of one node: each step looks up one."""

        def get(self, key: int, default: Any = None) -> Any:
            nonlocal steps
            steps += 1
            return super().get(key, default)

    def counted(self: Ideals, problem: OrderingProblem, *, backward: bool = False) -> None:
        made(self, problem, backward=backward)
        self._effects = [Counted() for _ in self._effects]

    monkeypatch.setattr(Ideals, "__init__", counted)
    assert search(tangled(100), budget=8_000).steps == steps > 8_000


def test_the_budget_bounds_the_steps_of_all_searches_of_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def noted(problem: OrderingProblem, budget: int) -> FoundOrder:
        found = search(problem, budget)
        taken.append(found.steps)
        return found

    monkeypatch.setattr(searching, "search", noted)
    monkeypatch.setattr(searching, "_BUDGET", 8_000)
    refined(tangled(100), range(100))
    # The last search may go beyond it.
    assert sum(taken[:-1]) <= 8_000 < sum(taken)


def test_a_graph_too_wide_to_search_is_searched_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = in_parallel(5, wide=1000)
    monkeypatch.setattr(searching, "WIDEST", 6)
    found = search(problem)
    assert not found.exact
    assert sorted(found.order) == list(range(30))
    assert max(heights(problem, found.order)) == 1002


def in_parallel(blocks: int, wide: int) -> OrderingProblem:
    """Return WIDE_FIRST several times, one after the other, with `sizes` of the branches up to `wide` in the middle block."""
    after: list[tuple[int, ...]] = []
    touches, sizes = [], []
    for block in range(blocks):
        at = len(after)
        size = wide if block == blocks // 2 else 100
        before = (at - 1,) if at else ()
        after += [before, (at,), (at,), (at + 1,), (at + 2,), (at + 3, at + 4)]
        touches += [
            (at, *before),
            (at + 1, at),
            (at + 2, at),
            (at + 3, at + 1),
            (at + 4, at + 2),
            (at + 5, at + 3, at + 4),
        ]
        sizes += [1, size, size, 1, 1, 1]
    return OrderingProblem(tuple(after), tuple(touches), tuple(sizes), frozenset({len(after) - 1}))


def test_before_and_after_the_peak_the_order_is_searched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = in_parallel(5, wide=1000)
    found = refined(problem, search(problem).order)
    heights_of = during(problem, found)
    assert max(heights_of) == 1002
    for block in (0, 1, 3, 4):
        assert max(heights_of[6 * block : 6 * block + 6]) == 102
    # With fewer than 80 steps for each node, no search is begun.
    for budget, is_searched in ((0, False), (30 * 80 - 1, False), (30 * 80, True)):
        monkeypatch.setattr(searching, "_BUDGET", budget)
        assert (refined(problem, range(30)) != tuple(range(30))) == is_searched


@given(works())
def test_the_nodes_before_and_after_the_peak_have_the_least_peak_of_all_their_orders(problem: OrderingProblem) -> None:
    found = refined(problem, search(problem).order)
    high = during(problem, found)
    assert max(high) == search(problem).peak
    at = high.index(max(high))
    for part in (slice(0, at), slice(at + 1, None)):
        others = [order for order in orders(problem) if set(order[part]) == set(found[part])]
        assert max(high[part], default=0) == min(max(during(problem, order)[part], default=0) for order in others)


@given(works(), st.data())
def test_the_part_of_a_problem_between_two_sets_of_nodes(problem: OrderingProblem, data: st.DataObject) -> None:
    count = len(problem.after)
    first = data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(first + 1, count))
    part = problem.between(set(range(first)), range(first, end))
    whole = during(problem, range(count))[first:end]
    # Units that the part does not touch are live all the time, and left out.
    assert len({a - b for a, b in zip(whole, during(part, range(end - first)), strict=True)}) == 1


@given(works())
def test_other_orders_have_the_least_peak_too(problem: OrderingProblem) -> None:
    found = search(problem)
    for order in searching.others(problem, found):
        assert sorted(order) == list(range(len(problem.after)))
        assert max(during(problem, order)) == found.peak


def test_a_body_without_nodes_has_one_order() -> None:
    """Its inputs have sizes that leave a gap, so that a second order is looked for."""
    text = """g (float[13] x) => (float[13] y) {
      turns = Constant<value = int64 {3}>()
      y = Loop(turns, "", x) <body = b (int64 i, bool go, float[13] v) => (bool go, float[13] v) {}>
    }"""
    case = Case.of(text)
    assert case.run(case.plan(order="min-peak", planner="greedy-by-size", io="outside", alignment=1)).equal
