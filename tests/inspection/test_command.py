"""The command: tables, JSON, CSV, and bad input."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from onnxtile import cli

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(name="run")
def _run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Give a function that runs a command: exit code, stdout, stderr."""

    def start(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["onnxtile", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return start


@pytest.fixture(name="model")
def _model(tmp_path: Path, mobilenet: onnx.ModelProto) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(mobilenet, path)
    return path


def test_tables(run: Run, model: Path) -> None:
    code, out, err = run("inspect", model, "--dim", "batch=1", "--training")
    assert (code, err) == (0, "")
    for words in ("300,774,272", "9,633,792 B at clip_", "Conv 299,494,272", "group 1 … 960", "3,487,816", "kept for"):
        assert words in out


def test_json_and_csv(run: Run, model: Path, tmp_path: Path) -> None:
    emitted = tmp_path / "nodes.csv"
    code, out, _ = run("inspect", model, "--dim", "batch=1", "--json", "-", "--emit", emitted)
    assert code == 0
    content = json.loads(out)
    rows = list(csv.DictReader(emitted.read_text().splitlines()))
    assert len(rows) == len(content["nodes"])
    assert sum(int(row["macs"]) for row in rows) == content["macs"]["total"] == 300_774_272
    assert sum(int(row["flops"]) for row in rows) == content["flops"]["total"] > 2 * 300_774_272
    assert rows[0]["outputs"].endswith(":float[1x32x112x112]")


def test_of_open_sizes_the_figures_are_formulas(run: Run, model: Path, tmp_path: Path) -> None:
    """No figure is `?`; a formula that is too long for the table of operators is in the JSON."""
    proto = onnx.load(model)
    proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(proto, tmp_path / "open.onnx")
    code, out, _ = run("inspect", tmp_path / "open.onnx")
    assert code == 0
    assert "\nthe work of a node needs bound sizes: give --dim batch=N --dim height=N\n" in out
    assert re.search(r"Conv +52 +formula in --json +formula in --json ", out)
    assert re.search(r"Gemm +1 +1,280,000·batch ", out)
    assert re.search(r"Flatten +1 +0 +0 ", out)
    assert "?" not in out
    assert "kinds of nodes" not in run("inspect", tmp_path / "open.onnx", "--top", "3")[1]


def test_an_open_batch_is_1_in_figures_and_a_name_in_formulas(run: Run, model: Path) -> None:
    code, out, _ = run("inspect", model)
    assert code == 0
    assert re.search(r"figures at +batch=1 *\n", out)
    assert re.search(r"MACs +300,774,272 *\n", out)
    assert re.search(r"MACs +300,774,272·batch", out)
    assert "not known" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--emit", "x.pdf"], "no format of inspect has this ending"),
        (["--emit", "nowhere/x.csv"], "does not exist"),
        (["--dim", "batch"], "NAME=N"),
        (["--shape", "image=1x3"], "4 dimensions"),
    ],
)
def test_bad_options(run: Run, model: Path, options: list[str], message: str) -> None:
    code, out, err = run("inspect", model, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_what_only_runs_and_plans_need_is_not_loaded(model: Path) -> None:
    others = {"onnxruntime", "onnxtile.kernels.kernel_graph", "onnxtile.declare.plan_document", "networkx"}
    script = (
        "import sys; from onnxtile import cli; sys.argv = ['onnxtile', 'inspect', sys.argv[1], '--json', '-']\n"
        f"try: cli.main()\nexcept SystemExit as end: print(end.code, *({others!r} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script, model], check=True, capture_output=True, text=True)
    assert done.stderr.split() == ["0"]
