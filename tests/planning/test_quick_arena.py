"""The quick arena is an upper bound of the arena of the plan."""

from __future__ import annotations

import pytest

from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.model.shapes import resolve
from onnxtile.model.unfold import unfold
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.quick_arena import quick_allocation
from tests.fitting.networks import inverted_residuals


@pytest.mark.parametrize("rows", [9, 33, 65])
@pytest.mark.parametrize("in_parts", [True, False])
def test_no_plan_is_larger_than_the_quick_arena_and_none_smaller_than_its_own_peak(rows: int, in_parts: bool) -> None:
    model = load(inverted_residuals(rows))
    opened = unfold(model, resolve(model, run=True), Constants(model))
    settings = PlanSettings(order="auto", whole_buffers=not in_parts)
    found, plan = quick_allocation(opened, settings).size, plan_model(*opened, settings)
    assert plan.peak <= plan.arena_size <= found
    assert found <= plan.activation_bytes
