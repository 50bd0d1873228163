"""Modules that are executed at their first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtile.system.registry import defer
from tests.conftest import MODELS


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a new package with a module in it, both deferred."""
    name = "deferred_for_a_test"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("from deferred_for_a_test.inner import ONE\nTWO = ONE + 1\n", encoding="utf-8")
    (folder / "inner.py").write_text("ONE = 1\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    defer(name)
    yield name
    for loaded in [key for key in sys.modules if key.startswith(name)]:
        del sys.modules[loaded]


def test_a_module_is_executed_when_an_attribute_is_read(package: str) -> None:
    module = __import__(package)
    again = __import__(package)
    assert again is module
    assert "TWO" not in vars(module)
    assert module.TWO == 2
    assert not hasattr(module, "THREE")


def test_a_module_inside_of_it_is_executed_once(package: str) -> None:
    module = __import__(package)
    inner = __import__(f"{package}.inner", fromlist=["ONE"])
    assert inner.ONE == 1
    assert module.inner is inner
    assert sys.modules[f"{package}.inner"] is inner


_MASKED = """<ir_version: 8, opset_import: ["": 9]> masked (float[2, 3] x) => (float[2, 300] y)
<int64[2] asked = {-1, 3}, int64[2] minus = {-1, -1}> {
  shape = Shape (x)
  rank = Shape (shape)
  ones = ConstantOfShape <value = int64[1] {1}> (rank)
  known = Equal (asked, minus)
  sizes = Where (known, ones, asked)
  wide = Expand (x, sizes)
  full = MatMul (wide, weights)
  y, mask = Dropout (full)
}"""
"""onnx follows neither the sizes that Where chooses nor the mask of the Dropout; the weights, a Constant, it is not shown."""


@pytest.mark.parametrize(
    ("verb", "is_masked", "unused"),
    [
        ("plan", False, {"sympy.core"}),
        ("plan", True, {"sympy.core"}),
        ("fuse", False, {"sympy.core", "networkx", "onnxtile.fusion.lower.lowering"}),
    ],
)
def test_a_model_without_symbols_needs_no_sympy(tmp_path: Path, verb: str, is_masked: bool, unused: set[str]) -> None:
    code = (
        "import sys; from onnxtile.cli import main\n"
        f"try: main()\nfinally: print(sorted({unused!r} & sys.modules.keys()), file=sys.stderr)"
    )
    model = tmp_path / "masked.onnx" if is_masked else MODELS / "transformer.onnx"
    if is_masked:
        proto = onnx.parser.parse_model(_MASKED)
        weights = onnx.numpy_helper.from_array(np.ones((3, 300), np.float32))
        proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["weights"], value=weights))
        onnx.save(proto, model)
    arguments = [verb, str(model), "-o", str(tmp_path / "m.onnx")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
    assert verb != "plan" or "unplanned                    0" in done.stdout
