"""The table of fit: what a net takes when it is to fit a memory, by the estimate of a target and measured in onnxruntime.

    python -m tests.bench.measure fit MODEL ... [--within CAPACITY,BUDGET ...] [--io PLACE ...] [--limit SECONDS]

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
from pathlib import Path
from typing import Any

import onnxruntime

from onnxtile.model.feeds import sample_feeds
from onnxtile.model.load import load
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


TABLES = {
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
