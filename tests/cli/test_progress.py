"""Progress shows on a terminal, and nowhere else."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onnxtile.cli.command import Job, bar
from onnxtile.system.progress import counted, silent


def _shown(file: io.StringIO) -> str:
    return file.getvalue()


def test_a_stage_that_counts_has_a_bar_and_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": "100"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stderr", file)
    with bar() as show:
        show("planning")
        for _ in counted(range(1234), "verifying", show):
            pass
        show("verifying", 1234, 1234)
    text = _shown(file)
    assert "verifying" in text and "1,234 of 1,234" in text and "━" in text
    assert text.endswith("\x1b[2K"), "the line is gone at the end"


def test_parts_are_counted_before_they_are_done() -> None:
    heard: list[tuple[str, int, int]] = []

    def hear(stage: str, done: int = 0, total: int = 0, /) -> None:
        heard.append((stage, done, total))

    assert list(counted("ab", "reading", hear)) == ["a", "b"]
    assert heard == [("reading", 0, 2), ("reading", 1, 2)]


def _on_a_terminal(folder: Path, *arguments: str) -> tuple[str, str]:
    """Run the command with a terminal for stderr; return stdout, which is a pipe, and what the terminal got."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "onnxtile", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    # Its buffer holds a few kilobytes: the child blocks unless the terminal is read while the child runs.
    with os.fdopen(leader, "rb") as terminal, ThreadPoolExecutor(1) as pool:
        shown = pool.submit(_read_all, terminal.fileno())
        try:
            done = subprocess.run(
                command, cwd=folder, stdout=subprocess.PIPE, stderr=follower, text=True, env=environment, check=True
            )
        finally:
            os.close(follower)
        return done.stdout, shown.result().decode(errors="replace")


def _read_all(descriptor: int) -> bytes:
    shown = b""
    while chunk := _read(descriptor):
        shown += chunk
    return shown


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # how Linux says that the other end is closed
        return b""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
def test_a_terminal_sees_bars_and_a_script_does_not(folder: Path) -> None:
    arguments = ("fuse", "m.onnx", "-p", "LayerNorm", "--dry-run")
    out, shown = _on_a_terminal(folder, *arguments)
    assert "LayerNorm" in out and "\x1b" not in out
    assert " of " in shown and "━" in shown
    out, shown = _on_a_terminal(folder, *arguments, "--json", "-")
    assert out.startswith("{") and shown == ""


def test_a_pipe_sees_nothing(run: Callable[..., Any], folder: Path) -> None:
    assert (folder / "m.onnx").exists()
    done = run("fuse", "m.onnx", "-p", "LayerNorm", "--no-verify", "--dry-run")
    assert (done.code, done.err) == (0, "")
    for job in (Job(), Job(quiet=True), Job(as_json="-")):
        with job.progress() as progress:
            assert progress is silent
