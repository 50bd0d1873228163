"""How the time and memory of every command grow with the number of nodes.

    python -m tests.bench.command_growth [--shapes chain,wide] [--sizes 10000,40000,100000] [--commands plan] [--limit SECONDS]

Times are processor seconds of user and system of the whole command, memory its largest resident set; the first size is 200 nodes. Growth
is the time of the largest size that was not ended by the limit, less that of the first, by node, against that of the second; 1 is linear.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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
    "run": ("run", "FOLDER/pipeline.toml", "IN", "-o", "FOLDER/run"),
}
SHAPES = ("chain", "wide", "convolutions", "transformer", "functions")
_PIPELINE = (
    '[[steps]]\ndo = "fuse"\n[[steps]]\ndo = "tile"\nmax = 4\nverify = false\n[[steps]]\ndo = "plan"\nverify = false\n'
)


class Cost(NamedTuple):
    """Processor seconds, largest resident set in bytes, and the exit code; None where the limit ended the run."""

    seconds: float
    memory: int
    code: int | None


def main() -> None:
    """Measure, and print one table: a row for each command on each shape of graph."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--sizes", default="10000,40000,100000")
    parser.add_argument("--commands", default=";".join(COMMANDS), help="names, parted by ;")
    parser.add_argument("--limit", type=int, default=200, help="processor seconds of one command")
    options = parser.parse_args()
    sizes = [200, *map(int, options.sizes.split(","))]
    sys.stdout.write(f"| graph | command | {' | '.join(f'{size:,}' for size in sizes)} | growth |\n")
    sys.stdout.write(f"|---|---|{'---:|' * (len(sizes) + 1)}\n")
    for shape in options.shapes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            for row in _rows(shape, sizes, options.commands.split(";"), Path(folder), options.limit):
                sys.stdout.write(f"{row}\n")
                sys.stdout.flush()


def _rows(shape: str, sizes: list[int], commands: list[str], folder: Path, limit: int) -> Iterator[str]:
    places = [folder / str(size) for size in sizes]
    for place, size in zip(places, sizes, strict=True):
        place.mkdir()
        onnx.save(MAKERS[shape](size), place / "model.onnx")
        (place / "pipeline.toml").write_text(_PIPELINE, "utf-8")
    for name in commands:
        costs: list[Cost] = []
        for place in places:
            costs.append(_cost(name, place, limit))
            if costs[-1].code is None:
                break
        cells = [f"{c.seconds:.1f} s, {c.memory / 1e6:,.0f} MB{_ended(c)}" for c in costs]
        cells += [""] * (len(sizes) - len(cells))
        yield f"| {shape} | {name} | {' | '.join(cells)} | {_growth(costs, sizes)} |"


def _ended(cost: Cost) -> str:
    return " (limit)" if cost.code is None else f" (exit {cost.code})" if cost.code else ""


def _growth(costs: list[Cost], sizes: list[int]) -> str:
    ended = [(cost.seconds, size) for cost, size in zip(costs, sizes, strict=False) if cost.code in {0, 1}]
    if len(ended) < 3:
        return "-"
    (fixed, _), (first, small), *_, (last, large) = ended
    return f"{((last - fixed) / large) / ((first - fixed) / small):.2f}" if first - fixed > 0.1 else "-"


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
