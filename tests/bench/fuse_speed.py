"""Time of fuse beside onnxruntime.transformers.optimizer on the same files: matching and rewriting alone, and the ratio.

Usage: python tests/bench/fuse_speed.py [--runs 3] MODEL.onnx ...

Both start from a model in memory; loading, saving, imports and verification are left out. Runs alternate, medians count.
The optimizer is given the model type that fits the file's name (it looks for other things in each), fusion only.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import onnx

from onnxtile.fuse.patterns import pattern_set
from onnxtile.fuse.rewrite import fuse
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


def theirs(path: Path) -> float | None:
    """Return the optimizer's seconds; None where it crashes."""
    from onnxruntime.transformers.optimizer import optimize_by_fusion

    model = onnx.load(path)
    kind = next((kind for prefix, kind in MODEL_TYPES.items() if path.name.startswith(prefix)), "bert")
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return timed(lambda: optimize_by_fusion(model, model_type=kind))
    except Exception as error:
        print(f"  {path.name}: the optimizer crashed: {type(error).__name__}")
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    totals = [0.0, 0.0]
    worst = 0.0
    for path in arguments.models:
        mine = []
        other = []
        for _ in range(arguments.runs):
            mine.append(ours(path))
            peer = theirs(path)
            if peer is None:
                break
            other.append(peer)
        median = statistics.median(mine)
        worst = max(worst, median)
        if other:
            totals[0] += median
            totals[1] += statistics.median(other)
            print(
                f"{path.stem:32} {median:8.3f} s {statistics.median(other):8.3f} s   ratio {statistics.median(other) / median:6.1f}"
            )
        else:
            print(f"{path.stem:32} {median:8.3f} s        -")
    print(
        f"total {totals[0]:.2f} s and {totals[1]:.2f} s: {totals[1] / totals[0]:.1f} times as fast; the slowest file took {worst:.2f} s"
    )


if __name__ == "__main__":
    main()
