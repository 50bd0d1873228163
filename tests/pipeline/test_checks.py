"""A run as a check: a baseline, summaries for other tools, and no file of an earlier run after a failure."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import run

__all__ = ["run"]

Run = Callable[..., Any]
PIPELINE = """[[steps]]
do = "fuse"
patterns = ["LayerNorm"]
verify = false
[[steps]]
do = "plan"
emit = ["json"]
verify = false
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, shallow: Path) -> None:
    shutil.copyfile(shallow, tmp_path / "m.onnx")
    (tmp_path / "p.toml").write_text(PIPELINE)


def test_a_figure_that_is_worse_than_in_the_baseline_is_exit_1(run: Run, tmp_path: Path) -> None:
    assert run("run", "p.toml", "m.onnx", "--json", "base.json").code == 0
    assert run("run", "p.toml", "m.onnx", "--baseline", "base.json").code == 0
    content = json.loads((tmp_path / "base.json").read_text())
    (model,) = content["models"]
    arena = model["figures"]["arena"]
    model["model"] = "elsewhere/m.onnx"  # the only model of that name
    model["figures"].update(arena=arena - 64, fused=model["figures"]["fused"] + 1, nodes=10**6)
    (tmp_path / "base.json").write_text(json.dumps(content))
    done = run("run", "p.toml", "m.onnx", "--baseline", "base.json", "--json", "now.json")
    assert (done.code, done.err) == (1, "")
    assert f"baseline.arena: {arena:,}, and is to be at most {arena - 64:,}" in done.out
    assert "baseline.fused: 3, and is to be at least 4" in done.out
    budgets = {
        one["budget"]: one["met"] for one in json.loads((tmp_path / "now.json").read_text())["models"][0]["budgets"]
    }
    assert budgets["baseline.nodes"] and not budgets["baseline.arena"] and not budgets["baseline.fused"]


def test_a_baseline_that_compares_nothing_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text('{"models": [{"model": "other.onnx", "figures": {"arena": 1}}]}')
    done = run("run", "p.toml", "m.onnx", "--baseline", "base.json")
    assert (done.code, done.err) == (2, "error: the baseline has none of the models (it has other.onnx)\n")
    for text in ("[]", "{}", "no JSON", '{"models": [{"model": 3}]}', '{"models": [{"model": 3, "figures": {}}]}'):
        (tmp_path / "base.json").write_text(text)
        done = run("run", "p.toml", "m.onnx", "--baseline", "base.json")
        assert done.code == 2 and "base.json: this is not the summary of a run" in done.err
    done = run("run", "p.toml", "m.onnx", "--baseline", "base.json", "--json", "base.json")
    assert done.code == 2 and "--json" in done.err and "over what is read" in done.err


def test_the_summary_as_junit_and_markdown(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad <&|.onnx").write_text("no model")
    done = run("run", "p.toml", "m.onnx", "bad <&|.onnx", "--junit", "run.xml", "--markdown", "run.md", "-q")
    assert (done.code, done.out) == (1, "")
    (suite,) = ElementTree.parse(tmp_path / "run.xml").getroot()
    assert (suite.get("name"), suite.get("tests"), suite.get("failures")) == ("p", "2", "1")
    good, bad = suite
    assert good.get("name") == "m.onnx" and good.find("failure") is None
    assert "fused: 3" in (good.findtext("system-out") or "")
    failure = bad.find("failure")
    assert bad.get("name") == "bad <&|.onnx" and failure is not None
    assert "not an ONNX model" in (failure.get("message") or "")
    lines = (tmp_path / "run.md").read_text().splitlines()
    assert lines[0] == "## p: 1 passed, 1 failed"
    assert lines[2].startswith("| model | result | nodes | fused |")
    assert lines[4].startswith("| m.onnx | passed | ") and " | 3 | " in lines[4]
    assert lines[5].startswith("| bad \\<\\&\\|.onnx | **failed** |")
    assert all(line.count(" | ") == lines[2].count(" | ") for line in lines[3:6] if not line.startswith("|---"))
    done = run("run", "p.toml", "m.onnx", "--junit", "nowhere/run.xml")
    assert done.code == 2 and "nowhere" in done.err


def test_after_a_failure_no_file_of_an_earlier_run_stays(run: Run, tmp_path: Path) -> None:
    assert run("run", "p.toml", "m.onnx").code == 0
    mine = tmp_path / "m.p.html"
    mine.write_text("not of the run")
    (tmp_path / "p.toml").write_text(PIPELINE + '[budgets]\nmax_arena = "1k"\n')
    assert run("run", "p.toml", "m.onnx", "--dry-run").code == 1
    assert (tmp_path / "m.p.onnx").exists() and (tmp_path / "m.p.plan.json").exists()
    assert run("run", "p.toml", "m.onnx").code == 1
    names = {path.name for path in tmp_path.iterdir()}
    assert {"m.onnx", "m.p.html", "m.p.report.json"} <= names
    assert not {"m.p.onnx", "m.p.plan.json"} & names


def test_a_file_that_no_earlier_run_wrote_stays(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.p.onnx").write_text("mine")
    (tmp_path / "p.toml").write_text(PIPELINE + "[budgets]\nmax_arena = 1\n")
    assert run("run", "p.toml", "m.onnx").code == 1
    assert (tmp_path / "m.p.onnx").read_text() == "mine"


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ("min_fused = {LayerNrm = 1}", "p.toml:10: no step fuses 'LayerNrm' (did you mean 'LayerNorm'?)"),
        ("min_fused = {GeLU = 1}", "p.toml:10: no step fuses 'GeLU' (choose LayerNorm)"),
        ("max_arean = 1", "p.toml:10: unknown key 'budgets.max_arean' (did you mean 'max_arena'?)"),
        ('max_arena = "lots"', "p.toml:10: field 'budgets.max_arena': 'lots': this is not a size in bytes"),
    ],
)
def test_a_budget_that_nothing_can_meet_is_an_error(run: Run, tmp_path: Path, budgets: str, message: str) -> None:
    (tmp_path / "p.toml").write_text(f"{PIPELINE}[budgets]\n{budgets}\n")
    done = run("run", "p.toml", "m.onnx")
    assert done.code == 2 and message in done.err, done.err


def test_errors_of_a_step_speak_of_keys(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "tile"\ntarget = "npu.toml"\nmax = "_x48x_"\n')
    (tmp_path / "npu.toml").write_text("k = { max = 128, multiple = 64 }\n")
    done = run("run", "p.toml", "m.onnx")
    assert done.code == 2
    assert "the bound 48 of K is not a multiple of 64, as the limits file asks" in done.err, done.err
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "plan"\nlayout = "l.toml"\n')
    (tmp_path / "l.toml").write_text('keep = "image"\n')
    run("run", "p.toml", "m.onnx", "--json", "s.json")
    assert '(add io = "inside")' in json.loads((tmp_path / "s.json").read_text())["models"][0]["error"]
