"""Exit codes of every verb are those of the README: 0 done, 1 a check failed, 2 bad input, explained in one line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import onnx
import pytest

from onnxtile.cli.command import verbs
from tests import build
from tests.cli.conftest import Run, files

NET = "net (float[4,64] x) => (float[4,64] y) { a = Relu(x) b = Exp(a) y = Add(a, b) }"
OTHER = "net (float[4,64] x) => (float[4,64] y) { a = Relu(x) b = Exp(a) y = Sub(a, b) }"
FUSED = """
[[steps]]
do = "plan"
[budgets]
max_arena = {most}
"""

DONE = {
    "demo": "demo",
    "fit": "fit m.onnx --capacity 64KiB",
    "fuse": "fuse m.onnx",
    "inspect": "inspect m.onnx",
    "list": "list planners",
    "match": "match m.onnx Relu~>Exp",
    "pattern new": "pattern new --from m.onnx --nodes b,y",
    "plan": "plan m.onnx",
    "run": "run wide.toml m.onnx",
    "tile": "tile m.onnx --max 16",
    "unfuse": "unfuse f.onnx",
    "verify": "verify m.onnx m.onnx",
}
"""A command of each verb that does what it is asked for."""

FAILED = {
    "fit": ["fit m.onnx --capacity 1"],
    "fuse": ["fuse m.onnx -p LayerNorm"],
    "match": ["match m.onnx Relu->Sub"],
    "plan": [
        "plan m.onnx --capacity 64",
        "plan o.onnx --check p.json",
        "plan m.onnx --capacity 64 --no-verify --dry-run",
    ],
    "run": ["run tight.toml m.onnx"],
    "tile": ["tile w.onnx --max 4B --strict"],
    "verify": ["verify m.onnx o.onnx"],
}
"""Commands of a check that fails, for each verb that checks: the others explain, list, or write what is asked for."""

EVERY = ("{verb} --no-such-option", "{verb} --json nowhere/r.json")
WRONG = {
    "demo": [],
    "fit": [
        "fit nowhere.onnx --capacity 1KiB",
        "fit bad.onnx --capacity 1KiB",
        "fit m.onnx -o f.onnx",
        "fit m.onnx --capacity lots",
    ],
    "fuse": ["fuse nowhere.onnx", "fuse bad.onnx", "fuse m.onnx -p LayerNrm", "fuse m.onnx -o nowhere/f.onnx"],
    "inspect": ["inspect nowhere.onnx", "inspect bad.onnx", "inspect m.onnx --emit n.pdf", "inspect m.onnx --dim N=2"],
    "list": ["list", "list plannrs"],
    "match": ["match nowhere.onnx Relu", "match bad.onnx Relu", "match m.onnx Relu->", "match m.onnx"],
    "pattern new": ["pattern new --from nowhere.onnx --nodes b", "pattern new --from m.onnx --nodes nothing"],
    "plan": ["plan nowhere.onnx", "plan bad.onnx", "plan m.onnx --io somewhere", "plan m.onnx --check m.onnx"],
    "run": ["run nowhere.toml m.onnx", "run wide.toml nowhere.onnx", "run bad.toml m.onnx"],
    "tile": ["tile nowhere.onnx --max 4", "tile bad.onnx --max 4", "tile m.onnx", "tile m.onnx --max 0"],
    "unfuse": ["unfuse nowhere.onnx", "unfuse bad.onnx", "unfuse m.onnx", "unfuse f.onnx -o f.onnx"],
    "verify": [
        "verify m.onnx nowhere.onnx",
        "verify bad.onnx m.onnx",
        "verify m.onnx",
        "verify m.onnx m.onnx --runs 0",
    ],
}
"""Commands of each verb that cannot be done: files that are not there or no models, values that make no sense."""


MADE: dict[str, bytes | None] = {}
"""What every test finds in its folder, made once."""


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, run: Run) -> None:
    if not MADE:
        _make(tmp_path, run)
        MADE.update(files(tmp_path))
    for name, content in MADE.items():
        (tmp_path / name).write_bytes(content or b"")


def _make(tmp_path: Path, run: Run) -> None:
    onnx.save(build.parsed(NET), tmp_path / "m.onnx")
    onnx.save(build.parsed(OTHER), tmp_path / "o.onnx")
    weights = ", ".join(["0.5"] * 64)
    text = f"g (float[8,8] x) => (float[8,8] y) <float[8,8] w = {{{weights}}}> {{ y = MatMul(x, w) }}"
    onnx.save(build.parsed(text), tmp_path / "w.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    (tmp_path / "bad.toml").write_text("steps = 3\n")
    for name, most in (("wide", 2**20), ("tight", 1)):
        (tmp_path / f"{name}.toml").write_text(FUSED.replace("{most}", str(most)))
    assert run("plan", "m.onnx", "--emit", "p.json", "--dry-run").code == 0
    assert run("fuse", "m.onnx", "-p", "Exp-*>Add", "-o", "f.onnx").code == 0


def test_every_verb_is_here() -> None:
    assert set(DONE) == set(WRONG) == set(verbs())
    assert set(FAILED) <= set(verbs())


@pytest.mark.parametrize(
    "command", [command for command in DONE.values() if command != "demo"]
)  # tests/test_package.py
def test_what_is_done_is_0(run: Run, command: str) -> None:
    done = run(*shlex.split(command))
    assert (done.code, "error" in done.err) == (0, False), done


@pytest.mark.parametrize("command", [command for commands in FAILED.values() for command in commands])
def test_a_check_that_fails_is_1(run: Run, command: str, tmp_path: Path) -> None:
    before = files(tmp_path)
    done = run(*shlex.split(command))
    assert done.code == 1, done
    assert "Traceback" not in done.err
    assert not {name for name in files(tmp_path) if name.endswith(".onnx")} - set(before)


@pytest.mark.parametrize(
    "command",
    [
        *(command for commands in WRONG.values() for command in commands),
        *(command.replace("{verb}", verb) for verb in WRONG for command in EVERY),
    ],
)
def test_bad_input_is_2_in_one_line(run: Run, command: str, tmp_path: Path) -> None:
    words = shlex.split(command)
    if command.endswith("nowhere/r.json"):
        words = [*shlex.split(DONE[command.partition(" --")[0]]), *words[-2:]]
    before = files(tmp_path)
    done = run(*words)
    assert done.code == 2, done
    assert done.out == ""
    # A query at fault is shown below the line, with a caret.
    assert re.fullmatch(r"error: [^\n]+\n(line 1: [^\n]+\n +\^\n)?", done.err), done.err
    assert files(tmp_path) == before
