"""The curve of fit: the arena against multiply-accumulates, nodes and copied bytes, each point written and planned."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import onnxtile
from onnxtile.verbs.flows import fit as fit_curve
from tests.cli.conftest import Done
from tests.fitting.networks import inverted_residuals, model

Run = Callable[..., Done]
BUDGETS = ("--max-nodes", "100", "--max-extra-macs", "0%")


@pytest.fixture(name="there")
def fixture_there(tmp_path: Path) -> Path:
    """A folder with a small model, m.onnx."""
    onnx.save(inverted_residuals(), tmp_path / "m.onnx")
    return tmp_path


def test_each_point_takes_fewer_bytes_and_the_first_is_the_model_as_it_is() -> None:
    curve = onnxtile.fit_curve(inverted_residuals(), max_nodes=100, max_extra_macs="0%")
    assert len(curve.points) > 2
    assert curve.points[0].cost.arena == onnxtile.plan(inverted_residuals()).plan.arena_size
    assert all(after.cost.arena < before.cost.arena for before, after in pairwise(curve.points))
    assert all(point.cost.nodes <= 100 and point.cost.macs == curve.points[0].cost.macs for point in curve.points)


def test_a_point_is_what_fit_reaches_within_that_arena() -> None:
    curve = onnxtile.fit_curve(inverted_residuals(), max_nodes=100, max_extra_macs="0%")
    for point in curve.points[1:]:
        fitted = onnxtile.fit(
            inverted_residuals(), capacity=point.cost.arena, max_nodes=100, max_extra_macs="0%", verify=False
        )
        assert not point.estimated and fitted.after.arena <= point.cost.arena


def test_a_point_that_is_not_planned_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_curve, "_PLANNED", 20)
    curve = onnxtile.fit_curve(inverted_residuals(), max_nodes=100, max_extra_macs="0%")
    assert [point.estimated for point in curve.points] == [point.cost.nodes > 20 for point in curve.points]
    assert [row["estimated"] for row in curve.to_dict()["curve"]][-1] is True


def test_a_model_with_nothing_to_cut_has_one_point() -> None:
    curve = onnxtile.fit_curve(
        model("g (float[4,64] x) => (float[64,4] y) { h = Softmax<axis=0>(x) y = Transpose(h) }")
    )
    assert len(curve.points) == 1


def test_the_curve_alone_writes_the_file_and_no_model(run: Run, there: Path) -> None:
    done = run("fit", "m.onnx", "--curve", "c.html", *BUDGETS, "--no-verify")
    assert done.code == 0, done.err
    assert "20,672" in done.out and "planned" in done.out
    assert sorted(file.name for file in there.iterdir()) == ["c.html", "m.onnx"]
    content = (there / "c.html").read_bytes()
    assert run("fit", "m.onnx", "--curve", "c.html", *BUDGETS, "--no-verify", "-q").code == 0
    assert (there / "c.html").read_bytes() == content


def test_the_curve_goes_to_every_file_that_is_named(run: Run, there: Path) -> None:
    done = run("fit", "m.onnx", "--curve", "a.csv", "--curve", "b.svg", "--curve", "-", *BUDGETS, "--no-verify")
    assert done.code == 0, done.err
    assert sorted(file.name for file in there.iterdir()) == ["a.csv", "b.svg", "m.onnx"]
    picture = ElementTree.parse(there / "b.svg").getroot()
    points = len((there / "a.csv").read_text().splitlines()) - 1
    marks = [one for one in picture.iter() if one.tag.endswith("circle")]
    assert len(marks) == 3 * points
    assert "arena 20,672 bytes" in (marks[0][0].text or "")


@pytest.mark.usefixtures("there")
def test_a_picture_that_cannot_be_drawn_is_refused_before_any_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr(fit_curve, "curve_of", None)
    for arguments in (("--curve", "c.png"), ("--smallest", "--emit", "p.png")):
        done = run("fit", "m.onnx", *arguments)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "needs resvg_py" in done.err and "onnxtile[pictures]" in done.err


def test_a_page_needs_no_further_package(run: Run, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    assert run("fit", "m.onnx", "--curve", "c.html", *BUDGETS, "--no-verify").code == 0
    assert "<circle" in (there / "c.html").read_text()


def test_the_curve_beside_a_model_that_fits_is_in_the_json(run: Run, there: Path) -> None:
    done = run("fit", "m.onnx", "--curve", "-", "--capacity", "10KiB", *BUDGETS, "--json", "r.json")
    assert done.code == 0, done.err
    assert "arena against its price" in done.out
    assert len(json.loads((there / "r.json").read_text())["curve"]) > 2
    assert (there / "m.fitted.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--curve", "c.txt"), "no format of curve has this ending"),
        (("--curve", "c.html", "-o", "x.onnx"), "--output is for one model that fits"),
        (("--curve", "c.html", "--emit", "p.html"), "--emit is for one model that fits"),
        (("--curve", "m.onnx"), "would be written over"),
        (("--curve", "c.json", "--json", "c.json"), "both name"),
        (("--curve", "nowhere/c.json"), "nowhere"),
        (("--curve", "m.fitted.onnx", "--smallest"), "m.fitted.onnx"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    run: Run, there: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run("fit", "m.onnx", *arguments)
    assert done.code == 2
    assert said in done.err and done.err.count("\n") == 1
    assert [file.name for file in there.iterdir()] == ["m.onnx"]
