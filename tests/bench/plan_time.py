"""Processor time of `onnxtile plan`, with and without its proof, beside onnxsim's simplification of the same file: a table in Markdown.

    python -m tests.bench.plan_time [--onnxsim COMMAND] [--runs N] [MODEL.onnx[,INPUT=1x3x224x224]... ...]

COMMAND is `onnxsim` of the environment by default. Without models, those of the installed packages onnx, rapidocr-onnxruntime, silero-vad,
magika and ddddocr are measured, and the small one of `models/`. Both commands are given the sizes of open inputs. Times are user and system
seconds of the whole command, its children included; the runs of the commands alternate, and the least counts. Memory is the high-water
mark in MB (10**6 bytes).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGES = {
    "onnx": "backend/test/data/light/*.onnx",
    "rapidocr_onnxruntime": "models/*.onnx",
    "silero_vad": "data/*.onnx",
    "magika": "models/*/model.onnx",
    "ddddocr": "*.onnx",
}

_STATE = "state=2x1x128"
SHAPES = {
    "ch_PP-OCRv4_det_infer": ("x=1x3x640x640",),
    "ch_PP-OCRv4_rec_infer": ("x=1x3x48x320",),
    "ch_ppocr_mobile_v2.0_cls_infer": ("x=1x3x48x192",),
    "silero_vad": ("input=1x576", _STATE),
    "silero_vad_16k_op15": ("input=1x576", _STATE),
    "silero_vad_16k_sequence": ("input=31x576",),
    "silero_vad_half": ("input=1x576", _STATE),
    "silero_vad_op18_ifless": ("input=1x576", _STATE),
    "model": ("bytes=1x2048",),
    "common": ("input1=1x1x64x160",),
    "common_old": ("input1=1x1x64x160",),
}
"""The shapes of the open inputs of the models in PACKAGES, by file name."""


@dataclass(frozen=True)
class Subject:
    """A model to be planned, and the shapes of its open inputs, each as NAME=1x3x224x224."""

    path: Path
    shapes: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Subject:
        """Return the model that a command line names: its path, and shapes after commas."""
        path, *shapes = text.split(",")
        return cls(Path(path), tuple(shapes))


@dataclass(frozen=True)
class Cost:
    """The least processor time in seconds of a command over its runs, and the most memory in bytes; NaN where it failed."""

    seconds: float
    memory: float

    def least(self, other: Cost) -> Cost:
        """Return the cost of both runs."""
        return Cost(min(self.seconds, other.seconds), max(self.memory, other.memory))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", type=Subject.of)
    parser.add_argument("--onnxsim", metavar="COMMAND", default=shutil.which("onnxsim"))
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args(arguments)
    if given.onnxsim is None:
        parser.error("no onnxsim in this environment: give --onnxsim COMMAND")
    # An installed command has its bytecode already: it is made by the first run of each here, so give two runs at least.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as bytecode:
        os.environ["PYTHONPYCACHEPREFIX"] = bytecode
        for line in table(given.models or list(installed()), given.onnxsim, given.runs):
            print(line, flush=True)


def installed() -> Iterator[Subject]:
    """Yield the models of the installed packages, and those of the repository."""
    for name, pattern in PACKAGES.items():
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            paths = sorted(Path(spec.origin).parent.glob(pattern))
            yield from (Subject(path, SHAPES.get(path.stem, ())) for path in paths)
    yield from map(Subject, sorted((ROOT / "models").glob("*.onnx")))


def table(models: Sequence[Subject], onnxsim: str, runs: int) -> Iterator[str]:
    """Yield the lines of the table, and the medians below it."""
    yield "| model | MB | onnxsim, s | MB | plan, s | MB | no proof, s | ratio | no proof |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    ratios, plain = [], []
    for subject in models:
        path = subject.path
        theirs, ours, unproved = measured(subject, onnxsim, runs)
        cells = (
            path.stem if path.stem != "model" else path.parent.name,
            f"{path.stat().st_size / 1e6:.1f}",
            _shown(theirs.seconds, 2),
            _shown(theirs.memory / 1e6, 0),
            _shown(ours.seconds, 2),
            _shown(ours.memory / 1e6, 0),
            _shown(unproved.seconds, 2),
            _shown(ours.seconds / theirs.seconds, 2),
            _shown(unproved.seconds / theirs.seconds, 2),
        )
        yield f"| {' | '.join(cells)} |"
        ratios.append(ours.seconds / theirs.seconds)
        plain.append(unproved.seconds / theirs.seconds)
    yield ""
    yield f"Ratios, with the proof: {_spread(ratios)}. Without: {_spread(plain)}. {_place()}"


def measured(subject: Subject, onnxsim: str, runs: int) -> tuple[Cost, Cost, Cost]:
    """Return the costs of onnxsim, of plan, and of plan without its proof."""
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/out.onnx"
        given = [part for shape in subject.shapes for part in ("--shape", shape)]
        plan = [sys.executable, "-m", "onnxtile", "plan", str(subject.path), "-o", target, "--force", *given]
        commands = ([onnxsim, str(subject.path), target, *for_onnxsim(subject.shapes)], plan, [*plan, "--no-verify"])
        turns = [[cost(command) for command in commands] for _ in range(runs)]
    theirs, ours, unproved = turns[0]
    for turn in turns[1:]:
        theirs, ours, unproved = theirs.least(turn[0]), ours.least(turn[1]), unproved.least(turn[2])
    return theirs, ours, unproved


def for_onnxsim(shapes: Sequence[str]) -> list[str]:
    """Return the options of onnxsim that bind inputs to `shapes`."""
    pairs = (shape.rsplit("=", 1) for shape in shapes)
    found = [f"{name}:{sizes.replace('x', ',')}" for name, sizes in pairs]
    return ["--overwrite-input-shape", *found] if found else []


def cost(command: Sequence[str], timeout: float | None = None) -> Cost:
    """Return what one run of `command` takes; after `timeout` seconds by the clock it is ended, and has failed."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = threading.Timer(timeout or threading.TIMEOUT_MAX, process.kill)
    end.start()
    _, status, used = os.wait4(process.pid, 0)
    end.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(math.nan, math.nan) if status else Cost(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def _shown(number: float, digits: int) -> str:
    return "failed" if math.isnan(number) else f"{number:.{digits}f}"


def _spread(ratios: Sequence[float]) -> str:
    known = [ratio for ratio in ratios if not math.isnan(ratio)]
    return f"median {statistics.median(known):.2f}, most {max(known):.2f}, {len(known)} models" if known else "none"


def _place() -> str:
    return f"Python {platform.python_version()}, {os.cpu_count()} cores."


if __name__ == "__main__":
    main()
