"""What the tests of the command line share: a folder with a model, and the command run in it, in this process."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from onnxtile import cli


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it wrote."""

    code: int
    data: bytes
    err: str

    @property
    def out(self) -> str:
        """What it wrote to stdout, as text."""
        return self.data.decode()

    @property
    def json(self) -> Any:
        """The JSON that it wrote to stdout."""
        return json.loads(self.data, parse_constant=pytest.fail)

    def require_error(self, *words: str, code: int = 2) -> None:
        """It ended with `code`, and wrote nothing but one line of an error that has all `words`."""
        assert (self.code, self.out) == (code, ""), self
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        assert all(word in self.err for word in words), self.err


Run: TypeAlias = Callable[..., Done]


def files(folder: Path) -> dict[str, bytes | None]:
    """Return the files of `folder` and of those inside it by their paths, each with what it holds; a folder holds nothing."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture
def folder(tmp_path: Path, shallow: Path) -> Path:
    """A folder with a small transformer, m.onnx."""
    shutil.copyfile(shallow, tmp_path / "m.onnx")
    return tmp_path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Run:
    """Give a function that runs the command."""

    def run(*arguments: object) -> Done:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["onnxtile", *map(str, arguments)])
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        assert isinstance(end.value.code, int)
        return Done(end.value.code, out, err.decode())

    return run
