"""Parts of a buffer with live ranges of their own: smaller arenas, published, checked, run and drawn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onnxtile.check.audit import check
from onnxtile.check.reading import from_marks
from onnxtile.declare.plan_document import PlannedPart
from onnxtile.planning.offsets.effort import NORMAL, Effort
from onnxtile.planning.offsets.problem import Placement, Problem
from onnxtile.planning.planners import BEST, NAIVE, Planner
from onnxtile.planning.rows import annotate
from onnxtile.planning.workspaces import WorkspaceRules
from onnxtile.report.formats.pictures import HTML, SVG
from onnxtile.report.layout import arenas
from tests.planning.conftest import Case, proved, rows

ROWS = 4
TILE = 1024
"""Bytes of a row."""


def sliced(taken: range) -> str:
    """Return a graph that takes the rows of a tensor one by one, each through an operator that needs bytes of its own, and joins them."""
    bounds = ", ".join(f"int64[1] n{i} = {{{i}}}" for i in range(ROWS + 1))
    steps = " ".join(f"t{i} = Slice(a, n{i}, n{i + 1}) f{i} = CumSum(t{i}, axis)" for i in taken)
    joined = ", ".join(f"f{i}" for i in range(ROWS))
    return f"""
    rows (float[{ROWS},256] x) => (float[{ROWS},256] y) <{bounds}, int64 axis = {{1}}> {{
      a = Sin(x) {steps} y = Concat<axis = 0>({joined})
    }}
    """


def test_rows_go_into_the_result_as_they_are_made_and_die_as_they_are_read() -> None:
    found = proved(sliced(range(ROWS)))
    assert found.arena_size == (ROWS + 1) * TILE
    assert proved(sliced(range(ROWS)), whole_buffers=True).arena_size == 2 * ROWS * TILE
    assert rows(found)["a"].parts == tuple(PlannedPart(TILE * i, TILE, 0, 2 * i + 2) for i in range(ROWS))
    assert rows(found)["y"].parts == tuple(PlannedPart(TILE * i, TILE, 2 * i + 2, 2 * ROWS + 1) for i in range(ROWS))


def test_rows_in_reverse_are_placed_as_well() -> None:
    assert proved(sliced(range(ROWS)[::-1])).arena_size == (ROWS + 1) * TILE


def test_a_result_is_written_over_the_row_that_only_its_node_still_reads() -> None:
    text = sliced(range(ROWS)).replace("CumSum", "Add").replace(", axis)", ", x0)")
    text = text.replace("x) =>", "x, float[1,256] x0) =>")
    assert proved(text).arena_size == ROWS * TILE


def test_a_row_that_a_later_node_reads_as_a_whole_does_not_die_early() -> None:
    text = (
        sliced(range(ROWS))
        .replace("256] y)", "256] y, float[256,4] z)")
        .replace("y = Concat", "z = Transpose(a) y = Concat")
    )
    found = proved(text)
    assert not rows(found)["a"].parts


def test_parts_are_published_only_where_they_make_the_arena_smaller() -> None:
    text = """
    join (float[2,16] x) => (float[1,1] y) { a = Sin(x) b = Cos(x) c = Concat<axis = 0>(a, b) d = ReduceSum(c) y = Neg(d) }
    """
    assert not any(row.parts for row in proved(text).buffers)


def test_the_metadata_of_a_model_has_the_parts() -> None:
    case = Case.of(sliced(range(ROWS)))
    result = case.plan()
    annotate(case.model, result)
    claims = from_marks(case.model, "planned.onnx")
    assert check(case.model, claims, case.shapes, case.constants).sound
    found = {row.name: len(row.parts or ()) for row in claims.buffers}
    assert (found["a"], found["y"], found["t0"]) == (ROWS, ROWS, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"parts": ()}, "are live together"),
        ({"parts": (PlannedPart(0, ROWS * TILE, 0, 2),)}, "the parts of 'a' are not its live bytes"),
        ({"parts": (PlannedPart(0, TILE, 0, 2),)}, "the parts of 'a' are not its live bytes"),
        ({"offset": 0}, "are live together"),
    ],
)
def test_the_check_names_wrong_parts(change: dict[str, Any], reason: str) -> None:
    case = Case.of(sliced(range(ROWS)))
    result = case.plan()
    assert rows(result)["a"].offset == TILE
    moved = [replace(b, offset=b.offset - TILE) if "offset" in change and b.alias == "a" else b for b in result.buffers]
    wrong = replace(result, buffers=tuple(replace(b, **change) if b.name == "a" else b for b in moved))
    assert any(reason in str(failure) for failure in case.audit(wrong).failures)


def test_an_alias_has_no_parts() -> None:
    case = Case.of(sliced(range(ROWS)))
    result = case.plan()
    part = (PlannedPart(0, TILE, 1, 2),)
    wrong = replace(result, buffers=tuple(replace(b, parts=part) if b.name == "t0" else b for b in result.buffers))
    assert any("has parts of its own" in str(failure) for failure in case.audit(wrong).failures)


def test_a_run_sees_a_part_that_is_overwritten_too_early() -> None:
    case = Case.of(sliced(range(ROWS)))
    result = case.plan()
    wrong = tuple(
        replace(b, offset=b.offset + 2 * TILE) if b.name == "y" or b.alias == "y" else b for b in result.buffers
    )
    bigger = replace(result.arenas[0], size=result.arena_size + 2 * TILE)
    assert not case.run(replace(result, buffers=wrong, arenas=(bigger,))).equal


def test_pictures_have_the_live_bytes_of_parts() -> None:
    result = proved(sliced(range(ROWS)))
    plan = result.to_dict()
    (arena,) = arenas(plan)
    assert (arena.peak, arena.peak_step) == (result.peak, result.peak_step)
    page = HTML.render(plan).decode()
    assert page.count('"whole":[1024,4096]') == page.count('"whole":[0,4096]') == ROWS
    assert SVG.render(plan)


def planner(most: int) -> Planner:
    """Return a planner that finds good offsets only for up to `most` buffers with outlines."""

    def place(problem: Problem, _: Effort) -> Placement:
        return (BEST if sum(bool(b.outline) for b in problem.buffers) <= most else NAIVE).place(problem, NORMAL)

    return Planner("some", "good offsets for few outlines", place)


GAPS = sliced(range(ROWS)).replace(
    "{\n      a = Sin(x)",
    """{
      p = ReduceMax<keepdims = 1>(x) q = CumSum(p, axis) c = Concat<axis = 0>(p, q) r = ReduceSum(c) a = Mul(x, r)""",
)
"""The Concat of p and q is far below the peak: its parts only save copies."""


@pytest.mark.parametrize(("most", "size"), [(3, ROWS + 1), (2, ROWS + 2), (0, 2 * ROWS)])
def test_where_parts_leave_gaps_fewer_are_tried_and_then_none(
    monkeypatch: pytest.MonkeyPatch, most: int, size: int
) -> None:
    monkeypatch.setattr("onnxtile.planning.model_plan.find_planner", lambda _: planner(most))
    found = proved(GAPS)
    assert found.arena_size == size * TILE
    # Whole buffers prove nothing of buffers with outlines.
    assert found.lower_bound == (ROWS + 1) * TILE


def test_the_bound_of_parts_is_named_so_where_whole_buffers_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtile.planning.model_plan.find_planner", lambda _: planner(0))
    case = Case.of(GAPS)
    found = case.plan()
    assert (found.bound, found.lower_bound, found.peak) == ("parts", (ROWS + 1) * TILE, 2 * ROWS * TILE)
    wrong = (
        {"bound": "peak"},
        {"bound": "bodies"},
        {"lower_bound": found.lower_bound + TILE},
        {"lower_bound": found.peak},
    )
    for change in wrong:
        assert case.audit(replace(found, **change)).failures, change


def test_the_bound_of_parts_holds_where_whole_buffers_share_other_bytes() -> None:
    case = Case.of("""
    random (float[1,8] x0, float[4,2] x1)
      => (float[8] v6, float[1,2] v7, float[1,8] v8, float[1,7] v11, float[1,24] v12, float[2,1] v13, float[1,8] v14)
      <int64[1] k0 = {8}, int64[1] k1 = {0}, int64[1] k2 = {1}, int64[1] k3 = {0}, int64[2] k4 = {1,7},
       int64[2] k5 = {1,24}> {
      v2 = Relu(x0)
      v3 = Concat<axis = 0>(x1, x1)
      v4 = Concat<axis = 0>(x1, v3, v3)
      v5 = Concat<axis = 0>(x0, v2, v2)
      v6 = Reshape(v2, k0)
      v7 = Slice(v4, k1, k2, k3)
      v8 = Softmax(x0)
      v9 = Relu(x0)
      v10, v11 = Split<axis = 1>(v9, k4)
      v12 = Reshape(v5, k5)
      v13 = Concat<axis = 0>(v10, v10)
      v14 = Relu(x0)
    }
    """)
    workspaces = WorkspaceRules.from_texts({"Softmax": "48"}, shared=False)
    found = case.plan(io="inside", planner="naive", alignment=4, workspaces=workspaces)
    assert (found.bound, found.lower_bound, found.peak) == ("parts", 256, 296)
