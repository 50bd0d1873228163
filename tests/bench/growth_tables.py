"""Tables of onnxtile alone: time and memory of commands, growth with the graph, latencies of what is written.

Graphs are those of `tests/bench/large_graphs.py`, of the sizes given. Growth is the time for a node at the largest size against that at
the smallest; 1 is linear.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import tomllib
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import log2
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime

from onnxtile import api
from onnxtile.fusion.fuse import fuse
from onnxtile.fusion.pattern import pattern_set
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.query.match import Matcher, compiled
from onnxtile.query.program import Program
from onnxtile.verification.trials import run_original
from tests.bench.commands import OWN, ROOT, Cost, cost
from tests.bench.large_graphs import MAKERS
from tests.bench.tables import Rows, Table, numbers

_WARM_UP = 3
_SMALLEST = 200
"""Nodes of a graph on which a command does little but start."""


def _seconds(work: Callable[[], object]) -> float:
    """Return the processor time of this process, its threads included."""
    start = time.process_time()
    work()
    return time.process_time() - start


def _growth(seconds: Sequence[float], sizes: Sequence[int], fixed: float = 0.0) -> str:
    first, last = seconds[0] - fixed, seconds[-1] - fixed
    return f"{(last / sizes[-1]) / (first / sizes[0]):.2f}" if first > 0 and len(seconds) == len(sizes) else "-"


COMMANDS = {
    "inspect": "inspect IN",
    "match": "match IN Tanh->Add",
    "fuse": "fuse IN -o FOLDER/fused.onnx --force",
    "fuse, no runs": "fuse IN --no-verify -o FOLDER/fused.onnx --force",
    "lower": "fuse IN --lower ort -o FOLDER/lowered.onnx --force",
    "unfuse": "unfuse FOLDER/fused.onnx -o FOLDER/unfused.onnx --force",
    "tile": "tile IN --max 4 --conv -o FOLDER/tiled.onnx --force",
    "tile, no --conv": "tile IN --max 4 -o FOLDER/tiled.onnx --force",
    "plan": "plan IN -o FOLDER/planned.onnx --force",
    "plan --check": "plan IN --check FOLDER/planned.onnx",
    "plan, no runs": "plan IN --no-verify -o FOLDER/planned.onnx --force",
    "plan --order model": "plan IN --no-verify --order model --dry-run",
    "plan --order min-peak": "plan IN --no-verify --order min-peak --dry-run",
    "plan --order any": "plan IN --no-verify --order any --dry-run",
    "fit": "fit IN --capacity 1MiB -o FOLDER/fit.onnx --force",
    "fit, smallest": "fit IN --capacity 128 --no-verify --dry-run",
    "verify": "verify IN IN",
    "run": "run FOLDER/pipeline.toml IN -o FOLDER/run --force",
}
_PIPELINE = (
    '[[steps]]\ndo = "fuse"\n[[steps]]\ndo = "tile"\nmax = 4\nverify = false\n[[steps]]\ndo = "plan"\nverify = false\n'
)


_MAIN = "inspect;fuse;plan;plan --check;tile, no --conv;tile;verify;fit"
"""The rows of COMMANDS that the table of growth has."""


def _commands(given: Namespace) -> Rows:
    """Yield a row for each command on each shape of graph. A command that the limit ends is not run on larger graphs."""
    for shape in given.graphs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            places = {size: Path(folder) / str(size) for size in (_SMALLEST, *numbers(given.sizes))}
            for size, place in places.items():
                place.mkdir()
                onnx.save(MAKERS[shape](size), place / "model.onnx")
                (place / "pipeline.toml").write_text(_PIPELINE, "utf-8")
            for name in given.rows.split(";") if given.rows else COMMANDS:
                costs: list[Cost] = []
                for place in places.values():
                    costs.append(_command(COMMANDS[name], place, given.limit))
                    if costs[-1].code is None:
                        break
                ended = [one.seconds for one in costs if one.code in {0, 1}]
                growth = _growth(ended[1:], numbers(given.sizes), ended[0]) if len(ended) == len(places) else "-"
                cells = [f"{one.seconds:.1f} s, {one.memory / 1e6:,.0f} MB{_ended(one)}" for one in costs]
                yield shape, name, *cells, *[""] * (len(places) - len(cells)), growth


def _doublings(given: Namespace) -> Rows:
    """Yield the rows of `commands` with the largest growth of the time for a node over a doubling of the nodes."""
    for row in _commands(given):
        costs = [str(cell).split(" s, ") for cell in row[3:-1]]
        per_node = [
            (size, float(cost[0]) / size)
            for size, cost in zip(numbers(given.sizes), costs, strict=True)
            if len(cost) == 2 and "(" not in cost[1]
        ]
        rates = ((after / before) ** (1 / log2(more / few)) for (few, before), (more, after) in pairwise(per_node))
        yield *row[:2], *row[3:-1], max(rates, default="-")


def _ended(cost: Cost) -> str:
    return " (limit)" if cost.code is None else f" (exit {cost.code})" if cost.code else ""


def _command(text: str, folder: Path, limit: int) -> Cost:
    words = [word.replace("FOLDER", str(folder)) for word in text.split()]
    words = [str(folder / "model.onnx") if word == "IN" else word for word in words]
    return cost([sys.executable, *OWN, *words], processor_seconds=limit)


_FLOOR = """
import sys
import onnx, onnxruntime
onnx.shape_inference.infer_shapes(onnx.load(sys.argv[1], load_external_data=False))
"""
"""The least that a command about shapes can do: both libraries imported, the model read, its shapes inferred once."""


def _inspect_floor(given: Namespace) -> Rows:
    """Yield the least processor seconds of `inspect` on each model, beside its floor; both take turns."""
    for path in (subject.path for subject in given.models):
        words = (("-c", _FLOOR, str(path)), (*OWN, "inspect", str(path)))
        turns = [[cost([given.python, *command]).seconds for command in words] for _ in range(given.runs)]
        floor, own = map(min, zip(*turns, strict=True))
        yield path.stem, f"{floor:.3f} s", f"{own:.3f} s", own / floor


def _queries(given: Namespace) -> Rows:
    """Yield the time of constants, of each query of `patterns/aidge` by a new Matcher and again, and of fuse with the whole library."""
    models = [ir.from_proto(MAKERS["transformer"](size)) for size in numbers(given.sizes)]
    constants = [Constants(model) for model in models]
    pairs = list(zip(models, constants, strict=True))
    matchers = [Matcher(*pair) for pair in pairs]
    times: dict[str, list[float]] = {"constants": [_least(given.runs, partial(Constants, model)) for model in models]}
    for path in sorted((ROOT / "patterns" / "aidge").glob("*.toml")):
        file = tomllib.loads(path.read_text("utf-8"))
        program = compiled(file["variants"][0]["query"], {"Linear", "ScaledDotProductAttention"})
        matches = len(matchers[-1].find(program))
        times[f"{file['name']}, first ({matches:,} matches)"] = [
            _least(given.runs, partial(_first, *pair, program)) for pair in pairs
        ]
        times[f"{file['name']}, again"] = [_least(given.runs, partial(matcher.find, program)) for matcher in matchers]
    times["fuse, the whole library"] = [_seconds(partial(fuse, model, pattern_set())) for model in models]
    for name, seconds in times.items():
        yield name, *(f"{1e3 * one:.1f} ms" for one in seconds), _growth(seconds, numbers(given.sizes))


def _first(model: ir.Model, constants: Constants, program: Program) -> None:
    Matcher(model, constants).find(program)


def _least(runs: int, work: Callable[[], object]) -> float:
    return min(_seconds(work) for _ in range(runs))


def _latencies(given: Namespace) -> Rows:
    """Yield the time of each model in onnxruntime with all its optimisations, and that of the lowered ones over it.

    The runs take turns, and a ratio is one of two runs of the same round, so that a load that comes and goes is in both.
    """
    for path in (subject.path for subject in given.models):
        lowered = {target: api.fuse(path, lower=target, verify=False) for target in ("ort", "onnx")}
        models = [path.read_bytes(), *(to_bytes(one.model) for one in lowered.values())]
        feeds = run_original(load(path), runs=1)[0][0].feeds
        before, *after = seconds_in_turn(models, feeds, given.runs)
        ratios = (statistics.median(b / a for a, b in zip(before, one, strict=True)) for one in after)
        sites = lowered["ort"].lowered
        counts = f"{sum(bool(site.operator) for site in sites)} of {len(sites)}"
        yield path.stem, counts, 1e3 * statistics.median(before), *ratios


def seconds_in_turn(models: Sequence[bytes], feeds: Any, runs: int) -> list[tuple[float, ...]]:
    """Return the seconds of each run of each model in onnxruntime, with one thread and all optimisations; they take turns."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    provider = ["CPUExecutionProvider"]
    sessions = [onnxruntime.InferenceSession(model, options, providers=provider) for model in models]
    rounds: list[list[float]] = []
    for turn in range(runs + _WARM_UP):
        seconds = [0.0] * len(sessions)
        for place in sorted(range(len(sessions)), key=lambda place: (place + turn) % len(sessions)):
            start = time.thread_time()
            sessions[place].run(None, feeds)
            seconds[place] = time.thread_time() - start
        rounds.append(seconds)
    return list(zip(*rounds[_WARM_UP:], strict=True))


def _fuse_memory(given: Namespace) -> Rows:
    """Yield the arenas of models whose meta-ops cost memory: as they are, fused, and fused with `--for-memory`, each one kernel."""

    def arena(model: Any) -> int:
        return api.plan(model, verify=False).plan.arena_size

    for path in (subject.path for subject in given.models):
        before, fused = arena(path), api.fuse(path, verify=False)
        if arena(fused.model) <= before:
            sys.stderr.write(f"{path.stem}: {before:,} bytes, no more when fused\n")
            continue
        kept = api.fuse(path, for_memory=True, verify=False)
        yield path.stem, before, arena(fused.model), fused.fused, arena(kept.model), kept.fused


def _sized(*first: str) -> Callable[[Namespace], Sequence[str]]:
    return lambda given: [*first, *(f"{size:,} nodes" for size in numbers(given.sizes)), "growth"]


_SIZES: dict[str, dict[str, Any]] = {"--sizes": {"default": "10000,40000", "help": "nodes of the graphs"}}
_GRAPHS = _SIZES | {"--graphs": {"default": "chain,wide,convolutions,transformer,functions"}}
_RUNS: dict[str, dict[str, Any]] = {"--runs": {"type": int, "default": 3}}
TABLES = {
    "commands": Table(
        "time and memory of every command by the number of nodes",
        lambda given: ["graph", "command", str(_SMALLEST), *(f"{size:,}" for size in numbers(given.sizes)), "growth"],
        _commands,
        words=2,
        models=False,
        options=_GRAPHS
        | {
            "--rows": {"default": "", "metavar": "NAME;...", "help": "of COMMANDS"},
            "--limit": {"type": int, "default": 200, "help": "processor seconds of one command"},
        },
    ),
    "growth": Table(
        "time and memory of the main commands up to 100,000 nodes, and the growth over a doubling",
        lambda given: ["graph", "command", *(f"{size:,}" for size in numbers(given.sizes)), "growth over a doubling"],
        _doublings,
        words=2,
        models=False,
        options={
            "--sizes": {"default": "10000,50000,100000", "help": "nodes of the graphs"},
            "--graphs": {"default": "transformer,convolutions,wide,chain"},
            "--rows": {"default": _MAIN, "metavar": "NAME;...", "help": "of COMMANDS"},
            "--limit": {"type": int, "default": 600, "help": "processor seconds of one command"},
        },
    ),
    "inspect-floor": Table(
        "time of inspect beside that of the two imports, one reading and one inference of shapes",
        ("model", "floor", "inspect", "inspect over the floor"),
        _inspect_floor,
        options=_RUNS | {"--python": {"default": sys.executable, "help": "of an environment with onnxtile"}},
    ),
    "queries": Table(
        "time of the queries of patterns/aidge and of matching with the whole library",
        _sized(""),
        _queries,
        models=False,
        options=_SIZES | _RUNS,
    ),
    "latency": Table(
        "time in onnxruntime, and that of the lowered models over it: below 1 is faster",
        ("model", "sites lowered", "onnxruntime's fusions, ms", "--lower ort, of that", "--lower onnx"),
        _latencies,
        options=_RUNS,
    ),
    "fuse-memory": Table(
        "arenas of models in which meta-ops cost memory",
        ("model", "arena", "fused", "meta-ops", "--for-memory", "meta-ops"),
        _fuse_memory,
    ),
}
