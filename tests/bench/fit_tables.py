"""The table of fit: what a net takes when it is to fit a memory, by the estimate of a target and measured in onnxruntime.

    python -m tests.bench.measure fit MODEL ... [--within CAPACITY,BUDGET ...] [--io PLACE ...] [--limit SECONDS]
    python -m tests.bench.measure monotone MODEL ...

CAPACITY is a number of bytes, "half" or "quarter" of the arena of the model as it is, or "smallest"; BUDGET is that of `--budget`.
`export_edge_nets.py` writes the nets of the table in docs/fit.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import onnxruntime

from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget, search_within
from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject, unblocked_subject
from tests.bench.commands import OWN, ran
from tests.bench.subjects import Subject
from tests.bench.tables import Rows, Table

WITHIN = ("half,10%", "quarter,25%", "smallest,0%", "smallest,10%", "smallest,25%")
TARGET = "cortex-m7"
_PARTS = {"half": 2, "quarter": 4}
_TURNS = 5
"""Runs of each model in turn; the quickest counts."""


def fit(given: Namespace) -> Rows:
    """Yield a row for each model, place of its inputs, and CAPACITY,BUDGET of --within.

    Every result is run beside the original and inside its arena. "Time" is over that of the whole model: estimated for the target, and in
    onnxruntime with one thread. Seconds are of the processor, for the whole command.
    """
    with tempfile.TemporaryDirectory() as folder:
        for subject in given.models:
            for place in given.io:
                before: int | None = None
                for within in given.within or WITHIN:
                    capacity, _, budget = within.rpartition(",")
                    row = _fitted(subject, place, capacity, budget, before, Path(folder), given.limit)
                    before = row.get("before") or before
                    yield subject.name, place, before or "", capacity or "smallest", budget, *row["cells"]


def _fitted(
    subject: Subject, place: str, capacity: str, budget: str, before: int | None, folder: Path, limit: int
) -> dict[str, Any]:
    """Return the arena of the model as it is, `before`, and the cells of what one command does."""
    if capacity in _PARTS:
        before = before or _arena(subject, place, folder)
        capacity = str(before // _PARTS[capacity])
    asked = ["--capacity", capacity or "smallest"]
    result, report = folder / "fitted.onnx", folder / "fitted.json"
    result.unlink(missing_ok=True)
    words = (*asked, "--budget", budget, "--io", place, "--target", TARGET, *subject.options)
    try:
        done = ran([sys.executable, *OWN, "fit", subject.path, *words, "-q", "--json", report, "-o", result], limit)
    except subprocess.TimeoutExpired:
        return {"before": before, "cells": (f"not done in {limit} s",)}
    if not report.exists() or done.code:
        told = json.loads(report.read_text()) if report.exists() else None
        reached = done.reason if told is None else f"not reached: {told['after']['arena']:,}"
        report.unlink(missing_ok=True)
        return {"before": before, "cells": (reached, *[""] * 5, done.seconds)}
    found = json.loads(report.read_text())
    report.unlink()
    old, new = found["before"], found["after"]
    times = new["seconds"] / old["seconds"], _measured(subject, result)
    extra = f"{100 * (new['macs'] / old['macs'] - 1):+.1f}%" if old["macs"] else ""
    return {
        "before": old["arena"],
        "cells": (new["arena"], extra, new["nodes"], new["copied"], *times, done.seconds),
    }


def _arena(subject: Subject, place: str, folder: Path) -> int:
    """Return the arena in bytes of the model as it is."""
    report = folder / "whole.json"
    words = ("--capacity", str(2**40), "--io", place, "--dry-run", "--no-verify", "-q", "--json", report)
    done = ran([sys.executable, *OWN, "fit", subject.path, *words, *subject.options])
    if done.code:
        raise SystemExit(f"{subject.path}: {done.reason}")
    arena: int = json.loads(report.read_text())["before"]["arena"]
    return arena


def _measured(subject: Subject, result: Path) -> float:
    """Return the time of `result` over that of the model, in onnxruntime with one thread; NaN where `result` was not written."""
    if not result.exists():
        return float("nan")
    # The sizes of the result are bound.
    feeds = sample_feeds(load(result), lambda value: None if value.shape is None else value.shape.numpy())
    sessions = [_session(path) for path in (subject.path, result)]
    best = [float("inf")] * 2
    for _ in range(_TURNS):
        for number, session in enumerate(sessions):
            start = time.perf_counter()
            session.run(None, feeds)
            best[number] = min(best[number], time.perf_counter() - start)
    return best[1] / best[0]


def _session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


_SHARES = (0.8, 0.65, 0.55, 0.5, 0.46, 0.42, 0.38, 0.34, 0.3, 0.25, 0.21, 0.17)
"""Capacities as shares of the arena of the model as it is."""
_BUDGETS = (0.0, 0.05, 0.25)
_SLIGHT = 1.01


@dataclass(frozen=True)
class _Point:
    """The schedule that one search finds within a share of the arena and a budget, by its time over that of the model; None for none."""

    share: float
    budget: float
    time: float | None

    def is_worse(self, other: _Point, factor: float = 1.0) -> bool:
        """Return whether the schedule of `other`, with no more bytes and no larger budget, takes less time by a factor, or only it fits."""
        has_more = self.share >= other.share and self.budget >= other.budget
        return has_more and other.time is not None and (self.time is None or self.time > factor * other.time)


def monotone(given: Namespace) -> Rows:
    """Yield a row for each model: searches within twelve capacities and three budgets, and how many a search within less of both beats.

    Each begins anew, on the model after the rewrites that let more of it be cut. Nothing is placed, written or planned.
    """
    for subject in given.models:
        options = FitOptions(subject.path, capacity=1, verify=False, budget=f"{100 * _BUDGETS[-1]}%")
        about = unblocked_subject(read_subject(options))
        network, started = about.regions.network, time.process_time()
        points: list[_Point] = []
        for share, budget in product(_SHARES, _BUDGETS):
            wanted = FitTarget(int(share * about.before.arena), budget, prices=about.prices)
            found = search_within(Regions(network, about.regions.groups), wanted)
            points.append(_Point(share, budget, None if found is None else about.estimate(found) / about.seconds))
        beaten = {factor: sum(any(p.is_worse(o, factor) for o in points) for p in points) for factor in (1.0, _SLIGHT)}
        times = [point.time for point in points if point.time is not None]
        unfit = sum(point.time is None and any(map(point.is_worse, points)) for point in points)
        yield (
            *(subject.name, len(points), len(times), unfit, beaten[1.0] - unfit, beaten[_SLIGHT] - unfit),
            *(sum(times) / max(len(times), 1), time.process_time() - started),
        )


TABLES = {
    "monotone": Table(
        "searches of fit that one within a smaller capacity and budget beats",
        (
            *("model", "searches", "that fit", "only less fits", "less is quicker", "by over 1%"),
            *("mean time, estimated", "seconds"),
        ),
        monotone,
    ),
    "fit": Table(
        "arenas of fit, within a capacity and a budget of further multiply-accumulates",
        (
            *("model", "inputs", "arena before", "capacity", "budget", "arena", "extra MACs", "nodes", "copied bytes"),
            *("time, estimated", "time, onnxruntime", "seconds"),
        ),
        fit,
        words=2,
        options={
            "--within": {"action": "append", "default": [], "metavar": "CAPACITY,BUDGET"},
            "--io": {"nargs": "+", "default": ["outputs"], "help": "places of the inputs, as fit takes them"},
            "--limit": {"type": int, "default": 300, "help": "seconds of one command"},
        },
    ),
}
