"""onnxtile demo."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.job import Job, command
from onnxtile.printable import escaped


def demo(
    job: Job,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="where its files go")] = Path("onnxtile-demo"),
) -> None:
    """Go the whole way on a small transformer that ships along: fuse, tile, plan, verify.

    Examples:
        onnxtile demo
        onnxtile demo FOLDER --json demo.json
    """
    from onnxtile import demo as tour

    with job.progress() as progress:
        result = tour.demo(folder, progress=progress)
    job.report(result, "demo")
    if job.quiet or job.as_json == "-":
        return
    sys.stdout.write(
        f"The files are in {escaped(str(folder))}/. Open transformer.fused.plan.html in a browser to see the arena step by step,\n"
        "and transformer.fused.onnx in a viewer such as Netron. Then use a model of your own:\n"
        "  onnxtile fuse MODEL.onnx -o fused.onnx && onnxtile tile fused.onnx --max 64 -o tiled.onnx && "
        "onnxtile plan tiled.onnx --emit plan.html\n"
    )


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, demo)
