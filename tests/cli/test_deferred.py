"""Modules that are executed at their first use."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxtile.cli.deferred import defer
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


@pytest.mark.parametrize(
    ("verb", "unused"),
    [("plan", {"sympy.core"}), ("fuse", {"sympy.core", "networkx", "lark", "onnxtile.fusion.lowering"})],
)
def test_a_model_without_symbols_needs_no_sympy(tmp_path: Path, verb: str, unused: set[str]) -> None:
    code = (
        "import sys; from onnxtile.cli import main\n"
        f"try: main()\nfinally: print(sorted({unused!r} & sys.modules.keys()), file=sys.stderr)"
    )
    arguments = [verb, str(MODELS / "transformer.onnx"), "-o", str(tmp_path / "m.onnx")]
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"
