"""PNG and SVG: the same bytes for the same plan, a rectangle for each tensor, names on or off, peak and gap marked."""

from __future__ import annotations

import io
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from onnxtile.report.format import Format, RenderOptions
from onnxtile.report.formats.to_svg import PNG, SVG, Box, fitting, shortened
from onnxtile.report.words import readable
from onnxtile.system.errors import UsageError
from tests.report.conftest import Plan, bare, row, stacked

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
    assert "onnxtile[pictures]" in (caught.value.hint or "")
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
