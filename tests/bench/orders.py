"""Plans models in the order of their files and in the order that is found, beside the bound of all orders: a table in Markdown.

    python -m tests.bench.orders [--onnxsim PYTHON] MODEL.onnx ...

Bytes at an alignment of 64; weights and graph inputs outside, outputs live to the end. "bound" is the lower bound of every order, with any
aliases; "proved" says that the arena is as small. With a PYTHON that has onnxsim, its planner follows: it does not align, and counts graph
inputs as well; "left out" are tensors that it gives no place. Times are seconds of the processor, of planning alone: without reading the
model, inferring shapes and the run in the arena.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.model.shapes import resolve
from onnxtile.model.unfold import unfold
from onnxtile.planning.model_plan import PlanSettings, plan_model

ONNXSIM = """
import sys, onnx, onnxsim
plan = onnxsim.plan_activation_memory(onnx.load(sys.argv[1]))
print(plan.arena_bytes, len(plan.unplanned))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--onnxsim", metavar="PYTHON")
    given = parser.parse_args(arguments)
    print(
        "| model | nodes | order of the file | arena | bound | proved | of onnxsim's (left out) | s, file's order | s |"
    )
    print("|---|---:|---:|---:|---:|---|---:|---:|---:|")
    for path in given.models:
        print(row(path, given.onnxsim), flush=True)


def row(path: Path, python: str | None) -> str:
    """Return the row of the model at `path`."""
    model = load(path)
    opened = unfold(model, resolve(model), Constants(model))
    plans, seconds = [], []
    for order in ("model", "auto"):
        start = time.process_time()
        plans.append(plan_model(*opened, PlanSettings(order=order)))
        seconds.append(time.process_time() - start)
    own, found = plans
    share = "" if python is None else ratio(found.arena_size, python, path)
    cells = (
        path.stem,
        f"{len(found.schedule):,}",
        f"{own.arena_size:,}",
        f"{found.arena_size:,}",
        f"{found.any_order_bound:,}",
        "yes" if found.optimal_over == "any order" else "no",
        share,
        *(f"{taken:.2f}" for taken in seconds),
    )
    return f"| {' | '.join(cells)} |"


def ratio(size: int, python: str, path: Path) -> str:
    """Return `size` as a share of the arena of onnxsim, and the number of tensors that it gives no place."""
    done = subprocess.run([python, "-c", ONNXSIM, str(path)], check=True, capture_output=True, text=True)
    arena, left_out = map(int, done.stdout.splitlines()[-1].split())
    return f"{size / arena:.2f} ({left_out})"


if __name__ == "__main__":
    main()
