"""onnxtile demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.job import Job, command


def demo(
    job: Job,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where its files go")] = Path("onnxtile-demo"),
) -> None:
    """Fuse, tile, plan and verify a small transformer that ships along.

    Examples:
        onnxtile demo
        onnxtile demo FOLDER --json demo.json
    """
    from onnxtile import demo as tour

    with job.progress() as progress:
        result = tour.demo(folder, progress=progress)
    job.report(result, "demo")


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, demo)
