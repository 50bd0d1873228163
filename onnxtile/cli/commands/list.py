"""onnxtile list."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxtile.cli import completion
from onnxtile.cli.job import Job, command

Kind = Annotated[
    str,
    typer.Argument(
        metavar="patterns|planners|orders|targets|formats",
        help="the kind of names",
        show_default=False,
        autocompletion=completion.of(completion.kinds),
    ),
]


def list_names(job: Job, kind: Kind) -> None:
    """List the names that an option takes.

    Examples:
        onnxtile list patterns
        onnxtile list targets --json -
    """
    from onnxtile import api

    job.report(api.option_names(kind), "list")


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, list_names, "list")
