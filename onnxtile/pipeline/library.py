"""A pipeline in Python: `onnxtile.run("deploy.toml", ["model.onnx"])`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated

from onnxtile.common_options import WatchOptions
from onnxtile.declare import values
from onnxtile.declare.option import WRITING, Choices, Option, Positional, declared
from onnxtile.pipeline.budgets import Baseline, read_baseline
from onnxtile.pipeline.file import Destination, from_file
from onnxtile.pipeline.run import RunResult
from onnxtile.pipeline.run import run as run_all
from onnxtile.pipeline.workers import Workers
from onnxtile.system.limits import RunLimits

_WORKERS = "Workers"
_CHECKS = "Checks"


@dataclass(frozen=True)
class RunOptions(WatchOptions):
    """The options of `run`."""

    pipeline: Annotated[Path | str, Positional("PIPELINE", "a pipeline file")]
    models: Annotated[
        Sequence[Path | str] | Path | str, Positional("IN", "ONNX models", values.FILES, default="those the file names")
    ] = ()
    _: KW_ONLY
    output: Annotated[
        Path | None, Option("folder for the files", "FOLDER", ("-o", "--output"), WRITING, default="beside each model")
    ] = None
    jobs: Annotated[int, Option("models worked on at a time", "N", ("-j", "--jobs"), _WORKERS)] = 1
    backend: Annotated[
        str,
        Option(
            "processes, threads or a cluster",
            "loky|threading|dask",
            heading=_WORKERS,
            choices=Choices("onnxtile.pipeline.workers:BACKENDS"),
        ),
    ] = "loky"
    scheduler: Annotated[str | None, Option("address of the cluster, for dask", "ADDRESS", heading=_WORKERS)] = None
    baseline: Annotated[
        Path | None, Option("earlier --json summary; exit 1 when a figure is worse", "FILE", heading=_CHECKS)
    ] = None
    force: Annotated[bool, Option("allow a model to be written over itself", heading=WRITING)] = False
    dry_run: Annotated[bool, Option("write no models and reports", heading=WRITING)] = False


@declared(RunOptions)
def run(options: RunOptions) -> RunResult:
    """Take models through the steps of the file `pipeline`, and return what became of each.

    A model that fails does not stop the others: the result says why, and `passed` whether all did. Files are written as the command writes
    them. Raises UsageError for a pipeline that cannot be read, where there is no model, and where two models would be written to one file.
    """
    return run_within(options, RunLimits(), ())


def run_within(options: RunOptions, limits: RunLimits, reserved: Sequence[Path]) -> RunResult:
    """Return the result of `run` with other `limits` than those of the file, where these are given; no `reserved` file is written over."""
    pipeline = from_file(Path(options.pipeline))
    baseline = Baseline() if options.baseline is None else read_baseline(options.baseline)
    pipeline = replace(pipeline, limits=limits.or_else(pipeline.limits), baseline=baseline)
    workers = Workers(options.jobs, options.backend, options.scheduler)
    used = [Path(options.pipeline), *([] if options.baseline is None else [options.baseline])]
    destination = Destination(options.output, options.force, options.dry_run)
    models = values.read_files(options.models)
    return run_all(pipeline, models, destination, workers, options.progress, [*used, *reserved])
