"""`plan --pin`, `--place` and `--keep` on the command line and in a pipeline; bad ones are one line, and write nothing."""

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
small (float[64] x) => (float[64] y) {
  a = Exp(x)
  b = Hardmax(a)
  y = Add(a, b)
}
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "small.onnx")
    return "small.onnx"


def addresses(plan: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {row["name"]: (row["arena"], row["offset"]) for row in plan["buffers"]}


def test_on_the_command_line(run: Run, small: str, tmp_path: Path) -> None:
    memories = ("--capacity", "sram=4KiB", "--capacity", "dram=64KiB")
    options = ("--pin", "b=4KiB", "--place", "b=dram", "--place", "y=sram", "--keep", "a", "--emit", "plan.json")
    done = run("plan", small, *memories, *options)
    assert done.code == 0, done.err
    assert "pinned, placed and kept" in done.out
    plan = json.loads((tmp_path / "plan.json").read_text())
    found = addresses(plan)
    assert (found["b"], found["y"][0]) == (("dram", 4096), "sram")
    assert (plan["pins"], plan["places"], plan["keeps"]) == ({"b": 4096}, {"b": "dram", "y": "sram"}, ["a"])
    assert run("plan", small, "--check", "plan.json").code == 0
    assert run("plan", "small.planned.onnx", "--check", "small.planned.onnx").code == 0
    plan["pins"]["b"] = 8192
    (tmp_path / "wrong.json").write_text(json.dumps(plan))
    done = run("plan", small, "--check", "wrong.json")
    assert (done.code, "'b' is at 4096, not at its pin 8192" in done.out + done.err) == (1, True)


def test_in_a_pipeline(run: Run, small: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        """
[[steps]]
do = "plan"
capacity = {sram = "4KiB", dram = 65536}
pins = {b = "4KiB"}
places = {b = "dram"}
keep = ["a"]
emit = ["plan.json"]
"""
    )
    done = run("run", "p.toml", small)
    assert done.code == 0, done.err
    (file,) = tmp_path.glob("*plan.json")
    assert addresses(json.loads(file.read_text()))["b"] == ("dram", 4096)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--pin", "a=0", "--pin", "b=64"), ("the pins of two tensors that are live together overlap",)),
        (("--pin", "b=100"), ("the pin 100 of 'b' is not aligned to 64", "pin it to 128")),
        (("--pin", "b=256", "--capacity", "300"), ("'b' pinned at 256 ends at 512, beyond the capacity of 300 bytes",)),
        (("--pin", "bb=0"), ("unknown tensor 'bb'", "did you mean 'b'?")),
        (("--pin", "b"), ("invalid --pin 'b': this is not of the form NAME=OFFSET",)),
        (("--pin", "b=-4"), ("invalid --pin b=-4: this is not an offset in bytes", "write 0, 4096 or 4KiB")),
        (("--pin", "b=0", "--pin", "b=64"), ("'b' is given twice",)),
        (("--place", "b=flash"), ("the place 'flash' of 'b' has no capacity",)),
        (("--place", "b=drum", "--capacity", "dram=4096"), ("the place 'drum' of 'b'", "did you mean 'dram'?")),
        (("--place", "q=arena"), ("unknown tensor 'q'",)),
        (("--pin", "b=0", "--capacity", "m=999", "--capacity", "n=999"), ("choose m, n",)),
        (("--keep", "x"), ("'x' has no address in an arena: a graph input", "add --io inside")),
        (("--keep", "nothing"), ("unknown tensor 'nothing'",)),
    ],
)
def test_bad_ones_are_one_line_and_write_nothing(
    run: Run, small: str, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run("plan", small, "--emit", "plan.json", *arguments)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert all(word in done.err for word in words), done.err
    assert [path.name for path in tmp_path.iterdir()] == [small]
