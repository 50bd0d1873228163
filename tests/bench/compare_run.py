"""What the parts of `tests.bench.compare` share: the programs that are given, and commands that run in turn."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.peers import Peers
from tests.bench.plan_time import Cost, cost

ROOT = Path(__file__).parent.parent.parent
SHARED = ROOT.parent / "shared"
SIDE = Path(__file__).parent / "peer_side.py"
TIMEOUT = 120
"""Seconds, at most, of one command of a peer."""
RUNS = 3
_LONG = 5.0
"""Processor seconds: a command that takes more runs once."""

Row: TypeAlias = dict[str, Any]
Measure: TypeAlias = Callable[[], Row]


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


def answer(command: Sequence[str], timeout: int = TIMEOUT) -> Row:
    """Return the JSON in the last line that a command prints; where it fails, the reason as "failed"."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {timeout} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}
    text = done.stdout.strip()
    found: Row = json.loads(text if text.startswith("{") else text.splitlines()[-1])
    return found


def spread(names: Iterable[str]) -> list[str]:
    """Return names so that the first ones are of many families: "bert_ts14" and "bert_dy20" are of one."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(name.partition("_")[0], []).append(name)
    return [name for turn in zip_longest(*families.values()) for name in turn if name is not None]


def costs_in_turn(commands: Mapping[str, Sequence[str]]) -> dict[str, Cost]:
    """Return the median processor time and the most memory of each command: of three runs in turn, of one run where it is long."""
    runs: dict[str, list[Cost]] = {name: [cost(command, TIMEOUT)] for name, command in commands.items()}
    again = {name: commands[name] for name, (first,) in runs.items() if first.seconds <= _LONG}
    for _ in range(1, RUNS):
        for name, command in again.items():
            runs[name].append(cost(command, TIMEOUT))
    return {
        name: Cost(statistics.median(one.seconds for one in of), max(one.memory for one in of))
        for name, of in runs.items()
    }
