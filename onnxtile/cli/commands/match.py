"""onnxtile match."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxtile.cli.job import In, Job, command

Query = Annotated[str, typer.Argument(metavar="QUERY", help="a graph query", show_default=False)]


def match(job: Job, model: In, query: Query) -> None:
    """List where a query matches; exit 1 when nowhere.

    Examples:
        onnxtile match model.onnx 'MatMul-*>Add'
        onnxtile match model.onnx 'Conv[group == 1]->Relu' --json -
    """
    from onnxtile import api

    with job.progress() as progress:
        result = api.match(model, query, progress=progress)
    job.report(result, "match")
    if not result.matches:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, match)
