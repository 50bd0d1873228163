"""An elementwise operator is one line among the rows of operators, one in the check's own table, and one in the random graphs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from tests.conftest import ROOT

LINES = {
    "onnxtile/operators/families/elementwise.py": (
        "Shrink Softplus Softsign",
        "Shrink Softsign",
        'FAMILY = Family(\n    "elementwise",\n    (\n',
        '        *_UNARY.rows("Softplus", work=each(3), saves=saves.first),\n',
    ),
    "onnxtile/check/operators.py": (
        '"Sigmoid", "Softplus", "Softsign"',
        '"Sigmoid", "Softsign"',
        "_ACTIVATIONS = [\n",
        '    "Softplus",\n',
    ),
    "tests/random_graphs/operators.py": (
        '"LeakyRelu", "Softplus", "HardSigmoid"',
        '"LeakyRelu", "HardSigmoid"',
        "    if x.dtype == FLOAT:\n",
        '        ops.append("Softplus")\n',
    ),
}
"""By file: what takes the operator out of it, and after which text one line puts it in again."""
MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1,4,64,64] x, float[64,64] m) => (float[1,4,64,64] y, float[64,128] z)
<float[8,4,3,3] v = {V}, float[4,8,1,1] w = {W}, float[64,128] k = {K}> {
  a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, v)
  b = Softplus(a)
  y = Conv <kernel_shape = [1,1]> (b, w)
  n = Softplus(m)
  z = MatMul(n, k)
}"""
GRAPHS = """
from onnxtile import api
from tests.random_graphs.generator import random_model
models = (random_model(seed).model for seed in range(400))
held = (model for model in models if any(node.op_type == "Softplus" for node in model.graph.node))
api.plan(next(held))
"""


def numbers(count: int) -> str:
    return "{" + ", ".join(f"{(7 * place) % 5 - 2}.0" for place in range(count)) + "}"


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a copy of the package that has never heard of the operator, and one to which the three lines were added."""
    without, added = (tmp_path_factory.mktemp(name) for name in ("without", "added"))
    for copy in (without, added):
        for folder in ("onnxtile", "patterns", "limits", "tests/random_graphs"):
            shutil.copytree(ROOT / folder, copy / folder)  # with the bytecode: to compile all takes a second
        for file, (before, after, place, line) in LINES.items():
            text = (copy / file).read_text()
            assert text.count(before) == 1, file
            text = text.replace(before, after)
            assert text.count(place) == 1, file
            (copy / file).write_text(text.replace(place, place + line) if copy is added else text)
    return without, added


@pytest.fixture
def model(tmp_path: Path) -> Path:
    text = MODEL.replace("{V}", numbers(288)).replace("{W}", numbers(32)).replace("{K}", numbers(64 * 128))
    onnx.save(parser.parse_model(text), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def runner(copy: Path, folder: Path) -> Callable[..., Any]:
    """Return a call of the command line of `copy`, which gives its JSON."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "onnxtile", *arguments, "--json", "-"],
            cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_three_lines_add_an_operator_to_all_verbs(copies: tuple[Path, Path], model: Path) -> None:
    before, run = (runner(copy, model.parent) for copy in copies)
    plans = [call("plan", "model.onnx", "-o", f"{name}.onnx") for name, call in (("before", before), ("planned", run))]
    assert plans[1]["peak"] < plans[0]["peak"], "Softplus writes over its operand"
    run("plan", "planned.onnx", "--check", "planned.onnx")
    counted = [call("inspect", "model.onnx")["flops"]["by_operator"] for call in (before, run)]
    assert ["Softplus" in one for one in counted] == [False, True]
    for arguments in (["fuse"], ["tile", "--max", "64"], ["fit", "--capacity", "150KiB"]):
        assert run(*arguments, "model.onnx", "-o", f"{arguments[0]}.onnx")["verdict"]["equal"]
    run("verify", "model.onnx", "fit.onnx")


def test_random_graphs_hold_it(copies: tuple[Path, Path]) -> None:
    _, added = copies
    environment = {**os.environ, "PYTHONPATH": f"{added}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, "-c", GRAPHS], cwd=added, env=environment, timeout=120, check=True)
