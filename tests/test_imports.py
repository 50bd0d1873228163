"""Packages of onnxtile import one way, third-party packages stay in one of them, and plug-ins are found by their existence."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import networkx
import pytest

from onnxtile.system.errors import OnnxtileError
from onnxtile.system.registry import data_folder, discover

# Packages of onnxtile import one way, and each third-party package is imported by one of them.


PACKAGE = Path(__file__).parent.parent / "onnxtile"

# In order: each imports only from those above it.
PACKAGES = [
    *("system", "operators", "model", "shapes", "declare", "kernels", "common_options"),
    *("query", "verification", "inspection", "fusion", "tiling", "planning", "check", "arena", "fitting"),
    *("report", "deployment", "firmware", "verbs", "pipeline", "api", "demo", "cli"),
    "__main__",
]
SIBLINGS = {"fusion", "tiling", "planning"}
OWNERS = {
    "networkx": {"model"},
    "onnxruntime": {"system"},
    "rich": {"report", "cli"},
    "typer": {"cli"},
    "joblib": {"pipeline"},
    "resvg_py": {"report"},
    "bokeh": {"report"},
    "tflite": {"deployment"},
    "tflite_micro": {"deployment"},
    "executorch": {"deployment"},
    "emx_onnx_cgen": {"firmware"},
}
# These know no ONNX and are tested with plain data.
PURE = [
    "kernels/kernel_graph.py",
    "query/language.py",
    "tiling/limits.py",
    "tiling/grid.py",
    "fitting/network.py",
    "fitting/strips.py",
    "fitting/live_bytes.py",
    "fitting/floor.py",
    "fitting/search.py",
    "planning/offsets",
    "planning/problem_plan.py",
    "planning/planners.py",
    "report",
]


@cache
def imported_modules(file: Path) -> tuple[str, ...]:
    return tuple(_imported(ast.parse(file.read_text()), file))


def _imported(tree: ast.Module, file: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imports(files: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the modules that files import, each with its file."""
    return ((file, module) for file in files for module in imported_modules(file))


def package_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = sorted(f for f in PACKAGE.rglob("*.py") if f != PACKAGE / "__init__.py")


def test_no_files_import_each_other() -> None:
    """Imports inside functions and for types alone count: a circle of files is one idea, or lacks one."""
    modules = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file for file in FILES}
    arcs = networkx.DiGraph()
    for name, file in modules.items():
        for module in imported_modules(file):
            known = next((m for m in (module, module.rpartition(".")[0]) if m in modules), None)
            if known is not None:
                arcs.add_edge(name, known)
    assert networkx.number_of_edges(arcs) > len(FILES)
    assert not [circle for circle in networkx.strongly_connected_components(arcs) if len(circle) > 1]


@pytest.mark.parametrize("own", sorted({*map(package_of, FILES)}))
def test_a_package_imports_only_from_packages_above_it(own: str) -> None:
    assert own in PACKAGES, f"{own} is not in the list of packages"
    for file, module in imports(file for file in FILES if package_of(file) == own):
        library, _, path = module.partition(".")
        other = path.partition(".")[0]
        if library != "onnxtile" or other in {"", own}:
            continue
        assert other in PACKAGES[: PACKAGES.index(own)], f"{file} imports {module}"
        assert not {own, other} <= SIBLINGS, f"{file} imports {module}"


@pytest.mark.parametrize("package", OWNERS)
def test_a_third_party_package_is_imported_by_one_package(package: str) -> None:
    users = {package_of(f) for f in FILES if any(m.split(".")[0] == package for m in imported_modules(f))}
    assert users <= OWNERS[package]


@pytest.mark.parametrize("place", PURE)
def test_pure_packages_import_no_onnx(place: str) -> None:
    path = PACKAGE / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    for file in files:
        assert not {m.split(".")[0] for m in imported_modules(file)} & {"onnx", "onnx_ir", "onnxruntime"}, file


INTERNALS = {"shapes/propagation.py", "system/runtime.py"}


def test_private_names_of_libraries_are_imported_by_two_modules() -> None:
    for file, module in imports(file for file in FILES if str(file.relative_to(PACKAGE)) not in INTERNALS):
        own, *parts = module.split(".")
        private = [part for part in parts if part.startswith("_") and part != "__future__"]
        assert own in {"onnxtile", "__future__"} or not private, f"{file} imports {module}"


def test_libraries_of_which_private_names_are_used_have_an_upper_bound() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    bounds = {name: bound for name, _, bound in (text.partition(">=") for text in project["dependencies"])}
    for name in ("onnx-ir", "onnxruntime"):
        assert "<" in bounds[name], name


# Plug-ins are found by their existence.


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
