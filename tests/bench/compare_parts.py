"""The parts of `tests.bench.compare`: each yields the name of a row and the function that measures it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tests.bench.compare_aidge import MODELS as AIDGE_MODELS
from tests.bench.compare_arenas import plan, problems, ranges
from tests.bench.compare_fit import fit
from tests.bench.compare_rewriting import fuse
from tests.bench.compare_run import ROOT, Measure, Row, Run, spread
from tests.bench.quantised_models import OCR


def quantised(run: Run) -> Iterator[tuple[str, Measure]]:
    """The table of tests.bench.quantised_models: of the OCR models, and of the float models in the folder that is given."""
    run.quantised.mkdir(parents=True, exist_ok=True)
    for name in [*OCR, *spread(path.stem for path in sorted(run.quantised.glob("*.onnx")) if path.stem not in OCR)]:
        command = ["tests.bench.quantised_models", "measure", str(run.quantised), name, "--onnxsim"]
        yield name, partial(_lines, command, run.peers.python("onnxsim"))


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
        command = [sys.executable, "-m", "tests.bench.compare_aidge", "--zoo", str(run.zoo), "--model", name]
        command += ["--each", "1", "--aidge", python, "--json", str(told)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if not told.exists():
            return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}
        counts: Row = json.loads(told.read_text())["counts"]
    return counts


def micro(run: Run) -> Iterator[tuple[str, Measure]]:
    """The memory of TensorFlow Lite Micro with its own planner and with the plan: random networks, and the files that are given."""
    for path in sorted(run.tflite.glob("*.tflite")) if run.tflite else ():
        yield path.stem, partial(_heads, path)
    yield "random networks", partial(_heads, None)


def _heads(path: Path | None) -> Row:
    command = [sys.executable, "-m", "tests.bench.micro_models", *([str(path)] if path else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    lines = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    return (
        {"heads": lines}
        if lines and not done.returncode
        else {"failed": (done.stderr.strip().splitlines() or ["?"])[-1][:100]}
    )


def _lines(command: Sequence[str], python: str | None) -> Row:
    """Return the rows that a benchmark beside the `python` of a peer prints below the head of its table."""
    if python is None:
        return {"failed": "not installed"}
    whole = [sys.executable, "-m", *command, python]
    done = subprocess.run(whole, capture_output=True, text=True, check=False, cwd=ROOT)
    found: Row = {"lines": done.stdout.splitlines()[2:]}
    return found if done.returncode < 2 and found["lines"] else {"failed": done.stderr.strip()[-200:]}


PARTS: Mapping[str, Callable[[Run], Iterator[tuple[str, Measure]]]] = {
    "fuse": fuse,
    "plan": plan,
    "problems": problems,
    "ranges": ranges,
    "quantised": quantised,
    "queries": queries,
    "micro": micro,
    "fit": fit,
}
