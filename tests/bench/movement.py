"""Bytes copied between a fast and a slow memory by `plan --movement`, beside their lower bound: a table in Markdown.

    python -m tests.bench.movement [--docs] [--movement weights] [MODEL.onnx[,INPUT=1x3x224x224][,DIM=31]... ...]

The fast memory has the bytes of the largest operator, then a tenth more, then half as much more. The largest operator is read off the
refusal of a plan with 64 bytes. Each plan is proved: checked, and run in its two memories. Without models, those of the packages onnx,
rapidocr-onnxruntime and nudenet are planned, and those of `models/` and of the folders in ONNXTILE_MODELS (separated by colons). With
--docs the table replaces the one in docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnxtile
from onnxtile.system.errors import Infeasible
from tests.bench.tables import ROOT, show

HEADER = (
    "| model | fast memory | copies | bytes moved | lower bound | above | in parts | any order | proved |\n"
    "|---|---:|---:|---:|---:|---:|---:|---:|---|"
)
PACKAGES = {
    "onnx": ("backend/test/data/light/light_resnet50.onnx", "backend/test/data/light/light_densenet121.onnx"),
    "rapidocr_onnxruntime": ("models/ch_PP-OCRv4_det_infer.onnx", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "nudenet": ("320n.onnx",),
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "ch_PP-OCRv4_det_infer": {"x": (1, 3, 320, 320)},
    "ch_PP-OCRv4_rec_infer": {"x": (1, 3, 48, 320)},
    "320n": {"images": (1, 3, 320, 320)},
    "mobilenet_v2": {"image": (1, 3, 224, 224)},
}
"""The shapes of open inputs, by file name."""
SLOW = 1 << 34
"""Bytes of the slow memory."""
SHARES = (100, 110, 150)
"""The fast memory in percent of the largest operator."""


@dataclass(frozen=True)
class MovedModel:
    """A model with the sizes of its open inputs."""

    path: Path
    shapes: dict[str, tuple[int, ...]]
    dims: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> MovedModel:
        """Return the model that `text` names: a file, and its options after commas."""
        path, *options = text.split(",")
        given = dict(option.split("=") for option in options)
        shapes = {name: tuple(map(int, sizes.split("x"))) for name, sizes in given.items() if "x" in sizes}
        dims = {name: int(size) for name, size in given.items() if "x" not in size}
        return cls(Path(path), shapes or SHAPES.get(Path(path).stem, {}), dims)

    def plan(self, fast: int, movement: str, *, verify: bool = True) -> onnxtile.PlannedModel:
        """Return the plan with `fast` bytes of fast memory."""
        memories = {"fast": fast, "slow": SLOW}
        return onnxtile.plan(
            self.path, movement=movement, capacity=memories, shapes=self.shapes, dims=self.dims, verify=verify
        )


def main() -> None:
    """Print the table, and put it into the page where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=MovedModel.of)
    parser.add_argument("--movement", default="activations", choices=("activations", "weights"))
    parser.add_argument("--docs", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    models = arguments.models or known_models()
    found = (row for model in models for row in rows(model, arguments.movement))
    show(HEADER, found, mark="movement.py" if arguments.docs else "")


def known_models() -> Iterator[MovedModel]:
    """Yield the models of the installed packages and of the folders."""
    for package, files in PACKAGES.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            yield from (MovedModel.of(str(Path(spec.origin or "").parent / file)) for file in files)
    given = os.environ.get("ONNXTILE_MODELS", "").split(":")
    for folder in (ROOT / "models", *map(Path, filter(None, given))):
        yield from (MovedModel.of(str(file)) for file in sorted(folder.glob("*.onnx")))


def rows(model: MovedModel, movement: str) -> Iterator[str]:
    """Yield the rows of one model."""
    need = largest_operator(model, movement)
    for share in SHARES:
        fast = -(-need * share // 6400) * 64
        planned = model.plan(fast, movement)
        found = planned.plan.movement
        assert found is not None
        assert planned.verdict is not None
        proof = "equal" if planned.verdict.equal else "NOT EQUAL"
        above = f"{(found.bytes - found.lower_bound) / max(found.lower_bound, 1):.1%} ({found.bound})"
        numbers = (fast, len(found.copies), found.bytes, found.lower_bound)
        figures = " | ".join(map("{:,}".format, numbers))
        wide = f"{found.parts_bound:,} | {found.any_order_bound:,}"
        yield f"| {model.path.stem} | {figures} | {above} | {wide} | {proof} |"


def largest_operator(model: MovedModel, movement: str) -> int:
    """Return the bytes of the operator that needs the most."""
    try:
        model.plan(64, movement, verify=False)
    except Infeasible as error:
        found = re.search(r"needs ([\d,]+) bytes for its operands", str(error))
        assert found is not None, error
        return int(found[1].replace(",", ""))
    return 64


if __name__ == "__main__":
    main()
