"""Writes results as CSV: no name of a model becomes a formula in a spreadsheet or moves a cursor, and each name can be read back."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

_FORMULA = re.compile(r"'*[=+\-@]")
"""First characters of a formula in a spreadsheet (https://owasp.org/www-community/attacks/CSV_Injection), and the quote."""
_SPECIAL = re.compile(r'^\s|[",]')
_QUOTED = re.compile(r"'+[=+\-@]")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
"""An escape of one character, as Python writes it."""


def as_csv(rows: Iterable[Iterable[object]]) -> bytes:
    """Return `rows` as a file (RFC 4180, lines end in LF); a text that would be a formula has an apostrophe before it."""
    return "".join(f"{','.join(map(_cell, row))}\n" for row in rows).encode()


def text_of(cell: str) -> str:
    """Return the text that stands in a `cell` which `as_csv` wrote."""
    return _ESCAPE.sub(_character, cell[1:] if _QUOTED.match(cell) else cell)


def _character(escape: re.Match[str]) -> str:
    number = int(next(filter(None, escape.groups())), 16)
    char = chr(number) if number <= sys.maxunicode else ""
    return escape[0] if char.isprintable() and char != "\\" else char


def _escaped(text: str) -> str:
    """Return `text` with characters that are not printable as `text_of` reads them; what looks so already has its backslash escaped."""
    plain = _ESCAPE.sub(lambda found: f"\\x5c{found[0][1:]}" if _character(found) != found[0] else found[0], text)
    return plain if plain.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in plain)


def _escape(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _cell(cell: object) -> str:
    """Return a cell; Python's own writer leaves a space that readers skip without the quotes it needs."""
    text = "" if cell is None else _escaped(str(cell))
    if isinstance(cell, str) and _FORMULA.match(text):
        text = f"'{text}"
    return '"{}"'.format(text.replace('"', '""')) if _SPECIAL.search(text) else text
