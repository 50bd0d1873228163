"""Modules that are executed at their first use, and copies of packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtile.system.modules import PackageCopy, defer
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


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the name of a package whose modules import each other, in each way that there is."""
    name = "copied_for_a_test"
    folder = tmp_path / name
    (folder / "inner").mkdir(parents=True)
    texts = {
        "__init__": f"from {name}.one import NUMBERS\nfrom {name} import two\nimport {name}.inner.three as three\n",
        "one": "NUMBERS = [1]\n",
        "two": f"import os\nfrom . import one\ndef late():\n    from {name}.inner import four\n    return four.FIVE, one, os\n",
        "inner/__init__": "",
        "inner/three": f"from ..one import NUMBERS\nimport {name}.one\nNUMBERS.append({name}.one.NUMBERS[0])\n",
        "inner/four": "from .three import NUMBERS\nFIVE = 5\n",
    }
    for module, text in texts.items():
        (folder / f"{module}.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for loaded in [key for key in sys.modules if key.startswith(name)]:
        del sys.modules[loaded]


def test_a_copy_of_a_package_is_apart_from_the_imported_one(copied: str) -> None:
    copy = PackageCopy(copied, "own").module(copied)
    assert not [name for name in sys.modules if name.startswith(copied)]
    plain = __import__(copied)
    assert copy.NUMBERS == plain.NUMBERS == [1, 1]
    copy.NUMBERS.append(7)
    five, one, os_module = copy.two.late()
    assert (five, one.NUMBERS, os_module) == (5, [1, 1, 7], sys.modules["os"])
    assert plain.NUMBERS == [1, 1]
    assert copy.three.NUMBERS is copy.NUMBERS is one.NUMBERS is not plain.NUMBERS
    assert one.__name__ == f"own.{copied}.one"
    assert f"{copied}.inner.four" not in sys.modules


def test_a_module_of_a_copy_waits_until_it_is_read(copied: str) -> None:
    copy = PackageCopy(copied, "own", [f"{copied}.two"]).module(copied)
    assert "late" not in vars(copy.two)
    assert copy.two.late()[0] == 5


def test_a_package_that_is_not_there_has_no_copy(copied: str) -> None:
    with pytest.raises(ModuleNotFoundError):
        PackageCopy("no_such_package_at_all", "own").module("no_such_package_at_all")
    with pytest.raises(ModuleNotFoundError):
        PackageCopy(copied, "own").module(f"{copied}.missing")
