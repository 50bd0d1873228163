"""`plan` of a model on the command line: bounds and workspaces, and what makes no sense is a line with the right exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import helper

Run = Callable[..., Any]

GRAPH = """
<ir_version: 10, opset_import: ["" : 20]>
small (float[batch,6] x) => (float[batch,6] y, int64[2,found] i) {
  a = Exp(x)
  b = Sin(a)
  y = Add(a, b)
  i = NonZero(y)
}
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    onnx.save(onnx.parser.parse_model(GRAPH), tmp_path / "small.onnx")
    return "small.onnx"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dim", "bach=4"), ("the model has no dimension 'bach'", "did you mean 'batch'?")),
        (("--dim", "batch=0"), ("invalid --dim batch=0: give a whole number of at least 1",)),
        (("--dim", "batch=4", "--dim", "batch=5"), ("invalid --dim batch=5: 'batch' is given twice, with 4 before",)),
        (("--dim", "batch=4", "--shape", "x=5x6"), ("the dimension 'batch' is bound to 4 and to 5",)),
        (
            ("--dim", "batch=4", "--bound", "fund=9"),
            ("invalid bound 'fund'", "did you mean 'found'?"),
        ),
        (
            ("--dim", "batch=4", "--bound", "found=9", "--bound", "found=8"),
            ("invalid --bound found=8: 'found' is given twice, with 9 before",),
        ),
        (("--dim", "batch=4", "--bound", "found=9", "--bound", "i=8"), ("bound to 9 and, as 'i', to 8",)),
        (("--dim", "batch=4", "--bound", "found=0"), ("invalid --bound found=0: give a whole number of at least 1",)),
        (("--dim", "batch=4", "--bound", "y=24"), ("invalid bound 'y': all its dimensions are static",)),
        (("--dim", "batch=4", "--alignment", "0"), ("invalid --alignment 0: a size in bytes is at least 1",)),
        (("--dim", "batch=4", "--alignment", "3"), ("the alignment must be a power of two, not 3",)),
        (
            ("--dim", "batch=4", "--workspace", "Exp"),
            ("invalid --workspace 'Exp': this is not of the form OPERATOR=BYTES",),
        ),
        (("--dim", "batch=4", "--workspace", "Exp=much"), ("not a number of bytes: 'much'",)),
        (("--dim", "batch=4", "--workspace", "Exq=4"), ("unknown operator 'Exq'", "did you mean 'Exp'?")),
        (("--dim", "batch=4", "--workspace", "Exp=inputs[3].bytes"), ("of the node 'a': it has no inputs[3]",)),
        (
            ("--dim", "batch=4", "--workspace", "Exp=4", "--share-workspaces", "--order", "any"),
            ("cannot share one workspace",),
        ),
        (("--dim", "batch=4", "--order", "amy"), ("invalid --order 'amy'", "did you mean 'any'?")),
        (("--dim", "batch=4", "--streams", "0"), ("invalid --streams 0: give a whole number of at least 1",)),
        (("--dim", "batch=9223372036854775808"), ("this number is too large (at most 2^63 - 1)",)),
        (("--dim", "batch=99999999999999999"), ("bytes are too many",)),
        (("--dim", "batch=4", "--alignment", str(2**22)), ("at most 2,097,152 bytes",)),
        (("--dim", "batch=4", "--workspace", f"Exp={10**22}"), ("bytes are too many", "workspaces or alignment")),
    ],
)
def test_what_makes_no_sense_is_one_line(
    run: Run, small: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run("plan", small, "--dry-run", *arguments)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert all(word in done.err for word in words), done.err


def test_a_capacity_below_the_largest_buffer(run: Run, small: str) -> None:
    done = run("plan", small, "--dry-run", "--no-verify", "--dim", "batch=16", "--capacity", "383")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert (
        "the arena needs at least 768 bytes, 385 more than its capacity of 383; live at step 1: a (384), b (384)"
        in done.err
    )


def test_a_graph_with_a_cycle(run: Run, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "c"], ["a"], "first"),
        helper.make_node("Exp", ["a"], ["b"], "second"),
        helper.make_node("Neg", ["b"], ["c"], "third"),
    ]
    values = [helper.make_tensor_value_info(name, 1, [2]) for name in "xc"]
    graph = helper.make_graph(nodes, "round", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "c.onnx")
    done = run("plan", "c.onnx", "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    assert "first" in done.err or "'c'" in done.err


def test_bounds_and_workspaces(run: Run, small: str, tmp_path: Path) -> None:
    options = ("--bound", "found=24", "--workspace", "Sin=inputs[0].bytes + 8", "--emit", "plan.json")
    done = run("plan", small, "--dim", "batch=4", *options)
    assert done.code == 0, done.err
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert (plan["unplanned"], plan["bounds"]) == ([], {"found": 24})
    assert [(b["name"], b["size"]) for b in plan["buffers"] if b["kind"] == "workspace"] == [("b (workspace)", 104)]
    assert "workspaces" in done.out


def test_without_a_bound_it_is_named(run: Run, small: str) -> None:
    done = run("plan", small, "--dim", "batch=4", "--dry-run")
    assert done.code == 0, done.err
    assert "its shape depends on the data (NonZero)" in done.out
