"""Arenas of decoder steps without and with their state kept in place: a table in Markdown.

    python -m tests.bench.decode_steps [--docs] MODEL.onnx[,DIMENSION=SIZE]...[,INPUT@LOW:HIGH]... ...

A SIZE is as `--dim` takes it: 8, 0:63 or past+1. The values of an INPUT are drawn from a range, as with `--range`. Both plans have inputs
and outputs inside the arena (`--io inside`). "Without" has the largest sizes, and each cache twice: as an input and as an output. "With"
has all sizes, keeps the states that are found, and is proved by 64 runs one after the other in one arena. With --docs the table replaces
the one in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import onnxtile
from onnxtile.declare.plan_document import PlannedState
from onnxtile.declare.values import number_or_text
from tests.bench.tables import line, show

COLUMNS = (
    "| model | made by | states | their bytes | arena without | arena with | of it | copied | runs | lengths | equal |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---|---|"
)
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class DecoderStep:
    """The model of one step, with sizes of its dimensions and ranges of its inputs as the options take them."""

    path: Path
    dims: dict[str, int | str]
    ranges: dict[str, str]

    @classmethod
    def of(cls, text: str) -> DecoderStep:
        """Return the model that `text` names: a file, sizes and ranges after commas."""
        path, *told = text.split(",")
        sizes = dict(one.split("=", 1) for one in told if "=" in one)
        dims = {name: number_or_text(size) for name, size in sizes.items()}
        return cls(Path(path), dims, dict(one.split("@", 1) for one in told if "@" in one))

    @property
    def largest(self) -> dict[str, int]:
        """The largest size of each dimension."""
        ends = {name: str(size).split(":")[-1] for name, size in self.dims.items()}
        numbers = {name: int(size) for name, size in ends.items() if size.isdecimal()}
        sums = {name: size.split("+") for name, size in ends.items() if name not in numbers}
        return numbers | {
            name: sum(numbers[part.strip()] if _WORD.match(part.strip()) else int(part) for part in parts)
            for name, parts in sums.items()
        }


def main() -> None:
    """Print the table, and write it with --docs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("models", nargs="+", metavar="MODEL.onnx[,DIMENSION=SIZE]...")
    told = parser.parse_args()
    warnings.simplefilter("ignore")
    show(COLUMNS, map(row, map(DecoderStep.of, told.models)), mark="decode_steps.py" if told.docs else "")


def row(step: DecoderStep) -> str:
    """Return the row of `step`. Raises Mismatch where a run differs."""
    common: dict[str, Any] = {"io": "inside", "ranges": step.ranges}
    apart = onnxtile.plan(step.path, dims=step.largest, state="none", verify=False, **common).plan
    found = onnxtile.plan(step.path, dims=step.dims, state="found", **common)
    plan, verdict = found.plan, found.verdict
    runs = getattr(verdict, "state", verdict)
    kept = plan.states
    cells = (
        step.path.parent.name if step.path.stem in {"model", "decoder"} else step.path.stem,
        _makers(step.path, kept),
        len(kept),
        f"{sum(state.size or 0 for state in kept):,}",
        f"{apart.arena_size:,}",
        f"{plan.arena_size:,}",
        f"{plan.arena_size / apart.arena_size:.0%}",
        f"{sum(state.copied or 0 for state in kept):,}",
        "not run" if runs is None else runs.runs,
        _lengths(runs),
        "not run" if runs is None else "yes" if runs.equal else "no",
    )
    return line(cells)


def _makers(path: Path, kept: tuple[PlannedState, ...]) -> str:
    """Return the operators that make the outputs of the states, of a file without its weights."""
    graph = onnx.load(path, load_external_data=False).graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    return ", ".join(sorted(Counter(makers[state.output] for state in kept)))


def _lengths(runs: Any) -> str:
    """Return the sizes of the first and the last run, where they grow."""
    sizes: tuple[Any, ...] = () if runs is None else runs.sizes
    return " to ".join(", ".join(map(str, one.values())) for one in (sizes[0], sizes[-1])) if len(sizes) > 1 else ""


if __name__ == "__main__":
    main()
