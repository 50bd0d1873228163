"""The bound of all orders and aliases, held against trying them all, and what plans say of it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice, pairwise
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.kernels.kernel_graph import KernelGraph, Schedule
from onnxtile.planning.layout import Layout, layouts
from onnxtile.planning.order_search import OrderSearch
from onnxtile.planning.orders import Order, SchedulingContext, shuffled, shuffled_steps
from onnxtile.planning.workspaces import NO_NEEDS, Needs, WorkspaceRules
from onnxtile.system.errors import CheckFailed, Infeasible, UsageError
from tests.build import Find
from tests.draws import draws
from tests.planning.conftest import Case, aliases, rows
from tests.planning.test_arena_run import SOUND
from tests.planning.test_random_graphs import models
from tests.planning.test_schedules import BRANCHES, PARALLEL

_ORDERS, _WAYS = 20, 12
"""How many orders of a graph are tried, and ways to leave aliases out."""


def every_order(after: Sequence[Collection[int]], done: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    if len(done) == len(after):
        yield done
    for kernel, before in enumerate(after):
        if kernel not in done and all(other in done for other in before):
            yield from every_order(after, (*done, kernel))


def all_candidates(context: SchedulingContext) -> tuple[Schedule, ...]:
    return tuple(map(Schedule, islice(every_order(context.after), _ORDERS)))


EVERY = Order("each", "all orders, one by one", all_candidates)


def with_fewer_aliases(graph: KernelGraph) -> Iterator[KernelGraph]:
    """Yield `graph` in which only some aliases are known, in every way that leaves out one or two, or all but one or two."""
    everything = [share for kernel in graph.kernels for share in kernel.shares]
    some = [c for count in range(3) for c in combinations(everything, count)]
    for left_out in (*some, *(tuple(a for a in everything if a not in kept) for kept in some)):
        fewer = ((kernel, tuple(one for one in kernel.shares if one not in left_out)) for kernel in graph.kernels)
        yield replace(graph, kernels=tuple(replace(kernel, shares=shares) for kernel, shares in fewer))


def laid_out(graph: KernelGraph, alignment: int, needs: Needs = NO_NEEDS) -> tuple[Layout, ...]:
    return tuple(layouts(OrderSearch(graph, alignment), EVERY, 1, needs))


PLACINGS: list[dict[str, Any]] = [
    {"io": "outputs"},
    {"io": "inside"},
    {"io": "outside"},
    {"io": "inside", "overwrite_inputs": True},
]


@draws(10)
@given(models(6), st.sampled_from(PLACINGS), st.sampled_from([4, 32, 64]))
def test_no_order_and_no_aliases_need_less(model: onnx.ModelProto, placing: dict[str, Any], alignment: int) -> None:
    graph = Case.of(model).graph(**placing)
    users = (number for number, one in enumerate(graph.kernels) if one.operator in {"Softmax", "Transpose"})
    needs = Needs(kernels=dict.fromkeys(users, 48))
    every = laid_out(graph, alignment, needs)
    bound = OrderSearch(graph, alignment).bound(needs)
    tried = [
        layout for fewer in islice(with_fewer_aliases(graph), _WAYS) for layout in laid_out(fewer, alignment, needs)
    ]
    assert bound <= min(layout.problem.lower_bound for layout in (*every, *tried))


@pytest.mark.parametrize(
    ("name", "order", "over"),
    [("squeezenet", "model", "any order"), ("shufflenet", "model", "order"), ("inception_v1", "any", "any order")],
)
def test_what_an_optimal_plan_is_the_smallest_of(name: str, order: str, over: str, light: Find) -> None:
    result = Case.of(light(name)).plan(order=order)
    assert (result.optimal, result.optimal_over) == (True, over)
    assert result.any_order_bound is not None
    assert (result.any_order_bound == result.arena_size) == (over == "any order")


RESIDUAL = """
residual (float[16,16] x) => (float[16,16] y) {
  a = Sin(x)
  b = MatMul(a, a)
  c = Transpose(b)
  y = Add(a, c)
}
"""


def test_bytes_that_are_read_later_count_on_every_path() -> None:
    # While c is made, a waits for y in every order: three tensors, although the node touches two.
    result = Case.of(RESIDUAL).plan()
    assert (result.arena_size, result.any_order_bound, result.optimal_over) == (3 * 1024, 3 * 1024, "any order")


def test_workspaces_count_in_every_order() -> None:
    rules = WorkspaceRules.from_texts({"Transpose": "5000"}, shared=False)
    result = Case.of(RESIDUAL).plan(workspaces=rules)
    assert result.any_order_bound == result.arena_size == 3 * 1024 + 5056


def test_a_body_counts_as_small_as_it_can_be() -> None:
    text = """
    g (float[64] x, bool flag) => (float[1] y) {
      y = If(flag) <
        then_branch = t () => (float[1] p) {
          a = Concat<axis = 0>(x, x, x, x)
          b = Concat<axis = 0>(x, x, x, x)
          c = ReduceMax<keepdims = 1>(a)
          d = ReduceMax<keepdims = 1>(b)
          p = Add(c, d)
        },
        else_branch = f () => (float[1] q) { q = ReduceMin<keepdims = 1>(x) }>
    }
    """
    own, least = (Case.of(text).plan(order=order) for order in ("model", "min-peak"))
    assert (own.arena_size, own.any_order_bound, own.optimal_over) == (64 + 2 * 1024 + 64, 64 + 1024 + 128, "order")
    assert (least.arena_size, least.any_order_bound, least.optimal_over) == (own.any_order_bound,) * 2 + ("any order",)


def test_a_plan_that_is_not_optimal_is_the_smallest_of_nothing() -> None:
    chain = "chain (float[8,8] x) => (float[8,8] y) { a = Transpose(x) b = Transpose(a) y = Transpose(b) }"
    result = Case.of(chain).plan(planner="naive")
    assert (result.optimal, result.optimal_over) == (False, None)


PEAKS_ARE_NO_ARENAS = """
random (float[4,2] x0, float[4,2] x1) => (float[8] v3, float[4,4] v4, float[8,2] v5, float[11,2] v8, float[2,1] v9) {
  k0 = Constant<value = int64[1] {8}>()
  k1 = Constant<value = int64[2] {1, 11}>()
  v2 = Transpose(x0)
  v3 = Reshape(v2, k0)
  v4 = Concat<axis = 0>(v2, v2)
  v5 = Concat<axis = 0>(x0, x1)
  v6 = Concat<axis = 0>(x1, x1, x1)
  v7, v8 = Split<axis = 0>(v6, k1)
  v9 = Transpose(v7)
}
"""


def test_an_order_of_a_lower_peak_and_a_larger_arena_is_not_taken() -> None:
    case = Case.of(PEAKS_ARE_NO_ARENAS)
    own, least = (case.plan(order=order, planner="naive", alignment=4) for order in ("model", "min-peak"))
    assert least.arena_size <= own.arena_size == 232


@pytest.mark.parametrize("planner", ["naive", "slots", "greedy-by-size", "best"])
@draws(15)
@given(model=models(8), placing=st.sampled_from(PLACINGS))
def test_the_arena_of_min_peak_is_never_larger(planner: str, model: onnx.ModelProto, placing: dict[str, Any]) -> None:
    case = Case.of(model)
    rules = WorkspaceRules.from_texts({"Softmax": "48", "Transpose": "outputs[0].bytes"}, shared=False)
    own, least = (
        case.plan(order=order, planner=planner, alignment=4, workspaces=rules, **placing)
        for order in ("model", "min-peak")
    )
    assert least.arena_size <= own.arena_size


def test_over_capacity_is_said_where_no_order_fits() -> None:
    with pytest.raises(Infeasible, match="more than its capacity of 64"):
        Case.of(RESIDUAL).plan(order="min-peak", capacity=64)


WIDE = """
wide (float[64] x) => (float[1] y) {
  a = Concat<axis = 0>(x, x, x, x)
  b = Concat<axis = 0>(x, x, x, x)
  c = ReduceMax<keepdims = 1>(a)
  d = ReduceMax<keepdims = 1>(b)
  y = Add(c, d)
}
"""
"""Each Concat is needed by one ReduceMax only: one after the other takes half the bytes."""


@pytest.mark.parametrize("text", [RESIDUAL, WIDE])
def test_auto_is_never_larger_than_the_models_order_and_min_peak(text: str) -> None:
    case = Case.of(text)
    sizes = {name: case.plan(order=name).arena_size for name in ("auto", "model", "min-peak")}
    assert sizes["auto"] == min(sizes.values())


def test_auto_takes_the_models_order_of_a_very_large_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.of(WIDE)
    own, least = (case.plan(order=name) for name in ("model", "min-peak"))
    assert least.schedule != own.schedule
    for module in ("peak_search", "order_search"):
        monkeypatch.setattr(f"onnxtile.planning.{module}.WIDEST", len(own.schedule) - 1)
    auto = case.plan(order="auto")
    assert auto.schedule == own.schedule
    assert auto.any_order_bound == 1024 + 64, "a Concat and its maximum, counted without a search"


@pytest.mark.parametrize("order", ["model", "min-peak"])
def test_the_bound_of_any_order_is_that_of_the_best_order(order: str) -> None:
    result = Case.of(WIDE).plan(order=order)
    assert result.any_order_bound == Case.of(WIDE).plan(order="min-peak").arena_size


# Plans that hold in every order: what they cost, that they are sound in all, and that unsound ones are refused.


TURNS = """
turns (float[4,4] x) => (float[4,4] y) {
  a = Relu(x)
  b = Sin(a)
  c = Transpose(b)
  d = Transpose(a)
  e = Transpose(d)
  y = Add(c, e)
}
"""


def test_branches_do_not_share_bytes() -> None:
    case = Case.of(TURNS)
    own, every = case.plan(), case.plan(order="any")
    assert own.arena_size == 3 * 64
    assert every.arena_size == 5 * 64
    assert (every.peak, every.lower_bound, every.bound) == (3 * 64, 5 * 64, "every order")
    assert every.optimal
    assert (own.bound, own.optimal) == ("peak", True)
    place = {name: buffer.offset for name, buffer in rows(every).items()}
    assert not {place["b"], place["c"]} & {place["d"], place["e"]}


def test_a_plan_for_one_order_does_not_hold_in_others() -> None:
    case = Case.of(TURNS)
    result = replace(case.plan(), order="any")
    assert not case.run(result, runs=20).equal
    assert case.run(case.plan(order="any"), runs=20).equal


@pytest.mark.parametrize("text", [BRANCHES, PARALLEL, TURNS, *SOUND.values()])
def test_all_orders_give_the_same_bits(text: str) -> None:
    case = Case.of(text)
    assert case.run(case.plan(order="any"), runs=8).equal


@pytest.mark.parametrize(("name", "size"), [("inception_v1", 4_646_400), ("squeezenet", 3_928_576)])
def test_real_models(name: str, size: int, light: Find) -> None:
    case = Case.of(light(name))
    result = case.plan(order="any")
    assert result.arena_size == size
    assert case.run(result, runs=2).equal


def test_an_operand_is_written_over_only_by_its_only_reader() -> None:
    case = Case.of(PARALLEL)
    assert "a" in aliases(case.plan()).values()
    assert aliases(case.plan(order="any")).keys() == {"y"}


def test_parts_that_cost_bytes_over_all_orders_are_left_out() -> None:
    """In the order of the file, the sums may lie in their Concat for nothing; in others, the whole is then live beside what they sum up."""
    found = Case.of("""
    g (float[2,16] x) => (float[1,16] z) <int64[1] axes = {0}> {
      a = Relu(x)  b = Relu(x)  d = Relu(a)
      e = ReduceSum<keepdims=1>(d, axes)  f = ReduceSum<keepdims=1>(b, axes)
      y = Concat<axis=0>(e, f)  z = ReduceSum<keepdims=1>(y, axes)
    }""").plan(order="any")
    assert (found.arena_size, found.copies.remaining) == (384, 2)


def test_streams_have_no_meaning_there() -> None:
    with pytest.raises(UsageError, match="holds for any number of streams"):
        Case.of(PARALLEL).plan(order="any", streams=2)


def test_other_orders_are_orders(light: Find) -> None:
    after = Case.of(light("inception_v1")).graph().after
    seen = set()
    for seed in range(3):
        order = shuffled(after, seed)
        place = {kernel: at for at, kernel in enumerate(order)}
        assert sorted(order) == list(range(len(after)))
        assert all(place[before] < at for kernel, at in place.items() for before in after[kernel])
        seen.add(order)
    assert len(seen) == 3
    assert shuffled_steps(range(len(after)), 1) == tuple(range(len(after)))
    assert {shuffled_steps((0, 1, 1), seed) for seed in range(9)} == {(0, 1, 2), (0, 2, 1)}


@pytest.mark.parametrize(
    ("name", "onto", "sound"),
    [("d", "b", False), ("e", "b", False), ("e", "c", False), ("y", "a", True), ("y", "b", True), ("y", "d", True)],
)
def test_the_graph_must_say_who_is_first(name: str, onto: str, sound: bool) -> None:
    case = Case.of(TURNS)
    result = case.plan_views(order="any", planner="naive")
    place = {b.name: b.offset for b in result.buffers} | {name: rows(result)[onto].offset}
    moved = replace(result, buffers=tuple(replace(b, offset=place[b.name]) for b in result.buffers))
    assert case.audit(moved).sound == sound


def test_tensors_that_share_bytes_as_aliases_are_kept_apart_too() -> None:
    """Written over its operand, which another node reads: in the order of the file before, in another after."""
    case = Case.of("g (float[4,4] x) => (float[4,4] y) { a = Transpose(x) b = Transpose(a) c = Sin(a) y = Add(b, c) }")
    result = case.plan()
    assert aliases(result)["c"] == "a"
    assert case.audit(result).sound
    found = case.audit(replace(result, order="any")).failures
    assert "'a' and 'c' share bytes, and the graph does not say which is first" in map(str, found)


def test_a_planner_that_forgets_conflicts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtile.planning.layout.conflicts", lambda *_: frozenset())
    with pytest.raises(CheckFailed, match="share bytes, and the graph does not say which is first"):
        Case.of(TURNS).plan(order="any")


def test_an_order_for_every_order_is_the_models_own(light: Find) -> None:
    result = Case.of(light("squeezenet")).plan(order="any")
    assert all(first < second for first, second in pairwise(result.steps))
