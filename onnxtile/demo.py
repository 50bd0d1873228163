"""The whole way on the small transformer that ships with the package: fuse, tile, plan, verify."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxtile import api
from onnxtile.errors import UsageError
from onnxtile.registry import data_folder
from onnxtile.report.format import format_of
from onnxtile.tile.limits import Limits

MODEL = "transformer.onnx"
MAX = 64


@dataclass(frozen=True)
class Stage:
    """One model of the demo. `activations` and `arena` are bytes: every activation for itself, and all in one arena.

    `error` is the worst relative difference of its outputs from the original's.
    """

    model: str
    nodes: int
    meta_ops: int
    tiles: int
    activations: int
    arena: int
    error: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo did, stage by stage, and where its files are."""

    folder: Path
    stages: tuple[Stage, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the demo."""
        return {"folder": str(self.folder), "stages": [vars(stage) for stage in self.stages]}


def demo(folder: Path, *, progress: api.Progress = lambda _stage: None) -> DemoResult:
    """Fuse, tile and plan the demo model; leave the original, the results and their plans in `folder`.

    Raises UsageError where `folder` cannot be made; Mismatch where a step went wrong.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    original = folder / MODEL
    shutil.copyfile(data_folder("models") / MODEL, original)

    progress("fuse")
    fused = api.fuse(original)
    api.save(fused.model, folder / "transformer.fused.onnx")
    progress("tile")
    tiled = api.tile(original, Limits.of(max=MAX))
    api.save(tiled.model, folder / "transformer.tiled.onnx")

    stages = []
    verdicts = {
        "transformer.onnx": None,
        "transformer.fused.onnx": fused.verdict,
        "transformer.tiled.onnx": tiled.verdict,
    }
    for name, verdict in verdicts.items():
        progress(f"plan {name}")
        planned = api.plan(folder / name)
        stem = name.removesuffix(".onnx")
        api.save(planned.model, folder / f"{stem}.planned.onnx")
        plan = folder / f"{stem}.plan.json"
        plan.write_bytes(format_of(plan).render(planned.plan.to_dict()))
        stages.append(
            Stage(
                model=name,
                nodes=planned.model.graph.num_nodes(),
                meta_ops=fused.fused if name == "transformer.fused.onnx" else 0,
                tiles=tiled.result.matmuls if name == "transformer.tiled.onnx" else 0,
                activations=planned.plan.activation_bytes,
                arena=sum(arena.size for arena in planned.plan.arenas),
                error=0.0 if verdict is None else verdict.max_rel,
            )
        )
    return DemoResult(folder, tuple(stages))
