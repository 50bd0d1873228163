"""Time of fuse beside onnxruntime.transformers.optimizer and onnxscript's ort_fusions on the same files, and the ratios.

    python -m tests.bench.fuse_speed [--runs 3] [--onnxscript] [--whole] MODEL.onnx ...

All start from a model in memory: imports, loading, saving and verification are left out. Runs alternate, medians count. The optimizer
is given the model type that fits the file's name (it looks for other things in each), fusion only (opt_level 0). With --onnxscript the
latter is run too (`pip install onnxscript`); with --whole, the whole command `onnxtile fuse --no-verify` stands beside, in a process of
its own.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxtile.fusion.fuse import fuse
from onnxtile.fusion.pattern import pattern_set
from onnxtile.model.load import load

MODEL_TYPES = {"gpt2": "gpt2", "t5": "t5", "vit": "vit", "swin": "swin", "clip": "clip", "whisper": "bart"}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ours(path: Path) -> float:
    model = load(path)
    patterns = pattern_set()
    return timed(lambda: fuse(model, patterns))


def optimizer(path: Path) -> float:
    from onnxruntime.transformers.optimizer import optimize_by_fusion

    model = onnx.load(path)
    kind = next((kind for prefix, kind in MODEL_TYPES.items() if path.name.startswith(prefix)), "bert")
    with contextlib.redirect_stdout(io.StringIO()):
        return timed(lambda: optimize_by_fusion(model, model_type=kind))


def onnxscript(path: Path) -> float:
    from onnxscript.rewriter import ort_fusions

    model = ir.load(path)
    return timed(lambda: ort_fusions.optimize_for_ort(model))


def whole_command(path: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "onnxtile", "fuse", str(path), "-o", f"{folder}/m.onnx", "--no-verify", "-q"]
        return timed(lambda: subprocess.run(command, check=True))


def medians(path: Path, contestants: Mapping[str, Callable[[Path], float]], runs: int) -> dict[str, float | None]:
    """Return the median seconds of each contestant, run in turn; None for one that crashes."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    crashed: set[str] = set()
    for _ in range(runs):
        for name, contestant in contestants.items():
            if name in crashed:
                continue
            try:
                times[name].append(contestant(path))
            except Exception as error:
                crashed.add(name)
                print(f"  {path.name}: {name} crashed: {type(error).__name__}")
    return {name: None if name in crashed else statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--onnxscript", action="store_true")
    parser.add_argument("--whole", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    contestants: dict[str, Callable[[Path], float]] = {"onnxtile": ours, "optimizer": optimizer}
    contestants |= {"onnxscript": onnxscript} if arguments.onnxscript else {}
    contestants |= {"whole command": whole_command} if arguments.whole else {}
    ours(arguments.models[0])  # what is read once in a process, schemas and patterns, is no part of any file's time
    print(f"| file | {' | '.join(contestants)} |\n|---|{'---:|' * len(contestants)}")
    rows = []
    for path in arguments.models:
        rows.append(medians(path, contestants, arguments.runs))
        cells = ("crashed" if found is None else f"{found:.3f} s" for found in rows[-1].values())
        print(f"| {path.stem} | {' | '.join(cells)} |", flush=True)
    print(f"\nslowest file of onnxtile: {max(row['onnxtile'] or 0.0 for row in rows):.3f} s")
    for name in list(contestants)[1:]:
        pairs = [(row["onnxtile"], row[name]) for row in rows]
        both = [(mine, other) for mine, other in pairs if mine is not None and other is not None]
        total = [sum(column) for column in zip(*both, strict=True)]
        middle = statistics.median(other / mine for mine, other in both)
        print(
            f"{name}: {total[1]:.2f} s in all, onnxtile {total[0]:.2f} s on the same files: ratio {total[1] / total[0]:.1f}, "
            f"median of the files {middle:.1f}"
        )


if __name__ == "__main__":
    main()
