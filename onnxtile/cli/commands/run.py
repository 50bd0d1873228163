"""onnxtile run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.completion import backends, of
from onnxtile.cli.help import WRITING
from onnxtile.cli.job import Job, command

_WORKERS = "Workers"


def run(
    job: Job,
    pipeline: Annotated[Path, typer.Argument(metavar="PIPELINE", help="a pipeline file", show_default=False)],
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IN", help="ONNX models [those the file names]", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FOLDER", help="where files go [beside each model]", rich_help_panel=WRITING
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", metavar="N", help="models worked on at a time", rich_help_panel=_WORKERS),
    ] = 1,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="NAME",
            help="loky, threading, dask or ray",
            rich_help_panel=_WORKERS,
            autocompletion=of(backends),
        ),
    ] = "loky",
    scheduler: Annotated[
        str | None,
        typer.Option("--scheduler", metavar="ADDRESS", help="a cluster's, for dask and ray", rich_help_panel=_WORKERS),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="allow a model to be written over itself", rich_help_panel=WRITING)
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write nothing", rich_help_panel=WRITING)] = False,
) -> None:
    """Take models through the steps of a file; exit 1 when any failed.

    Examples:
        onnxtile run deploy.toml models/*.onnx --jobs 2
        onnxtile run deploy.toml model.onnx -o build --json summary.json
        onnxtile run deploy.toml models/*.onnx --backend dask --scheduler tcp://host:8786
    """
    from onnxtile.pipeline.file import from_file
    from onnxtile.pipeline.many import run as run_all
    from onnxtile.pipeline.place import Place
    from onnxtile.pipeline.workers import Workers

    steps = from_file(pipeline)
    steps = replace(steps, limits=job.limits.or_else(steps.limits))
    workers = Workers(jobs, backend, scheduler)
    reserved = [pipeline, *([Path(job.as_json)] if job.as_json not in {None, "-"} else [])]
    with job.progress() as progress:
        result = run_all(steps, models or (), Place(output, force, dry_run), workers, progress, reserved)
    job.report(result, "run")
    if not result.passed:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, run)
