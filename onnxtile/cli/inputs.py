"""Options that say on what inputs a model runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.values import pairs
from onnxtile.errors import UsageError

Inputs = Annotated[
    Path | None, typer.Option("--inputs", metavar="FILE.npz", help="inputs to run on [random ones]", show_default=False)
]
Range = Annotated[
    list[str] | None,
    typer.Option("--range", metavar="INPUT=LOW:HIGH", help="draw an input's numbers from LOW to below HIGH"),
]


def ranges(options: list[str] | None) -> dict[str, tuple[float, float]]:
    """Return what `--range INPUT=LOW:HIGH`, or `--range INPUT=NUMBER`, allow: from the first to below the second. Raises UsageError."""
    found = {}
    for name, text in pairs(options, "range", "INPUT=LOW:HIGH"):
        low, colon, high = text.partition(":")
        try:
            ends = float(low), float(high if colon else low)
        except ValueError:
            raise UsageError(
                f"--range {name}={text}: {text!r} is not a range", hint="write LOW:HIGH, as in 0:100"
            ) from None
        if colon and ends[1] <= ends[0]:
            raise UsageError(f"--range {name}={text} has nothing in it", hint="HIGH is not in the range, as in Python")
        found[name] = ends
    return found
