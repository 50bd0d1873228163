"""The shared contract of report formats: found by their ending, the same bytes for the same plan, whatever the plan has."""

from __future__ import annotations

import csv
import io
import json
import re
import struct
import xml.etree.ElementTree as ET
from collections import defaultdict
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from onnxtile import api
from onnxtile.declare.verb import write_result
from onnxtile.planning.problem_plan import read_problem
from onnxtile.report.curve_files import ENDINGS
from onnxtile.report.format import Emission, Format, RenderOptions, format_of, read_plan
from onnxtile.report.formats.data import TFLM, TFLM_JSON, TRACE
from onnxtile.report.formats.pictures import content
from onnxtile.report.layout import flat, rows_with_bodies, unrolled
from onnxtile.system.errors import UsageError
from onnxtile.system.registry import discover
from tests.report.conftest import Plan, bare, row, stacked
from tests.report.test_header import compiled

# The shared contract of report formats: found by their ending, the same bytes for the same plan.


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
    assert len(rows) > 40
    assert all(block[row["offset"] : row["offset"] + row["size"]] == weights[row["name"]] for row in rows)
    with pytest.raises(UsageError, match="a plan alone does not hold the bytes"):
        planned.plan.write(tmp_path / "net.bin")


# Files to emit: options that are about pictures, and the plan to compare with, checked before anything is planned.


def test_the_title_is_the_name_of_the_file(problem: Plan, tmp_path: Path) -> None:
    header, page = tmp_path / "net.h", tmp_path / "net.v2.html"
    content = Emission.from_paths([header, page]).content(problem)
    assert b"#ifndef NET_H" in content[header]
    assert b"<h1>net.v2</h1>" in content[page]


def test_another_plan_to_compare_with(problem: Plan, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    before.write_text(json.dumps(problem))
    page = tmp_path / "plan.html"
    assert b'"said":"before"' in Emission.from_paths([page], compare=before).content(problem)[page]


def test_options_of_pictures_need_one() -> None:
    with pytest.raises(UsageError, match="about pictures"):
        Emission.from_paths([Path("plan.json")], Path("before.json"))


def test_the_page_opens_with_the_colouring_asked_for(plan: Plan) -> None:
    text = format_of(Path("net.html")).render(plan, RenderOptions(color_by="kind")).decode()
    assert text.index('"name":"kind"') < text.index('"name":"operator"')


BUFFER = '{"name": "b", "arena": "a", "offset": 0, "size": 8, "kind": "activation", "first": %s}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("{", "is no JSON"),
        ("\x80", "is no JSON"),
        ("[]", "is no plan"),
        ('{"arenas": []}', "is no plan"),
        ('{"arenas": [], "buffers": [{"name": "a"}]}', "is no plan"),
        ('{"arenas": [], "buffers": [3]}', "is no plan: buffers.0: "),
        ('{"arenas": [{"name": "a"}], "buffers": []}', "is no plan: arenas.0.size: Field required"),
        ('{"arenas": [], "buffers": [], "alignment": 0}', "is no plan: alignment: "),
        ('{"arenas": [], "buffers": [], "schedule": ["n"], "steps": []}', "steps and schedule have different lengths"),
        ('{"arenas": [], "buffers": [], "operators": ["Conv"]}', "operators and schedule have different lengths"),
        ('{"arenas": [], "buffers": [], "operators": 3}', "is no plan: operators: "),
        ('{"arenas": [], "buffers": [], "constant_nodes": [1]}', "is no plan: constant_nodes.0: "),
        (
            '{"arenas": [], "buffers": [' + BUFFER % '"1", "last": 2' + "]}",
            "buffers.0.first: Input should be a valid integer",
        ),
        (
            '{"arenas": [], "buffers": [' + BUFFER % '3, "last": 2' + "]}",
            "the last step of its life is before the first",
        ),
        ('{"arenas": [], "buffers": [' + BUFFER % '1, "last": 9007199254740993' + "]}", "buffers.0.last: "),
    ],
)
def test_what_is_no_plan(text: str | None, message: str, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    if text is not None:
        before.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=message):
        Emission.from_paths([tmp_path / "plan.svg"], compare=before)


# What lies inside bodies of If, Loop and Scan, in formats that know no plan within a plan.


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
    return api.plan(onnx.parser.parse_model(MODEL), layout={"workspaces": {"If": "100"}}, verify=False).plan.to_dict()


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


# TensorFlow Lite Micro's offline plan: the words as its documentation has them, read back as its allocator reads
# them.


def test_every_tensor_has_its_offset_or_none(plan: Plan) -> None:
    content = json.loads(TFLM_JSON.render(plan))
    version, subgraphs, count, *offsets = content["buffer"]
    assert (content["name"], version, subgraphs, count) == ("OfflineMemoryAllocation", 1, 1, len(content["tensors"]))
    found = dict(zip(content["tensors"], offsets, strict=True))
    planned = {buffer["name"]: buffer["offset"] for buffer in plan["buffers"]}
    without = {entry["name"] for key in ("outside", "constants") for entry in plan[key]}
    assert found == planned | dict.fromkeys(without, -1)
    assert content["arena_size"] == plan["arenas"][0]["size"]


def test_a_workspace_is_no_tensor() -> None:
    plan = bare([row("x", 0, 64, 0, 1), row("scratch", 64, 64, 1, 1, kind="workspace"), row("y", 128, 64, 1, 2)])
    content = json.loads(TFLM_JSON.render(plan))
    assert content["tensors"] == ["x", "y"]
    assert content["buffer"] == [1, 1, 2, 0, 128]


def test_the_bytes_are_little_endian_words(plan: Plan) -> None:
    data = TFLM.render(plan)
    words = json.loads(TFLM_JSON.render(plan))["buffer"]
    assert list(struct.unpack(f"<{len(words)}i", data)) == words


@pytest.mark.parametrize("form", [TFLM, TFLM_JSON], ids=lambda form: form.name)
def test_an_offset_that_does_not_fit_is_refused(form: Format) -> None:
    assert form.render(bare([row("fits", 2**31 - 1, 1, 0, 0)]))
    with pytest.raises(UsageError, match="below 2 GiB"):
        form.render(bare([row("too far", 2**31, 1, 0, 0)]))


# The curve of fit as files.


POINTS = {
    "curve": [
        {"arena": 20672, "peak": 20672, "macs": 1000, "nodes": 13, "copied": 0, "estimated": False},
        {"arena": 5120, "peak": 5000, "macs": 1100, "nodes": 4000, "copied": 2048, "estimated": True},
    ]
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_is_the_same_bytes_every_time(tmp_path: Path, ending: str) -> None:
    files = [tmp_path / folder / f"model{ending}" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        write_result(POINTS, "curve", file)
    assert files[0].read_bytes() == files[1].read_bytes() != b""


@pytest.mark.parametrize(("ending", "arenas"), [(".html", ("20.2 KiB<", "5 KiB<")), (".md", ("20,672", "5,120"))])
def test_the_table_says_which_arenas_are_estimates(tmp_path: Path, ending: str, arenas: tuple[str, str]) -> None:
    """A page has bytes in the units of its head."""
    write_result(POINTS, "curve", tmp_path / f"c{ending}")
    rows = [line for line in (tmp_path / f"c{ending}").read_text().splitlines() if line.startswith(("<tr", "|"))]
    first, second = [line for line in rows if any(arena in line for arena in arenas)]
    assert "planned" in first and "estimated" in second and "+10.0%" in second


def test_a_page_needs_no_other_file(tmp_path: Path) -> None:
    write_result(POINTS, "curve", tmp_path / "a<b.html")
    page = (tmp_path / "a<b.html").read_text()
    assert "<svg" in page and "<title>a&lt;b</title>" in page
    assert "src=" not in page and "href=" not in page
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest|@[a-z]+(\.[a-z]+)?@", page)
    assert "content=\"default-src 'none'" in page


def test_a_page_says_what_a_smaller_arena_costs_and_has_the_command_of_each_point(tmp_path: Path) -> None:
    given = {"model": "</script>.onnx", "command": "onnxtile fit '</script>.onnx' --dim N=1", **POINTS}
    write_result(given, "curve", tmp_path / "c.html")
    page = (tmp_path / "c.html").read_text()
    assert "<h1>&lt;/script&gt;.onnx</h1>" in page
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", page) == [
        ("arena, estimated", "20.2 KiB → 5 KiB"),
        ("extra MACs", "+10.0%"),
        ("without extra MACs", "20.2 KiB"),
        ("nodes", "13 → 4,000"),
    ]
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [point["command"] for point in data["points"]] == [
        "onnxtile fit '</script>.onnx' --dim N=1 --capacity 20672",
        "onnxtile fit '</script>.onnx' --dim N=1 --capacity 5120",
    ]
    assert page.count('data-point="1"') == 3, "one circle in each diagram"


def texts_of(points: list[dict[str, int]], file: Path) -> list[str]:
    write_result({"curve": points}, "curve", file)
    return ["".join(one.itertext()) for one in ET.parse(file).getroot().iter() if one.tag.endswith("}text")]


def test_a_diagram_without_heights_is_left_out(tmp_path: Path) -> None:
    first, second = POINTS["curve"]
    free = [{**point, "macs": 1000, "copied": 0} for point in (first, second)]
    shown = texts_of(free, tmp_path / "c.svg")
    assert "nodes" in shown and not any(text.startswith(("extra", "copied")) for text in shown)
    assert {"extra MACs, %", "nodes", "copied, KiB"} <= {*texts_of(POINTS["curve"], tmp_path / "c.svg")}
    assert "nodes" in texts_of([first], tmp_path / "c.svg"), "a model that cannot be cut has one point"


def test_marks_are_sizes_that_people_read(tmp_path: Path) -> None:
    first, second = POINTS["curve"]

    def marks(*arenas: int) -> list[str]:
        shown = texts_of([{**first, "arena": arena} for arena in arenas], tmp_path / "c.svg")
        return [text for text in shown if text.endswith(("KiB", "MiB", "bytes"))]

    assert marks(6 << 20, 1 << 20, 600 << 10) == ["512 KiB", "1 MiB", "2 MiB", "4 MiB", "8 MiB"]
    assert marks(6 << 20, 4 << 20) == ["4 MiB", "4.50 MiB", "5 MiB", "5.50 MiB", "6 MiB"], "few powers of two"
    assert marks(160 << 10, 100 << 10) == ["100 KiB", "120 KiB", "140 KiB", "160 KiB"]
    assert second["arena"] == 5120


def test_data_files_have_all_fields(tmp_path: Path) -> None:
    for ending in ("csv", "json", "svg"):
        write_result(POINTS, "curve", tmp_path / f"c.{ending}")
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert rows[1] == {
        "arena": "5120",
        "peak": "5000",
        "macs": "1100",
        "nodes": "4000",
        "copied": "2048",
        "estimated": "true",
    }
    assert json.loads((tmp_path / "c.json").read_text()) == POINTS
    assert "hollow points: estimated" in "".join(ET.parse(tmp_path / "c.svg").getroot().itertext())


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no format of curve has this ending"):
        write_result(POINTS, "curve", tmp_path / "c.txt")


# The trace: what Perfetto needs to open it, and what it shows is the plan.


def events(plan: Plan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(TRACE.render(plan))["traceEvents"]
    return found


def of(found: list[dict[str, Any]], phase: str) -> list[dict[str, Any]]:
    return [event for event in found if event["ph"] == phase]


def test_every_event_has_what_the_format_asks_for(plan: Plan) -> None:
    found = events(plan)
    assert {event["ph"] for event in found} == {"M", "X", "C"}
    for event in found:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in of(found, "X"))
    named = {(event["pid"], event["tid"]) for event in of(found, "M") if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in of(found, "X")} == named


def test_the_slices_are_the_buffers_and_the_schedule(plan: Plan) -> None:
    slices = of(events(plan), "X")
    lives = {e["name"]: (e["ts"], e["ts"] + e["dur"] - 1, e["args"]["offset"]) for e in slices if e["pid"] == 2}
    assert lives == {b["name"]: (b["first"], b["last"], b["offset"]) for b in plan["buffers"]}
    assert [e["name"] for e in slices if e["pid"] == 1] == plan["schedule"]


def test_slices_of_a_thread_do_not_overlap_and_threads_are_few() -> None:
    plan = stacked(500)
    threads = defaultdict(list)
    for event in of(events(plan), "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for times in threads.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(times)))
    most = max(sum(b["first"] <= s <= b["last"] for b in plan["buffers"]) for s in range(len(plan["schedule"])))
    assert len(threads) == 1 + most


def test_nodes_of_one_step_are_on_threads_of_their_own() -> None:
    plan = bare([row("a", 0, 4, 0, 1)], schedule=["x", "y", "z"], steps=[0, 0, 1])
    nodes = [(e["name"], e["ts"], e["tid"]) for e in of(events(plan), "X") if e["pid"] == 1]
    assert nodes == [("x", 0, 1), ("y", 0, 2), ("z", 1, 1)]
    assert [e["tid"] for e in of(events(plan), "M") if e["pid"] == 1 and e["name"] == "thread_name"] == [1, 2]


def test_the_counter_reaches_the_peak_and_ends_at_nothing(plan: Plan) -> None:
    counter = of(events(plan), "C")
    highest = max(counter, key=lambda event: event["args"]["bytes"])
    assert highest["args"]["bytes"] == plan["peak"]
    assert highest["ts"] == plan["peak_step"]
    assert counter[-1]["args"]["bytes"] == 0
    assert [event["ts"] for event in counter] == sorted({event["ts"] for event in counter})


def test_each_arena_is_a_process_with_a_counter(odd: Plan) -> None:
    found = events(odd)
    names = {e["pid"]: e["args"]["name"] for e in found if e["name"] == "process_name"}
    assert names[2].startswith("arena sram (1,024") and names[3].startswith("arena dram")
    assert {e["pid"] for e in of(found, "C")} == {2, 3}
