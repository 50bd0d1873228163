"""fit on the command line, and its curve: one line for bad input, the right exit code, and files that are all written or none."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import onnxtile
from onnxtile.verbs.flows import fit as fit_curve
from tests.cli.conftest import Run
from tests.fitting.networks import branches, inverted_residuals, model

# fit, bad input: one line, the right exit code, and nothing is written.


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--capacity", "4KiB", "--capacity", "smallest"), 2, "not of the form NAME=SIZE"),
        (("--capacity", "4KiB", "--budget", "5%,6%"), 2, "second of its kind"),
        (("--capacity", "a=4KiB", "--capacity", "b=4KiB", "--capacity", "c=4KiB"), 2, "more than two memories"),
        (("--capacity", "4KiB", "--budget", "-1%"), 2, "at least 0%"),
        (("--capacity", "4KiB", "--budget", "many"), 2, "not a share"),
        (("--capacity", "0"), 2, "at least 1"),
        (("--capacity", "64"), 1, "nothing fits"),
        (("--capacity", "sram=64"), 1, "nothing fits sram of 64 bytes"),
        (("--capacity", "1.0001KiB"), 2, "not a size in bytes"),
        (("--capacity", "smalest"), 2, "8MiB or smallest"),
        (("--capacity", "4KiB", "--budget", "much"), 2, "write 10%, 500nodes, 30s or 10%,500nodes"),
        (("--capacity", "-1"), 2, "not a size in bytes"),
        (("--capacity", "4KiB", "--budget", "nan%"), 2, "not a share"),
        (("--capacity", "4KiB", "--budget", "0nodes"), 2, "at least 1"),
        (("--capacity", "4KiB", "--budget", "-3nodes"), 2, "at least 1"),
        (("--capacity", "7500", "--budget", "9nodes"), 1, "nothing fits"),
        (("--capacity", "4KiB", "--target", "nowhere.toml"), 2, "nowhere.toml"),
        (("--capacity", "4KiB", "--tolerance", "2step"), 2, "invalid --tolerance '2step'"),
        (("--capacity", "4KiB", "-o", "m.onnx"), 2, "--force"),
        (("--capacity", "4KiB", "-o", "nowhere/m.onnx"), 2, "nowhere"),
        (("--capacity", "4KiB", "--emit", "m.onnx"), 2, "would be written over"),
        (("--capacity", "4KiB", "--emit", "p.json", "--json", "p.json"), 2, "both name"),
        (("--capacity", "smallest", "--dim", "batch=1"), 2, "batch"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    arguments: tuple[str, ...],
    code: int,
    said: str,
    run: Run,
    tmp_path: Path,
) -> None:
    onnx.save(branches(8), tmp_path / "m.onnx")
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


@pytest.mark.parametrize(
    ("body", "container"),
    [
        ("(seq(float[2,8]) s, float[2,8] x) => (float[2,8] y) { y = Relu(x) }", "a sequence"),
        ("(float[2,8] x) => (float[2,8] y) { s = Optional(x) y = OptionalGetElement(s) }", "an optional"),
    ],
)
def test_an_input_that_is_no_tensor_needs_no_option(run: Run, tmp_path: Path, body: str, container: str) -> None:
    onnx.save(model("g " + body), tmp_path / "m.onnx")
    done = run("fit", "m.onnx", "--capacity", "1KiB")
    assert done.code == 2
    assert f"'s' is {container}, and fit takes models of tensors only" in done.err


def test_a_model_with_nothing_to_cut_says_so(run: Run, tmp_path: Path) -> None:
    onnx.save(
        model("g (float[4,64] x) => (float[64,4] y) { h = Softmax<axis=0>(x) y = Transpose(h) }"), tmp_path / "m.onnx"
    )
    done = run("fit", "m.onnx", "--capacity", "256", "--json", "r.json")
    assert done.code == 1
    assert "nothing fits" in done.err
    smallest = json.loads((tmp_path / "r.json").read_text())["blocked_by"]["floor"]
    assert f"(give --capacity of at least {smallest:,} bytes)" in done.err
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
    onnx.save(inverted_residuals(5, 4), tmp_path / "m.onnx")
    done = run("fit", "m.onnx", "--capacity", "500", "--emit", "p.json")
    assert done.code == 1
    smallest = json.loads((tmp_path / "p.json").read_text())["arenas"][0]["size"]
    assert f"{smallest:,} bytes" in done.err
    assert f"(give --capacity {smallest} or try a larger --budget, --functions fuse, --io outside)" in done.err
    assert run("fit", "m.onnx", "--capacity", str(smallest)).code == 0


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
        phases.setdefault(phase)

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


BUDGETS = ("--budget", "0%,100nodes")


@pytest.fixture(name="there")
def fixture_there(tmp_path: Path) -> Path:
    """A folder with a small model, m.onnx."""
    onnx.save(inverted_residuals(9), tmp_path / "m.onnx")
    return tmp_path


Told = list[tuple[str, int, int]]


def teller(told: Told) -> Callable[..., None]:
    """Return a progress function that appends each of its calls to `told`."""
    return lambda stage, done=0, total=0, /: told.append((stage, done, total))


@pytest.fixture(name="drawn", scope="module")
def fixture_drawn() -> tuple[onnxtile.FitCurve, Told]:
    """A curve, and what was told while it was made."""
    told: Told = []
    return onnxtile.fit_curve(inverted_residuals(9), budget="0%,100nodes", progress=teller(told)), told


@pytest.fixture(name="curve")
def fixture_curve(drawn: tuple[onnxtile.FitCurve, Told]) -> onnxtile.FitCurve:
    return drawn[0]


def test_each_point_takes_fewer_bytes_and_the_first_is_the_model_as_it_is(curve: onnxtile.FitCurve) -> None:
    assert len(curve.points) > 2
    assert curve.points[0].cost.arena == onnxtile.plan(inverted_residuals(9)).plan.arena_size
    assert all(after.cost.arena < before.cost.arena for before, after in pairwise(curve.points))
    assert all(point.cost.nodes <= 100 and point.cost.macs == curve.points[0].cost.macs for point in curve.points)


def test_progress_says_which_point_is_looked_for_and_how_far_the_search_may_go(
    drawn: tuple[onnxtile.FitCurve, Told],
) -> None:
    found, told = drawn
    points = [stage.partition(":")[0] for stage, _, _ in told if stage.startswith("point")]
    assert points[0] == "point 2, up to 4.59 KiB of 6.13 KiB"
    # One more than there are: none is smaller than the last.
    assert len(found.points) <= len({*points}) + 1 <= len(found.points) + 2
    searched = [(done, total) for stage, done, total in told if stage.endswith(": searching")]
    assert searched and all(done <= total for done, total in searched)
    assert any(stage == f"{points[0]}: writing" for stage, _, _ in told)
    told = []
    onnxtile.fit(inverted_residuals(9), capacity="smallest", budget="0%", verify=False, progress=teller(told))
    stages = [*dict.fromkeys(stage for stage, _, _ in told if stage.endswith("searching"))]
    assert stages[0] == "searching"
    assert len(stages) > 2 and all(re.fullmatch(r"[\d,]+ bytes after \d+ s: searching", stage) for stage in stages[1:])
    reached = [int(stage.split()[0].replace(",", "")) for stage in stages[1:]]
    assert reached == sorted(reached, reverse=True)


def test_a_search_that_is_out_of_time_gives_the_best_so_far(run: Run, there: Path) -> None:
    fitted = onnxtile.fit(there / "m.onnx", capacity="smallest", budget="1ms", verify=False)
    assert fitted.after.arena == fitted.before.arena
    done = run("fit", "m.onnx", "--capacity", "6KiB", "--budget", "1ms", "--no-verify", "--json", "-")
    assert done.code == 1 and json.loads(done.out)["blocked_by"]["search"] == "bound"
    done = run("fit", "m.onnx", "--capacity", "smallest", "--budget", "xs")
    assert done.code == 2 and done.err.count("\n") == 1 and "is not a time" in done.err


def test_a_curve_has_the_command_that_makes_its_points(tmp_path: Path) -> None:
    onnx.save(inverted_residuals(9, 8), tmp_path / "a b.onnx")
    found = onnxtile.fit_curve(tmp_path / "a b.onnx", shapes={"x": "1x3x9x8"}, budget="2.5%,100nodes")
    words = shlex.split(found.command)
    assert words[:3] == ["onnxtile", "fit", str(tmp_path / "a b.onnx")] and found.model == "a b.onnx"
    assert sorted(zip(words[3::2], words[4::2], strict=True)) == [
        ("--budget", "2.5%,100nodes"),
        ("--shape", "x=1x3x9x8"),
    ]
    assert (
        onnxtile.fit_curve(inverted_residuals(9, 8), budget="9nodes").command
        == "onnxtile fit model.onnx --budget 9nodes"
    )


def test_a_point_is_what_fit_reaches_within_that_arena(curve: onnxtile.FitCurve) -> None:
    for point in curve.points[1::2]:
        fitted = onnxtile.fit(inverted_residuals(9), capacity=point.cost.arena, budget="0%,100nodes", verify=False)
        assert not point.estimated and fitted.after.arena <= point.cost.arena


def test_a_point_that_is_not_planned_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit_curve, "_PLANNED", 20)
    curve = onnxtile.fit_curve(inverted_residuals(9), budget="0%,100nodes")
    assert [point.estimated for point in curve.points] == [point.cost.nodes > 20 for point in curve.points]
    assert [row["estimated"] for row in curve.to_dict()["curve"]][-1] is True


def test_a_model_with_nothing_to_cut_has_one_point() -> None:
    curve = onnxtile.fit_curve(
        model("g (float[4,64] x) => (float[64,4] y) { h = Softmax<axis=0>(x) y = Transpose(h) }")
    )
    assert len(curve.points) == 1


def test_the_curve_alone_goes_to_every_file_that_is_named_and_no_model_is_written(
    run: Run, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)  # which only a PNG needs
    names = ["a.curve.csv", "b.curve.svg", "c.curve.html"]
    emitted = [part for name in names for part in ("--emit", name)]
    done = run("fit", "m.onnx", *emitted, *BUDGETS, "--no-verify")
    assert done.code == 0, done.err
    assert "6,272" in done.out and "planned" in done.out
    assert sorted(file.name for file in there.iterdir()) == [*names, "m.onnx"]
    content = (there / "c.curve.html").read_bytes()
    assert b"<circle" in content
    assert run("fit", "m.onnx", *emitted, *BUDGETS, "--no-verify", "-q").code == 0
    assert (there / "c.curve.html").read_bytes() == content
    picture = ElementTree.parse(there / "b.curve.svg").getroot()
    points = list(csv.DictReader((there / "a.curve.csv").read_text().splitlines()))
    marks = [one for one in picture.iter() if one.tag.endswith("circle")]
    # One diagram of nodes, and of what is not 0 everywhere: this budget allows no extra MACs.
    assert {point["macs"] for point in points} == {points[0]["macs"]}
    assert len(marks) == (1 + any(point["copied"] != "0" for point in points)) * len(points)
    assert "arena 6,272 bytes" in (marks[0][0].text or "")


@pytest.mark.usefixtures("there")
def test_a_picture_that_cannot_be_drawn_is_refused_before_any_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    monkeypatch.setattr(fit_curve, "curve_of", None)
    for arguments in (("--emit", "c.curve.png"), ("--capacity", "smallest", "--emit", "p.png")):
        done = run("fit", "m.onnx", *arguments)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "needs resvg_py" in done.err and ".[pictures]" in done.err


def test_the_curve_beside_a_model_that_fits_is_in_the_json(run: Run, there: Path) -> None:
    done = run("fit", "m.onnx", "--emit", "c.curve.md", "--capacity", "4KiB", *BUDGETS, "--json", "r.json")
    assert done.code == 0, done.err
    assert "arena against its price" in done.out
    assert len(json.loads((there / "r.json").read_text())["curve"]) > 2
    assert (there / "m.fitted.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--emit", "c.curve.txt"), "--emit c.curve.txt: the trade has no such format"),
        (("--emit", "c.curve.txt", "--capacity", "smallest"), "no format has this ending"),
        (("--emit", "c.curve.html", "-o", "x.onnx"), "--output is for one model that fits"),
        (("--emit", "c.curve.html", "--emit", "p.html"), "--emit p.html is a plan of one model that fits"),
        (("--emit", "c.curve.html", "--functions", "fuse"), "--functions fuse is for one model that fits"),
        (("--emit", "c.curve.json", "--json", "c.curve.json"), "both name"),
        (("--emit", "nowhere/c.curve.json"), "nowhere"),
    ],
)
def test_a_bad_curve_is_one_line_and_nothing_is_written(
    run: Run, there: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = run("fit", "m.onnx", *arguments)
    done.require_error(said)
    assert [file.name for file in there.iterdir()] == ["m.onnx"]
