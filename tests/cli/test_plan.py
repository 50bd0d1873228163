"""`plan` on the command line: bare problems, models, checks, pins and movement; what makes no sense is a line with the right exit code."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import pytest
from onnx import helper

import onnxtile
from tests import build
from tests.cli.conftest import Run
from tests.contributed_models import packed_heads

# Bare problems on the command line: what comes out, and that a bad one is a line with the right exit code.


def laid_out(folder: Path, arguments: tuple[str, ...]) -> list[str]:
    """Return arguments in which the text of a layout or a target is the name of a file that has it."""
    files = ("--layout", "--target")
    texts = [word for before, word in zip(("", *arguments), arguments, strict=False) if before in files and "=" in word]
    for text in texts:
        (folder / "layout.toml").write_text(text)
    return ["layout.toml" if word in texts else word for word in arguments]


GOOD = "id,lower,upper,size\na,0,3,100\nb,1,2,300\nc,2,4,100\n"


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("", (), ("p.csv: line 1: missing column 'id'", "the columns are id, lower, upper, size")),
        (GOOD + "a,8,9,4\n", (), ("p.csv: line 5: the id 'a' is repeated",)),
        (GOOD + "d,8\n", (), ("p.csv: line 5: upper must be a whole number, not ''",)),
        (GOOD, ("--alignment", 0), ("invalid --alignment 0",)),
        (GOOD, ("--alignment", 3), ("the alignment must be a power of two, not 3",)),
        (GOOD, ("--search", "exakt"), ("invalid --search 'exakt'", "did you mean 'exact'?")),
        (GOOD, ("--search", "low,5"), ("invalid --search 'low,5': '5' is the second of its kind",)),
        (GOOD, ("--search", "5sec"), ("invalid --search '5sec'", "5s")),
        (GOOD, ("--dim", "n=4"), ("--dim is for models, not for a bare problem",)),
        (GOOD, ("--dim", "n=:4"), ("--dim is for models, not for a bare problem",)),
        (GOOD, ("--order", "any"), ("--order is for models, not for a bare problem",)),
        (GOOD, ("--io", "inside"), ("--io is for models, not for a bare problem",)),
        (GOOD, ("--layout", "l.toml"), ("--layout is for models, not for a bare problem",)),
        (GOOD, ("--inputs", "x.npz"), ("--inputs is for models, not for a bare problem",)),
        (GOOD, ("-o", "m.onnx"), ("--output is for models, not for a bare problem",)),
    ],
)
def test_a_bad_problem_is_one_line(
    run: Run, tmp_path: Path, text: str, arguments: tuple[object, ...], words: tuple[str, ...]
) -> None:
    (tmp_path / "p.csv").write_text(text)
    done = run("plan", "p.csv", *arguments)
    done.require_error(*words)


def test_no_file_and_no_text(run: Run, tmp_path: Path) -> None:
    assert "none.csv: no such file" in run("plan", "none.csv").err.lower()
    (tmp_path / "p.csv").write_bytes(b"id,lower,upper,size\n\xff")
    done = run("plan", "p.csv")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "p.csv: not UTF-8 text" in done.err


@pytest.mark.parametrize(("capacity", "shortfall"), [("200", "200"), ("399", "1")])
def test_too_small_a_capacity_fails_with_what_is_live(run: Run, tmp_path: Path, capacity: str, shortfall: str) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    done = run("plan", "p.csv", "--capacity", capacity, "--emit", "out.csv")
    assert done.code == 1
    assert f"{shortfall} more than its capacity of {capacity}; live at step 1: b (300), a (100)" in done.err, done.err
    assert not (tmp_path / "out.csv").exists()


def test_what_comes_out_is_a_plan_and_the_same_every_time(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    done = run("plan", "p.csv", "--capacity", "400", "--json", "-", "-q", "--emit", "out.csv")
    assert done.code == 0
    plan = json.loads(done.out)
    assert (plan["arenas"][0]["size"], plan["lower_bound"], plan["optimal"], plan["ended"]) == (
        400,
        400,
        True,
        "lower bound reached",
    )
    with (tmp_path / "out.csv").open() as lines:
        rows = {row["id"]: int(row["offset"]) for row in csv.DictReader(lines)}
    assert rows == {buffer["name"]: buffer["offset"] for buffer in plan["buffers"]}
    assert run("plan", "p.csv", "--capacity", "400", "--json", "-", "-q").out == done.out


def test_a_search_that_is_cut_short_says_by_what(run: Run, tmp_path: Path) -> None:
    # Never more than 3 bytes are live, and yet the second of two that start at multiples of 4 ends at 5.
    (tmp_path / "p.csv").write_text("id,size,lower,upper,alignment\na,1,0,2,4\nb,1,0,2,4\nc,1,1,2,1\n")
    ends = []
    for effort in ("0", "normal"):
        plan = json.loads(run("plan", "p.csv", "--search", effort, "--json", "-", "-q").out)
        assert plan["arenas"][0]["size"] == plan["lower_bound"] + plan["gap"] == 5, plan
        ends.append((plan["optimal"], plan["lower_bound"], plan["bound"], plan["ended"]))
    assert ends == [(False, 3, "peak", "effort"), (True, 5, "search", "search ended")]


# `plan` of a model on the command line: bounds and workspaces, and what makes no sense is a line with the right exit
# code.


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
            ("--dim", "batch=4", "--dim", "fund=:9"),
            ("invalid bound 'fund'", "did you mean 'found'?"),
        ),
        (
            ("--dim", "batch=4", "--dim", "found=:9", "--dim", "found=:8"),
            ("invalid --dim found=:8: 'found' is given twice, with :9 before",),
        ),
        (("--dim", "batch=4", "--dim", "found=:9", "--dim", "i=:8"), ("bound to 9 and, as 'i', to 8",)),
        (("--dim", "batch=4", "--dim", "found=:0"), ("invalid --dim found=:0: give a whole number of at least 1",)),
        (("--dim", "batch=4", "--dim", "y=:24"), ("invalid bound 'y': all its dimensions are static",)),
        (("--dim", "batch=4", "--alignment", "0"), ("invalid --alignment 0: a size in bytes is at least 1",)),
        (("--layout", "[workspaces]\nExp = [4]"), (".toml:1: workspaces: 'Exp': give a text",)),
        (("--layout", "[workspace]\nExp = 4"), (".toml:1: workspace: there is no such rule", "'workspaces'?")),
        (("--layout", "[workspaces]\n'*' = 'one'"), ("""workspaces: the rule of "*" is "shared", not 'one'""",)),
        (("--layout", "whole_buffers = 1"), ("whole_buffers: choose true or false",)),
        (("--layout", "nowhere.toml"), ("nowhere.toml: no such file",)),
        (("--layout", "pins = \n"), (".toml:1: ",)),
        (("--dim", "batch=4", "--layout", "workspaces.Exp = 'much'"), ("not a number of bytes: 'much'",)),
        (("--dim", "batch=4", "--layout", "workspaces.Exq = 4"), ("unknown operator 'Exq'", "did you mean 'Exp'?")),
        (("--dim", "batch=4", "--layout", "workspaces.Exp = 'inputs[3].bytes'"), ("'a': it has no inputs[3]",)),
        (
            ("--dim", "batch=4", "--layout", "workspaces = {Exp = 4, '*' = 'shared'}", "--order", "any"),
            ("cannot share one workspace",),
        ),
        (("--dim", "batch=4", "--order", "amy"), ("invalid --order 'amy'", "did you mean 'any'?")),
        (("--target", "streams = 0"), (".toml:1: field 'streams': 0 should be greater than or equal to 1",)),
        (("--dim", "batch=9223372036854775808"), ("this number is too large (at most 2^63 - 1)",)),
        (("--dim", "batch=99999999999999999"), ("bytes are too many",)),
        (("--dim", "batch=4", "--alignment", str(2**22)), ("at most 2,097,152 bytes",)),
        (("--dim", "batch=4", "--layout", f"workspaces.Exp = '{10**22}'"), ("too many", "workspaces or alignment")),
    ],
)
def test_what_makes_no_sense_is_one_line(
    run: Run, small: str, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run("plan", small, "--dry-run", *laid_out(tmp_path, arguments))
    done.require_error(*words)


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
    onnx.save(build.model(nodes, values[:1], values[1:], opset=20), tmp_path / "c.onnx")
    done = run("plan", "c.onnx", "--dry-run")
    done.require_error()
    assert "first" in done.err or "'c'" in done.err


def test_bounds_and_workspaces(run: Run, small: str, tmp_path: Path) -> None:
    (tmp_path / "l.toml").write_text("workspaces.Sin = 'inputs[0].bytes + 8'")
    options = ("--dim", "found=:24", "--layout", "l.toml", "--emit", "plan.json")
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


# `plan --check`: a plan in a file is right (exit 0), wrong (exit 1, each thing in a line of its own), or none at all
# (exit 2).


CHECKED = """
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
    onnx.save(onnx.parser.parse_model(CHECKED), tmp_path / "small.onnx")
    (tmp_path / "l.toml").write_text("workspaces.Exp = 48")
    sizes = ("--dim", "batch=4", "--dim", "found=:24", "--layout", "l.toml")
    assert run("plan", "small.onnx", *sizes, "--emit", "plan.json", "-o", "planned.onnx", "--no-verify").code == 0
    found: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
    return found


@pytest.mark.usefixtures("plan")
@pytest.mark.parametrize("file", ["plan.json", "planned.onnx"])
def test_a_plan_that_is_right(run: Run, file: str) -> None:
    """The sizes of open dimensions stand in the plan; in the metadata of a model they do not."""
    sizes = () if file == "plan.json" else ("--dim", "batch=4", "--dim", "found=:24")
    done = run("plan", "small.onnx", *sizes, "--check", file)
    assert (done.code, done.err) == (0, "")
    assert "sound" in done.out
    assert run("plan", "small.onnx", *sizes, "--check", file, "--quiet").out == ""


@pytest.mark.usefixtures("plan")
def test_a_planned_model_with_its_own_metadata(run: Run) -> None:
    assert run("plan", "planned.onnx", "--dim", "found=:24", "--check", "planned.onnx").code == 0


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
        (("--check", "nope.json"), "nope.json: no such file"),
        (("--check", "small.onnx"), "small.onnx is not a planned model"),
        (("--check", "text.json"), "text.json is not JSON"),
        (("--check", "empty.json"), "empty.json is not a plan: "),
        (("--check", "plan.json", "--emit", "x.csv"), "--emit is for planning, and --check plans nothing"),
        (("--check", "plan.json", "--order", "any"), "--order is for planning"),
        (
            ("--check", "plan.json", "--dim", "batch=1:4"),
            "--dim has a range, and a plan is checked at the sizes that it says",
        ),
        (("--check", "plan.json", "--shape", "x=1x(1:4)"), "--shape has a range"),
        (("--check", "plan.json", "-o", "x.onnx"), "--output is for planning"),
    ],
)
def test_what_cannot_be_checked_is_one_line(run: Run, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "text.json").write_text("no")
    (tmp_path / "empty.json").write_text('{"version": 1}')
    done = run("plan", "small.onnx", *arguments)
    done.require_error(words)
    assert not (tmp_path / "x.csv").exists()


def test_a_bare_problem_has_no_check(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("id,lower,upper,size\na,0,1,4\n")
    done = run("plan", "p.csv", "--check", "plan.json")
    assert (done.code, "--check is for models" in done.err) == (2, True)


def test_in_python(plan: dict[str, Any], tmp_path: Path) -> None:
    assert plan
    model = tmp_path / "small.onnx"
    result = onnxtile.plan(model, dims={"batch": 4, "found": ":24"}, verify=False).plan
    audit = onnxtile.check_plan(model, result)
    assert (audit.sound, audit.failures, audit.arenas) == (True, (), 1)
    assert onnxtile.check_plan(model, tmp_path / "plan.json").sound
    assert not onnxtile.check_plan(model, result, dims={"batch": 5}).sound


# `plan --layout` with pins, places and kept tensors, on the command line and in a pipeline; bad ones are one line, and write
# nothing.


PINNED = """
<ir_version: 10, opset_import: ["" : 20]>
small (float[64] x) => (float[64] y) {
  a = Exp(x)
  b = Hardmax(a)
  y = Add(a, b)
}
"""


@pytest.fixture
def pinned_model(tmp_path: Path) -> str:
    onnx.save(onnx.parser.parse_model(PINNED), tmp_path / "small.onnx")
    return "small.onnx"


def addresses(plan: dict[str, Any]) -> dict[str, tuple[str, int]]:
    return {row["name"]: (row["arena"], row["offset"]) for row in plan["buffers"]}


def test_on_the_command_line(run: Run, pinned_model: str, tmp_path: Path) -> None:
    memories = ("--capacity", "sram=4KiB", "--capacity", "dram=64KiB")
    (tmp_path / "l.toml").write_text("pins = {b = '4KiB'}\nplaces = {b = 'dram', y = 'sram'}\nkeep = ['a']\n")
    options = ("--layout", "l.toml", "--emit", "plan.json")
    done = run("plan", pinned_model, *memories, *options)
    assert done.code == 0, done.err
    assert "pinned, placed and kept" in done.out
    plan = json.loads((tmp_path / "plan.json").read_text())
    found = addresses(plan)
    assert (found["b"], found["y"][0]) == (("dram", 4096), "sram")
    assert (plan["pins"], plan["places"], plan["keeps"]) == ({"b": 4096}, {"b": "dram", "y": "sram"}, ["a"])
    assert run("plan", pinned_model, "--check", "plan.json").code == 0
    assert run("plan", "small.planned.onnx", "--check", "small.planned.onnx").code == 0
    plan["pins"]["b"] = 8192
    (tmp_path / "wrong.json").write_text(json.dumps(plan))
    done = run("plan", pinned_model, "--check", "wrong.json")
    assert (done.code, "'b' is at 4096, not at its pin 8192" in done.out + done.err) == (1, True)


def test_in_a_pipeline(run: Run, pinned_model: str, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(
        """
[[steps]]
do = "plan"
capacity = {sram = "4KiB", dram = 65536}
layout = "l.toml"
emit = ["plan.json"]
"""
    )
    (tmp_path / "l.toml").write_text("pins = {b = '4KiB'}\nplaces = {b = 'dram'}\nkeep = 'a'\n")
    done = run("run", "p.toml", pinned_model)
    assert done.code == 0, done.err
    (file,) = tmp_path.glob("*plan.json")
    assert addresses(json.loads(file.read_text()))["b"] == ("dram", 4096)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--layout", "pins = {a = 0, b = 64}"), ("the pins of two tensors that are live together overlap",)),
        (("--layout", "pins.b = 100"), ("the pin 100 of 'b' is not aligned to 64", "pin it to 128")),
        (
            ("--layout", "pins.b = 256", "--capacity", "300"),
            ("'b' pinned at 256 ends at 512, beyond the capacity of 300 bytes",),
        ),
        (("--layout", "pins.bb = 0"), ("unknown tensor 'bb'", "did you mean 'b'?")),
        (("--layout", "pins = 4"), (".toml:1: pins: give a table of names and values",)),
        (("--layout", "pins.b = -4"), ("pins: 'b': this is not an offset in bytes", "write 0, 4096 or 4KiB")),
        (("--layout", "places.b = 'flash'"), ("the place 'flash' of 'b' has no capacity",)),
        (
            ("--layout", "places.b = 'drum'", "--capacity", "dram=4096"),
            ("the place 'drum' of 'b'", "did you mean 'dram'?"),
        ),
        (("--layout", "pins.b = 0", "--capacity", "m=999", "--capacity", "n=999"), ("choose m, n",)),
        (("--layout", "keep = 'x'"), ("'x' has no address in an arena: a graph input", "add --io inside")),
    ],
)
def test_bad_ones_are_one_line_and_write_nothing(
    run: Run, pinned_model: str, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    written = laid_out(tmp_path, arguments)
    done = run("plan", pinned_model, "--emit", "plan.json", *written)
    done.require_error(*words)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["layout.toml", pinned_model]


# `plan --movement` on the command line: the report, the files, and one line for options that make no sense.


SKIP = """
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
    onnx.save(onnx.parser.parse_model(SKIP), tmp_path / "m.onnx")
    return "m.onnx"


def test_the_report_and_the_files(run: Run, model: str, tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text('bandwidth.dram = "1MB/s"\nmacs_per_second = "1K"\n')
    speeds = ("--target", "t.toml")
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
        ((*MOVED, *MEMORIES, "--capacity", "flash=8MiB"), ("needs the capacities of two memories",)),
        (
            (*MOVED, *MEMORIES, "--target", "bandwidth.dran = '8GB/s'"),
            ("no memory is named 'dran'", 'bandwidth.dram = "8GB/s"'),
        ),
        ((*MOVED, *MEMORIES, "--target", "bandwidth.sram = '8GB/s'"), ("the slow memory is 'dram'",)),
        ((*MOVED, *MEMORIES, "--target", "bandwidth.dram = '0GB/s'"), ("bandwidth.dram", "at least 1")),
        ((*MOVED, *MEMORIES, "--target", "bandwidth.dram = '8GB'"), ("bandwidth.dram", "bytes per second")),
        ((*MOVED, *MEMORIES, "--target", "bandwidth = '8GB/s'"), ("field 'bandwidth'",)),
        ((*MOVED, *MEMORIES, "--target", "macs_per_second = 0"), ("field 'macs_per_second': give a number",)),
        ((*MOVED, *MEMORIES, "--target", "macs_per_second = 'fast'"), ("field 'macs_per_second': give a number",)),
        (("--dim", "batch=1", "--movement", "all"), ("invalid --movement 'all'", "weights")),
        (("--dim", "batch=1:4", "--movement", "weights", *MEMORIES), ("one size of each dimension",)),
        ((*MOVED, *MEMORIES, "--target", "streams = 2"), ("one stream",)),
        ((*MOVED, *MEMORIES, "--order", "any"), ("one order, not 'any'",)),
        ((*MOVED, *MEMORIES, "--layout", "pins.a = 0"), ("the pin of 'a' is an offset in one of several memories",)),
        ((*MOVED, *MEMORIES, "--state", "x=q"), ("the state 'q' is not an output of the model",)),
    ],
    ids=" ".join,
)
def test_a_mistake_is_one_line(
    run: Run, model: str, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = run("plan", model, *laid_out(tmp_path, arguments), "--emit", "p.json")
    done.require_error(*words)
    assert {file.name for file in tmp_path.iterdir()} - {"layout.toml"} == {"m.onnx"}


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
    done.require_error(*words, code=1)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_a_model_with_copies_is_not_given_copies_again(run: Run, model: str) -> None:
    assert run("plan", model, *MOVED, *MEMORIES, "-o", "moved.onnx", "--no-verify").code == 0
    done = run("plan", "moved.onnx", "--movement", "weights", *MEMORIES)
    assert done.code == 2
    assert "has copies between memories from an earlier plan" in done.err
    assert run("plan", "moved.onnx", "-o", "again.onnx").code == 0


# A model that onnxruntime's CPU cannot run: `plan` plans and checks it, `fuse` names the option without a run.


def test_a_plan_says_that_it_was_not_run(run: Run, tmp_path: Path) -> None:
    onnx.save(packed_heads(), tmp_path / "packed.onnx")
    done = run("plan", "packed.onnx", "--json", "plan.json")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "plan.json").read_text())["not_run"].endswith("PackedMultiHeadAttention")
    done = run("fuse", "packed.onnx")
    assert (done.code, "--no-verify" in done.err) == (2, True)
    assert run("fuse", "packed.onnx", "--no-verify").code == 0
