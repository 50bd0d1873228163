"""Steps and commands say the same: each option of a command is one of its step, or is listed here with the reason why not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxtile.declare.verb import options
from onnxtile.pipeline.file import Destination, Pipeline, figures, from_file, verbs
from onnxtile.pipeline.run import run_one
from onnxtile.report.tables import for_run
from onnxtile.system.errors import UsageError
from onnxtile.verbs.run import RunCommand

STEPS = verbs()
NO_STEP = {
    "fuse": {"explain"},  # explains, and makes no model
    "inspect": {"trace", "inputs", "runs"},  # a run for its own sake
    "plan": {"check"},  # checks a plan, and makes none
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_every_option_of_its_command(name: str) -> None:
    """Save those that the command `run` has for all steps and models."""
    of_the_run = set(options(RunCommand)) - {"runs"} | {"output"}
    assert set(options(STEPS[name].command)) - of_the_run - NO_STEP.get(name, set()) == set(options(_step(name)))


def _step(name: str) -> type:
    declaration = STEPS[name].step
    assert declaration is not None
    return declaration


@pytest.fixture
def pipeline(tmp_path: Path, shallow: Path) -> Callable[[str], Pipeline]:
    shutil.copyfile(shallow, tmp_path / "net.onnx")

    def made(text: str) -> Pipeline:
        (tmp_path / "p.toml").write_text(text)
        return from_file(tmp_path / "p.toml")

    return made


def test_plan_takes_what_the_command_takes(pipeline: Callable[[str], Pipeline], tmp_path: Path) -> None:
    made = pipeline(
        """[[steps]]
do = "plan"
capacity = {sram = "20KiB", dram = "8MiB"}
order = "min-peak"
target = {streams = 2}
search = "low"
io = "overwrite"
emit = ["json", "h", "before.json", "page.html"]
verify = false
"""
    )
    report = run_one(made, tmp_path / "net.onnx", Destination())
    assert report.passed, report.error
    names = ["before.json", "onnx", "page.html", "plan.h", "plan.json", "report.json"]
    assert sorted(path.name for path in tmp_path.glob("net.p.*")) == [f"net.p.{name}" for name in names]
    content = json.loads((tmp_path / "net.p.plan.json").read_text())
    assert [arena["name"] for arena in content["arenas"]] == ["sram", "dram"]
    assert content == json.loads((tmp_path / "net.p.before.json").read_text())


def test_verify_takes_inputs_from_the_folder_of_the_file(pipeline: Callable[[str], Pipeline], tmp_path: Path) -> None:
    step = '[[steps]]\ndo = "verify"\ninputs = "real.npz"\n'
    made = pipeline(step)
    report = run_one(made, tmp_path / "net.onnx", Destination(dry_run=True))
    assert report.error is not None and f"{tmp_path / 'real.npz'}: no such file" in report.error
    from onnxtile.model.feeds import sample_feeds
    from onnxtile.model.load import load

    model = load(tmp_path / "net.onnx")
    sizes = {value.name or "": value.shape.numpy() for value in model.graph.inputs if value.shape is not None}
    feeds = sample_feeds(model, lambda value: sizes[value.name or ""])
    np.savez(tmp_path / "real.npz", **feeds)
    report = run_one(made, tmp_path / "net.onnx", Destination(dry_run=True))
    assert report.passed, report.error
    assert report.steps[0][1]["inputs"] == ["given"]


def test_inspect_looks_where_it_stands(pipeline: Callable[[str], Pipeline], tmp_path: Path) -> None:
    made = pipeline(
        """[[steps]]
do = "inspect"
emit = ["csv"]
[[steps]]
do = "fuse"
patterns = ["LayerNorm"]
verify = false
[[steps]]
do = "inspect"
training = true
emit = ["after.csv"]
"""
    )
    report = run_one(made, tmp_path / "net.onnx", Destination())
    assert report.passed, report.error
    before, after = ((tmp_path / f"net.p.{name}.csv").read_text().count("LayerNorm,") for name in ("inspect", "after"))
    assert before == 0 < after


def test_patterns_and_limits_are_found_from_the_folder_of_the_file(
    pipeline: Callable[[str], Pipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "mine.toml").write_text('name = "Mine"\ndoc = "x"\n[[variants]]\nquery = "MatMul-*>Add"\n')
    (tmp_path / "npu.toml").write_text("m = 32\nk = 32\nn = 32\n")
    made = pipeline(
        '[[steps]]\ndo = "fuse"\npatterns = ["mine.toml"]\nverify = false\n'
        '[[steps]]\ndo = "tile"\ntarget = "npu.toml"\nverify = false\n'
    )
    report = run_one(made, tmp_path / "net.onnx", Destination(dry_run=True))
    assert report.passed, report.error
    assert report.summary()["figures"]["fused_by"]["Mine"] > 0


@pytest.mark.parametrize(
    ("step", "line", "message"),
    [
        ('do = "plan"\nemit = ["docx"]', 3, 'invalid emit = "docx"'),
        ('do = "plan"\nplaner = "best"', 3, "unknown key 'planer'"),
        ('do = "plan"\norder = "alphabetical"', 3, 'invalid order = "alphabetical"'),
        ('do = "plan"\nsearch = "huge"', 3, 'invalid search = "huge"'),
        ('do = "plan"\nsearch = ["exact", "5m"]', 3, "'5m' is not a time"),
        ('do = "plan"\nlayout = {pin = {x = 4}}', 3, "there is no such rule"),
        ('do = "plan"\nio = "somewhere"', 3, 'invalid io = "somewhere"'),
        ('do = "plan"\ncapacity = "lots"', 3, "not a size in bytes"),
        ('do = "plan"\ncapacity = {sram = true}', 3, "not a size in bytes"),
        ('do = "plan"\nemit = ["svg"]\ncompare = "no.json"', 1, "no.json"),
        ('do = "plan"\ninputs = {x = "5:1"}', 3, "is empty"),
        ('do = "plan"\ninputs = {x = [0, 1, 2]}', 3, "is not a range"),
        ('do = "verify"\nruns = 0', 3, "from 1 to 1,000,000"),
        ('do = "tile"\nmax = 8\naccumulate = "slowly"', 4, "slowly"),
        ('do = "inspect"\nemit = ["xlsx"]', 3, 'emit = "xlsx"'),
        ('do = "plan"\nemit = ["../x.json"]', 3, 'emit = "../x.json"'),
    ],
)
def test_bad_options_get_the_line(
    pipeline: Callable[[str], Pipeline], tmp_path: Path, step: str, line: int, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        pipeline(f"[[steps]]\n{step}\n")
    assert str(caught.value).startswith(f"{tmp_path / 'p.toml'}:{line}: ")
    assert message in str(caught.value)


def test_two_steps_for_one_file(pipeline: Callable[[str], Pipeline]) -> None:
    plan = '[[steps]]\ndo = "plan"\nemit = ["json"]\n'
    with pytest.raises(UsageError, match=r"p\.toml:6: a step before writes \.plan\.json already") as caught:
        pipeline(plan + plan)
    assert caught.value.hint == 'name it yourself: emit = ["plan2.json"]'


def test_outputs_that_are_not_compared_are_figures() -> None:
    steps: list[dict[str, Any]] = [{"outputs": [{"max_rel": 0.5}], "not_compared": {"y": "it draws"}}, {"outputs": []}]
    assert figures([("verify", one) for one in steps]) == {"error": 0.5, "not_compared": {"y": "it draws"}}
    row = {
        "model": "m.onnx",
        "passed": True,
        "figures": {"not_compared": {"y": "it draws"}},
        "budgets": [],
        "error": None,
    }
    lines = for_run({"pipeline": "p.toml", "models": [row], "passed": 1, "failed": 0})
    assert "not compared in m.onnx: y: it draws" in [str(line) for line in lines]
