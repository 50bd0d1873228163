"""Plans models in the order of their files and in the order that is found, beside the bound of all orders and onnxsim: a table in Markdown.

    python -m tests.bench.orders --onnxsim PYTHON MODEL.onnx ...

PYTHON is one with `pip install onnxsim`. Bytes at an alignment of 64; weights and graph inputs outside, outputs live to the end. "bound" is
the lower bound of every order, with any aliases; "proved" says that the arena is as small. onnxsim simplifies the model and plans the
result (`onnxsim.plan_activation_memory`): it does not align, counts graph inputs as well, and keeps the order of the file; "left out" are
tensors that it gives no place. Times are processor time of whole processes, all threads: `onnxtile plan MODEL --dry-run`, with the run in
the arena and with --no-verify, over that of a Python process that loads, simplifies and plans with onnxsim.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ONNXSIM = """
import sys, onnx, onnxsim
model, _ = onnxsim.simplify(onnx.load(sys.argv[1]))
plan = onnxsim.plan_activation_memory(model)
print(plan.arena_bytes, len(plan.unplanned))
"""


@dataclass(frozen=True)
class Measured:
    """One model: its row of the table, whether its arena meets the bound, and its three ratios to onnxsim."""

    row: str
    proved: bool
    ratios: tuple[float, float, float]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, and what it comes to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--onnxsim", metavar="PYTHON", required=True)
    given = parser.parse_args(arguments)
    print(
        "| model | nodes | order of the file | arena | bound | proved "
        "| of onnxsim's arena (left out) | time / onnxsim | without the run |"
    )
    print("|---|---:|---:|---:|---:|---|---:|---:|---:|")
    rows = []
    for path in given.models:
        rows.append(measured(path, given.onnxsim))
        print(rows[-1].row, flush=True)
    print(f"\n{sum(one.proved for one in rows)} of {len(rows)} proved.")
    for name, column in zip(
        ("arena", "time", "time without the run"), zip(*(one.ratios for one in rows), strict=True), strict=True
    ):
        print(f"{name}, of onnxsim's: median {statistics.median(column):.2f}, largest {max(column):.2f}.")


def measured(path: Path, python: str) -> Measured:
    """Return the row of the model at `path`."""
    verified, seconds = plan(path)
    _, plain = plan(path, "--no-verify")
    own, _ = plan(path, "--no-verify", "--order", "model")
    answer, other = child([python, "-c", ONNXSIM, str(path)])
    arena, left_out = map(int, answer.splitlines()[-1].split())
    proved = verified["optimal_over"] == "any order"
    ratios = (size_of(verified) / arena, seconds / other, plain / other)
    cells = (
        path.stem,
        f"{len(verified['schedule']):,}",
        f"{size_of(own):,}",
        f"{size_of(verified):,}",
        f"{verified['any_order_bound']:,}",
        "yes" if proved else "no",
        f"{ratios[0]:.2f} ({left_out})",
        *(f"{ratio:.2f}" for ratio in ratios[1:]),
    )
    return Measured(f"| {' | '.join(cells)} |", proved, ratios)


def plan(path: Path, *options: str) -> tuple[dict[str, Any], float]:
    """Return the plan of the model at `path` as JSON, and the processor time of the command in seconds."""
    answer, seconds = child(
        [sys.executable, "-m", "onnxtile", "plan", str(path), "--dry-run", "-q", "--json", "-", *options]
    )
    return json.loads(answer), seconds


def size_of(planned: dict[str, Any]) -> int:
    """Return the bytes of the arena."""
    return sum(one["size"] for one in planned["arenas"])


def child(command: Sequence[str]) -> tuple[str, float]:
    """Return the output of a process, and its processor time in seconds. Raises CalledProcessError where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return answer, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
