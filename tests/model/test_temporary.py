"""Temporary files: gone after use, and after the process that a signal killed, by the next that writes into the folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnxtile.system import files as temporary
from onnxtile.system.files import temporary_file, temporary_folder
from onnxtile.system.posix import hold

WRITER = """
import os, sys, time
from pathlib import Path
from onnxtile.system.files import temporary_file, temporary_folder
from onnxtile.system.posix import hold
with temporary_file(Path(".")) as path:
    path.write_bytes(b"half")
    print(path.name, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _each_test_looks_anew() -> Iterator[None]:
    temporary._remove_left_over.cache_clear()
    yield
    temporary._remove_left_over.cache_clear()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_it_is_there_in_the_block_only(tmp_path: Path) -> None:
    with temporary_file(tmp_path) as path:
        assert path.parent == tmp_path and path.read_bytes() == b""
    assert names(tmp_path) == []
    with temporary_file(tmp_path) as path:
        path.replace(tmp_path / "result")
    assert names(tmp_path) == ["result"]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", WRITER], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        dead, live = (process.stdout.readline().strip() for process in started if process.stdout)
        started[0].send_signal(signal.SIGKILL)
        started[0].wait(timeout=20)
        assert names(tmp_path) == sorted([dead, live])
        with temporary_file(tmp_path) as path:
            assert names(tmp_path) == sorted([live, path.name])
    finally:
        for process in started:
            process.kill()
            process.communicate(timeout=20)


def test_only_files_with_such_a_name_are_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    others = [".onnxtile.settings", ".onnxtile.toml", ".onnxtile.abcdefgh.tmp.bak", "m.onnx", ".onnxtile.abcdefg.tmp"]
    for name in others:
        (tmp_path / name).write_text("")
    (tmp_path / ".onnxtile.a_folder.tmp").mkdir()
    (tmp_path / ".onnxtile.thislink.tmp").symlink_to("kept")
    (tmp_path / ".onnxtile.leftover.tmp").write_text("")
    os.mkfifo(tmp_path / ".onnxtile.thispipe.tmp")
    with temporary_file(tmp_path):
        pass
    assert names(tmp_path) == sorted(
        ["kept", *others, ".onnxtile.a_folder.tmp", ".onnxtile.thislink.tmp", ".onnxtile.thispipe.tmp"]
    )


def test_a_file_that_another_took_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = list[str]()

    def hold_too_late(descriptor: int) -> bool:
        if not lost:
            (only,) = tmp_path.iterdir()
            only.unlink()
            lost.append(only.name)
        return hold(descriptor)

    monkeypatch.setattr(temporary, "hold", hold_too_late)
    with temporary_file(tmp_path) as path:
        assert path.exists() and path.name not in lost


FOLDER = """
import tempfile
import time
from onnxtile.system.files import temporary_folder
with temporary_folder() as path:
    (path / "model.onnx").write_bytes(b"half")
    print(path.name, flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_a_folder_that_a_killed_process_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", FOLDER], env=own, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        dead = process.stdout.readline().strip()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with temporary_folder() as path:
            assert names(tmp_path) == sorted([dead, path.name])
        process.send_signal(signal.SIGKILL)
    temporary._remove_left_over.cache_clear()
    with temporary_folder() as path:
        assert names(tmp_path) == [path.name]
    assert names(tmp_path) == []
