"""onnxtile pattern new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.help import Group, require_command
from onnxtile.cli.job import Job, command
from onnxtile.errors import UsageError
from onnxtile.printable import escaped


def new(
    job: Job,
    model: Annotated[Path, typer.Option("--from", metavar="MODEL", help="the model that has the nodes")],
    nodes: Annotated[str, typer.Option("--nodes", metavar="A,B,C", help="their names, with commas between")],
    name: Annotated[str, typer.Option("--name", help="what the meta-op is to be called")] = "MyMetaOp",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.toml", help="file to write [stdout]")
    ] = None,
) -> None:
    """Write the pattern for chosen nodes.

    Examples:
        onnxtile pattern new --from model.onnx --nodes Sigmoid_1,Mul_2 --name SiLU -o silu.toml
    """
    from onnxtile import api
    from onnxtile.model.whole import require_writable

    chosen = [part.strip() for part in nodes.split(",") if part.strip()]
    if not chosen:
        raise UsageError(f"--nodes {nodes!r} names no node", hint="onnxtile match MODEL . lists them all")
    if output is not None:
        require_writable(output, source=model)
    with job.progress() as progress:
        result = api.draft_pattern(model, chosen, name, progress=progress)
    job.write(result.to_dict(), {} if output is None else {output: result.text.encode()})
    if output is None and job.as_json != "-":
        sys.stdout.write(result.text)
    if not job.quiet:
        sys.stderr.write(f"the query matches {result.matches} times in {escaped(str(model))}\n")


def add_to(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    group = typer.Typer(cls=Group, help="Write patterns of your own.", rich_markup_mode=None)
    group.callback(invoke_without_command=True)(require_command)  # a group of one command is a group all the same
    command(group, new)
    app.add_typer(group, name="pattern")
