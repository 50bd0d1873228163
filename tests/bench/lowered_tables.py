"""Tables of onnxtile alone: latencies of what is written, and arenas with meta-ops."""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import onnxruntime

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.verification.trials import run_original
from tests.bench.tables import Rows, Table

_WARM_UP = 3


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


_RUNS: dict[str, dict[str, Any]] = {"--runs": {"type": int, "default": 3}}
TABLES = {
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
