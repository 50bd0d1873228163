"""The part of `tests.bench.compare` on fit: the smallest arenas, and beside them published ones of int8 networks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.compare_run import ROOT, Measure, Row, Run
from tests.bench.plan_time import installed

BUDGET = "10%"
_TIMEOUT = 900
"""Seconds, at most, of one command."""
_MODELS = (
    *(
        "ch_ppocr_mobile_v2.0_cls_infer",
        "light_squeezenet",
        "light_bvlc_alexnet",
        "light_resnet50",
        "light_inception_v1",
    ),
    *("ch_PP-OCRv4_rec_infer", "ch_PP-OCRv4_det_infer", "light_shufflenet", "light_densenet121"),
)
"""Models of installed packages, those that take less time first."""


@dataclass(frozen=True)
class Published:
    """A published result: its arena in bytes of int8, and the multiply-accumulates beyond those of the network in per cent."""

    tool: str
    arena: int
    extra: float


MOBILENETS = {
    "mobilenet_v2_224": (("--size", "224"), (Published("MCUNetV2", 172_000, 10.0),)),
    "mobilenet_v2_035_144": (
        ("--size", "144", "--width", "0.35"),
        (Published("msf-CNN", 83_133, 1.9), Published("msf-CNN", 25_803, 26.0), Published("msf-CNN", 15_199, 39.0)),
    ),
}
"""How `models/make_mobilenet_v2.py` makes each network, and what is published of it: Lin et al. 2021 (arXiv:2110.15352), and
Huang et al. 2025 (msf-CNN)."""


def fit(run: Run) -> Iterator[tuple[str, Measure]]:
    """The smallest arena that fit reaches within a budget; no peer rewrites an ONNX model for a memory."""
    known = {subject.path.stem: subject for subject in installed()}
    for name in _MODELS:
        if name in known:
            shapes = (part for shape in known[name].shapes for part in ("--shape", shape))
            yield name, partial(_smallest, known[name].path, BUDGET, *shapes)
    for name, (_, published) in MOBILENETS.items():
        for one in published:
            yield f"{name}, int8, {one.extra:g}%", partial(_quantised, run, name, one)


def _quantised(run: Run, name: str, published: Published) -> Row:
    """Return the row of a MobileNetV2 in int8, beside a published arena of the same budget."""
    run.quantised.mkdir(parents=True, exist_ok=True)
    model = run.quantised / "quantised" / f"{name}.fit.qdq.onnx"
    if not model.exists():
        model.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            float_model = Path(folder) / "float.onnx"
            scripts = ROOT / "models"
            make = [sys.executable, str(scripts / "make_mobilenet_v2.py"), str(float_model), "--seed", "0"]
            subprocess.run([*make, *MOBILENETS[name][0]], check=True, capture_output=True)
            quantise = [sys.executable, str(scripts / "make_quantised.py"), str(float_model), "qdq", str(model)]
            subprocess.run([*quantise, "--dim", "batch=1"], check=True, capture_output=True)
    row = _smallest(model, f"{published.extra:g}%", "--dim", "batch=1")
    return row | {"published": vars(published)}


def _smallest(path: Path, budget: str, *sizes: str) -> Row:
    command = [sys.executable, "-m", "onnxtile", "fit", str(path), "--smallest", "--max-extra-macs", budget]
    command += ["--dry-run", "-q", "--json", "-", *sizes]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    before = os.times()
    try:
        told, words = process.communicate(timeout=_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"failed": f"not done in {_TIMEOUT} s", "budget": budget}
    if process.returncode:
        return {"failed": (words.strip().splitlines() or ["?"])[-1][:100], "budget": budget}
    after, found = os.times(), json.loads(told)
    return {
        "budget": budget,
        "before": found["before"]["arena"],
        "after": found["after"]["arena"],
        "extra": 100 * (found["after"]["macs"] / found["before"]["macs"] - 1),
        "nodes": found["after"]["nodes"],
        "equal": found["verdict"]["equal"],
        "seconds": after.children_user + after.children_system - before.children_user - before.children_system,
    }
