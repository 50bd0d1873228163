"""The parts of `tests.bench.compare`: each yields the name of a row and the function that measures it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from tests.bench.commands import Measure, Row, Run, ran, spread
from tests.bench.compare_aidge import MODELS as AIDGE_MODELS
from tests.bench.compare_arenas import plan, problems, ranges
from tests.bench.compare_rewriting import fuse
from tests.bench.quantised_models import OCR


def quantised(run: Run) -> Iterator[tuple[str, Measure]]:
    """The table of quantised models: of the OCR models, and of the float models in the folder that is given."""
    run.quantised.mkdir(parents=True, exist_ok=True)
    python = run.peers.python("onnxsim")
    for name in [*OCR, *spread(path.stem for path in sorted(run.quantised.glob("*.onnx")) if path.stem not in OCR)]:
        yield name, partial(_lines, "quantised", "--folder", run.quantised, "--names", name, "--onnxsim", python)


def micro(run: Run) -> Iterator[tuple[str, Measure]]:
    """The memory of TensorFlow Lite Micro with its own planner and with the plan: random networks, and the files that are given."""
    for path in sorted(run.tflite.glob("*.tflite")) if run.tflite else ():
        yield path.stem, partial(_lines, "micro", path)
    yield "random networks", partial(_lines, "micro")


def _lines(*words: object) -> Row:
    """Return the rows that a benchmark prints below the head of its table; None is a peer that is not installed."""
    if None in words:
        return {"failed": "not installed"}
    done = ran([sys.executable, "-m", "tests.bench.measure", *words])
    lines = [line for line in done.out.splitlines()[2:] if line.startswith("| ")]
    return {"lines": lines} if lines and not done.code else {"failed": done.reason}


def queries(run: Run) -> Iterator[tuple[str, Measure]]:
    """The matches of Aidge's queries in Aidge and here: tests.bench.compare_aidge, model by model."""
    for name in AIDGE_MODELS if run.zoo.is_dir() else ():
        yield name, partial(_queried, run, name)


def _queried(run: Run, name: str) -> Row:
    python = run.peers.python("aidge")
    if python is None:
        return {"failed": "not installed"}
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "differences.json"
        options = ("--zoo", run.zoo, "--model", name, "--each", 1, "--aidge", python, "--json", told)
        done = ran([sys.executable, "-m", "tests.bench.compare_aidge", *options])
        counts: Row = json.loads(told.read_text())["counts"] if told.exists() else {"failed": done.reason}
    return counts


PARTS: Mapping[str, Callable[[Run], Iterator[tuple[str, Measure]]]] = {
    "fuse": fuse,
    "plan": plan,
    "problems": problems,
    "ranges": ranges,
    "quantised": quantised,
    "queries": queries,
    "micro": micro,
}
