"""What the tests of the command line share: a folder with a model, and the command run in it, in this process."""

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from onnxtile import cli


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path: Path, shallow: Path) -> Path:
    """A folder with a small transformer, m.onnx."""
    shutil.copyfile(shallow, tmp_path / "m.onnx")
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Done]:
    """Give a function that runs the command."""

    def run(*arguments: object) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["onnxtile", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        sys.stdout.flush()
        out, err = capfd.readouterr()
        assert isinstance(end.value.code, int)
        return Done(end.value.code, out, err)

    return run
