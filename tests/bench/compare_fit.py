"""The part of `tests.bench.compare` on fit: the smallest arenas, and beside them published ones of int8 networks."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.commands import OWN, ROOT, Measure, Row, Run, ran, succeeded
from tests.bench.subjects import installed

BUDGET = "10%"
_TIMEOUT = 900
"""Seconds, at most, of one command."""
_SHORT = ("ch_ppocr_mobile_v2.0_cls_infer", "light_squeezenet", "light_bvlc_alexnet")
_LONG = (
    *("light_resnet50", "light_inception_v1", "ch_PP-OCRv4_rec_infer", "light_shufflenet", "ch_PP-OCRv4_det_infer"),
    "light_densenet121",
)
"""Models of installed packages whose smallest arena is searched for, those that take less time first."""
_CAPACITIES = {"light_squeezenet": 2_097_152, "light_resnet50": 2_097_152, "light_inception_v1": 1_310_720}
"""Models of installed packages, and a capacity in bytes within which they are to fit without further multiply-accumulates."""


@dataclass(frozen=True)
class Published:
    """A published result: its arena in bytes of int8, and the multiply-accumulates beyond those of the network in per cent."""

    tool: str
    arena: int
    extra: float


@dataclass(frozen=True)
class NetworkRow:
    """A MobileNetV2 in int8 of some rows of pixels and factor of channels, a capacity in bytes, and what is published of it."""

    size: int
    width: float
    capacity: int
    published: Published

    @property
    def name(self) -> str:
        """The name of the network."""
        return f"MobileNetV2 {self.width:g}, {self.size}, int8"


NETWORKS = (
    NetworkRow(144, 0.35, 49_152, Published("msf-CNN", 83_133, 1.9)),
    NetworkRow(224, 1.0, 98_304, Published("MCUNetV2", 172_000, 10.0)),
    NetworkRow(224, 1.0, 163_840, Published("MCUNetV2", 172_000, 10.0)),
    NetworkRow(144, 0.35, 25_800, Published("msf-CNN", 25_803, 26.0)),
    NetworkRow(144, 0.35, 15_199, Published("msf-CNN", 15_199, 39.0)),
)
"""Networks of `models/make_mobilenet_v2.py`, and what Lin et al. 2021 (arXiv:2110.15352) and Huang et al. 2025 (msf-CNN) publish."""


def fit(run: Run) -> Iterator[tuple[str, Measure]]:
    """The arenas that fit reaches, within a capacity or the smallest; no peer rewrites an ONNX model for a memory."""
    yield from _smallest_rows(_SHORT)
    known = {subject.path.stem: subject.path for subject in installed()}
    for name, capacity in _CAPACITIES.items():
        if name in known:
            yield f"{name}, {capacity:,}", partial(_fitted, known[name], "0%", capacity)
    for one in NETWORKS:
        yield f"{one.name}, {one.capacity:,}", partial(_network, run, one)
    yield from _smallest_rows(_LONG)


def _smallest_rows(names: Iterable[str]) -> Iterator[tuple[str, Measure]]:
    known = {subject.path.stem: subject for subject in installed()}
    for name in names:
        if name in known:
            yield name, partial(_fitted, known[name].path, BUDGET, None, *known[name].options)


def _network(run: Run, one: NetworkRow) -> Row:
    """Return the row of a MobileNetV2 in int8, beside a published arena; the budget is that of the published arena."""
    model = run.quantised / "quantised" / f"mobilenet_v2_{one.width:g}_{one.size}.fit.qdq.onnx"
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            float_model = Path(folder) / "float.onnx"
            scripts, sizes = ROOT / "models", ("--size", one.size, "--width", one.width)
            succeeded([sys.executable, scripts / "make_mobilenet_v2.py", float_model, "--seed", 0, *sizes])
            quantise = (scripts / "make_quantised.py", float_model, "qdq", model, "--dim", "batch=1")
            succeeded([sys.executable, *quantise])
    row = _fitted(model, f"{one.published.extra:g}%", one.capacity)
    return row | {"published": vars(one.published)}


def _fitted(path: Path, budget: str, capacity: int | None, *sizes: str) -> Row:
    """Return the row of one command: for a capacity in bytes, or for the smallest arena where there is none."""
    asked = ["--capacity", "smallest" if capacity is None else str(capacity)]
    words = ("fit", path, *asked, "--budget", budget, "--dry-run", "-q", "--json", "-", *sizes)
    try:
        done = ran([sys.executable, *OWN, *words], _TIMEOUT)
    except subprocess.TimeoutExpired:
        return {"failed": f"not done in {_TIMEOUT} s", "budget": budget}
    found = json.loads(done.out) if done.out else {}
    if done.code:
        smallest = f"does not fit: {found['after']['arena']:,} is the smallest reached" if found else done.reason
        return {"failed": smallest, "budget": budget}
    return {
        "budget": budget,
        "before": found["before"]["arena"],
        "after": found["after"]["arena"],
        "extra": 100 * (found["after"]["macs"] / found["before"]["macs"] - 1),
        "nodes": found["after"]["nodes"],
        "equal": found["verdict"]["equal"],
        "seconds": done.seconds,
    }
