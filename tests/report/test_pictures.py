"""Pictures of plans: the same bytes for the same plan, a rectangle for each tensor, colours and headline as the plan says."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image

from onnxtile.report.format import Format, RenderOptions
from onnxtile.report.formats.pictures import PNG, SVG, Box, fitting, shortened
from onnxtile.report.layout import arenas, arenas_in_use, layer_names, live_line, live_sizes, shown, step_names, steps
from onnxtile.report.svg import CATEGORIES, OTHER, colorings, ramp
from onnxtile.report.words import headline, proved, readable, tensor_type
from onnxtile.system.errors import UsageError
from tests.report.conftest import Plan, bare, row, stacked

# PNG and SVG: the same bytes for the same plan, a rectangle for each tensor, names on or off, peak and gap marked.


SPACE = "{http://www.w3.org/2000/svg}"
BOTH = pytest.mark.parametrize("form", [PNG, SVG], ids=lambda form: form.name)


@pytest.fixture(autouse=True)
def _drawn() -> None:
    pytest.importorskip("resvg_py", reason="the extra 'pictures' is not installed")


def texts(plan: Plan, options: RenderOptions | None = None) -> list[str]:
    """Return all texts of the SVG, which is well-formed."""
    tree = ET.fromstring(SVG.render(plan, options))
    return ["".join(node.itertext()).strip() for node in tree.iter(f"{SPACE}text")]


@BOTH
@pytest.mark.parametrize(
    "options", [RenderOptions("a"), RenderOptions("b", names=True), RenderOptions("$c$ é", names=False)]
)
def test_the_same_bytes_each_time(form: Format, options: RenderOptions, problem: Plan) -> None:
    first = form.render(problem, options)
    assert form.render(problem, options) == first
    assert b"Date" not in first


def test_a_png_has_pixels_in_the_colours_of_its_kinds() -> None:
    plan = bare([row("a", 0, 64, 0, 9), row("b", 64, 64, 0, 9, kind="output")])
    pixels = np.asarray(Image.open(io.BytesIO(PNG.render(plan, RenderOptions(names=False)))).convert("RGB")).astype(int)
    assert pixels.shape[1] == 2000
    for color in ((0x7F, 0xB2, 0xD9), (0xE6, 0x9F, 0x00)):
        same = np.abs(pixels - color).max(axis=2) < 2
        assert same.mean() > 0.2, color


def test_names_on_and_off() -> None:
    plan = stacked(20, depth=6)
    name = plan["buffers"][0]["name"]
    assert any(text.startswith(name) for text in texts(plan, RenderOptions(names=True)))
    assert not any("layers" in text for text in texts(plan, RenderOptions(names=False)))


@pytest.mark.parametrize("count", [20, 2000])
def test_names_are_legible(count: int) -> None:
    drawn = SVG.render(stacked(count, depth=max(6, count // 50))).decode()
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', drawn)]
    assert min(sizes) >= 4.4
    assert sum("/" in text for text in texts(stacked(count, depth=max(6, count // 50)))) >= min(count * 0.7, 200)


def test_peak_and_gap_are_marked() -> None:
    plan = bare([row("a", 0, 512, 0, 1), row("b", 1024, 512, 1, 2)], schedule=["first", "second", "third"])
    said = texts(plan)
    assert "peak 1 KiB, step 1: second" in said
    assert "arena 1.50 KiB, peak 1 KiB, gap 512 bytes (33.3%)" in said
    assert {"address (KiB)", "step"} <= {*said}
    assert "gap above the peak" in said
    assert "gap above the peak" not in texts(bare([row("a", 0, 512, 0, 1)]))


def test_two_plans_stand_side_by_side() -> None:
    before = bare([row("a", 0, 2048, 0, 1)])
    said = texts(bare([row("b", 0, 1024, 0, 1)]), RenderOptions(before=before))
    assert "before: arena 2 KiB, peak 2 KiB, no gap" in said
    assert "after: arena 1 KiB, peak 1 KiB, no gap" in said


def test_each_arena_has_a_map(odd: Plan) -> None:
    headings = [text for text in texts(odd) if text.startswith("arena ") and ", peak" in text]
    assert [text.split()[1] for text in headings] == ["sram", "dram"]


def test_title_legend_and_colours_are_those_of_the_page() -> None:
    rows = [row("a", 0, 512, 0, 1, node="/h.0/c"), row("b", 512, 512, 1, 2, node="/h.1/r")]
    nodes = {"schedule": ["/h.0/c", "k", "/h.1/r"], "operators": ["Conv", "Constant", "Relu"], "constant_nodes": ["k"]}
    inputs = [{"name": "x", "dtype": "FLOAT", "shape": [1, 3]}]
    plan = bare(rows, model="net", inputs=inputs, activation_bytes=4096, **nodes)
    said = texts(plan)
    figures = ("arena 1 KiB", "activations without sharing 4 KiB", "saved by sharing 75.0%")
    head = " · ".join((*figures, "smallest of this order, with these aliases"))
    assert {"net", "x float32 1×3", head, "Conv", "Relu"} <= {*said}
    assert "2" in said and "2.5" not in said, "two steps"
    assert {"h.0", "h.1"} <= {*texts(plan, RenderOptions(color_by="layer"))}
    assert "activation" in texts(plan, RenderOptions(color_by="kind"))


def test_capacity_is_a_line_with_its_bytes() -> None:
    arenas = [{"name": "arena", "capacity": 1024, "size": 768}]
    assert "capacity 1 KiB" in texts({**bare([row("a", 0, 768, 0, 1)]), "arenas": arenas})
    larger = [{**arenas[0], "capacity": 1 << 20}]
    assert "capacity 1 MiB" not in texts({**bare([row("a", 0, 768, 0, 1)]), "arenas": larger}), "far above the arena"


@pytest.mark.parametrize("package", ["resvg_py", "fontpkg_roboto"])
def test_what_is_missing_for_a_png_names_the_extra(
    problem: Plan, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError) as caught:
        PNG.render(problem)
    assert ".[pictures]" in (caught.value.hint or "")
    assert SVG.render(problem)


def test_a_pointer_over_a_tensor_shows_its_bytes_unless_names_are_off() -> None:
    plan = bare([row("a&b", 0, 2048, 0, 9), row("c", 64, 64, 3, 4, alias="a&b")])
    titles = [node.text for node in ET.fromstring(SVG.render(plan)).iter(f"{SPACE}title")]
    assert titles == ["a&b: 2,048 bytes at 0, steps 0 to 9", "c: 64 bytes at 64, steps 3 to 4, in a&b"]
    assert b"title" not in SVG.render(plan, RenderOptions(names=False))


def test_the_name_of_a_buffer_in_parts_is_in_the_largest() -> None:
    parts = [
        {"start": 0, "size": 512, "first": 0, "last": 1},
        {"start": 512, "size": 512, "first": 0, "last": 9},
        {"start": 1024, "size": 64, "first": 0, "last": 2},
    ]
    tree = ET.fromstring(SVG.render(bare([row("parted", 0, 1088, 0, 9, parts=parts)])))
    (height,) = (float(node.attrib["y"]) for node in tree.iter(f"{SPACE}text") if node.text == "parted")
    tops = [float(node.attrib["y"]) for node in tree.iter(f"{SPACE}rect") if list(node)]
    assert tops[1] < height < tops[0]


def test_long_figures_take_several_lines() -> None:
    inputs = [{"name": "x", "dtype": "FLOAT", "shape": [1, 3]}]
    states = [{"input": "s", "output": "t", "arena": "arena", "size": 4096, "copied": 4096}]
    insides = [{"bytes": 1 << 20, "in_arena": False}]
    plan = bare([row("a", 0, 512, 0, 1)], inputs=inputs, states=states, insides=insides, activation_bytes=4096)
    said = texts({**plan, "schedule": ["n"]})
    assert any(text.endswith("saved by sharing 87.5%") for text in said)
    assert any(text.startswith("state 1 kept in 4 KiB, 4 KiB copied after each run") for text in said)


def test_a_label_lies_along_the_longer_side_and_fits() -> None:
    boxes = [Box("wide", "", 0, 0, 100, 10), Box("tall", "", 0, 0, 10, 100), Box("none", "", 0, 0, 3, 3)]
    wide, tall = fitting(boxes, 4, 7)
    assert (wide.upright, tall.upright) == (False, True)
    assert wide.size == tall.size == 7
    assert (wide.x, wide.y) == (50, 5)


def test_a_label_keeps_clear_of_a_line_where_there_is_room() -> None:
    boxes = [Box("crossed", "", 0, 0, 60, 100), Box("narrow", "", 20, 0, 10, 100), Box("apart", "", 40, 0, 60, 10)]
    crossed, narrow, apart = fitting(boxes, 4, 7, line=24)
    assert (crossed.x, crossed.size) == (42, 7)
    assert narrow.x == 27
    assert apart.x == 70
    (whole,) = fitting([Box("squeezed", "", 20, 0, 8, 100)], 4, 7, line=24)
    assert whole.x == 24, "beside the line is no room"


def test_a_name_is_shortened_from_its_start() -> None:
    assert shortened("/a/b/Add_output_0", " +2", 30) == "/a/b/Add_output_0 +2"
    assert shortened("/a/b/Add_output_0", " +2", 12) == "/a/b/Add +2"
    assert shortened("/a/b/Add_output_0", " +2", 8) == "/a/b/Add"
    assert shortened("/a/b/Add_output_0", " +2", 7) == "…/b/Add"
    assert not shortened("/a/b/Add_output_0", " +2", 5)
    assert shortened("/model/attention/q_proj/MatMul", "", 18) == "…/q_proj/MatMul"


def test_the_ending_of_a_quantiser_is_no_part_of_a_short_name() -> None:
    assert shortened("/blocks.1.1/conv_dw/Conv_output_0_QuantizeLinear_Output", "", 25) == "/blocks.1.1/conv_dw/Conv"
    assert shortened("input.1_QuantizeLinear_Output", "", 10) == "input.1"
    assert shortened("/gate/Mul_output_0_DequantizeLinear_Output", "", 12) == "/gate/Mul"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (7225344, "6.89 MiB"),
        (6422528, "6.13 MiB"),
        (1 << 40, "1 TiB"),
        (150_000, "146 KiB"),
    ],
)
def test_bytes_for_people(size: int, text: str) -> None:
    assert readable(size) == text


# Colours: by operator, by layer, and by kind, the same in plans that are compared.


def made(*operators: str) -> Plan:
    rows = [row(f"t{i}", 0, 100 - i, i, i, node=f"n{i}") for i in range(len(operators))]
    return dict(shown(bare(rows, schedule=[f"n{i}" for i in range(len(operators))], operators=list(operators))))


def test_operators_with_the_most_bytes_come_first_and_the_rest_together() -> None:
    plan = made(*(f"Op{i:02}" for i in range(20)))
    by_operator, _ = colorings([plan])
    labels = [group.label for group in by_operator.groups]
    assert labels[0] == "Op00" and labels[-1] == f"{20 - len(CATEGORIES) + 1} other operators"
    assert by_operator.color(plan["buffers"][19]) == OTHER
    assert len({group.color for group in by_operator.groups}) == len(labels)


def test_two_plans_have_the_same_colours() -> None:
    one, two = made("Conv", "Relu"), made("Relu")
    by_operator = colorings([one, two])[0]
    assert by_operator.color(one["buffers"][1]) == by_operator.color(two["buffers"][0])


def test_without_operators_and_layers_there_are_kinds() -> None:
    assert [way.name for way in colorings([shown(bare([row("a", 0, 8, 0, 1)]))])] == ["kind"]


def test_a_graph_input_is_a_group_of_its_own() -> None:
    plan = shown(
        bare([row("x", 0, 8, 0, 1, kind="input"), row("y", 8, 8, 0, 1, node="n")], schedule=["n"], operators=["Relu"])
    )
    assert [group.label for group in colorings([plan])[0].groups] == ["Relu", "graph input"]


def test_layers_are_read_from_names() -> None:
    names = {
        "/m/encoder/layers.0/blocks.1/attention/MatMul": "layers.0.blocks.1",
        "/m/encoder/layers.0/blocks.1/norm_1/Add": "layers.0.blocks.1",
        "/m/blocks/blocks.3/blocks.3.0/se/Mul": "blocks.3.0",
        "/m/layer1/layer1.0/conv1/Conv": "layer1.0",
        "/m/h/5/attn/Softmax": "h.5",
        "/m/embeddings/patch/Conv": "embeddings",
        "Softmax_12": "model",
    }
    assert layer_names(names) == names
    assert layer_names(["Conv_1", "Relu_2"]) == {}
    assert layer_names([]) == {}
    assert layer_names(["/m/a/Conv", "/m/a/Relu"]) == {}


def test_a_ramp_has_colours_of_its_own_for_each() -> None:
    assert len(set(ramp(48))) == 48
    assert all(re.fullmatch("#[0-9a-f]{6}", shade) for shade in ramp(48))
    assert len(ramp(1)) == 1 and ramp(0) == []


def test_meta_ops_of_one_name_are_one_group() -> None:
    by_operator = colorings([made("onnxtile::Linear", "onnxtile::Linear.2", "my::Linear.2")])[0]
    assert sorted(group.label for group in by_operator.groups) == ["Linear", "Linear.2"]


# The headline of a picture says what the plan says, and no more.


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


def test_several_memories_are_shown_apart_and_their_sum_has_no_share_of_a_bound() -> None:
    sram = {"name": "sram", "size": 1024, "capacity": 2048}
    dram = {"name": "dram", "size": 4096, "capacity": None}
    plan = {"arenas": [sram, dram], "buffers": [], "optimal": False, "lower_bound": 4000, "gap": 1120}
    said = "sram 1 KiB of 2 KiB, dram 4 KiB"
    assert headline(plan, "").figures == (("arenas", said),)
    one = bare([row("a", 0, 8192, 0, 1)])
    assert headline(plan, "", one).figures[0] == ("arenas", f"8 KiB → {said}")
    assert headline(one, "", plan).figures[0] == ("arena", "sram 1 KiB, dram 4 KiB → 8 KiB")


def test_the_headline_of_a_range_says_its_sizes_and_the_formula() -> None:
    fixed, scaled = {"pieces": ["8*seq + 2048"]}, {"pieces": ["8*seq**2", "64*seq + 64"]}
    plan = {**bare([row("a", 0, 8, 0, 0)]), "optimal": False, "ranges": {"batch": [1, 4], "seq": [1, 2048]}}
    at = (("arena at the largest sizes", "8 bytes"), ("sizes", "all of batch 1 to 4, seq 1 to 2,048"))
    one = headline({**plan, "formulas": [{"name": "arena", "fixed": fixed, "scaled": None}]}, "").figures
    assert one == (*at, ("bytes at all sizes", "8·seq + 2,048"))
    two = headline({**plan, "formulas": [{"name": name, "fixed": fixed, "scaled": scaled} for name in "ab"]}, "")
    assert two.figures[2] == ("bytes of a at all sizes, the largest of", "8·seq² or 64·seq + 64")


def test_inputs_are_named_with_type_and_shape() -> None:
    inputs = [{"name": f"i{n}", "dtype": "INT64", "shape": [1, n]} for n in range(5)]
    assert headline({**bare([]), "inputs": inputs}, "").inputs == "i0 int64 1×0, i1 int64 1×1, i2 int64 1×2, 2 more"
    assert tensor_type({"dtype": "FLOAT", "shape": []}) == "float32 scalar"
    assert not tensor_type({"dtype": None, "shape": None})


def test_beside_another_plan_the_figures_say_whose_they_are() -> None:
    small, large = bare([row("a", 0, 8, 0, 1)]), bare([row("a", 0, 2048, 0, 1)])
    proved = {**small, "optimal": True, "optimal_over": "any order", "schedule": ["n"]}
    figures = headline(proved, "", large).figures
    assert (figures[0], figures[-1]) == (
        ("arena", "2 KiB → 8 bytes"),
        ("proof, after", "smallest of any order"),
    )


# What lies where and when: arenas apart, aliases in nobody's sum, steps of several nodes.


def test_live_bytes_are_rounded_up_and_aliases_count_nothing() -> None:
    rows = [row("a", 0, 100, 0, 2), row("v", 0, 100, 1, 2, alias="a"), row("b", 128, 10, 1, 3)]
    (arena,) = arenas(bare(rows, alignment=64))
    assert arena.live == ((0, 128), (1, 192), (3, 64), (4, 0))
    assert (arena.peak, arena.peak_step, arena.gap) == (192, 1, 0)


def test_the_layout_agrees_with_the_plan(plan: Plan) -> None:
    (arena,) = arenas(plan)
    assert (arena.peak, arena.peak_step, arena.size) == (plan["peak"], plan["peak_step"], plan["arenas"][0]["size"])


def test_arenas_are_told_apart(odd: Plan) -> None:
    sram, dram = arenas(odd)
    assert {r["arena"] for r in sram.rows} == {"sram"} and {r["arena"] for r in dram.rows} == {"dram"}
    assert len(sram.rows) + len(dram.rows) == len(odd["buffers"])
    assert (sram.capacity, dram.capacity) == (1024, None)


def test_several_nodes_may_share_a_step() -> None:
    plan = bare([row("a", 0, 4, 0, 3)], schedule=["x", "y", "z"], steps=[0, 0, 2])
    assert steps(plan) == 4
    assert step_names(plan) == {0: "x, y", 2: "z"}


def test_an_arena_without_buffers_is_not_drawn_unless_another_plan_uses_it() -> None:
    names = ["a", "b", "c"]
    facts = [{"name": name, "size": 8, "capacity": None} for name in names]
    one = {**bare([{**row("x", 0, 8, 0, 1), "arena": "b"}]), "arenas": facts}
    two = {**bare([{**row("x", 0, 8, 0, 1), "arena": "c"}]), "arenas": facts}
    assert [[arena.name for arena in found] for found in arenas_in_use([one])] == [["b"]]
    assert [[arena.name for arena in found] for found in arenas_in_use([one, two])] == [["b", "c"], ["b", "c"]]
    assert [len(found) for found in arenas_in_use([bare([])])] == [1]


# Live bytes in a line of text.


def test_bars_are_at_one_scale_and_none_is_for_nothing_only() -> None:
    assert live_line([0, 1, 50, 100], 100) == " ▁▄█"
    assert live_line([0], 0) == " "


@pytest.mark.parametrize("count", [1, 7, 48, 1000])
def test_each_span_has_the_most_of_its_steps(count: int) -> None:
    plan = stacked(60, depth=6)
    end = max(len(plan["schedule"]), 1 + max(b["last"] for b in plan["buffers"]))
    live = [
        sum(-(-b["size"] // 64) * 64 for b in plan["buffers"] if b["first"] <= step <= b["last"]) for step in range(end)
    ]
    edges = [len(live) * i // count for i in range(count + 1)]
    wanted = [max(live[first : max(last, first + 1)]) for first, last in pairwise(edges)]
    assert live_sizes(plan, count) == wanted


def test_arenas_are_summed(odd: Plan) -> None:
    assert max(live_sizes(odd, 10)) > 1 << 32
    assert live_sizes(bare([]), 3) == [0, 0, 0]
    assert live_sizes(bare([row("a", 0, 8, 0, 0)]), 2) == [8, 8]
