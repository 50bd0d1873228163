"""onnxtile match."""

from __future__ import annotations

import typer

from onnxtile.cli.job import In, Job, command


def match(job: Job, model: In, query: str) -> None:
    """List where QUERY matches; exit 1 when nowhere. Example: onnxtile match model.onnx 'MatMul-*>Add'."""
    from onnxtile import api

    with job.progress() as progress:
        result = api.match(model, query, progress=progress)
    job.report(result, "match")
    if not result.matches:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, match)
