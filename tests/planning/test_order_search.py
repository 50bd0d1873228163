"""The search for the order of least peak, held against trying all orders."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem
from onnxtile.planning.layout.ordering.schedule_prefix import SchedulePrefix
from onnxtile.planning.layout.ordering.search import FoundOrder, search

WIDE_FIRST = OrderingProblem(
    # Two branches from one node, of which each grows before it shrinks: one after the other is better than in turns.
    after=((), (0,), (0,), (1,), (2,), (3, 4)),
    touches=((0,), (1, 0), (2, 0), (3, 1), (4, 2), (5, 3, 4)),
    makes=((0,), (1,), (2,), (3,), (4,), (5,)),
    sizes=(1, 100, 100, 1, 1, 1),
    kept=frozenset({5}),
)


@st.composite
def works(draw: st.DrawFn) -> OrderingProblem:
    """Graphs of up to six nodes, each with one result, of which some are written over an operand of their size."""
    count = draw(st.integers(1, 6))
    after = tuple(tuple(sorted(draw(st.sets(st.integers(0, n - 1), max_size=3)))) if n else () for n in range(count))
    sizes = tuple(draw(st.integers(1, 4)) for _ in range(count))
    over = {
        n: tuple((n, other) for other in after[n] if sizes[other] == sizes[n])
        for n in range(count)
        if draw(st.booleans())
    }
    kept = frozenset(draw(st.sets(st.integers(0, count - 1), max_size=2)))
    return OrderingProblem(
        after, tuple((n, *after[n]) for n in range(count)), tuple((n,) for n in range(count)), sizes, kept, over
    )


def orders(work: OrderingProblem, done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(done) == len(work.after):
        yield done
    for node, before in enumerate(work.after):
        if node not in done and set(before) <= set(done):
            yield from orders(work, (*done, node))


def peak(work: OrderingProblem, order: tuple[int, ...]) -> int:
    """Return the peak of `order`, from the definition: step by step, over all buffers."""
    place = {node: step for step, node in enumerate(order)}
    highest = 0
    for step, node in enumerate(order):
        uses = [[place[n] for n, touched in enumerate(work.touches) if b in touched] for b in range(len(work.sizes))]
        live = {
            b for b, steps in enumerate(uses) if steps and min(steps) <= step and (step <= max(steps) or b in work.kept)
        }
        saved = [
            work.sizes[made]
            for made, source in work.overwrites(node)
            if min(uses[made]) == step and max(uses[source]) == step and source not in work.kept
        ]
        highest = max(highest, sum(work.sizes[b] for b in live) - max(saved, default=0))
    return highest


@settings(deadline=None)
@given(works())
def test_the_search_finds_the_least_peak_of_all_orders(work: OrderingProblem) -> None:
    found = search(work)
    assert sorted(found.order) == list(range(len(work.after)))
    assert found.peak == peak(work, found.order) == min(peak(work, order) for order in orders(work))
    assert found.exact


@settings(deadline=None)
@given(works(), st.integers(0, 12))
def test_with_few_steps_the_order_is_one_and_not_worse_than_the_given_one(work: OrderingProblem, budget: int) -> None:
    found = search(work, budget)
    place = {node: step for step, node in enumerate(found.order)}
    assert all(place[other] < place[node] for node, before in enumerate(work.after) for other in before)
    assert found.peak == peak(work, found.order) <= peak(work, tuple(range(len(work.after))))


@pytest.mark.parametrize(("budget", "exact"), [(1000, True), (0, False)], ids=["best first", "greedy"])
def test_branches_run_one_after_the_other(budget: int, exact: bool) -> None:
    found = search(WIDE_FIRST, budget)
    assert (found.peak, found.exact) == (102, exact)
    assert peak(WIDE_FIRST, (0, 1, 2, 3, 4, 5)) == 201


def test_what_the_given_order_cannot_be_bettered_in_is_left() -> None:
    chain = OrderingProblem(((), (0,), (1,)), ((0,), (1, 0), (2, 1)), ((0,), (1,), (2,)), (4, 4, 4))
    assert search(chain) == FoundOrder((0, 1, 2), 8, exact=True)


def test_the_order_of_wide_and_long_graphs_is_found_without_trying_all() -> None:
    # 400 branches of 50 nodes, each of which is 8 bytes wide inside: in turns they take 400 times as much.
    branches, length = 400, 50
    after = [()] + [(0,) if n < branches else (n - branches + 1,) for n in range(branches * length)]
    count = len(after)
    touches = [(0,)] + [(n, *after[n]) for n in range(1, count)]
    sizes = [1] + [8 if n < branches * (length - 1) else 1 for n in range(count - 1)]
    work = OrderingProblem(tuple(after), tuple(touches), tuple((n,) for n in range(count)), tuple(sizes))
    found = search(work, budget=10_000)
    assert not found.exact
    assert found.peak < 4 * 8 + 1 < 400 * 8


def in_parallel(blocks: int, wide: int) -> OrderingProblem:
    """Return WIDE_FIRST several times, one after the other, with `sizes` of the branches up to `wide` in the middle block."""
    after: list[tuple[int, ...]] = []
    touches, makes, sizes = [], [], []
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
        makes += [(at + n,) for n in range(6)]
        sizes += [1, size, size, 1, 1, 1]
    return OrderingProblem(tuple(after), tuple(touches), tuple(makes), tuple(sizes), frozenset({len(after) - 1}))


def test_before_and_after_the_peak_the_order_is_searched_too() -> None:
    problem = in_parallel(5, wide=1000)
    found = search(problem)
    assert found.peak == peak(problem, found.order) < 1200
    for block in (0, 1, 3, 4):
        nodes = range(6 * block, 6 * block + 6)
        order = tuple(node for node in found.order if node in nodes)
        assert found.order[6 * block : 6 * block + 6] == order
        alone = OrderingProblem(
            tuple(tuple(n - 6 * block for n in problem.after[node] if n in nodes) for node in nodes),
            tuple(tuple(b - 6 * block for b in problem.touches[node] if b in nodes) for node in nodes),
            tuple((n,) for n in range(6)),
            (1, 100, 100, 1, 1, 1),
        )
        assert peak(alone, tuple(node - 6 * block for node in order)) < 200


@settings(deadline=None)
@given(works())
def test_the_nodes_before_the_peak_have_the_least_peak_of_all_their_orders(problem: OrderingProblem) -> None:
    found = search(problem)
    at = _first_peak(problem, found.order)
    heights = [_height(problem, order, at) for order in orders(problem) if set(order[:at]) == set(found.order[:at])]
    assert at < 3 or _height(problem, found.order, at) == min(heights)


def _first_peak(problem: OrderingProblem, order: tuple[int, ...]) -> int:
    during = list(_during(problem, order))
    return during.index(max(during))


def _height(problem: OrderingProblem, order: tuple[int, ...], end: int) -> int:
    return max(list(_during(problem, order))[:end], default=0)


def _during(problem: OrderingProblem, order: tuple[int, ...]) -> Iterator[int]:
    prefix = SchedulePrefix.start(problem)
    for node in order:
        yield prefix.price(node)[0]
        prefix.run(node)
