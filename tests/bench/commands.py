"""Commands and what they cost: the processor time of all threads, user and system, children included; the largest resident set."""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.peers import Peers

ROOT = Path(__file__).parent.parent.parent
SHARED = ROOT.parent / "shared"
SIDE = Path(__file__).parent / "peer_side.py"
TIMEOUT = 120
"""Seconds, at most, of one command of a peer."""
RUNS = 3
OWN = ("-m", "onnxtile")
"""What runs onnxtile, after the Python."""
_WITHOUT_NUMBA = ("-c", "import sys; sys.modules['numba'] = None; from onnxtile.cli import main; main()")
_LONG = 5.0
"""Processor seconds: a command that takes more runs once."""

Row: TypeAlias = dict[str, Any]
Measure: TypeAlias = Callable[[], Row]


@dataclass(frozen=True)
class Cost:
    """The processor time in seconds of a command, its largest resident set in bytes, and its exit code: None where a limit ended it."""

    seconds: float
    memory: float
    code: int | None = 0


_WAIT = """
import json, os, resource, sys
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
nowhere = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ, file_actions=nowhere)
_, status, used = os.wait4(child, 0)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, os.waitstatus_to_exitcode(status)]))
"""
"""Runs a command from a small process: a new process takes the largest resident set over from the one that started it."""


def cost(command: Sequence[str], timeout: float | None = None, processor_seconds: int = 0) -> Cost:
    """Return what one run of `command` takes, ended after `timeout` seconds by the clock, or so many of the processor."""
    program = [shutil.which(command[0]) or command[0], *command[1:]]
    process = subprocess.Popen(
        [sys.executable, "-ISc", _WAIT, str(processor_seconds), *program],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        told, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Cost(math.nan, math.nan, None)
    if not told:  # there is no such program
        return Cost(math.nan, math.nan, 127)
    seconds, memory, code = json.loads(told)
    return Cost(seconds, memory, code if code >= 0 else None)


class Run:
    """What a part needs: the peers, the number of models, and the programs that are given."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.peers = Peers(given.peers)
        self.tflite: Path | None = given.tflite
        self.zoo: Path = given.zoo
        self.minimalloc: Path | None = given.minimalloc
        self.minimalloc_version: str = given.minimalloc_version
        self.quantised: Path = given.quantised or given.peers / "floats"

    def side(self, peer: str, *arguments: str) -> Row:
        """Return what a peer answers; its failure as "failed"."""
        python = self.peers.python(peer)
        return {"failed": "not installed"} if python is None else answer([python, str(SIDE), *arguments])


@dataclass(frozen=True)
class Ran:
    """How a command ended: its exit code, what it wrote, and its processor time in seconds."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def reason(self) -> str:
        """The last line of what it says of its failure."""
        return (self.err.strip().splitlines() or ["?"])[-1][:100]


def ran(command: Sequence[object], timeout: float | None = None) -> Ran:
    """Run a command in the root of the checkout. Raises TimeoutExpired where it takes more seconds by the clock."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(done.returncode, done.stdout, done.stderr, seconds)


def succeeded(command: Sequence[object], timeout: float | None = None) -> Ran:
    """Run a command. Raises CalledProcessError where it fails, TimeoutExpired where it takes more seconds by the clock."""
    done = ran(command, timeout)
    if done.code:
        raise subprocess.CalledProcessError(done.code, list(map(str, command)), done.out, done.err)
    return done


def planned(path: Path, *options: object, is_plain: bool = False) -> tuple[Row, float]:
    """Return the plan of a model or of a problem as JSON, and the processor time of the command in seconds.

    The plan of a problem that does not fit is empty. `is_plain` leaves numba out. Raises CalledProcessError where the command fails.
    """
    command = [sys.executable, *(_WITHOUT_NUMBA if is_plain else OWN), "plan", path, *options, "-q", "--json", "-"]
    done = ran(command)
    if done.code > (path.suffix == ".csv"):
        raise subprocess.CalledProcessError(done.code, list(map(str, command)), done.out, done.err)
    return (json.loads(done.out) if done.code == 0 else {}), done.seconds


def size_of(plan: Row) -> int:
    """Return the bytes of the arenas of a plan."""
    return sum(arena["size"] for arena in plan["arenas"])


def answer(command: Sequence[object], timeout: int = TIMEOUT) -> Row:
    """Return the JSON in the last line that a command prints; where it fails, the reason as "failed"."""
    try:
        done = ran(command, timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {timeout} s"}
    if done.code:
        return {"failed": done.reason}
    text = done.out.strip()
    found: Row = json.loads(text if text.startswith("{") else text.splitlines()[-1])
    return found


def spread(names: Iterable[str]) -> list[str]:
    """Return names so that the first ones are of many families: "bert_ts14" and "bert_dy20" are of one."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition("_")[0], []).append(name)
    return [name for turn in zip_longest(*families.values()) for name in turn if name is not None]


def costs_in_turn(commands: Mapping[str, Sequence[str]]) -> dict[str, Cost]:
    """Return the median processor time and the most memory of each command: of three runs in turn, of one run where it is long.

    Both are NaN where a command fails.
    """
    runs = {name: [_known(cost(command, TIMEOUT))] for name, command in commands.items()}
    again = {name: commands[name] for name, (first,) in runs.items() if first.seconds <= _LONG}
    for _ in range(1, RUNS):
        for name, command in again.items():
            runs[name].append(_known(cost(command, TIMEOUT)))
    return {
        name: Cost(statistics.median(one.seconds for one in of), max(one.memory for one in of))
        for name, of in runs.items()
    }


def _known(one: Cost) -> Cost:
    """Return a cost; NaN where the command failed."""
    return Cost(math.nan, math.nan, one.code) if one.code != 0 else one
