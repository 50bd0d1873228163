"""fit on the command line, and its curve: one line for bad input, the right exit code, and files that are all written or none."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import onnxtile
from onnxtile.verbs.flows import fit as fit_curve
from tests.cli.conftest import Run
from tests.fitting.networks import inverted_residuals, model

# fit, bad input: one line, the right exit code, and nothing is written.


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "neither --capacity nor --smallest"),
        (("--capacity", "4KiB", "--smallest"), 2, "exclude each other"),
        (("--capacity", "a=4KiB", "--capacity", "b=4KiB", "--capacity", "c=4KiB"), 2, "more than two memories"),
        (("--capacity", "4KiB", "--max-extra-macs", "-1%"), 2, "at least 0%"),
        (("--capacity", "4KiB", "--max-extra-macs", "many"), 2, "not a share"),
        (("--capacity", "0"), 2, "at least 1"),
        (("--capacity", "64"), 1, "nothing fits"),
        (("--capacity", "sram=64"), 1, "nothing fits sram of 64 bytes"),
        (("--capacity", "1.0001KiB"), 2, "not a size in bytes"),
        (("--capacity", "-1"), 2, "not a size in bytes"),
        (("--capacity", "4KiB", "--max-extra-macs", "nan%"), 2, "not a share"),
        (("--capacity", "4KiB", "--max-nodes", "0"), 2, "at least 1"),
        (("--capacity", "4KiB", "--max-nodes", "-3"), 2, "at least 1"),
        (("--capacity", "2KiB", "--max-nodes", "14"), 1, "nothing fits"),
        (("--capacity", "4KiB", "--target", "nowhere.toml"), 2, "nowhere.toml"),
        (("--capacity", "4KiB", "--tolerance", "2step"), 2, "invalid --tolerance '2step'"),
        (("--capacity", "4KiB", "-o", "m.onnx"), 2, "--force"),
        (("--capacity", "4KiB", "-o", "nowhere/m.onnx"), 2, "nowhere"),
        (("--capacity", "4KiB", "--emit", "m.onnx"), 2, "would be written over"),
        (("--capacity", "4KiB", "--emit", "p.json", "--json", "p.json"), 2, "both name"),
        (("--capacity", "4KiB", "--color-by", "kind"), 2, "there is no --color-by any more"),
        (("--smallest", "--dim", "batch=1"), 2, "batch"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    run: Run,
    tmp_path: Path,
) -> None:
    onnx.save(inverted_residuals(9, 8), tmp_path / "m.onnx")
    done = run("fit", "m.onnx", *arguments)
    assert done.code == code
    assert said in done.err
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_unbound_sizes_name_the_dimension(run: Run, tmp_path: Path) -> None:
    onnx.save(
        model("g (float[2,n,64] x) => (float[2,n,8] y) { h = MatMul(x, w) y = Relu(h) }", w=(64, 8)),
        tmp_path / "m.onnx",
    )
    done = run("fit", "m.onnx", "--capacity", "1KiB")
    assert done.code == 2
    assert "give them, for example --dim n=" in done.err


def test_an_input_that_is_no_tensor_needs_no_option(run: Run, tmp_path: Path) -> None:
    made = model("g (seq(float[2,8]) s, float[2,8] x) => (float[2,8] y) { y = Relu(x) }")
    onnx.save(made, tmp_path / "m.onnx")
    done = run("fit", "m.onnx", "--capacity", "1KiB")
    assert done.code == 2
    assert "'s' is a sequence, and fit takes models of tensors only" in done.err


def test_a_model_with_nothing_to_cut_says_so(run: Run, tmp_path: Path) -> None:
    onnx.save(
        model("g (float[4,64] x) => (float[64,4] y) { h = Softmax<axis=0>(x) y = Transpose(h) }"), tmp_path / "m.onnx"
    )
    done = run("fit", "m.onnx", "--capacity", "256", "--json", "r.json")
    assert done.code == 1
    assert "nothing fits" in done.err
    silent = run("fit", "m.onnx", "--capacity", "256", "-q")
    assert (silent.code, silent.out, silent.err) == (1, "", done.err)
    blocked = json.loads((tmp_path / "r.json").read_text())["blocked_by"]
    assert blocked["tensors"]
    assert (blocked["search"], blocked["floor"]) == ("floor", blocked["peak"])
    assert f"less than {blocked['floor']:,} bytes" in done.err
    assert not (tmp_path / "m.fitted.onnx").exists()


def test_a_pipeline_fits_and_then_plans(run: Run, tmp_path: Path) -> None:
    onnx.save(inverted_residuals(9), tmp_path / "m.onnx")
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "fit"\ncapacity = "4KiB"\n[[steps]]\ndo = "plan"\n')
    done = run("run", "p.toml", "m.onnx", "--json", "r.json")
    assert done.code == 0, done.err
    (tmp_path / "small.toml").write_text('[[steps]]\ndo = "fit"\ncapacity = "64"\n')
    assert run("run", "small.toml", "m.onnx").code == 1
    assert run("fit", "m.onnx", "--capacity", "4KiB").code == 0
    assert run("plan", "m.fitted.onnx", "--capacity", "4KiB").code == 0


def test_the_plan_is_written_beside_the_model_and_pictures_show_both(run: Run, tmp_path: Path) -> None:
    onnx.save(inverted_residuals(9), tmp_path / "m.onnx")
    emitted = [part for ending in ("html", "json", "csv", "bin") for part in ("--emit", f"p.{ending}")]
    done = run("fit", "m.onnx", "--capacity", "4KiB", *emitted)
    assert done.code == 0, done.err
    assert "run inside the arena: equal bit for bit" in done.out
    plan = json.loads((tmp_path / "p.json").read_text())
    assert plan["model"] == "m"
    assert run("plan", "m.fitted.onnx", "--check", "p.json").code == 0
    page = (tmp_path / "p.html").read_text()
    assert "before" in page and re.search(r"\w/region0/piece0", page)
    assert (tmp_path / "p.bin").stat().st_size > 0


def test_a_model_that_does_not_fit_emits_the_smallest_plan(run: Run, tmp_path: Path) -> None:
    onnx.save(inverted_residuals(9, 8), tmp_path / "m.onnx")
    done = run("fit", "m.onnx", "--capacity", "500", "--emit", "p.json")
    assert done.code == 1
    smallest = json.loads((tmp_path / "p.json").read_text())["arenas"][0]["size"]
    assert f"{smallest:,} bytes" in done.err


@pytest.mark.parametrize("emit", ["p.onnx", "p", "p.txt"])
def test_an_ending_that_no_format_has_is_refused_before_any_work(run: Run, tmp_path: Path, emit: str) -> None:
    onnx.save(inverted_residuals(9), tmp_path / "m.onnx")
    done = run("fit", "m.onnx", "--capacity", "4KiB", "--emit", emit)
    assert done.code == 2 and "no format has this ending" in done.err
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_an_operand_that_cannot_be_cut_is_named(run: Run, tmp_path: Path) -> None:
    onnx.save(
        model("g (float[4,64] x) => (float[64,4] y) { h = Softmax<axis=0>(x) y = Transpose(h) }"), tmp_path / "m.onnx"
    )
    done = run("fit", "m.onnx", "--capacity", "1500")
    assert done.code == 1
    assert "h (1,024 bytes)" in done.err and "h (1,024 bytes)" in done.out


def test_each_phase_is_a_line_of_progress() -> None:
    phases: dict[str, None] = {}

    def tell(phase: str, _done: int = 0, _total: int = 0, /) -> None:
        phases.setdefault(phase.removeprefix("attempt 1 of at most 8: "))

    onnxtile.fit(inverted_residuals(9), capacity="4KiB", progress=tell)
    wanted = ["reading the model", "inferring shapes", "planning", "searching", "writing", "verifying"]
    assert [phase for phase in phases if phase in wanted] == wanted
    assert "running inside the arena" in phases


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal")
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    onnx.save(inverted_residuals(9), tmp_path / "m.onnx")
    script = (
        "import os, signal, sys\n"
        "from onnxtile import cli\n"
        "from onnxtile.verbs.flows import fit_drafts\n"
        "def interrupted(*_):\n    os.kill(os.getpid(), signal.SIGINT)\n    raise AssertionError('went on')\n"
        "fit_drafts.write = interrupted\n"
        "sys.argv = ['onnxtile', 'fit', 'm.onnx', '--capacity', '4KiB', '--emit', 'p.json', '--json', 'r.json']\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


# The curve of fit: the arena against multiply-accumulates, nodes and copied bytes, each point written and planned.


BUDGETS = ("--max-nodes", "100", "--max-extra-macs", "0%")


@pytest.fixture(name="there")
def fixture_there(tmp_path: Path) -> Path:
    """A folder with a small model, m.onnx."""
    onnx.save(inverted_residuals(9), tmp_path / "m.onnx")
    return tmp_path


@pytest.fixture(name="curve", scope="module")
def fixture_curve() -> onnxtile.FitCurve:
    return onnxtile.fit_curve(inverted_residuals(9), max_nodes=100, max_extra_macs="0%")


def test_each_point_takes_fewer_bytes_and_the_first_is_the_model_as_it_is(curve: onnxtile.FitCurve) -> None:
    assert len(curve.points) > 2
    assert curve.points[0].cost.arena == onnxtile.plan(inverted_residuals(9)).plan.arena_size
    assert all(after.cost.arena < before.cost.arena for before, after in pairwise(curve.points))
    assert all(point.cost.nodes <= 100 and point.cost.macs == curve.points[0].cost.macs for point in curve.points)


def test_progress_says_which_point_is_looked_for_and_how_far_the_search_may_go() -> None:
    told: list[tuple[str, int, int]] = []
    model = inverted_residuals()

    def tell(stage: str, done: int = 0, total: int = 0, /) -> None:
        told.append((stage, done, total))

    found = onnxtile.fit_curve(model, max_nodes=100, max_extra_macs="0%", progress=tell)
    points = [stage.partition(":")[0] for stage, _, _ in told if stage.startswith("point")]
    assert points[0] == "point 2, up to 15.1 KiB of 20.2 KiB"
    # One more than there are: none is smaller than the last.
    assert len(found.points) <= len({*points}) + 1 <= len(found.points) + 2
    searched = [(done, total) for stage, done, total in told if stage.endswith(": searching")]
    assert searched and all(done <= total for done, total in searched)
    assert any(stage == f"{points[0]}: writing" for stage, _, _ in told)
    told.clear()
    onnxtile.fit(model, capacity="16KiB", max_extra_macs="0%", verify=False, progress=tell)
    assert any(stage.startswith("attempt 1 of at most ") and stage.endswith(": searching") for stage, _, _ in told)


def test_a_curve_has_the_command_that_makes_its_points(tmp_path: Path) -> None:
    onnx.save(inverted_residuals(9, 8), tmp_path / "a b.onnx")
    found = onnxtile.fit_curve(tmp_path / "a b.onnx", shapes={"x": "1x3x9x8"}, max_nodes=100, max_extra_macs="2.5%")
    words = shlex.split(found.command)
    assert words[:3] == ["onnxtile", "fit", str(tmp_path / "a b.onnx")] and found.model == "a b.onnx"
    assert sorted(zip(words[3::2], words[4::2], strict=True)) == [
        ("--max-extra-macs", "2.5%"),
        ("--max-nodes", "100"),
        ("--shape", "x=1x3x9x8"),
    ]
    assert onnxtile.fit_curve(inverted_residuals(9, 8), max_nodes=9).command == "onnxtile fit model.onnx --max-nodes 9"


def test_a_point_is_what_fit_reaches_within_that_arena(curve: onnxtile.FitCurve) -> None:
    for point in curve.points[1:]:
        fitted = onnxtile.fit(
            inverted_residuals(9), capacity=point.cost.arena, max_nodes=100, max_extra_macs="0%", verify=False
        )
        assert not point.estimated and fitted.after.arena <= point.cost.arena


def test_a_point_that_is_not_planned_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_curve, "_PLANNED", 20)
    curve = onnxtile.fit_curve(inverted_residuals(9), max_nodes=100, max_extra_macs="0%")
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
    assert "6,272" in done.out and "planned" in done.out
    assert sorted(file.name for file in there.iterdir()) == ["c.html", "m.onnx"]
    content = (there / "c.html").read_bytes()
    assert run("fit", "m.onnx", "--curve", "c.html", *BUDGETS, "--no-verify", "-q").code == 0
    assert (there / "c.html").read_bytes() == content


def test_the_curve_goes_to_every_file_that_is_named(run: Run, there: Path) -> None:
    done = run("fit", "m.onnx", "--curve", "a.csv", "--curve", "b.svg", "--curve", "-", *BUDGETS, "--no-verify")
    assert done.code == 0, done.err
    assert sorted(file.name for file in there.iterdir()) == ["a.csv", "b.svg", "m.onnx"]
    picture = ElementTree.parse(there / "b.svg").getroot()
    points = list(csv.DictReader((there / "a.csv").read_text().splitlines()))
    marks = [one for one in picture.iter() if one.tag.endswith("circle")]
    # One diagram of nodes, and of what is not 0 everywhere: this budget allows no extra MACs.
    assert {point["macs"] for point in points} == {points[0]["macs"]}
    assert len(marks) == (1 + any(point["copied"] != "0" for point in points)) * len(points)
    assert "arena 6,272 bytes" in (marks[0][0].text or "")


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
    done = run("fit", "m.onnx", "--curve", "-", "--capacity", "4KiB", *BUDGETS, "--json", "r.json")
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
def test_a_bad_curve_is_one_line_and_nothing_is_written(
    run: Run, there: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run("fit", "m.onnx", *arguments)
    assert done.code == 2
    assert said in done.err and done.err.count("\n") == 1
    assert [file.name for file in there.iterdir()] == ["m.onnx"]
