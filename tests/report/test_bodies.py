"""What lies inside bodies of If, Loop and Scan, in formats that know no plan within a plan."""

from __future__ import annotations

import csv
import io
import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import onnx.parser
import pytest

from onnxtile import api
from onnxtile.planning.offsets.csv_problem import read_problem
from onnxtile.report.format import Format, RenderOptions, read_plan
from onnxtile.report.formats.to_html import content
from onnxtile.report.layout import flat, rows_with_bodies, unrolled
from onnxtile.system.errors import UsageError
from onnxtile.system.registry import discover
from tests.report.conftest import Plan
from tests.report.test_header import compiled

FORMATS = discover("onnxtile.report.formats", Format)

MODEL = """
<ir_version: 10, opset_import: ["" : 20]>
g (float[4] x, bool c) => (float[4] y) {
  a = Relu(x)
  b = If(c) <
    then_branch = p () => (float[4] t) {
      n = Constant<value = int64 {3}>()
      go = Constant<value = bool {1}>()
      l = Loop(n, go, a) <body = r (int64 i, bool k, float[4] v) => (bool k2, float[4] w) {
        k2 = Identity(k)
        s = Sin(v)
        w = Add(s, v)
      }>
      u = Exp(l)
      t = Add(u, a)
    },
    else_branch = q () => (float[4] e) { u = Neg(a) o = Cos(u) e = Add(u, o) }>
  y = Add(b, a)
}
"""


@pytest.fixture(scope="module")
def nested() -> Plan:
    return api.plan(onnx.parser.parse_model(MODEL), workspaces={"If": "100"}, verify=False).plan.to_dict()


def overlapping(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return which of the rows that own their bytes share some while both live."""
    owners = [row for row in rows if row["alias"] is None and row["size"]]
    return [
        (a["name"], b["name"])
        for a, b in combinations(owners, 2)
        if a["first"] <= b["last"]
        and b["first"] <= a["last"]
        and a["offset"] < b["offset"] + b["size"]
        and b["offset"] < a["offset"] + a["size"]
    ]


def test_steps_of_bodies_stand_in_the_place_of_their_node(nested: Plan) -> None:
    plan = unrolled(nested)
    nodes = dict(zip(plan["schedule"], plan["steps"], strict=True))
    assert [name for name in plan["schedule"] if "/" not in name] == ["a", "b", "y"]
    inner = [nodes[f"b/then_branch/{name}"] for name in ("l", "l/body/s", "l/body/w", "u", "t")]
    assert inner == sorted(inner)
    assert inner[-1] < nodes["b/else_branch/u"] < nodes["b/else_branch/e"] < nodes["y"]
    rows = {row["name"]: row for row in plan["buffers"]}
    assert rows["b/then_branch/l"]["alias"] == "b (workspace)"
    assert rows["b/then_branch/u"]["alias"] == "b/then_branch/l", "written over it"
    assert rows["b/then_branch/l/body/s"]["alias"] == "b/then_branch/l (workspace)"
    assert rows["a"]["last"] == nodes["y"], "it lives while the bodies run, too"
    assert unrolled(plan) is plan


def test_flat_it_is_a_whole_problem_without_a_clash(nested: Plan) -> None:
    plan = flat(nested)
    names = [row["name"] for row in plan["buffers"]]
    assert len(set(names)) == len(names)
    assert {"b/then_branch/u", "b/else_branch/u", "b/then_branch/l/body/v"} <= set(names)
    assert overlapping(plan["buffers"]) == []
    (rest,) = (row for row in plan["buffers"] if row["kind"] == "workspace")
    assert (rest["name"], rest["size"]) == ("b (workspace)", 100)


def test_csv_is_that_problem(nested: Plan) -> None:
    text = FORMATS["csv"].render(nested).decode()
    problem = read_problem(text, alignment=nested["alignment"])
    assert "b/then_branch/l/body/v" in {buffer.name for buffer in problem.buffers}
    rows = list(csv.DictReader(io.StringIO(text)))
    assert max(int(row["offset"]) + int(row["size"]) for row in rows) <= nested["arenas"][0]["size"]
    assert problem.lower_bound <= nested["arenas"][0]["size"]


def test_a_header_has_them_in_the_step_of_their_node(nested: Plan, tmp_path: Path) -> None:
    rows = {row["name"]: row for row in rows_with_bodies(nested)}
    step = dict(zip(nested["schedule"], nested["steps"], strict=True))["b"]
    inner = rows["b/then_branch/l/body/w"]
    assert (inner["first"], inner["last"]) == (step, step)
    assert rows["a"]["last"] == dict(zip(nested["schedule"], nested["steps"], strict=True))["y"]
    header = FORMATS["header"].render(nested, RenderOptions("net"))
    assert compiled(tmp_path, header, "c99").returncode == 0
    text = header.decode()
    assert re.search(r"#define NET_T_b_then_branch_l_body_w_OFFSET \d+u  /\* b/then_branch/l/body/w, float32 4", text)


def test_trace_page_and_model_explorer_have_them(nested: Plan) -> None:
    events = json.loads(FORMATS["trace"].render(nested))["traceEvents"]
    assert {"b/else_branch/o", "b/then_branch/l/body/s"} <= {event["name"] for event in events if event["ph"] == "X"}
    (page,) = content(nested, RenderOptions())["plans"]
    assert page["steps"] == len(page["runs"]) > len(nested["schedule"])
    assert "b/else_branch/o" in {row["name"] for row in page["arenas"][0]["rows"]}
    assert {"o", "w", "y"} <= json.loads(FORMATS["model-explorer"].render(nested))["results"].keys()


def test_every_format_takes_it(nested: Plan) -> None:
    for form in (
        form for name, form in FORMATS.items() if name not in {"constants", "certificate", "c"}
    ):  # those need the model
        assert form.render(nested, RenderOptions(before=nested) if form.picture else None)


def test_a_plan_read_back_has_the_nodes_of_its_bodies(nested: Plan, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(nested))
    assert read_plan(path) == nested
    path.write_text(json.dumps({**nested, "bodies": [{**nested["bodies"][0], "node": "none"}]}))
    with pytest.raises(UsageError, match="a body belongs to the node 'none', which is not in the schedule"):
        read_plan(path)
    path.write_text(json.dumps({**nested, "bodies": [{**nested["bodies"][0], "buffers": [{"name": 3}]}]}))
    with pytest.raises(UsageError, match=r"bodies\.0\.buffers\.0\.name"):
        read_plan(path)
