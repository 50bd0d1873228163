"""The headline of a picture says what the plan says, and no more."""

from __future__ import annotations

from typing import Any

import pytest

from onnxtile.report.words import headline, proved, tensor_type
from tests.report.conftest import bare, row

MODEL = {"schedule": ["n"], "operators": ["Conv"], "unplanned": [], "order": "model"}


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"optimal": True, "optimal_over": "any order"}, "smallest of any order"),
        ({"optimal": True, "optimal_over": "order"}, "smallest of this order, with these aliases"),
        (
            {"optimal": True, "optimal_over": "order", "order": "any"},
            "smallest that holds in every order, with these aliases",
        ),
        ({"optimal": True, "optimal_over": "order", "schedule": []}, "smallest for these live ranges"),
        ({"optimal": False, "lower_bound": 1000, "gap": 30}, "within 3.0% of the lower bound"),
        ({"optimal": False, "lower_bound": 1000, "gap": 31}, "within 3.1% of the lower bound"),
        ({"optimal": False, "lower_bound": 100_000, "gap": 1}, "within 0.1% of the lower bound"),
        ({"optimal": True, "unplanned": [{"name": "u"}]}, "none: 1 tensor unplanned"),
        ({"optimal": None, "lower_bound": None}, None),
    ],
)
def test_the_proof_is_that_of_the_plan(facts: dict[str, Any], text: str | None) -> None:
    assert proved({**bare([row("a", 0, 64, 0, 1)]), **MODEL, **facts}) == text


def test_figures_have_units_and_are_left_out_where_a_plan_has_none() -> None:
    plan = bare([row("a", 0, 1 << 20, 0, 1)], activation_bytes=4 << 20, model="net", **MODEL)
    said = headline(plan, "file")
    assert said.title == "net"
    assert dict(said.figures)["arena"] == "1 MiB"
    assert dict(said.figures)["activations without sharing"] == "4 MiB"
    assert dict(said.figures)["saved by sharing"] == "75.0%"
    larger = dict(headline({**plan, "activation_bytes": 100}, "file").figures)
    assert "saved by sharing" not in larger
    other = {"arenas": [{"name": "a", "size": 8}], "buffers": []}
    assert headline(other, "file").figures == (("arena", "8 bytes"),)
    assert headline(other, "file").title == "file"
    limited = {**other, "arenas": [{"name": "a", "size": 8, "capacity": 2048}]}
    assert headline(limited, "").figures == (("arena", "8 bytes of 2 KiB"),)


def test_inputs_are_named_with_type_and_shape() -> None:
    inputs = [{"name": f"i{n}", "dtype": "INT64", "shape": [1, n]} for n in range(5)]
    assert headline({**bare([]), "inputs": inputs}, "").inputs == "i0 int64 1×0, i1 int64 1×1, i2 int64 1×2, 2 more"
    assert tensor_type({"dtype": "FLOAT", "shape": []}) == "float32 scalar"
    assert not tensor_type({"dtype": None, "shape": None})


def test_beside_another_plan_the_figures_say_whose_they_are() -> None:
    assert headline(bare([row("a", 0, 8, 0, 1)]), "", "after").figures[0] == ("after: arena", "8 bytes")
