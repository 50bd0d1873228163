"""Options that say on what inputs a model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.help import SIZES
from onnxtile.cli.values import pairs
from onnxtile.errors import UsageError
from onnxtile.model.ranges import parse_range

Inputs = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE.npz", help="inputs to run on [random ones]", rich_help_panel=SIZES),
]
Range = Annotated[
    list[str] | None,
    typer.Option(
        "--range", metavar="INPUT=LOW:HIGH", help="draw numbers from LOW to below HIGH", rich_help_panel=SIZES
    ),
]


def ranges(options: list[str] | None) -> dict[str, tuple[float, float]]:
    """Return what `--range INPUT=LOW:HIGH`, or `--range INPUT=NUMBER`, allow: from the first to below the second. Raises UsageError."""
    found = {}
    for name, text in pairs(options, "range", "INPUT=LOW:HIGH"):
        try:
            found[name] = parse_range(text)
        except UsageError as error:
            raise UsageError(f"--range {name}={text}: {error}", hint=error.hint) from None
    return found
