"""What is printed: names as text and as nothing else, warnings once, and progress on a terminal alone."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxtile.cli.command import Job, bar
from onnxtile.report.format import Format
from onnxtile.system.long_work import counted, silent
from onnxtile.system.registry import discover
from tests import build
from tests.cli.conftest import Run

# Names that a model brings reach a terminal, a spreadsheet, a page, a picture, a header and a trace as text and as
# nothing else.


OSC = "\x1b]0;owned\x07"
NAMES = (OSC, "=cmd()", "[/red]x[bold]", "</script><b>", "*/ int x; /*", "\u202eback\x9b31m\x7f", "n" * 3000)
BAD = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A chain of nodes and values with such names."""
    nodes, before = [], "x"
    for name in NAMES:
        nodes.append(helper.make_node("Transpose", [before], [name], name=f"{name} node", perm=[1, 0]))
        before = name
    nodes.append(helper.make_node("Add", [before, "w"], ["y"], name=f"{OSC}sum"))
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in ("x", "y")]
    weight = numpy_helper.from_array(np.ones(8, np.float32), "w")
    graph = helper.make_graph(nodes, f"{OSC}g", value[:1], value[1:], [weight])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)], producer_name=OSC)
    onnx.save(made, tmp_path / "h.onnx")
    return tmp_path / "h.onnx"


COMMANDS = [
    ("inspect", "h.onnx", "--training"),
    ("inspect", "h.onnx", "--trace", "Transpose"),
    ("inspect", "h.onnx", "--json", "-"),
    ("match", "h.onnx", "Transpose->Transpose"),
    ("fuse", "h.onnx", "-p", "Transpose->Transpose", "--dry-run"),
    ("fuse", "h.onnx", "--explain", "Transpose->Add->Transpose"),
    ("tile", "h.onnx", "--max", "8", "--dry-run"),
    ("plan", "h.onnx", "--dry-run"),
    ("plan", "h.onnx", "--dry-run", "--json", "-"),
    ("verify", "h.onnx", "h.onnx"),
    ("pattern", "new", "--from", "h.onnx", "--nodes", f"{OSC}sum"),
]


@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
def test_a_terminal_gets_text(run: Run, hostile: Path, line: tuple[str, ...]) -> None:
    assert hostile.exists()
    done = run(*line)
    assert done.code == 0, done.err
    assert not BAD.search(done.out) and not BAD.search(done.err)
    assert [row for row in done.out.splitlines() if row != row.rstrip()] == []


def test_tables_show_what_stands_in_brackets(run: Run, hostile: Path) -> None:
    assert hostile.exists()
    assert "[/red]x[bold] node" in run("inspect", "h.onnx").out


ERRORS = [
    ("inspect", f"{OSC}.onnx"),
    ("inspect", "x" * 4000),
    ("match", "h.onnx", "Transpose->" * 900),
    ("match", "h.onnx", f"Transpose->{OSC}"),
    ("fuse", "h.onnx", "-p", "N" * 4000),
    ("plan", "h.onnx", "--dim", f"{OSC}=3"),
    ("plan", "h.onnx", "--dim", f"{'d' * 4000}=3"),
    ("pattern", "new", "--from", "h.onnx", "--nodes", f"{OSC}nobody"),
    ("run", "p.toml", "h.onnx", "--backend", "b" * 4000),
    ("plan", "h.onnx", "--emit", f"{OSC}.xyz"),
]


@pytest.mark.parametrize("line", ERRORS, ids=lambda line: " ".join(line)[:40])
def test_an_error_is_short_and_is_text(run: Run, hostile: Path, line: tuple[str, ...]) -> None:
    (hostile.parent / "p.toml").write_text('[[steps]]\ndo = "fuse"\n')
    done = run(*line)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and not BAD.search(done.err)
    assert max(map(len, done.err.splitlines())) <= 500
    assert done.err.count("\n") == 1 or "^" in done.err.splitlines()[-1]


def test_libraries_say_nothing_before_an_error(run: Run, hostile: Path) -> None:
    """onnx_ir logs of a value that nobody makes, onnxruntime of a run that fails."""
    made = onnx.load(hostile)
    made.graph.node[0].input[0] = "nobody"
    onnx.save(made, hostile)
    done = run("inspect", "h.onnx")
    done.require_error()
    gather = helper.make_node("Gather", ["x", "i"], ["y"])
    value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "y")]
    index = numpy_helper.from_array(np.array([9, 9]), "i")
    onnx.save(
        build.model([gather], value[:1], value[1:], [index]),
        hostile,
    )
    done = run("verify", "h.onnx", "h.onnx")
    done.require_error()


def rendered(run: Run, folder: Path, *suffixes: str) -> list[str]:
    """Return a plan in the formats of these suffixes."""
    emitted = [part for suffix in suffixes for part in ("--emit", f"p{suffix}")]
    done = run("plan", "h.onnx", "--no-verify", "--force", "-o", "o.onnx", *emitted)
    assert done.code == 0, done.err
    return [(folder / f"p{suffix}").read_bytes().decode() for suffix in suffixes]


FORMATS = {form.name: form.suffix for form in discover("onnxtile.report.formats", Format).values()}


def test_no_format_holds_what_a_terminal_obeys(run: Run, hostile: Path) -> None:
    names = sorted(FORMATS.keys() - {"png", "tflm", "csv", "constants"})
    together = [name for name in names if name != "c"]  # which writes a header of its own
    texts = dict(zip(together, rendered(run, hostile.parent, *(FORMATS[name] for name in together)), strict=True))
    texts["c"], *_ = rendered(run, hostile.parent, FORMATS["c"])
    for name, text in texts.items():
        assert "owned" in text or name in {"svg", "c"}, name  # a program in C names its tensors in its header
        assert not BAD.search(text), name
        if name == "svg":
            ET.fromstring(text)
        elif name.startswith(("json", "trace", "tflm", "model")):
            said = json.dumps(json.loads(text), ensure_ascii=False)
            assert OSC in said.replace("\\u001b", "\x1b").replace("\\u0007", "\x07"), name
        elif name == "header":
            code = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', "", text, flags=re.DOTALL)
            assert "int x" not in code and "*/" not in code


def test_a_page_has_no_element_from_a_name(run: Run, hostile: Path) -> None:
    found: list[str] = []

    class Elements(HTMLParser):
        def handle_starttag(self, tag: str, _attrs: object) -> None:
            found.append(tag)

    Elements().feed(*rendered(run, hostile.parent, ".html"))
    assert "b" not in found and found.count("script") == 2


def test_a_spreadsheet_gets_no_formula_and_the_plan_comes_back(run: Run, hostile: Path) -> None:
    folder = hostile.parent
    (text,) = rendered(run, folder, ".csv")
    ids = [row[0] for row in csv.reader(io.StringIO(text, newline=""))]
    assert "'=cmd()" in ids and "=cmd()" not in ids
    assert run("plan", "p.csv", "--emit", "again.json").code == 0
    names = {row["name"] for row in json.loads((folder / "again.json").read_text())["buffers"]}
    assert set(NAMES) <= names
    assert run("inspect", "h.onnx", "--emit", "n.csv").code == 0
    rows = list(csv.reader(io.StringIO((folder / "n.csv").read_bytes().decode(), newline="")))
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@", "\t", "\r"))]


def test_one_place_makes_lines_of_reports() -> None:
    """What is printed goes through `table` and `line`, which escape; no report makes its own."""
    import onnxtile.report as room

    for file in Path(room.__path__[0]).glob("*.py"):
        if file.name not in {"table.py", "terminal.py"}:  # the latter draws what the former made
            assert not re.search(r"(?<![\w|\[ ])\s?\b(Text|Line)\(|[^.]\bTable\(", file.read_text()), file


@pytest.mark.parametrize("silent", [True, False])
def test_what_a_library_logs_or_warns_is_for_programmers(silent: bool) -> None:
    """In a process of its own: here, pytest listens. What is asked for by -W still comes."""
    script = (
        "import logging, warnings\n"
        "from onnxtile.system.interpreter import silence_libraries\n"
        "silence_libraries()\n"
        "logging.getLogger('onnx_ir.serde').warning('logged')\n"
        "warnings.warn('warned')\n"
    )
    command = [sys.executable, *([] if silent else ["-Wdefault"]), "-c", script]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONWARNINGS"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert "logged" not in done.stderr
    assert ("warned" in done.stderr) == (not silent)


# What a model has that is odd, and goes: one line on stderr, once, in every command that reads it.


READERS = (
    ("inspect",), ("plan", "--dry-run"), ("tile", "--max", "2", "--dry-run"), ("fuse", "--dry-run"), ("match", "MatMul"),
)  # fmt: skip

WRONG_RANK = """
<ir_version: 8, opset_import: ["": 17]>
g (float[4,3] x) => (float[rows,columns] y) <float[3,5] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, int64[3] s = {4,1,5}> {
  a = MatMul(x, w)
  b = Reshape(a, s)
  y = Relu(b)
}
"""

NOT_OF_THE_OPSET = """
<ir_version: 8, opset_import: ["": 14]>
g (float[4,3] x) => (float[rows,columns] y) <float[3,5] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6}, float[5] s = {1,2,3,4,5}> {
  a = MatMul(x, w)
  y = LayerNormalization <axis = -1> (a, s)
}
"""

NO_SUCH_ATTRIBUTE = """
<ir_version: 8, opset_import: ["": 14]>
g (float[4,3] x) => (float[rows,columns] y) { y = Relu <axis = -1> (x) }
"""


@pytest.mark.parametrize("arguments", [("inspect",), ("plan", "--dry-run")])
def test_a_shape_that_is_declared_wrongly(run: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    onnx.save(onnx.parser.parse_model(WRONG_RANK), tmp_path / "m.onnx")
    done = run(arguments[0], "m.onnx", *arguments[1:])
    assert done.code == 0
    assert done.err == "warning: the model declares the output 'y' as [rows, columns], and it is [4, 1, 5]\n"
    assert run(arguments[0], "m.onnx", *arguments[1:], "--quiet").err == ""


@pytest.mark.parametrize("arguments", READERS, ids=lambda arguments: arguments[0])
def test_an_operator_that_the_opset_lacks_and_the_runtime_has(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    onnx.save(onnx.parser.parse_model(NOT_OF_THE_OPSET), tmp_path / "m.onnx")
    done = run(arguments[0], "m.onnx", *arguments[1:])
    assert done.code == 0
    assert done.err == "warning: ONNX has no operator LayerNormalization in opset 14; onnxruntime takes it\n"


def test_initializers_of_an_old_model_that_are_no_inputs(run: Run, tmp_path: Path) -> None:
    old = onnx.parser.parse_model(WRONG_RANK.replace("rows,columns", "rows,one,columns"))
    old.ir_version = 3
    onnx.save(old, tmp_path / "m.onnx")
    done = run("plan", "m.onnx", "--dry-run")
    assert done.code == 0
    assert done.err == "warning: IR version 3 wants every initializer among the inputs; onnxruntime does not\n"


def test_what_the_runtime_refuses_too_is_an_error(run: Run, tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(NO_SUCH_ATTRIBUTE), tmp_path / "m.onnx")
    done = run("inspect", "m.onnx")
    assert done.code == 2
    assert done.err == "error: m.onnx: the model is not valid ONNX: Unrecognized attribute: axis for operator Relu\n"


def test_an_output_without_a_shape_is_named(run: Run, tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "m.onnx")
    done = run("plan", "m.onnx")
    assert done.code == 2
    assert (
        done.err.endswith("(declare a shape for 'y'; its dimensions may be open)\n") and len(done.err.splitlines()) == 1
    )


def test_the_hint_names_an_opset_that_is_too_new(run: Run, tmp_path: Path) -> None:
    new = onnx.parser.parse_model(NO_SUCH_ATTRIBUTE)
    new.opset_import[0].version = 99
    onnx.save(new, tmp_path / "m.onnx")
    newest = onnx.defs.onnx_opset_version()
    assert (
        f"(the model has opset 99, and onnx {onnx.__version__} knows opsets up to {newest}: "
        in run("inspect", "m.onnx").err
    )


# Progress shows on a terminal, and nowhere else.


def _shown(file: io.StringIO) -> str:
    return file.getvalue()


def test_a_stage_that_counts_has_a_bar_and_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", file)
    with bar() as show:
        show("planning")
        for _ in counted(range(1234), "verifying", show):
            pass
        show("verifying", 1234, 1234)
    text = _shown(file)
    assert "verifying" in text and "1,234 of 1,234" in text and "━" in text
    assert text.endswith("\x1b[2K"), "the line is gone at the end"


def test_parts_are_counted_before_they_are_done() -> None:
    heard: list[tuple[str, int, int]] = []

    def hear(stage: str, done: int = 0, total: int = 0, /) -> None:
        heard.append((stage, done, total))

    assert list(counted("ab", "reading", hear)) == ["a", "b"]
    assert heard == [("reading", 0, 2), ("reading", 1, 2)]


def _on_a_terminal(folder: Path, *arguments: str) -> tuple[str, str]:
    """Run the command with a terminal for stderr; return stdout, which is a pipe, and what the terminal got."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "onnxtile", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    # Its buffer holds a few kilobytes: the child blocks unless the terminal is read while the child runs.
    with os.fdopen(leader, "rb") as terminal, ThreadPoolExecutor(1) as pool:
        shown = pool.submit(_read_all, terminal.fileno())
        try:
            done = subprocess.run(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=follower, text=True, env=environment, check=True
            )
        finally:
            os.close(follower)
        return done.stdout, shown.result().decode(errors="replace")


def _read_all(descriptor: int) -> bytes:
    shown = b""
    while chunk := _read(descriptor):
        shown += chunk
    return shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
def test_a_terminal_sees_bars_and_a_script_does_not(folder: Path) -> None:
    arguments = ("fuse", "m.onnx", "-p", "LayerNorm", "--dry-run")
    out, shown = _on_a_terminal(folder, *arguments)
    assert "LayerNorm" in out and "\x1b" not in out
    assert " of " in shown and "━" in shown
    out, shown = _on_a_terminal(folder, *arguments, "--json", "-")
    assert out.startswith("{") and shown == ""


def test_a_pipe_sees_nothing(run: Run, folder: Path) -> None:
    assert (folder / "m.onnx").exists()
    done = run("fuse", "m.onnx", "-p", "LayerNorm", "--no-verify", "--dry-run")
    assert (done.code, done.err) == (0, "")
    for job in (Job(), Job(quiet=True), Job(as_json="-")):
        with job.progress() as progress:
            assert progress is silent
