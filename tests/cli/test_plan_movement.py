"""`plan --movement` on the command line: the report, the files, and one line for options that make no sense."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest

Run = Callable[..., Any]

GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
skip (float[batch,64] x) => (float[batch,64] y) {
  a = Exp(x)
  w = Concat<axis = 0>(a, a)
  u = Softmax(w)
  m = ReduceSum<keepdims = 1>(u)
  y = Add(m, a)
}
"""
MEMORIES = ("--capacity", "sram=1KiB", "--capacity", "dram=8KiB")
MOVED = ("--dim", "batch=1", "--movement", "activations")


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "m.onnx")
    return "m.onnx"


def test_the_report_and_the_files(run: Run, model: str, tmp_path: Path) -> None:
    speeds = ("--bandwidth", "dram=1MB/s", "--macs-per-second", "1K")
    done = run(
        "plan",
        model,
        *MOVED,
        *MEMORIES,
        *speeds,
        "--emit",
        "net.h",
        "--emit",
        "p.json",
        "--emit",
        "p.csv",
        "--emit",
        "p.html",
    )
    assert (done.code, done.err) == (0, "")
    assert "sram and dram" in done.out and "2 copies of 512 bytes, at the bound" in done.out
    assert "time of the copies" in done.out and "0.512 ms at 1,000,000 bytes per second" in done.out
    header = (tmp_path / "net.h").read_text()
    assert '"onnxtile", "Copy"' in header or "Copy" in header
    assert json.loads((tmp_path / "p.json").read_text())["movement"]["bytes"] == 512
    assert run("plan", model, "--check", "p.json").code == 0
    assert run("plan", "m.planned.onnx", "--check", "m.planned.onnx").code == 0
    assert run("verify", model, "m.planned.onnx", "--dim", "batch=1").code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*MOVED,), ("--movement needs the capacities of two memories", "--capacity sram=256KiB")),
        ((*MOVED, "--capacity", "1KiB"), ("needs the capacities of two memories",)),
        ((*MOVED, *MEMORIES, "--capacity", "flash=8MiB"), ("needs the capacities of two memories",)),
        ((*MOVED, *MEMORIES, "--bandwidth", "dran=8GB/s"), ("no memory is named 'dran'", "dram=8GB/s")),
        ((*MOVED, *MEMORIES, "--bandwidth", "sram=8GB/s"), ("the slow memory is 'dram'",)),
        ((*MOVED, *MEMORIES, "--bandwidth", "dram=0GB/s"), ("invalid --bandwidth dram=0GB/s", "at least 1")),
        ((*MOVED, *MEMORIES, "--bandwidth", "dram=-8GB/s"), ("invalid --bandwidth dram=-8GB/s", "8GB/s")),
        ((*MOVED, *MEMORIES, "--bandwidth", "dram=8GB"), ("invalid --bandwidth dram=8GB", "bytes per second")),
        ((*MOVED, *MEMORIES, "--bandwidth", "8GB/s"), ("invalid --bandwidth '8GB/s'",)),
        ((*MOVED, *MEMORIES, "--macs-per-second", "4G"), ("needs --bandwidth", "dram=8GB/s")),
        ((*MOVED, *MEMORIES, "--bandwidth", "dram=8GB/s", "--macs-per-second", "0"), ("invalid --macs-per-second 0",)),
        ((*MOVED, *MEMORIES, "--bandwidth", "dram=8GB/s", "--macs-per-second", "fast"), ("invalid --macs-per-second",)),
        (("--dim", "batch=1", "--bandwidth", "dram=8GB/s"), ("--bandwidth is for plans with copies", "--movement")),
        (("--dim", "batch=1", "--macs-per-second", "4G"), ("--macs-per-second is for plans with copies",)),
        (("--dim", "batch=1", "--movement", "all"), ("invalid --movement 'all'", "weights")),
        (("--dim", "batch=1:4", "--movement", "weights", *MEMORIES), ("one size of each dimension",)),
        ((*MOVED, *MEMORIES, "--streams", "2"), ("one stream",)),
        ((*MOVED, *MEMORIES, "--order", "any"), ("one order, not 'any'",)),
        ((*MOVED, *MEMORIES, "--pin", "a=0"), ("the pin of 'a' is an offset in one of several memories",)),
        ((*MOVED, *MEMORIES, "--place", "a=flash"), ("the place 'flash' of 'a' has no capacity",)),
        ((*MOVED, *MEMORIES, "--keep", "x"), ("'x' has no address in an arena: a graph input", "--io inside")),
        ((*MOVED, *MEMORIES, "--state", "x=q"), ("the state 'q' is not an output of the model",)),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line(
    run: Run, model: str, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run("plan", model, *arguments, "--emit", "p.json")
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert all(word in done.err for word in words), done.err
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("sram", "dram", "words"),
    [
        ("448", "8KiB", ("needs 768 bytes for its operands and results, more than the 448 bytes of the fast memory",)),
        ("1KiB", "64", ("the arena 'dram' needs at least 256 bytes",)),
    ],
)
def test_too_little_memory_is_named(
    run: Run, model: str, tmp_path: Path, sram: str, dram: str, words: tuple[str, ...]
) -> None:
    done = run("plan", model, *MOVED, "--capacity", f"sram={sram}", "--capacity", f"dram={dram}", "--emit", "p.json")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: ") and done.err.count("\n") == 1
    assert all(word in done.err for word in words), done.err
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_a_model_with_copies_is_not_given_copies_again(run: Run, model: str) -> None:
    assert run("plan", model, *MOVED, *MEMORIES, "-o", "moved.onnx", "--no-verify").code == 0
    done = run("plan", "moved.onnx", "--movement", "weights", *MEMORIES)
    assert done.code == 2
    assert "has copies between memories from an earlier plan" in done.err
    assert run("plan", "moved.onnx", "-o", "again.onnx").code == 0
