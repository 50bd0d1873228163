"""A wheel, built from the checkout and installed in an environment outside it, has all that onnxtile needs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

import onnxtile
from onnxtile.system.registry import data_folder

ROOT = Path(__file__).parent.parent


def _quiet(*command: object, folder: Path) -> str:
    """Run `command` outside the checkout, with no hint where that is, and return its stdout."""
    environment = {key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "error: " in done.stderr) == (0, False), done.stderr
    return done.stdout


def _built(kind: str, source: Path, folder: Path) -> list[Path]:
    """Build the `kind` of distribution of `source` into `folder`, and return what is there then."""
    isolation = [] if importlib.util.find_spec("hatchling") is None else ["--no-isolation", "--skip-dependency-check"]
    _quiet(sys.executable, "-m", "build", f"--{kind}", *isolation, "--outdir", folder, source, folder=source)
    return list(folder.iterdir())


@pytest.fixture(name="wheel", scope="module")
def _wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    (wheel,) = _built("wheel", ROOT, tmp_path_factory.mktemp("dist"))
    return wheel


@pytest.fixture(name="installed", scope="module")
def _installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an environment with the wheel, and the dependencies of this one: only they come by way of a .pth file."""
    home = tmp_path_factory.mktemp("elsewhere") / "env"
    venv.create(home, with_pip=False, symlinks=os.name != "nt")
    pip = (sys.executable, "-m", "pip", "--python", _bin(home, "python"))
    _quiet(*pip, "install", "-q", "--no-deps", "--no-compile", wheel, folder=home)
    (site,) = home.glob("lib/python*/site-packages")
    places = [place for place in sys.path if Path(place).name in {"site-packages", "dist-packages"}]
    (site / "dependencies.pth").write_text("\n".join(places) + "\n")
    return home


def _bin(home: Path, name: str) -> Path:
    return home / ("Scripts" if os.name == "nt" else "bin") / name


def test_the_wheel_holds_patterns_models_grammar_and_licence(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, ending in (("patterns", ".toml"), ("models", ".onnx")):
        for file in (ROOT / folder).rglob(f"*{ending}"):
            assert f"onnxtile/{file.relative_to(ROOT).as_posix()}" in names
    for file in (ROOT / "onnxtile").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert file.relative_to(ROOT).as_posix() in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests", "docs", ".ci")) or "__pycache__" in name for name in names)


def test_a_container_gets_all_that_the_wheel_is_made_of(wheel: Path, tmp_path: Path) -> None:
    """The files that the Dockerfile copies make the same wheel. No container is run."""
    copies = re.findall(r"^COPY (.+) /src/(.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for names, target in copies:
        for name in names.split():
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tmp_path / "src" / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                (tmp_path / "src").mkdir(exist_ok=True)
                shutil.copy(source, tmp_path / "src")
    (made,) = _built("wheel", tmp_path / "src", tmp_path / "dist")
    assert _content(made) == _content(wheel)


def _content(wheel: Path) -> dict[str, int]:
    """Return the files of a wheel with their checksums."""
    return {
        file.filename: file.CRC for file in zipfile.ZipFile(wheel).infolist() if not file.filename.endswith("RECORD")
    }


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 5 * 2**20


def test_the_wheel_says_what_the_project_says(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    lines = archive.read(name).decode().splitlines()
    assert f"Version: {project['version']}" in lines
    assert "License-Expression: Apache-2.0" in lines
    assert {f"Provides-Extra: {extra}" for extra in project["optional-dependencies"]} <= set(lines)


def test_the_library_comes_from_the_wheel(installed: Path) -> None:
    script = (
        "import json, onnxtile; from onnxtile.system.registry import data_folder; from onnxtile.fusion.pattern import pattern_set; "
        "print(json.dumps([onnxtile.__file__, str(data_folder('patterns')), str(data_folder('models')), "
        "[p.name for p in pattern_set('aidge')]]))"
    )
    *places, names = json.loads(_quiet(_bin(installed, "python"), "-c", script, folder=installed))
    for place in places:
        assert Path(place).is_relative_to(installed), place
    assert sorted(names) == ["GeLU", "LayerNorm", "Linear", "MultiHeadAttention", "ScaledDotProductAttention"]


def test_the_command_is_there(installed: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert _quiet(_bin(installed, "onnxtile"), "--version", folder=installed) == f"{version}\n"
    assert "Usage" in _quiet(_bin(installed, "python"), "-m", "onnxtile", "--help", folder=installed)


def test_the_command_fuses(installed: Path, transformer: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    command = (_bin(installed, "onnxtile"), "fuse", transformer, "-p", "aidge", "-o", target, "--json", "-")
    content = json.loads(_quiet(*command, folder=tmp_path))
    assert content["verdict"]["equal"]
    assert {p["name"]: p["fused"] for p in content["patterns"]}["LayerNorm"] == 5
    assert target.exists()


def test_the_demo_runs(installed: Path, tmp_path: Path) -> None:
    content = json.loads(_quiet(_bin(installed, "onnxtile"), "demo", "--json", "-", folder=tmp_path))
    assert len(content["stages"]) == 3
    assert [one["arena_with_insides"] > one["arena"] for one in content["stages"]] == [False, True, True]
    for name in ("transformer.fused.onnx", "transformer.fused.tiled.plan.json", "transformer.fused.tiled.plan.html"):
        assert (tmp_path / "onnxtile-demo" / name).exists()


def test_a_checkout_finds_what_lies_beside_it() -> None:
    """As an editable install does."""
    assert Path(onnxtile.__file__).parent == ROOT / "onnxtile"
    for name in ("patterns", "models"):
        assert data_folder(name) == ROOT / name


_SCRIPT = """
from pathlib import Path

import onnxtile


def prepare(model: Path, folder: Path) -> int:
    try:
        fused = onnxtile.fuse(model, ["LayerNorm"])
    except onnxtile.UsageError as error:
        print(error.hint)
        raise
    tiled: onnxtile.TiledModel = fused.tile(onnxtile.Limits.of(max=64))
    planned = tiled.plan(verify=False)
    planned.write(folder / "plan.html")
    planned.save(folder / "planned.onnx")
    found = onnxtile.match(model, "MatMul-*>Add")
    verdict: onnxtile.Verdict = onnxtile.verify(model, fused.model)
    print(found.matches[0].root, verdict.equal, onnxtile.__version__, fused.fused + tiled.nodes_after)
    return planned.plan.arena_size
"""


@pytest.mark.slow  # mypy reads the whole package
def test_the_script_of_a_user_passes_mypy_in_strict_mode(installed: Path, tmp_path: Path) -> None:
    """The wrong script beside it, of two errors, does not."""
    wrong = _SCRIPT.replace("fused.model)", "fused.fused)").replace("arena_size", "arena_length")
    scripts = {"right.py": _SCRIPT, "wrong.py": wrong}
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    # A cache that nobody reads again takes a third of the time.
    places = ("--cache-dir", os.devnull, "--python-executable", _bin(installed, "python"))
    command = map(str, (sys.executable, "-m", "mypy", "--strict", *places, *scripts))
    done = subprocess.run(list(command), cwd=tmp_path, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert "checked 2 source files" in done.stdout and {line.partition(":")[0] for line in errors} == {"wrong.py"}
    assert "arg-type" in done.stdout and "attr-defined" in done.stdout


def test_the_sources_hold_documents_and_tests(tmp_path: Path) -> None:
    (archive,) = _built("sdist", ROOT, tmp_path / "dist")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    for folder in ("docs", "patterns", "limits"):
        for path in (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts):
            assert path.relative_to(ROOT).as_posix() in names
    assert {"mkdocs.yml", "README.md", "CHANGELOG.md", "LICENSE", "Dockerfile", "tests/conftest.py"} <= names


def test_oldest_dependencies_are_stated_as_their_own_dependencies_need_them(installed: Path) -> None:
    """An installer that takes the oldest versions must find them: typer asks for a newer rich than onnxtile once did."""
    script = "import importlib.metadata as m; print(*m.requires('typer'), sep='\\n')"
    asked = _quiet(_bin(installed, "python"), "-c", script, folder=installed)
    (typer,) = (line for line in asked.splitlines() if line.startswith("rich"))
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (rich,) = (line for line in ours if line.startswith("rich"))
    assert Version(rich.partition(">=")[2]) >= Version(typer.partition(">=")[2])


def test_the_readme_has_no_links_that_break_on_the_package_index() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [link for link in re.findall(r"\]\(([^)]+)\)", readme) if not link.startswith(("https://", "#"))] == []
