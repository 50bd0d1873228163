"""`plan --check`: a plan in a file is right (exit 0), wrong (exit 1, each thing in a line of its own), or none at all (exit 2)."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

import onnxtile

Run = Callable[..., Any]

GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
small (float[batch,6] x) => (float[batch,6] y, int64[2,found] i) {
  a = Exp(x)
  b = Sin(a)
  c = Cos(a)
  y = Add(b, c)
  i = NonZero(y)
}
"""


@pytest.fixture
def plan(run: Run, tmp_path: Path) -> dict[str, Any]:
    """A plan in plan.json, of small.onnx, and planned.onnx with the same plan."""
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "small.onnx")
    sizes = ("--dim", "batch=4", "--bound", "found=24", "--workspace", "Exp=48")
    assert run("plan", "small.onnx", *sizes, "--emit", "plan.json", "-o", "planned.onnx", "--no-verify").code == 0
    found: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
    return found


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize("file", ["plan.json", "planned.onnx"])
def test_a_plan_that_is_right(run: Run, file: str) -> None:
    """The sizes of open dimensions stand in the plan; in the metadata of a model they do not."""
    sizes = () if file == "plan.json" else ("--dim", "batch=4", "--bound", "found=24")
    done = run("plan", "small.onnx", *sizes, "--check", file)
    assert (done.code, done.err) == (0, "")
    assert "sound" in done.out
    assert run("plan", "small.onnx", *sizes, "--check", file, "--quiet").out == ""


@pytest.mark.usefixtures("plan")
def test_a_planned_model_with_its_own_metadata(run: Run) -> None:
    assert run("plan", "planned.onnx", "--bound", "found=24", "--check", "planned.onnx").code == 0


def test_a_plan_that_is_wrong(run: Run, plan: dict[str, Any], tmp_path: Path) -> None:
    rows = {row["name"]: row for row in plan["buffers"]}
    rows["i"]["offset"] = rows["y"]["offset"]
    rows["b"]["last"] += 1
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    done = run("plan", "small.onnx", "--check", "plan.json", "--json", "found.json")
    assert done.code == 1
    lines = done.out.splitlines()
    assert any("live in the steps" in line for line in lines)
    assert any("are live together (step " in line for line in lines)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["sound"] is False
    assert len(found["failures"]) == len(lines)
    assert {"reason", "names", "step", "body"} == found["failures"][0].keys()


def test_a_plan_of_another_file(run: Run, plan: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "digest": "0" * 64}))
    done = run("plan", "small.onnx", "--check", "plan.json")
    assert done.code == 1
    assert done.out.startswith("the plan belongs to another file: its digest is 000")


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--check", "nope.json"), "nope.json: No such file"),
        (("--check", "small.onnx"), "small.onnx is not a planned model"),
        (("--check", "text.json"), "text.json is not JSON"),
        (("--check", "empty.json"), "empty.json is not a plan: alignment: Field required"),
        (("--check", "plan.json", "--emit", "x.csv"), "--emit is for planning, and --check plans nothing"),
        (("--check", "plan.json", "--order", "any"), "--order is for planning"),
        (("--check", "plan.json", "-o", "x.onnx"), "--output is for planning"),
    ],
)
def test_what_cannot_be_checked_is_one_line(run: Run, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "text.json").write_text("no")
    (tmp_path / "empty.json").write_text('{"version": 1}')
    done = run("plan", "small.onnx", *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "x.csv").exists()


def test_a_bare_problem_has_no_check(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,lower,upper,size\na,0,1,4\n")
    done = run("plan", "p.csv", "--check", "plan.json")
    assert (done.code, "--check is for models" in done.err) == (2, True)


def test_in_python(plan: dict[str, Any], tmp_path: Path) -> None:
    assert plan
    model = tmp_path / "small.onnx"
    result = onnxtile.plan(model, dims={"batch": 4}, bounds={"found": 24}, verify=False).plan
    audit = onnxtile.check_plan(model, result)
    assert (audit.sound, audit.failures, audit.arenas) == (True, (), 1)
    assert onnxtile.check_plan(model, tmp_path / "plan.json").sound
    assert not onnxtile.check_plan(model, result, dims={"batch": 5}).sound
