"""The models at hand, with the sizes of their open inputs, for the benchmarks."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxtile.model.binding import free_inputs
from onnxtile.model.load import load
from onnxtile.verification.open_sizes import bound_copy, open_inputs
from onnxtile.verification.trials import run_original

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


def installed() -> Iterator[Subject]:
    """Yield the models of the installed packages, and those of the repository."""
    for name, pattern in PACKAGES.items():
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            paths = sorted(Path(spec.origin).parent.glob(pattern))
            yield from (Subject(path, SHAPES.get(path.stem, ())) for path in paths)
    yield from map(Subject, sorted((ROOT / "models").glob("*.onnx")))


def for_onnxsim(shapes: Sequence[str]) -> list[str]:
    """Return the options of onnxsim that bind inputs to `shapes`."""
    pairs = (shape.rsplit("=", 1) for shape in shapes)
    found = [f"{name}:{sizes.replace('x', ',')}" for name, sizes in pairs]
    return ["--overwrite-input-shape", *found] if found else []


def small(path: Path) -> dict[str, tuple[int, ...]]:
    """Return small shapes for the inputs of `path` that have free dimensions, with which it runs. Raises ModelError."""
    model = load(path)
    if not open_inputs(model):
        return {}
    _, dims = run_original(model, runs=1)
    return {value.name or "": value.shape.numpy() for value in free_inputs(bound_copy(model, dims)) if value.shape}
