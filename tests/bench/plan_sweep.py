"""Plans many models as the library does by default, run inside the arena, and counts what comes of it: a table in Markdown.

    python -m tests.bench.plan_sweep [--order any] [--io inside] [--alignment 4] [--fused | --tiled 64] MODEL.onnx ...

Free dimensions get small sizes with which the model runs. What is not as it should be (a tensor without an address, an arena above its
lower bound, an error) is told on stderr, model by model. With --onnxsim each plan is also made with an alignment of 1, as onnxsim counts,
and set beside onnxsim's where that leaves no tensor out.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import onnxtile
from onnxtile.model.binding import free_inputs
from onnxtile.model.load import load
from onnxtile.system.errors import OnnxtileError
from onnxtile.verification.open_sizes import bound_copy, open_inputs
from onnxtile.verification.trials import run_original
from tests.bench.plan_models import for_onnxsim

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Bound:
    """A model, and whole shapes of those of its inputs that have free dimensions."""

    path: Path
    shapes: Shapes


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--order", default="model")
    parser.add_argument("--io", default="outputs")
    parser.add_argument("--alignment", type=int, default=64)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--tiled", type=int)
    parser.add_argument("--onnxsim", action="store_true")
    given = parser.parse_args(arguments)
    counts: Counter[str] = Counter()
    for path in given.models:
        found = list(outcome(path, given))
        counts.update(["models", *found])
    print("| | models |\n|---|---:|")
    for name, count in counts.most_common():
        print(f"| {name} | {count} |")


def outcome(path: Path, given: argparse.Namespace) -> Iterator[str]:
    """Yield what is to be counted of the model `path`."""
    try:
        bound = Bound(path, small(path))
    except OnnxtileError as error:
        print(f"{path.name}: {error}", file=sys.stderr)
        yield "not run at all, for small sizes"
        return
    try:
        planned = onnxtile.plan(
            changed(path, given), shapes=bound.shapes, order=given.order, io=given.io, alignment=given.alignment
        )
    except OnnxtileError as error:
        print(f"{path.name}: {type(error).__name__}: {error}", file=sys.stderr)
        yield f"refused ({type(error).__name__})"
        return
    plan, verdict = planned.plan, planned.verdict
    assert verdict is not None
    yield "planned, checked, equal in the arena"
    if verdict.excused:
        yield f"of these node by node: {'; '.join(dict.fromkeys(verdict.excused.values()))}"
    yield "nothing unplanned" if not plan.unplanned else "something unplanned"
    yield "optimal" if plan.optimal else f"not optimal ({plan.ended})"
    if plan.unplanned or not plan.optimal:
        print(f"{path.name}: {len(plan.unplanned)} unplanned, {plan.gap:,} above the bound", file=sys.stderr)
    if given.onnxsim:
        yield from beside(bound)


def small(path: Path) -> Shapes:
    """Return small shapes for the inputs of `path` that have free dimensions, with which it runs. Raises ModelError."""
    model = load(path)
    if not open_inputs(model):
        return {}
    _, dims = run_original(model, runs=1)
    return {value.name or "": value.shape.numpy() for value in free_inputs(bound_copy(model, dims)) if value.shape}


def changed(path: Path, given: argparse.Namespace) -> Any:
    """Return the model that is planned."""
    if given.fused:
        return onnxtile.fuse(path, verify=False).model
    if given.tiled:
        return onnxtile.tile(path, onnxtile.Limits.of(max=given.tiled), verify=False).model
    return path


def beside(bound: Bound) -> Iterator[str]:
    """Yield how the arena compares with onnxsim's, both without alignment."""
    size = onnxtile.plan(bound.path, shapes=bound.shapes, alignment=1, verify=False).plan.arena_size
    with tempfile.TemporaryDirectory() as folder:
        onnxsim = importlib.import_module("onnxsim")  # it has no types, and is no dependency
        theirs = onnxsim.plan_activation_memory(onnx.load(for_onnxsim(bound.path, bound.shapes, Path(folder))))
    if theirs.unplanned:
        yield "onnxsim leaves tensors out"
        return
    yield "no larger than onnxsim's" if size <= theirs.arena_bytes else "larger than onnxsim's"


if __name__ == "__main__":
    main()
