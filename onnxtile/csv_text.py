"""Writes results as CSV: no name of a model becomes a formula in a spreadsheet, and each name can be read back."""

from __future__ import annotations

import re
from collections.abc import Iterable

_FORMULA = re.compile(r"'*[=+\-@\t\r]")
"""First characters of a formula in a spreadsheet (https://owasp.org/www-community/attacks/CSV_Injection), and the quote."""
_SPECIAL = re.compile(r'^\s|[",\r\n]')
_QUOTED = re.compile(r"'+[=+\-@\t\r]")


def as_csv(rows: Iterable[Iterable[object]]) -> bytes:
    """Return `rows` as a file (RFC 4180, lines end in LF); a text that would be a formula has an apostrophe before it."""
    return "".join(f"{','.join(map(_cell, row))}\n" for row in rows).encode()


def text_of(cell: str) -> str:
    """Return the text that stands in a `cell` which `as_csv` wrote."""
    return cell[1:] if _QUOTED.match(cell) else cell


def _cell(cell: object) -> str:
    """Return a cell; Python's own writer leaves a carriage return, and a space that readers skip, without the quotes they need."""
    text = "" if cell is None else str(cell)
    if isinstance(cell, str) and _FORMULA.match(text):
        text = f"'{text}"
    return '"{}"'.format(text.replace('"', '""')) if _SPECIAL.search(text) else text
