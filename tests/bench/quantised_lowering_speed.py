"""Latency in onnxruntime of quantised models lowered to its operators, beside those of its own fusions of QDQ nodes.

Both files run with all of onnxruntime's optimisations. Runs are interleaved and the ratio is one of two runs of the same round; with one
thread the time is that of the processor.

Usage: python -m tests.bench.quantised_lowering_speed [--runs 30] [--threads 1] MODEL ...
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.verification.trials import run_original
from tests.bench.lowering_speed import runner

_WARM_UP = 3


def compare(path: Path, runs: int, threads: int) -> tuple[float, float, int, int]:
    """Return the median milliseconds of the original, the median ratio of the lowered model, and how many sites are lowered of all."""
    lowered = api.fuse(path, lower="ort", verify=False)
    sessions = [runner(path.read_bytes(), threads), runner(to_bytes(lowered.model), threads)]
    feeds = run_original(load(path), runs=1)[0][0].feeds
    clock = time.thread_time if threads == 1 else time.perf_counter
    times: list[list[float]] = [[], []]
    for run in range(runs + _WARM_UP):
        for place in (0, 1) if run % 2 else (1, 0):
            start = clock()
            sessions[place].run(None, feeds)
            if run >= _WARM_UP:
                times[place].append((clock() - start) * 1e3)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    return (
        statistics.median(times[0]),
        ratio,
        sum(bool(site.operator) for site in lowered.lowered),
        len(lowered.lowered),
    )


def main() -> None:
    """Print a row of the table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    print("| model | sites lowered | onnxruntime's fusions, ms | lowered, of that |")
    print("|---|---|---|---|")
    for path in options.models:
        before, ratio, lowered, sites = compare(path, options.runs, options.threads)
        print(f"| {path.stem} | {lowered} of {sites} | {before:.2f} | {ratio:.2f} |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
