"""The choice among layouts: all of them are placed quickly before any is placed with all the effort."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.planning import order_search
from onnxtile.planning.layout import smallest
from onnxtile.planning.model_plan import PlanSettings, plan_model, quick_allocation
from onnxtile.planning.offsets.effort import LEVELS, NORMAL, Effort
from onnxtile.planning.offsets.problem import OptimalityProof
from onnxtile.planning.peak_search import FoundOrder, OrderingProblem, heights
from onnxtile.shapes.opened_calls import unfold
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import inverted_residuals
from tests.planning.conftest import Case


@dataclass(frozen=True)
class PlainProblem:
    """A problem of buffers without outlines; `name` tells it from others."""

    name: str
    lower_bound: int
    has_outlines: bool = False


@dataclass(frozen=True)
class PlainLayout:
    """A layout of the one problem that the choice asks it for."""

    problem: PlainProblem
    order: Any = None
    count: int = 1

    @property
    def buffers(self) -> tuple[str, ...]:
        """As many buffers as the layout has, by the name of the problem."""
        return (self.problem.name,) * self.count


@dataclass(frozen=True)
class PlacedProblem:
    """An arena of `size` bytes, and its bound."""

    size: int
    proof: OptimalityProof


@dataclass
class Placer:
    """Places problems by name, and notes them in order; the `bound` is that of its proofs."""

    sizes: dict[str, int]
    bound: int = 0
    seen: list[str] = field(default_factory=list)

    def __call__(self, problem: Any) -> PlacedProblem:
        """Return the arena of `problem`."""
        self.seen.append(problem.name)
        return PlacedProblem(self.sizes[problem.name], OptimalityProof(self.bound, "peak", "effort"))


def _chosen(quick: Placer, thorough: Placer) -> tuple[str, PlacedProblem]:
    layouts: Any = [PlainLayout(PlainProblem(name, 100)) for name in "ab"]
    placers: Any = [quick, thorough]
    chosen: Any = smallest(layouts, placers, 100)
    return chosen[0].problem.name, chosen[1]


def test_a_layout_that_is_quickly_placed_at_its_best_spares_the_effort_for_the_others() -> None:
    quick, thorough = Placer({"a": 120, "b": 100}), Placer({})
    name, placed = _chosen(quick, thorough)
    assert (name, placed.size) == ("b", 100)
    assert (quick.seen, thorough.seen) == (["a", "b"], [])


def test_all_the_effort_is_used_where_little_did_not_reach_the_bound() -> None:
    quick, thorough = Placer({"a": 120, "b": 130}), Placer({"a": 120, "b": 110})
    name, placed = _chosen(quick, thorough)
    assert (name, placed.size) == ("b", 110)
    assert thorough.seen == ["a", "b"]


def test_of_equal_arenas_the_one_with_the_higher_bound_counts() -> None:
    _, placed = _chosen(Placer({"a": 120, "b": 120}, bound=100), Placer({"a": 120, "b": 120}, bound=110))
    assert placed.proof.lower_bound == 110


def test_the_stages_of_an_effort_end_with_it() -> None:
    assert NORMAL.stages == (LEVELS["low"], NORMAL)
    assert LEVELS["low"].stages == (LEVELS["low"],)
    few = Effort(2 * LEVELS["low"].steps, LEVELS["low"].fitting)
    assert few.stages == (few,)


@dataclass(frozen=True)
class LayoutOfParts:
    """A layout whose buffers have parts; with whole buffers, it is the layout `whole`."""

    problem: PlainProblem
    whole: Any
    order: Any = None
    buffers: tuple[str, ...] = ("parts",)

    def make_loose(self) -> Any:
        """Return the layout with whole buffers."""
        return self.whole

    def make_whole(self) -> Any:
        """Return the layout with whole buffers."""
        return self.whole


@dataclass(frozen=True)
class BoundedProblem(PlainProblem):
    """A problem of buffers with outlines, whose bounding rectangles need more bytes."""

    has_outlines: bool = True

    @property
    def bounding(self) -> PlainProblem:
        """The problem of the rectangles."""
        return PlainProblem("rectangles", self.lower_bound + 1)


def _of_parts(quick: Placer, thorough: Placer, count: int = 1) -> int:
    whole = PlainLayout(PlainProblem("whole", 100), count=count)
    layout: Any = LayoutOfParts(BoundedProblem("parts", 100), whole, buffers=("parts",) * count)
    placers: Any = [quick, thorough]
    return smallest([layout], placers, 90)[1].size


def test_whole_buffers_of_one_layout_get_all_the_effort_too() -> None:
    quick, thorough = Placer({"parts": 130, "whole": 120}), Placer({"parts": 125, "whole": 115})
    assert _of_parts(quick, thorough) == 115
    assert (quick.seen, thorough.seen) == (["parts", "whole"], ["parts", "whole"])


def test_what_is_far_above_the_smallest_is_not_placed_again() -> None:
    quick, thorough = Placer({"parts": 133, "whole": 120}), Placer({"whole": 115})
    assert _of_parts(quick, thorough) == 115
    assert thorough.seen == ["whole"]


# The quick arena is an upper bound of the arena of the plan.


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

    def unproved(problem: OrderingProblem, _budget: int) -> FoundOrder:
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
