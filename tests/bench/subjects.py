"""The models of the benchmarks: those that a command line names, and those at hand, with the sizes of their open inputs."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxtile.model.binding import free_inputs
from onnxtile.model.load import load
from onnxtile.verification.open_sizes import bound_copy, open_inputs
from onnxtile.verification.trials import run_original
from tests.bench.commands import ROOT

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
_SHAPE = re.compile(r"[\dx():]*\dx[\dx():]*")


@dataclass(frozen=True)
class Subject:
    """A model, and its sizes as the options take them: of dimensions, shapes of inputs, and ranges of their values."""

    path: Path
    shapes: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    ranges: tuple[str, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        plain = self.path.parent.name if self.path.stem in {"model", "decoder"} else self.path.stem
        object.__setattr__(self, "name", self.name or plain)

    @classmethod
    def of(cls, text: str) -> Subject:
        """Return the model that a command line names: its path, and after commas INPUT=1x3x224x224, DIM=8 or INPUT@0:9."""
        path, *told = text.split(",")
        pairs = [one for one in told if "=" in one]
        shapes = tuple(one for one in pairs if _SHAPE.fullmatch(one.partition("=")[2]))
        ranges = tuple(one.replace("@", "=") for one in told if "=" not in one)
        return cls(Path(path), shapes, tuple(one for one in pairs if one not in shapes), ranges)

    @property
    def options(self) -> list[str]:
        """The sizes, as options of a command."""
        kinds = (("--shape", self.shapes), ("--dim", self.dims), ("--inputs", self.ranges))
        return [word for option, values in kinds for value in values for word in (option, value)]

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes, as arguments of a function of onnxtile."""
        kinds = {"shapes": self.shapes, "dims": self.dims, "inputs": self.ranges}
        return {name: dict(value.split("=", 1) for value in values) for name, values in kinds.items() if values}


def installed() -> Iterator[Subject]:
    """Yield the models of the installed packages, and those of the repository."""
    for package, pattern in PACKAGES.items():
        yield from in_package(package, pattern)
    yield from map(Subject, sorted((ROOT / "models").glob("*.onnx")))


def in_package(package: str, pattern: str) -> Iterator[Subject]:
    """Yield the models of a package that is installed."""
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.origin is not None:
        paths = sorted(Path(spec.origin).parent.glob(pattern))
        yield from (Subject(path, SHAPES.get(path.stem, ())) for path in paths)


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
