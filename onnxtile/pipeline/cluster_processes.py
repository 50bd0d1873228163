"""The processes of a cluster of our own end with the process that began it, however that one ended: Ray's agents live on for a minute.

They are known by a variable of their environment, or as children of such processes: some write over their environment. As a program, this
file watches them until the process that started it has gone, and ends them. Only Linux lists the processes of others so; elsewhere they
end when Ray ends them.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MARK = "ONNXTILE_CLUSTER"
_EVERY = 0.5
"""Seconds between two looks at the process that began the cluster."""
_TURNS = 20
"""Times that processes are looked for: one may be starting another."""
_KILL = 9
"""SIGKILL, which Windows lacks by name. This file is also a program of its own, without the package."""
_START = 17
"""Place of the time of its start behind the parent of a process, in proc_pid_stat(5)."""


@contextmanager
def ended_with_this_process() -> Iterator[None]:
    """End all processes that are started in the block, and those that they start, at its end, or soon after this process was killed."""
    if not Path("/proc/self/environ").is_file():
        yield
        return
    os.environ[_MARK] = secrets.token_hex(16)
    command, silent = [sys.executable, "-I", "-S", __file__, str(os.getpid())], subprocess.DEVNULL
    watcher = subprocess.Popen(command, start_new_session=True, stdin=silent, stdout=silent, stderr=silent)
    try:
        yield
    finally:
        known = _Processes(os.environ.pop(_MARK), {os.getpid(), watcher.pid})
        watcher.kill()
        watcher.wait()
        known.end()


class _Processes:
    """The processes with `mark` in their environment and their descendants, save those that are `spared`, by number with their start."""

    def __init__(self, mark: str, spared: set[int]) -> None:
        self._entry, self._spared = f"{_MARK}={mark}".encode(), spared
        self._found: dict[int, str] = {}
        self.look()

    def look(self) -> None:
        """Look for new ones."""
        there = dict(_running())
        self._found = {number: start for number, start in self._found.items() if there.get(number, (0, ""))[1] == start}
        new = {number for number in there if number not in self._spared and self._is_marked(number)}
        while new:
            self._found |= {number: there[number][1] for number in new}
            new = {
                n for n, (parent, _) in there.items() if parent in new and n not in self._found.keys() | self._spared
            }

    def end(self) -> None:
        """Kill them, and those that they started meanwhile."""
        for _ in range(_TURNS):
            for number in self._found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(number, _KILL)
            time.sleep(0.05)
            self.look()
            if not self._found:
                return

    def _is_marked(self, number: int) -> bool:
        try:
            return self._entry in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            return False


def _running() -> Iterator[tuple[int, tuple[int, str]]]:
    """Yield the number of each process that has not ended, with that of its parent and the time of its start."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, parent, *rest = (folder / "stat").read_text("utf-8").rpartition(")")[2].split()
                if state != "Z":
                    yield int(folder.name), (int(parent), rest[_START])


def _wait(parent: int) -> None:
    """Watch the processes until the process `parent`, which started this one, has gone; then end them."""
    known = _Processes(os.environ[_MARK], {os.getpid(), parent})
    while os.getppid() == parent:
        time.sleep(_EVERY)
        known.look()
    known.end()


if __name__ == "__main__":
    _wait(int(sys.argv[1]))
