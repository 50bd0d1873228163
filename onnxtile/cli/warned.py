"""Prints warnings of the library, a line each, on stderr."""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

from onnxtile.system.errors import ModelWarning, error_line


def show_warnings() -> None:
    """Print each ModelWarning once, as one line on stderr, and none with --quiet; other warnings stay as they are."""
    usual, said = warnings.showwarning, set[str]()
    quiet = not {"-q", "--quiet"}.isdisjoint(sys.argv)

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, ModelWarning):
            usual(message, category, filename, lineno, file, line)
            return
        text = error_line(str(message), None)
        if not quiet and text not in said:
            said.add(text)
            sys.stderr.write(f"warning: {text}\n")

    warnings.showwarning = show
    warnings.filterwarnings("always", category=ModelWarning)
