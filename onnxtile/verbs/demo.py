"""demo: all steps on the small transformer that ships with the package, each on the result of the one before."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import onnxtile
from onnxtile.common_options import ReportOptions, RunLimitOptions
from onnxtile.declare.verb import JsonFields, Outcome, Positional, Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import Mismatch, UsageError
from onnxtile.system.files import staged
from onnxtile.system.long_work import Progress
from onnxtile.system.registry import data_folder

ORIGINAL, FUSED, TILED = "transformer.onnx", "transformer.fused.onnx", "transformer.fused.tiled.onnx"
MAX = 64
PLANS = (".json", ".html")
SPANS = 48
"""Spans of steps of which a stage has the live bytes."""


@dataclass(frozen=True)
class DemoCommand(ReportOptions, RunLimitOptions):
    """Fuse, tile, plan and verify a small transformer that ships with onnxtile.

    Examples:
        onnxtile demo
        onnxtile demo FOLDER --json demo.json
    """

    folder: Annotated[Path, Positional("FOLDER", "folder for the files")] = Path("onnxtile-demo")


@dataclass(frozen=True)
class Stage(JsonFields):
    """One model of the demo, its file, and the command that wrote it.

    `activations` and `arena` are bytes: every activation with bytes of its own, and all in one arena. `arena_with_insides` also has what
    the nodes inside meta-ops hold, where no kernel does the whole meta-op. `live` are the most live bytes in each of SPANS spans of steps.
    `error` is the largest relative difference of its outputs from the original's.
    """

    model: str
    file: str
    command: str
    nodes: int
    meta_ops: int
    tiles: int
    activations: int
    arena: int
    arena_with_insides: int
    error: float
    live: tuple[int, ...]


@dataclass(frozen=True)
class DemoResult(JsonFields):
    """The stages of the demo, and the folder that has its files."""

    folder: str
    stages: tuple[Stage, ...]


def demo(options: DemoCommand) -> Outcome:
    """Fuse, tile and plan the demo model, one after the other; leave the original, the results and their plans in the folder asked for.

    Raises UsageError where the folder cannot be made; Mismatch where the outputs of a step differ.
    """
    folder, progress = options.folder, options.progress
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None
    original, fused, tiled = (folder / name for name in (ORIGINAL, FUSED, TILED))
    shutil.copyfile(data_folder("models") / ORIGINAL, original)

    progress("fuse")
    fusing = onnxtile.fuse(original)
    onnxtile.save(fusing.model, fused)
    progress("tile")
    tiling = onnxtile.tile(fused, max=MAX)
    onnxtile.save(tiling.model, tiled)
    stages = (
        _stage("original", original, "", 0, 0, progress),
        _stage("fused", fused, f"fuse {ORIGINAL}", fusing.fused, 0, progress),
        _stage("fused and tiled", tiled, f"tile {FUSED} --max {MAX}", fusing.fused, tiling.result.matmuls, progress),
    )
    return Outcome(DemoResult(str(folder), stages), "demo")


def _stage(title: str, model: Path, command: str, meta_ops: int, tiles: int, progress: Progress) -> Stage:
    """Plan `model`, leave the planned model and its plans beside it, compare it with the original, and return the row of the table."""
    from onnxtile.report.format import RenderOptions, format_of  # formats and layouts are for this verb's run alone
    from onnxtile.report.layout import live_sizes

    progress(f"plan {model.name}")
    planned = onnxtile.plan(model)
    plans, content = [model.with_suffix(f".plan{ending}") for ending in PLANS], planned.plan.to_dict()
    target = model.with_suffix(".planned.onnx")
    with staged({path: format_of(path).render(content, RenderOptions(model.stem)) for path in plans}):
        onnxtile.save(planned.model, target)
    progress(f"verify {target.name}")
    verdict = onnxtile.verify(model.with_name(ORIGINAL), target)
    if not verdict.equal:
        raise Mismatch(f"the outputs of {target.name} differ from those of {ORIGINAL}", hint="please report it")
    held = {inside.operator: "inside" for inside in planned.plan.insides}
    counted = onnxtile.plan(model, layout={"workspaces": held}, verify=False).plan if held else planned.plan
    return Stage(
        model=title,
        file=model.name,
        command=command,
        nodes=planned.model.graph.num_nodes(),
        meta_ops=meta_ops,
        tiles=tiles,
        activations=planned.plan.activation_bytes,
        arena=planned.plan.arena_size,
        arena_with_insides=counted.arena_size,
        error=verdict.max_rel,
        live=tuple(live_sizes(content, SPANS)),
    )


DEMO = Verb("demo", DemoCommand, demo)
