"""The examples in README.md and docs/ do what they say; the site builds."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxtile import cli
from onnxtile.cli.app import verbs

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
_BLOCK = re.compile(r"^```(\w+)?(?: title=\"([^\"]+)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)


def _blocks(page: Path, language: str) -> list[tuple[str, str]]:
    """Return the blocks of a page in `language`, each with its title."""
    return [(title, text) for kind, title, text in _BLOCK.findall(page.read_text()) if kind == language]


def _commands(page: Path) -> list[tuple[str, int]]:
    """Return the commands of a page, each with the exit code that a comment behind it names."""
    lines = "".join(text for _, text in _blocks(page, "sh")).replace("\\\n", " ").splitlines()
    commands = []
    for line in (line.strip() for line in lines):
        if line.startswith("onnxtile "):
            text, _, comment = line.partition("  #")
            commands.append((text, int(comment.split()[-1]) if comment.strip().startswith("exit ") else 0))
    return commands


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the models that the pages speak of."""
    shutil.copytree(ROOT / "models", tmp_path / "models")
    for name in ("model", "a", "b"):
        shutil.copyfile(ROOT / "models" / "transformer.onnx", tmp_path / f"{name}.onnx")
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)], ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(
    page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for title, text in _blocks(page, "toml"):
        if title:
            (folder / title).write_text(text)
    for command, code in _commands(page):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as end:
            cli.main()
        printed = capsys.readouterr()
        assert end.value.code == code, f"{command}\n{printed.out}{printed.err}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, folder: Path) -> None:
    for _, text in _blocks(page, "python"):
        done = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_every_command_has_a_page_or_a_place_on_one() -> None:
    written = " ".join(page.read_text() for page in PAGES)
    for name in verbs():
        assert f"onnxtile {name}" in written, name


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    build = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-q",
        "-f",
        str(ROOT / "mkdocs.yml"),
        "-d",
        str(tmp_path),
    ]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
