"""How the time and memory of every command grow with the number of nodes.

    python -m tests.bench.command_growth [--shapes chain,wide] [--sizes 25000,50000,100000] [--commands plan] [--limit SECONDS]

Times are processor seconds of user and system of the whole command, memory its largest resident set. Growth is the time of the largest
size, less that of a tiny graph, by node, against that of the smallest size; 1 is linear.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import onnx

from tests.bench.large_graphs import MAKERS

COMMANDS = {
    "inspect": ("inspect", "IN"),
    "match": ("match", "IN", "Tanh->Add"),
    "fuse": ("fuse", "IN", "-o", "FOLDER/fused.onnx"),
    "fuse, no runs": ("fuse", "IN", "--no-verify", "-o", "FOLDER/fused.onnx"),
    "lower": ("fuse", "IN", "--lower", "ort", "-o", "FOLDER/lowered.onnx"),
    "unfuse": ("unfuse", "FOLDER/fused.onnx", "-o", "FOLDER/unfused.onnx"),
    "tile": ("tile", "IN", "--max", "4", "--conv", "-o", "FOLDER/tiled.onnx"),
    "plan": ("plan", "IN", "-o", "FOLDER/planned.onnx"),
    "plan, no runs": ("plan", "IN", "--no-verify", "-o", "FOLDER/planned.onnx"),
    "plan --order model": ("plan", "IN", "--no-verify", "--order", "model", "--dry-run"),
    "plan --order min-peak": ("plan", "IN", "--no-verify", "--order", "min-peak", "--dry-run"),
    "plan --order any": ("plan", "IN", "--no-verify", "--order", "any", "--dry-run"),
    "fit": ("fit", "IN", "--capacity", "1MiB", "-o", "FOLDER/fit.onnx"),
    "fit, smallest": ("fit", "IN", "--capacity", "128", "--no-verify", "--dry-run"),
    "verify": ("verify", "IN", "IN"),
}


class Cost(NamedTuple):
    """Processor seconds, largest resident set in bytes, and the exit code; None where the limit ended the run."""

    seconds: float
    memory: int
    code: int | None


def main() -> None:
    """Measure, and print a table for each shape of graph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(MAKERS))
    parser.add_argument("--sizes", default="25000,50000,100000")
    parser.add_argument("--commands", default=";".join(COMMANDS), help="names, parted by ;")
    parser.add_argument("--limit", type=int, default=600)
    options = parser.parse_args()
    sizes = [200, *map(int, options.sizes.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.shapes.split(","):
            _table(shape, sizes, options.commands.split(";"), Path(folder), options.limit)


def _table(shape: str, sizes: list[int], commands: list[str], folder: Path, limit: int) -> None:
    sys.stdout.write(f"\n| {shape} | {' | '.join(f'{size:,}' for size in sizes)} | growth |\n")
    sys.stdout.write(f"|---|{'---:|' * (len(sizes) + 1)}\n")
    places = [folder / f"{shape}{size}" for size in sizes]
    for place, size in zip(places, sizes, strict=True):
        place.mkdir()
        onnx.save(MAKERS[shape](size), place / "model.onnx")
    for name in commands:
        costs: list[Cost] = []
        for place in places:
            costs.append(_cost(name, place, limit))
            if costs[-1].code is None:
                break
        cells = [f"{c.seconds:.1f} s, {c.memory / 1e6:,.0f} MB{_ended(c)}" for c in costs]
        sys.stdout.write(f"| {name} | {' | '.join(cells)} | {_growth(costs, sizes)} |\n")
        sys.stdout.flush()


def _ended(cost: Cost) -> str:
    return " (limit)" if cost.code is None else f" (exit {cost.code})" if cost.code else ""


def _growth(costs: list[Cost], sizes: list[int]) -> str:
    if len(costs) < len(sizes) or len(costs) < 3:
        return "-"
    first, last = (costs[place].seconds - costs[0].seconds for place in (1, -1))
    return f"{(last / sizes[-1]) / (first / sizes[1]):.2f}" if first > 0.1 else "-"


def _cost(name: str, folder: Path, limit: int) -> Cost:
    words = [word.replace("IN", str(folder / "model.onnx")).replace("FOLDER", str(folder)) for word in COMMANDS[name]]
    words += [] if words[0] in {"match", "inspect", "verify"} or "--dry-run" in words else ["--force"]
    with (folder / "out.txt").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "onnxtile", *words],
            stdout=out,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),  # noqa: PLW1509
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    code = process.returncode if process.returncode >= 0 else None
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, code)


if __name__ == "__main__":
    main()
