"""Plug-ins are found by their existence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxtile.system.errors import OnnxtileError
from onnxtile.system.registry import data_folder, discover


@pytest.fixture(name="package")
def _package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "some_plugins"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (tmp_path / "some_kind.py").write_text("class Kind:\n    def __init__(self, name):\n        self.name = name\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [n for n in sys.modules if n.startswith("some_")]:
        del sys.modules[name]


def test_every_instance_is_found_by_its_name(package: Path) -> None:
    (package / "b.py").write_text("from some_kind import Kind\nX = Kind('zeta')\nOTHER = 3\n")
    (package / "a.py").write_text("from some_kind import Kind\nY = Kind('alpha')\nfrom some_plugins.b import X\n")
    import some_kind  # type: ignore[import-not-found]

    assert list(discover("some_plugins", some_kind.Kind)) == ["alpha", "zeta"]


def test_nothing_is_nothing(package: Path) -> None:
    assert package.is_dir()
    assert discover("some_plugins", int) == {}


def test_two_of_one_name_are_an_error(package: Path) -> None:
    for module in "ab":
        (package / f"{module}.py").write_text("from some_kind import Kind\nX = Kind('same')\n")
    import some_kind

    with pytest.raises(OnnxtileError, match="'same'"):
        discover("some_plugins", some_kind.Kind)


def test_folders_that_ship_are_found() -> None:
    assert (data_folder("models") / "transformer.onnx").is_file()
    with pytest.raises(OnnxtileError, match="missing"):
        data_folder("no such folder")
