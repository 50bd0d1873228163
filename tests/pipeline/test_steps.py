"""Steps and commands say the same: each option of a command is one of its step, or is listed here with the reason why not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from onnxtile.cli.app import build
from onnxtile.errors import UsageError
from onnxtile.pipeline.file import Pipeline, from_file
from onnxtile.pipeline.place import Place
from onnxtile.pipeline.run import run_one
from onnxtile.pipeline.step import Step
from onnxtile.registry import data_folder, discover

STEPS = discover("onnxtile.pipeline.steps", Step)
RENAMED = {
    "no_verify": "verify",
    **{
        name: f"{name}s" for name in ("dim", "shape", "pattern", "range", "workspace", "bound")
    },  # several stand in one table
}
OF_THE_RUN = {"output", "force", "dry_run", "json", "quiet", "debug", "help", "run_seconds", "run_memory"}
"""What the command `run` says once for all steps and models."""
NO_STEP = {
    "fuse": {"explain"},  # explains, and makes no model
    "inspect": {"trace", "inputs", "ranges"},  # a run for its own sake
    "plan": {"check"},  # checks a plan, and makes none
}


def _options(command: str) -> set[str]:
    app: Any = typer.main.get_command(build())
    params = [param for param in app.commands[command].params if param.param_type_name == "option"]
    names = {max(param.opts, key=len).lstrip("-").replace("-", "_") for param in params}
    return {RENAMED.get(name, name) for name in names} - OF_THE_RUN


@pytest.mark.parametrize("name", STEPS)
def test_a_step_has_every_option_of_its_command(name: str) -> None:
    mine = set(STEPS[name].options.model_fields) - {"do"}
    assert mine == _options(name) - NO_STEP.get(name, set())


@pytest.mark.parametrize("name", STEPS)
def test_the_page_lists_every_option(name: str) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "run.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith((f"| `{name}`", "| all that"))]
    for option in set(STEPS[name].options.model_fields) - {"do"}:
        assert f"`{option}" in " ".join(rows), option


@pytest.fixture
def pipeline(tmp_path: Path) -> Callable[[str], Pipeline]:
    shutil.copyfile(data_folder("models") / "transformer.onnx", tmp_path / "net.onnx")

    def made(text: str) -> Pipeline:
        (tmp_path / "p.toml").write_text(text)
        return from_file(tmp_path / "p.toml")

    return made


def test_plan_takes_what_the_command_takes(pipeline: Callable[[str], Pipeline], tmp_path: Path) -> None:
    made = pipeline(
        """[[steps]]
do = "plan"
capacity = {sram = "128KiB", dram = "8MiB"}
order = "min-peak"
streams = 2
effort = "low"
io = "inside"
overwrite_inputs = true
emit = ["json", "h", "before.json", "page.html"]
names = false
verify = false
"""
    )
    report = run_one(made, tmp_path / "net.onnx", Place())
    assert report.passed, report.error
    names = ["before.json", "onnx", "page.html", "plan.h", "plan.json", "report.json"]
    assert sorted(path.name for path in tmp_path.glob("net.p.*")) == [f"net.p.{name}" for name in names]
    content = json.loads((tmp_path / "net.p.plan.json").read_text())
    assert [arena["name"] for arena in content["arenas"]] == ["sram", "dram"]
    assert content == json.loads((tmp_path / "net.p.before.json").read_text())
    assert '"names":false' in (tmp_path / "net.p.page.html").read_text()


def test_verify_takes_inputs_from_the_folder_of_the_file(pipeline: Callable[[str], Pipeline], tmp_path: Path) -> None:
    step = '[[steps]]\ndo = "verify"\ninputs = "real.npz"\n'
    made = pipeline(step)
    report = run_one(made, tmp_path / "net.onnx", Place(dry_run=True))
    assert report.error is not None and f"{tmp_path / 'real.npz'}: no such file" in report.error
    from onnxtile.model.feeds import sample_feeds
    from onnxtile.model.load import load

    model = load(tmp_path / "net.onnx")
    sizes = {value.name or "": value.shape.numpy() for value in model.graph.inputs if value.shape is not None}
    feeds = sample_feeds(model, lambda value: sizes[value.name or ""])
    np.savez(tmp_path / "real.npz", **feeds)
    report = run_one(made, tmp_path / "net.onnx", Place(dry_run=True))
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
    report = run_one(made, tmp_path / "net.onnx", Place())
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
    report = run_one(made, tmp_path / "net.onnx", Place(dry_run=True))
    assert report.passed, report.error
    assert report.summary()["figures"]["fused_by"]["Mine"] > 0


@pytest.mark.parametrize(
    ("step", "line", "message"),
    [
        ('do = "plan"\nemit = ["docx"]', 3, "'docx' is the ending of no format"),
        ('do = "plan"\nplaner = "best"', 3, "there is no field 'planer'"),
        ('do = "plan"\nplanner = "wizard"', 3, "unknown planner 'wizard'"),
        ('do = "plan"\norder = "alphabetical"', 3, "unknown order 'alphabetical'"),
        ('do = "plan"\neffort = "huge"', 3, "'huge' is no effort"),
        ('do = "plan"\ntime = "soon"', 3, "'soon' is no time"),
        ('do = "plan"\nio = "somewhere"', 3, "'somewhere'"),
        ('do = "plan"\ncapacity = "lots"', 3, "not a size in bytes"),
        ('do = "plan"\ncapacity = {sram = true}', 3, "not a size in bytes"),
        ('do = "plan"\nnames = true\nemit = ["json"]', 1, "names is about pictures"),
        ('do = "plan"\nemit = ["svg"]\ncompare = "no.json"', 1, "no.json"),
        ('do = "plan"\nranges = {x = "5:1"}', 3, "is empty"),
        ('do = "plan"\nranges = {x = [0, 1, 2]}', 3, "is not a range"),
        ('do = "plan"\nstreams = 0', 3, "greater than or equal to 1"),
        ('do = "verify"\nruns = 0', 3, "greater than or equal to 1"),
        ('do = "tile"\nmax_rows = 0', 3, "greater than or equal to 1"),
        ('do = "tile"\nmax = 8\naccumulate = "slowly"', 4, "slowly"),
        ('do = "inspect"\nemit = ["xlsx"]', 3, "'xlsx'"),
        ('do = "plan"\nemit = ["../x.json"]', 3, "'../x.json'"),
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
