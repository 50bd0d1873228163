"""The declaration of `run`: its arguments and options, on the command line and in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from onnxtile.common_options import RunLimitOptions
from onnxtile.declare import values
from onnxtile.declare.option import WRITING, Choices, Option, Positional
from onnxtile.system.dataclass import dataclass

_WORKERS = "Workers"
_CHECKS = "Checks"


@dataclass(frozen=True)
class RunOptions(RunLimitOptions):
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
