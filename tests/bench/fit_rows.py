"""Processor time of `onnxtile.fit` by phase, and the rows of the tables of docs/fit.md.

    python -m tests.bench.fit_rows [--smallest] MODEL.onnx[,INPUT=1x3x224x224|NAME=1]... CAPACITY|BUDGET...

With --smallest, BUDGETs follow the model ("0%" "10%"), and each cell has the smallest arena within one. Else pairs of a capacity and a
budget follow ("256KiB,5%"), and each row has the arena, the extra multiply-accumulates and the nodes. Every result is run beside the
original and inside its arena; a result that differs ends the script. Seconds are those of this process, with its threads.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnxtile


class Phases:
    """The processor seconds of each phase, as `progress` names them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._now, self._since = "loading", time.process_time()

    def __call__(self, stage: str, _done: int = 0, _total: int = 0, /) -> None:
        """Note that `stage` has begun or advanced."""
        now = time.process_time()
        self.seconds[self._now] += now - self._since
        self._now, self._since = stage, now

    def __str__(self) -> str:
        """The phases of a tenth of a second or more."""
        self("")
        parts = ", ".join(f"{name} {spent:.1f}" for name, spent in self.seconds.items() if spent >= 0.05)
        return f"{sum(self.seconds.values()):.1f} s: {parts}"


def fitted(subject: str, **wanted: Any) -> tuple[onnxtile.FittedModel, Phases]:
    """Return the result of a fit of `subject`, a path and the sizes of its inputs, and its phases."""
    path, *sizes = subject.split(",")
    pairs = [size.split("=") for size in sizes]
    shapes = {name: tuple(map(int, shape.split("x"))) for name, shape in pairs if "x" in shape}
    dims = {name: int(size) for name, size in pairs if "x" not in size}
    phases = Phases()
    found = onnxtile.fit(path, dims=dims, shapes=shapes, progress=phases, **wanted)
    return found, phases


def smallest(subject: str, budget: str) -> None:
    """Print the smallest arena within a budget."""
    found, phases = fitted(subject, smallest=True, max_extra_macs=budget)
    after = found.after
    extra = 100 * (after.macs / found.before.macs - 1)
    name = Path(subject.split(",", maxsplit=1)[0]).stem
    print(f"| {name} | {budget} | {after.arena:,} | {extra:.1f}% | {after.nodes:,} |  {phases}", flush=True)


def row(subject: str, line: str) -> None:
    """Print the arena within a capacity and a budget."""
    capacity, budget = line.split(",")
    found, phases = fitted(subject, capacity=capacity, max_extra_macs=budget)
    before, after = found.before, found.after
    extra = 100 * (after.macs / before.macs - 1)
    name = Path(subject.split(",", maxsplit=1)[0]).stem
    costs = f"{after.arena:,} | {extra:.3f}% | {after.nodes:,}"
    print(f"| {name} | {before.arena:,} | {capacity} | {budget} | {costs} |  {phases}", flush=True)


def main() -> None:
    """Fit each model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smallest", action="store_true")
    parser.add_argument("subject")
    parser.add_argument("lines", nargs="+")
    options = parser.parse_args()
    for line in options.lines:
        (smallest if options.smallest else row)(options.subject, line)


if __name__ == "__main__":
    main()
