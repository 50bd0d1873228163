"""The whole way on the small transformer that ships with the package: fuse, tile, plan, verify."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxtile import api
from onnxtile.errors import UsageError
from onnxtile.model.whole import staged
from onnxtile.registry import data_folder
from onnxtile.report.format import RenderOptions, format_of
from onnxtile.tiling.limits import Limits
from onnxtile.verification import Verdict

MODEL = "transformer.onnx"
MAX = 64
PLANS = (".json", ".html")


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


def demo(folder: Path, *, progress: api.Progress = api.silent) -> DemoResult:
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

    stages = (
        _stage("original", original, 0, 0, None, progress),
        _stage("fused", folder / "transformer.fused.onnx", fused.fused, 0, fused.verdict, progress),
        _stage(f"tiled at {MAX}", folder / "transformer.tiled.onnx", 0, tiled.result.matmuls, tiled.verdict, progress),
    )
    return DemoResult(folder, stages)


def _stage(
    title: str, model: Path, meta_ops: int, tiles: int, verdict: Verdict | None, progress: api.Progress
) -> Stage:
    """Plan `model`, leave the annotated model and the plan (for scripts, and to look at) beside it, and return the row of the table."""
    progress(f"plan {model.name}")
    planned = api.plan(model)
    plans, content = [model.with_suffix(f".plan{ending}") for ending in PLANS], planned.plan.to_dict()
    with staged({path: format_of(path).render(content, RenderOptions(model.stem)) for path in plans}):
        api.save(planned.model, model.with_suffix(".planned.onnx"))
    return Stage(
        model=title,
        nodes=planned.model.graph.num_nodes(),
        meta_ops=meta_ops,
        tiles=tiles,
        activations=planned.plan.activation_bytes,
        arena=sum(arena.size for arena in planned.plan.arenas),
        error=0.0 if verdict is None else verdict.max_rel,
    )
