"""Plans models over ranges of their dimensions, beside plans of their largest sizes: a table in Markdown.

    python -m tests.bench.size_ranges [--onnxsim PYTHON] [--docs] NAME=LOW:HIGH ... MODEL.onnx ...
    python -m tests.bench.size_ranges --random 10 [--docs] NAME=LOW:HIGH NAME=SUM INPUT=SHAPE ... MODEL.onnx ...

Bytes at an alignment of 64; weights and graph inputs outside, outputs live to the end. "largest" is the arena of the model with all
dimensions at their largest size, "range" that of the plan for all sizes. Two columns have the bytes of its formula, with scaled offsets,
at the least sizes and in the middle, each beside the peak. "unaligned" is the arena of the range at an alignment of 1.
With a PYTHON that has onnxsim, two figures of it follow, also unaligned. The first is the arena of `shape_cost.bounds` over the range, or
the number of tensors without a bound. The second is the arena of the largest sizes after `simplify`; "left out" are tensors that it
gives no place. Times are seconds of the processor, without reading the model and without runs: shapes and plan of the largest sizes,
and of the range. With --docs the table replaces the one in docs/benchmarks.md.

With --random, models have those of the given dimensions that their inputs have, and inputs without names of dimensions a shape such as
x=1x3x48x(32:320). The formula of the arena is compared with a plan of its own at so many random sizes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TypeVar

import onnx_ir as ir

from onnxtile.common_options import SizeOptions
from onnxtile.declare.values import read_dims, read_shapes
from onnxtile.model.binding import bind, bind_shapes, formula_names, free_inputs, rename_symbols, symbols
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeRanges
from onnxtile.model.load import load
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.ranges import with_equal_dims
from onnxtile.planning.result import PlanResult
from onnxtile.shapes.resolve import resolve
from tests.bench.orders import ONNXSIM
from tests.bench.tables import head, line, show

Found = TypeVar("Found")
COLUMNS = (
    *("model", "largest", "range", "of it", "least (peak)", "middle (peak)", "unaligned", "onnxsim, range"),
    *("onnxsim, largest (left out)", "s, largest", "s, range", "of it"),
)
ONNXSIM_RANGE = """
import json, sys, onnx
from onnxsim.shape_cost import bounds
found = bounds(onnx.load(sys.argv[1]), {name: tuple(ends) for name, ends in json.loads(sys.argv[2]).items()})
print(json.dumps([found.arena and found.arena.arena_bytes, len(found.unbounded_tensors)]))
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("given", nargs="+", metavar="NAME=LOW:HIGH|MODEL.onnx")
    parser.add_argument("--onnxsim", metavar="PYTHON")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--random", type=int, default=0)
    told = parser.parse_args(arguments)
    pairs = dict(one.split("=", 1) for one in told.given if "=" in one)
    paths = [Path(one) for one in told.given if "=" not in one]
    if told.random:
        shapes = read_shapes({name: size for name, size in pairs.items() if "x" in size})
        dims = {name: size for name, size in pairs.items() if name not in shapes}
        found = (_beside_plans(path, dims, shapes, told.random) for path in paths)
        columns = ("model", "range, of largest", "mean", "worst")
        show(head(columns), found, mark="size_ranges.py, random" if told.docs else "")
        return
    ranges = {name: ends for name, ends in read_dims(pairs).items() if isinstance(ends, tuple)}
    found = (row(path, ranges, told.onnxsim) for path in paths)
    show(head(COLUMNS), found, mark="size_ranges.py" if told.docs else "")


def _beside_plans(
    path: Path, dims: Mapping[str, str], shapes: Mapping[str, tuple[int | tuple[int, int], ...]], count: int
) -> str:
    model = load(path)
    options = SizeOptions(dims={name: size for name, size in dims.items() if name in symbols(free_inputs(model))})
    ranks = {value.name: len(value.shape or ()) for value in free_inputs(model)}
    _, found = bind_shapes(model, {name: shape for name, shape in shapes.items() if ranks.get(name) == len(shape)})
    rename_symbols(model, options.dim_sums)
    with_equal_dims(model, {*options.dim_ranges, *options.dim_sums.values()})
    names = formula_names(model)
    rename_symbols(model, names)
    ranges = {names.get(name, name): ends for name, ends in {**options.dim_ranges, **found}.items()}
    plan, random, ratios = _over(model, ranges), Random(0), []
    for _ in range(count):
        sizes = {name: random.randint(*ends) for name, ends in ranges.items()}
        ratios.append(plan.arena_size_at(sizes) / _largest(model.clone(), sizes).arena_size)
    high = {name: most for name, (_, most) in ranges.items()}
    largest = _largest(model, high).arena_size
    figures = (plan.arena_size / largest, sum(ratios) / count, max(ratios))
    return f"| {path.stem} | {' | '.join(f'{figure:.2f}' for figure in figures)} |"


def row(path: Path, ranges: SizeRanges, python: str | None) -> str:
    """Return the row of the model at `path`."""
    high = {name: most for name, (_, most) in ranges.items()}
    largest, fixed_seconds = _timed(lambda model: _largest(model, high), path)
    found, range_seconds = _timed(lambda model: _over(model, ranges), path)
    least = {name: low for name, (low, _) in ranges.items()}
    middle = {name: (low + most) // 2 for name, (low, most) in ranges.items()}
    cells = (
        path.stem,
        f"{largest.arena_size:,}",
        f"{found.arena_size:,}",
        f"{found.arena_size / largest.arena_size:.2f}",
        *(_bytes(found, sizes) for sizes in (least, middle)),
        f"{_over(load(path), ranges, alignment=1).arena_size:,}",
        *(("", "") if python is None else (_onnxsim_range(python, path, ranges), _beside(python, path, high))),
        f"{fixed_seconds:.2f}",
        f"{range_seconds:.2f}",
        f"{range_seconds / fixed_seconds:.2f}",
    )
    return line(cells)


def _timed(plan: Callable[[ir.Model], Found], path: Path) -> tuple[Found, float]:
    model = load(path)
    start = time.process_time()
    found = plan(model)
    return found, time.process_time() - start


def _largest(model: ir.Model, sizes: Mapping[str, int]) -> PlanResult:
    bind(model, sizes, {})
    return plan_model(model, resolve(model, run=True), Constants(model), PlanSettings(order="auto"))


def _over(model: ir.Model, ranges: SizeRanges, alignment: int = 64) -> PlanResult:
    shapes = resolve(model, run=True, ranges=ranges)
    wanted = PlanSettings(order="auto", ranges=ranges, alignment=alignment)
    return plan_model(model, shapes, Constants(model), wanted)


def _bytes(plan: PlanResult, sizes: Mapping[str, int]) -> str:
    peak = plan.formulas[0].peak
    return f"{plan.arena_size_at(sizes):,} ({'?' if peak is None else format(peak.at(sizes), ',')})"


def _onnxsim_range(python: str, path: Path, ranges: SizeRanges) -> str:
    command = [python, "-c", ONNXSIM_RANGE, str(path), json.dumps(ranges)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return "fails"
    arena, unbounded = json.loads(done.stdout.splitlines()[-1])
    return f"none: {unbounded:,} tensors" if arena is None else f"{arena:,}"


def _beside(python: str, path: Path, sizes: Mapping[str, int]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        model = load(path)
        bind(model, sizes, {})
        ir.save(model, Path(folder) / "fixed.onnx")
        command = [python, "-c", ONNXSIM, str(Path(folder) / "fixed.onnx")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return "fails"
    arena, left_out = map(int, done.stdout.split())
    return f"{arena:,} ({left_out:,})"


if __name__ == "__main__":
    main()
