"""onnxtile verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.job import Dim, In, Job, Shape, command
from onnxtile.cli.values import dims, shapes


def verify(
    job: Job,
    model: In,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="the model to compare with", show_default=False)],
    dim: Dim = None,
    shape: Shape = None,
) -> None:
    """Run both models and compare every output; exit 1 when they differ. Example: onnxtile verify a.onnx b.onnx."""
    from onnxtile import api

    with job.progress() as progress:
        result = api.verify(model, other, dims=dims(dim), shapes=shapes(shape), progress=progress)
    job.report(result, "verify")
    if not result.equal:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, verify)
