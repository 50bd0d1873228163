"""What the library warns of, as lines on stderr."""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

from onnxtile.errors import ModelWarning

_LONGEST = 500
"""Characters of the longest line: what it quotes stands in a file, and may be of any length."""


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
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(message))[:_LONGEST]
        if not quiet and text not in said:
            said.add(text)
            sys.stderr.write(f"warning: {text}\n")

    warnings.showwarning = show
    warnings.filterwarnings("always", category=ModelWarning)
