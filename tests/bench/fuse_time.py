"""Processor time of the whole command `onnxtile fuse`, its verification included, beside onnxslim and onnxruntime.transformers.

    python -m tests.bench.fuse_time [--runs 5] [--peers PYTHON] MODEL.onnx ...

PYTHON has onnxslim, onnxruntime, sympy and torch installed, which the optimizer imports; by
default it is the one that runs this. Each command is a process of its own, from
the model's file to the written file. User and system time of the process count, which waiting for other processes does not lengthen;
libraries get one thread. The commands take turns, and the median of the runs counts. The optimizer is told the model type that fits the
file's name, "bert" otherwise. Neither peer runs a model to compare it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.fuse_speed import MODEL_TYPES

PEERS = ("onnxslim", "transformers.optimizer")


def commands(model: Path, folder: Path, peers: str) -> Mapping[str, Sequence[str]]:
    """Return the command of each tool that rewrites `model` into a file of `folder`."""
    kind = next((kind for prefix, kind in MODEL_TYPES.items() if model.name.startswith(prefix)), "bert")
    optimizer = (peers, "-m", "onnxruntime.transformers.optimizer", "--model_type", kind, "--input", str(model))
    return {
        "onnxtile": (sys.executable, "-m", "onnxtile", "fuse", str(model), "-o", str(folder / "fused.onnx")),
        "onnxslim": (peers, "-m", "onnxslim", str(model), str(folder / "slim.onnx")),
        "transformers.optimizer": (*optimizer, "--output", str(folder / "optimized.onnx")),
    }


def processor_seconds(command: Sequence[str], environment: Mapping[str, str]) -> float | None:
    """Return the processor time of `command` in seconds; None where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return None
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times(model: Path, runs: int, peers: str) -> dict[str, float | None]:
    """Return the median processor time of each tool on `model`; None for one that fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    measured: dict[str, list[float | None]] = {}
    with tempfile.TemporaryDirectory() as folder:
        tools = commands(model, Path(folder), peers)
        for _ in range(runs):
            for name, command in tools.items():
                measured.setdefault(name, []).append(processor_seconds(command, environment))
    return {
        name: None if None in found else statistics.median(one for one in found if one is not None)
        for name, found in measured.items()
    }


def main() -> None:
    """Read the command line and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON", help="the Python that has the peers")
    options = parser.parse_args()
    print(
        "| model | onnxtile, s | onnxslim, s | ratio | transformers.optimizer, s | ratio |\n|---|---:|---:|---:|---:|---:|"
    )
    ratios: dict[str, list[float]] = {peer: [] for peer in PEERS}
    for model in options.models:
        found = times(model, options.runs, options.peers)
        own = found["onnxtile"]
        assert own is not None, f"onnxtile fuse {model} fails"
        cells = []
        for peer in PEERS:
            other = found[peer]
            cells += ["fails", ""] if other is None else [f"{other:.2f}", f"{own / other:.2f}"]
            ratios[peer] += [] if other is None else [own / other]
        print(f"| {model.stem} | {own:.2f} | {' | '.join(cells)} |", flush=True)
    medians = (f"{statistics.median(ratios[peer]):.2f}" if ratios[peer] else "" for peer in PEERS)
    print("| median of the ratios | | | {} | | {} |".format(*medians))


if __name__ == "__main__":
    main()
