"""The parts of `tests.bench.compare` on memory: arenas of plans, MiniMalloc's problems, and ranges of sizes."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.bench.commands import (
    OWN,
    RUNS,
    SHARED,
    TIMEOUT,
    Measure,
    Row,
    Run,
    costs_in_turn,
    planned,
    size_of,
    spread,
    succeeded,
)
from tests.bench.subjects import Subject, for_onnxsim, installed

RANGES = ("batch=1:8", "seq=1:64")
_MINIMALLOC_TIMEOUT = "60s"


def plan(run: Run) -> Iterator[tuple[str, Measure]]:
    """The arena, processor time and memory of plan and of onnxsim, and Vela's allocators on the same buffers."""
    for subject in _subjects(run):
        yield subject.name, partial(_arenas, run, subject)


def _subjects(run: Run) -> list[Subject]:
    zoo = spread(path.stem for path in sorted(run.zoo.glob("*.onnx")) if "dyn" not in path.stem)
    graphs = [Subject(path) for path in sorted((SHARED / "graphs").glob("*.onnx"))]
    return [*(Subject(run.zoo / f"{name}.onnx") for name in zoo), *graphs, *installed()]


def _arenas(run: Run, subject: Subject) -> Row:
    """Return a row: the arena of plan, those of peers, and what the commands take."""
    ours, _ = planned(subject.path, "--dry-run", "--no-verify", *subject.options)
    with tempfile.TemporaryDirectory() as folder:
        problem, fixed = Path(folder) / "problem.csv", Path(folder) / "fixed.onnx"
        words = ["plan", str(subject.path), "-q", "-o", str(fixed), "--force", *subject.options]
        own = [sys.executable, *OWN, *words]
        commands = {"plan": own, "no proof": [*own, "--no-verify"]}
        if python := run.peers.python("onnxsim"):
            target = str(Path(folder) / "simplified.onnx")
            options = for_onnxsim(subject.shapes)
            commands["onnxsim"] = [python, "-m", "onnxsim", str(subject.path), target, "--no-certify", *options]
        costs = costs_in_turn(commands)
        layout = Path(folder) / "layout.toml"
        layout.write_text("whole_buffers = true\n")
        buffers = [*own, "--no-verify", "--layout", str(layout), "--alignment", "1", "--emit", str(problem)]
        succeeded(buffers, TIMEOUT)
        bare, _ = planned(problem)
        limit = str(bare["lower_bound"])
        vela = {
            name: run.side("ethos-u-vela", "offsets", str(problem), name, limit) for name in ("greedy", "hillclimb")
        }
        sim = run.side("onnxsim", "arena", str(fixed))
    return {
        "arena": size_of(ours),
        "proved": ours["optimal_over"],
        "same buffers": size_of(bare),
        "vela": vela,
        "onnxsim": sim,
        "costs": {name: vars(one) for name, one in costs.items()},
    }


def problems(run: Run) -> Iterator[tuple[str, Measure]]:
    """MiniMalloc's problems: the arena and the processor time of each tool."""
    for path in sorted((SHARED / "minimalloc").glob("*.csv")):
        yield path.stem, partial(_problem, run, path)


def _problem(run: Run, path: Path) -> Row:
    """Return a row. The first run of plan is not timed: numba compiles its search once, and keeps it in a file."""
    capacity = path.name.split(".")[1]
    ours, _ = planned(path, "--capacity", capacity)
    found: Row = {"runs": RUNS, "capacity": int(capacity), "onnxtile": {"arena": size_of(ours) if ours else None}}
    found["vela greedy"] = run.side("ethos-u-vela", "offsets", str(path), "greedy", capacity)
    found["vela hillclimb"] = run.side("ethos-u-vela", "offsets", str(path), "hillclimb", capacity)
    own = [sys.executable, *OWN, "plan", str(path), "--capacity", capacity, "-q"]
    with tempfile.TemporaryDirectory() as folder:
        commands = {"onnxtile": own}
        if run.minimalloc:
            options = [f"--capacity={capacity}", f"--input={path}", f"--output={folder}/out.csv"]
            commands["MiniMalloc"] = [str(run.minimalloc), *options, f"--timeout={_MINIMALLOC_TIMEOUT}"]
        costs = costs_in_turn(commands)
    found["onnxtile"]["seconds"] = costs["onnxtile"].seconds
    theirs = costs.get("MiniMalloc")
    if theirs is None:
        found["MiniMalloc"] = {"failed": "no program was given"}
    elif math.isnan(theirs.seconds):
        found["MiniMalloc"] = {"failed": f"none found in {_MINIMALLOC_TIMEOUT}"}
    else:
        found["MiniMalloc"] = {"arena": int(capacity), "seconds": theirs.seconds}
    return found


def ranges(run: Run) -> Iterator[tuple[str, Measure]]:
    """The arena of a plan over ranges of sizes, beside onnxsim's shape_cost."""
    for path in sorted(run.zoo.glob("*dyn*.onnx")):
        yield path.stem, partial(_range, run, path)


def _range(run: Run, path: Path) -> Row:
    dims = [part for one in RANGES for part in ("--dim", one)]
    ours, seconds = planned(path, "--dry-run", "--no-verify", *dims)
    return {
        "arena": size_of(ours),
        "peak": ours["peak"],
        "seconds": seconds,
        "shape_cost": run.side("onnxsim", "ranges", str(path), *RANGES),
    }
