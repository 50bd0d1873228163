"""The shared contract of report formats: found by their ending, the same bytes for the same plan."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.report.format import Format, RenderOptions, format_of
from onnxtile.report.layout import unrolled
from onnxtile.system.errors import UsageError
from onnxtile.system.registry import discover
from tests.report.conftest import Plan, bare, row

FORMATS = discover("onnxtile.report.formats", Format)
OF_A_PLAN = [form for name, form in FORMATS.items() if name not in {"constants", "certificate", "c"}]
"""The formats that need no model beside the plan."""
EACH = pytest.mark.parametrize("form", OF_A_PLAN, ids=lambda form: form.name)


@EACH
def test_each_format_is_found_and_gives_the_same_bytes(form: Format, plan: Plan) -> None:
    assert form.suffix.startswith(".")
    path = Path(f"dir.d/my.plan{form.suffix}")
    assert format_of(path) is form
    assert form.title(path) == "my.plan"
    first = form.render(plan, RenderOptions("t"))
    assert first
    assert form.render(plan, RenderOptions("t")) == first


@EACH
def test_each_format_takes_a_bare_problem_and_a_plan_of_nothing(form: Format, problem: Plan) -> None:
    assert form.render(problem)
    assert form.render(bare([]))


@EACH
def test_each_format_takes_odd_names_or_says_why_not(form: Format, odd: Plan) -> None:
    if form.name.startswith("tflm"):
        with pytest.raises(UsageError, match="one arena, and the plan has 2: dram, sram"):
            form.render(odd)
        return
    assert form.render(odd)


@pytest.mark.timeout(60)  # drawn step by step, it would take hours
@EACH
def test_the_work_of_each_format_is_that_of_its_buffers_not_of_its_steps(form: Format) -> None:
    last = 2**31 - 2
    plan = bare([row("a", 0, 4, 0, last), row("b", 4, 4, 5, 8), row("c", 4, 4, last, last)])
    content = form.render(plan)
    assert 0 < len(content) < 200_000


def test_a_header_has_room_for_its_steps() -> None:
    texts = [FORMATS["header"].render(bare([row("a", 0, 4, 0, last)])).decode() for last in (2**32 - 1, 2**32)]
    assert ["uint32_t first, last" in text for text in texts] == [True, False]
    assert "uint64_t first, last" in texts[1]


def test_bodies_of_very_many_steps_are_unrolled_by_their_buffers() -> None:
    body = bare([row("inner", 0, 4, 2, 10**12)], schedule=["n"], node="If_0", attribute="then_branch", place="w")
    plan = bare([row("w", 0, 8, 3, 3, kind="workspace"), row("late", 8, 8, 10**9, 10**9)])
    shown = unrolled({**plan, "schedule": ["If_0"], "steps": [3], "bodies": [body]})
    assert [(one["name"], one["first"], one["last"]) for one in shown["buffers"]][:2] == [
        ("w", 3, 3 + 10**12),
        ("late", 10**9 + 10**12, 10**9 + 10**12),
    ]


def test_no_two_formats_share_an_ending() -> None:
    assert len({form.suffix for form in FORMATS.values()}) == len(FORMATS)


def test_json_says_all_but_how_the_plan_was_found(plan: Plan) -> None:
    told, whole = json.loads(FORMATS["json"].render(plan)), json.loads(json.dumps(plan))
    assert {key: whole[key] for key in told if key != "order"} == {key: told[key] for key in told if key != "order"}
    assert whole.keys() - told.keys() == {"planner", "ended", "optimal_over", "any_order_bound", "insides"}


def test_csv_has_the_columns_of_minimalloc(plan: Plan) -> None:
    text = FORMATS["csv"].render(plan).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert text.splitlines()[0] == "id,lower,upper,size,offset"
    owners = {buffer["name"]: buffer for buffer in plan["buffers"] if buffer.get("alias") is None}
    assert {line["id"] for line in rows} == owners.keys()
    for line in rows:
        lower, upper, size, offset = (int(line[key]) for key in ("lower", "upper", "size", "offset"))
        assert 0 <= lower < upper
        assert (size, offset) == (owners[line["id"]]["size"], owners[line["id"]]["offset"])


def test_csv_names_the_arena_where_there_are_several(odd: Plan) -> None:
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"].render(odd).decode())))
    arenas = {buffer["name"]: buffer["arena"] for buffer in odd["buffers"]}
    assert len(set(arenas.values())) == 2
    assert all(row["arena"] == arenas[row["id"]] for row in rows)


@pytest.mark.parametrize("name", ["plan", "plan.xyz", "json", "plan.json.gz", ""])
def test_an_unknown_ending_lists_those_there_are(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        format_of(Path(name))
    assert all(form.suffix in (caught.value.hint or "") for form in FORMATS.values())


def test_model_explorer_has_a_value_for_each_node_and_tensor(plan: Plan) -> None:
    content: dict[str, Any] = json.loads(FORMATS["model-explorer"].render(plan))
    offsets = {buffer["name"]: buffer["offset"] for buffer in plan["buffers"]}
    nodes = {buffer["node"] for buffer in plan["buffers"]}
    assert content["results"].keys() == offsets.keys() | nodes
    assert all(content["results"][name] == {"value": offsets[name]} for name in offsets.keys() - nodes)
    assert [stop["stop"] for stop in content["gradient"]] == [0, 0.5, 1]


def test_the_block_of_constants_has_each_at_its_offset(transformer: Path, tmp_path: Path) -> None:
    planned = api.plan(transformer, verify=False)
    planned.write(tmp_path / "net.bin")
    block = (tmp_path / "net.bin").read_bytes()
    weights = {
        tensor.name: numpy_helper.to_array(tensor).tobytes() for tensor in onnx.load(transformer).graph.initializer
    }
    rows = planned.plan.to_dict()["constants"]
    assert len(rows) > 100
    assert all(block[row["offset"] : row["offset"] + row["size"]] == weights[row["name"]] for row in rows)
    with pytest.raises(UsageError, match="a plan alone does not hold the bytes"):
        planned.plan.write(tmp_path / "net.bin")
