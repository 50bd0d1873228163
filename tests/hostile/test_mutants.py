"""Whatever a file holds, a command ends with 0, 1 or 2 and one line at most; a mutant is told by its seed."""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtile import api
from onnxtile.declare.layout_rules import rules_in
from onnxtile.fusion.pattern import from_file as pattern_file
from onnxtile.model.feeds import read_inputs
from onnxtile.model.load import load
from onnxtile.pipeline.file import from_file as pipeline_file
from onnxtile.system.errors import OnnxtileError
from onnxtile.system.long_work import RunLimits
from onnxtile.system.registry import data_folder
from onnxtile.tiling.limits import find as limits_file
from tests.hostile import forked
from tests.hostile.mutants import judged
from tests.hostile.mutate import mutated_bytes, mutated_text

_PATIENCE = 20.0
"""Seconds after which one mutant counts as a hang; the limits on its runs end it long before."""
_CHUNK = 12


@pytest.mark.parametrize("first", range(0, 96, _CHUNK))
def test_a_mutant_is_refused_or_read(tmp_path: Path, first: int) -> None:
    """More of them: python -m tests.hostile.mutants."""
    forked.warm_up()
    for seed in range(first, first + _CHUNK):
        made, ended, wrong = judged(seed, tmp_path / "mutant", real=False)
        assert not wrong, f"seed {seed}: {made.kind} {made.base} {made.arguments}: {wrong}: {ended.err}"


_LAYOUT = """keep = ["h"]
[pins]
y = 64
[workspaces]
MatMul = "4096 shared; 64 unique"
"""
_PIPELINE = """doc = "all steps"
runs = "5s"
models = ["*.onnx"]
output = "{name}.deploy.onnx"
[[steps]]
do = "unfuse"
verify = false
[[steps]]
do = "tile"
max = [64, "256KiB"]
[[steps]]
do = "plan"
emit = ["json", "html"]
capacity = {sram = "256KiB"}
dims = {batch = 1}
shapes = {x = "1x3x8x8"}
inputs = {ids = "0:100"}
search = "5s"
[[steps]]
do = "verify"
runs = 3
[budgets]
max_arena = "256KiB"
"""
_PROBLEM = "id,lower,upper,size,alignment\n" + "".join(f"b{i},{i},{i + 3},{i * 16},16\n" for i in range(12))


def _read_inputs(path: Path) -> object:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[N, 3] x, int64[N] i) => (float[N, 3] y) { y = Identity(x) }'
    )
    return read_inputs(path, load(model))


_READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "pipeline": (_PIPELINE, pipeline_file),
    "pattern": ((data_folder("patterns") / "gelu_tanh.toml").read_text(), pattern_file),
    "layout": (_LAYOUT, rules_in),
    "limits": (sorted(data_folder("limits").glob("*.toml"))[0].read_text(), limits_file),
    "problem": (_PROBLEM, lambda path: api.plan_problem(path, search="greedy-by-size")),
}


@pytest.mark.parametrize("kind", _READERS)
@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_mutated_text_is_read_or_refused(tmp_path: Path, kind: str, first: int) -> None:
    text, read = _READERS[kind]
    path = tmp_path / ("m.csv" if kind == "problem" else "m.toml")
    for seed in range(first, first + (1000 if first else 40)):
        path.write_text(mutated_text(text, random.Random(seed)), "utf-8", newline="")
        _require_read_or_refused(read, path, seed)


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutated_arrays_are_read_or_refused(tmp_path: Path, first: int) -> None:
    path = tmp_path / "m.npz"
    for seed in range(first, first + (2000 if first else 100)):
        rng, file = random.Random(seed), io.BytesIO()
        write = np.savez_compressed if rng.random() < 0.5 else np.savez
        write(file, x=np.ones((2, 3), np.float32), i=np.ones(2, np.int64))
        path.write_bytes(mutated_bytes(file.getvalue(), rng))
        _require_read_or_refused(_read_inputs, path, seed)


def _require_read_or_refused(read: Callable[[Path], object], path: Path, seed: int) -> None:
    start = time.perf_counter()
    try:
        with RunLimits(seconds=3, memory=2**30).held():
            read(path)
    except OnnxtileError as error:
        assert str(error), f"seed {seed}"
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert time.perf_counter() - start < _PATIENCE, f"seed {seed}"
