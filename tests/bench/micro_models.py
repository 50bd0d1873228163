"""Plans TensorFlow Lite models and runs them in TensorFlow Lite Micro: `python -m tests.bench.micro_models FILE.tflite ...`.

Without files it takes random networks of `tests/deployment`.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import onnxtile


def main(files: list[str]) -> None:
    """Print a line of the table in docs/consumers.md for each model."""
    print(
        "| model | all tensors | head, own planner | planned bytes | head with the plan | outputs |\n|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, files or made(Path(folder))):
            planned = onnxtile.plan_tflite(path)
            plan, verdict = planned.plan, planned.verdict
            runs = ("", "", "not run") if verdict is None else (f"{verdict.own_head:,}", f"{verdict.head:,}", "equal")
            print(
                f"| {path.stem} | {plan.activation_bytes:,} | {runs[0]} | {plan.arena_size:,} | {runs[1]} | {runs[2]} |"
            )


def made(folder: Path) -> list[Path]:
    """Return the files of ten random networks."""
    from tests.deployment.networks import network

    files = [folder / f"random_{seed}.tflite" for seed in range(10)]
    for seed, file in enumerate(files):
        file.write_bytes(network(seed, operators=10 + 4 * seed))
    return files


if __name__ == "__main__":
    main(sys.argv[1:])
