"""An elementwise operator is one line among the rows of operators, one in the check's own table, and one in the random graphs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
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
from onnxtile.system.registry import defer_libraries
defer_libraries()
from onnxtile import api
from tests.random_graphs.generator import random_model
models = (random_model(seed).model for seed in range(400))
held = (model for model in models if any(node.op_type == "Softplus" for node in model.graph.node))
api.plan(next(held))
"""

COMMANDS = """
import sys
from onnxtile.system.registry import defer_libraries
defer_libraries()
from onnxtile import cli
for number, line in enumerate(sys.argv[1:]):
    sys.argv = ["onnxtile", *line.split(), "--json", f"{number}.json"]
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise
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


def run(copy: Path, folder: Path, *lines: str) -> list[Any]:
    """Run command lines of `copy` one after the other in one process, and return their JSON."""
    command = [sys.executable, "-c", COMMANDS, *lines]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(len(lines))]


def test_three_lines_add_an_operator_to_all_verbs(copies: tuple[Path, Path], model: Path) -> None:
    without, added = copies
    plan, inspect, check = (
        "plan model.onnx -o planned.onnx",
        "inspect model.onnx",
        "plan planned.onnx --check planned.onnx",
    )
    verbs = ["fuse", "tile --max 64", "fit --capacity 150KiB"]
    changes = [f"{verb} model.onnx -o {verb.split()[0]}.onnx" for verb in verbs]
    before = run(without, model.parent, "plan model.onnx --dry-run", inspect)
    planned, inspected, _, *changed, _ = run(
        added, model.parent, plan, inspect, check, *changes, "verify model.onnx fit.onnx"
    )
    assert planned["peak"] < before[0]["peak"], "Softplus writes over its operand"
    assert ["Softplus" in one["flops"]["by_operator"] for one in (before[1], inspected)] == [False, True]
    assert [one["verdict"]["equal"] for one in changed] == [True] * 3


def test_random_graphs_hold_it(copies: tuple[Path, Path]) -> None:
    _, added = copies
    environment = {**os.environ, "PYTHONPATH": f"{added}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, "-c", GRAPHS], cwd=added, env=environment, timeout=120, check=True)
