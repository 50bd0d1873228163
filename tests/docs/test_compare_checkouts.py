"""What `tests.bench.compare_checkouts` calls equal, changed, better and worse."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from tests.bench.compare_checkouts import Case, Result, commands, compared, differences, renamed

GIVEN = Namespace(renamed={}, ignored=[])
PLAN = {"arenas": [{"name": "arena", "size": 128}], "lower_bound": 128, "optimal": True, "optimal_over": "any order"}


def _result(said: Any = PLAN, code: int = 0, seconds: float = 1.0, **files: Any) -> Result:
    return Result(code, "", seconds, said, files)


@pytest.mark.parametrize(
    ("new", "state"),
    [
        (_result(), "equal"),
        (_result({**PLAN, "planner": "best"}), "changed"),
        (_result({**PLAN, "arenas": [{"name": "arena", "size": 64}]}), "better"),
        (_result({**PLAN, "arenas": [{"name": "arena", "size": 192}]}), "worse"),
        (_result({**PLAN, "optimal": False, "lower_bound": 256}), "worse"),
        (_result(None, code=2), "worse"),
        (_result(None, code=-9, seconds=30.0), "worse"),
        (_result(None, code=-9, seconds=1.2), "ended by the limit"),
    ],
)
def test_the_figures_decide(new: Result, state: str) -> None:
    assert compared("a model", "plan", _result(), new, GIVEN).state == state


def test_a_proof_that_is_no_longer_accepted_is_worse() -> None:
    old, new = _result(accepted="accepted"), _result(accepted="no proof")
    assert compared("a model", "plan", old, new, GIVEN).state == "worse"
    assert compared("a model", "plan", new, old, GIVEN).state == "changed"


def test_fields_are_renamed_and_ignored() -> None:
    given = Namespace(renamed={"bound": "lower_bound"}, ignored=["json.seconds"])
    old = {**{key: value for key, value in PLAN.items() if key != "lower_bound"}, "bound": 128, "seconds": 1}
    assert compared("a model", "plan", _result(old), _result({**PLAN, "seconds": 2}), given).state == "equal"
    assert renamed([{"a": {"a": 1}}], {"a": "b"}) == [{"b": {"b": 1}}]


def test_differences_have_their_paths() -> None:
    old = {"nodes": [{"name": "x", "size": 1}, {"name": "y", "size": 2}], "sizes": [1, 2], "is": 1}
    new = {"nodes": [{"name": "y", "size": 3}], "sizes": [1, 2, 3], "is": True}
    assert list(differences(old, new)) == [
        ("nodes.x", {"name": "x", "size": 1}, None),
        ("nodes.y.size", 2, 3),
        ("sizes.2", None, 3),
        ("is", 1, True),
    ]
    swapped = {**old, "nodes": [{"name": "y", "size": 2}, {"name": "x", "size": 1}]}
    assert [path for path, *_ in differences(old, swapped)] == ["nodes.order.0", "nodes.order.1"]


def test_steps_are_those_of_the_kind_of_file() -> None:
    steps = ["fuse", "plan", "plan bare", "plan tflite", "plan ranges"]
    closed, opened = Case("a", Path("a.onnx")), Case("b", Path("b.onnx"), ("--dim", "n=1"), ("--dim", "n=1:8"))
    assert [name for name, *_ in commands(closed, steps, verify=False)] == ["fuse", "plan"]
    assert [name for name, *_ in commands(opened, steps, verify=False)] == ["fuse", "plan", "plan ranges"]
    assert [name for name, *_ in commands(Case("c", Path("c.csv")), steps, verify=False)] == ["plan bare"]
    (_, _, words), *_ = commands(opened, ["plan ranges"], verify=True)
    assert words == ["plan", "b.onnx", "--dry-run", "--dim", "n=1:8"]
