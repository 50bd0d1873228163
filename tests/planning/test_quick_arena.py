"""The quick arena is an upper bound of the arena of the plan."""

from __future__ import annotations

import pytest

from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.planning.model_plan import PlanSettings, plan_model, quick_allocation
from onnxtile.planning.ordering import order_search
from onnxtile.planning.ordering.search import FoundOrder, OrderingProblem, heights
from onnxtile.shapes.opened_calls import unfold
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import inverted_residuals
from tests.planning.conftest import Case


@pytest.mark.parametrize("rows", [9, 33, 65])
@pytest.mark.parametrize("in_parts", [True, False])
def test_no_plan_is_larger_than_the_quick_arena_and_none_smaller_than_its_own_peak(rows: int, in_parts: bool) -> None:
    model = load(inverted_residuals(rows))
    opened = unfold(model, resolve(model, run=True), Constants(model))
    settings = PlanSettings(order="auto", whole_buffers=not in_parts)
    found, plan = quick_allocation(opened, settings).size, plan_model(*opened, settings)
    assert plan.peak <= plan.arena_size <= found
    assert found <= plan.activation_bytes


def test_no_further_order_is_made_where_the_arena_is_the_peak_of_the_orders_that_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = load(inverted_residuals(9))
    opened = unfold(model, resolve(model, run=True), Constants(model))

    def unproved(problem: OrderingProblem) -> FoundOrder:
        own = tuple(range(len(problem.after)))
        peak = max(heights(problem, own))
        return FoundOrder(own, peak, peak - 64)

    def refined(_problem: OrderingProblem, _order: tuple[int, ...]) -> tuple[int, ...]:
        raise AssertionError("no order with this peak takes a smaller arena")

    monkeypatch.setattr(order_search, "search", unproved)
    monkeypatch.setattr(order_search, "refined", refined)
    plan = plan_model(*opened, PlanSettings(order="auto"))
    assert plan.arena_size == plan.peak == (plan.any_order_bound or 0) + 64


_BRANCHES = """
    g (float[1, N] x) => (float[1, N] z) <int64[2] twice = {1, 2}> {
      a = Relu(x)
      b = Relu(x)
      aa = Tile(a, twice)
      bb = Tile(b, twice)
      ar = ReduceMax<keepdims=1>(aa)
      br = ReduceMax<keepdims=1>(bb)
      s = Add(ar, br)
      z = Add(s, x)
    }
"""


@pytest.mark.parametrize(
    ("settings", "is_refined"),
    [
        (PlanSettings(order="min-peak"), False),
        (PlanSettings(order="min-peak", capacity={"sram": 1024, "dram": 2048}), True),
    ],
)
def test_bytes_away_from_the_peak_are_searched_only_where_they_may_matter(
    monkeypatch: pytest.MonkeyPatch, settings: PlanSettings, is_refined: bool
) -> None:
    """The model's own order has both branches at once; the first order of the search reaches the bound of every order."""
    searches: list[tuple[int, ...]] = []

    def refined(_problem: OrderingProblem, order: tuple[int, ...]) -> tuple[int, ...]:
        searches.append(order)
        return order

    monkeypatch.setattr(order_search, "refined", refined)
    case = Case.of(_BRANCHES.replace("N", "64"))
    opened = unfold(case.model, case.shapes, case.constants)
    plan = plan_model(*opened, settings)
    assert plan.optimal_over == "any order"
    assert bool(searches) == is_refined
