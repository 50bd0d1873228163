"""Parts of C sources: comments, texts, numbers and lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

_LONGEST = 4000
"""Bytes of a text, at most: C99 (5.2.4.1) takes 4,095 characters."""


def comment(text: str) -> str:
    """Return `text` so that it can neither end nor begin a comment, whatever the names of tensors."""
    kept = "".join(char if char.isprintable() and char not in "\\?" else "_" for char in text)
    return kept.replace("*/", "*_").replace("/*", "_*")


def literal(text: str) -> str:
    """Return `text` in UTF-8 as a string literal; of a very long text the end is kept. Nothing in it ends or begins a comment."""
    data = text.encode(errors="surrogatepass")[-_LONGEST:]
    content = "".join(chr(byte) if _is_plain(byte) else _octal(byte) for byte in data)
    return '"' + content.replace("*/", "*" + _octal(ord("/"))).replace("/*", "/" + _octal(ord("*"))) + '"'


def _octal(byte: int) -> str:
    return f"\\{byte:03o}"


def _is_plain(byte: int) -> bool:
    # Of "??", "\\" and '"' a compiler makes something else.
    return 32 <= byte < 127 and byte not in b'?\\"'


def whole_number(number: int) -> str:
    """Return `number`, of 64 bits, as a constant expression: the smallest one has no literal."""
    return str(number) if number > -(2**63) else f"({number + 1} - 1)"


def float_number(number: float | str) -> str:
    """Return `number` as a constant expression; one that is not finite needs math.h."""
    value = float(number)
    if math.isnan(value):
        return "NAN"
    return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}INFINITY"


def array(declaration: str, count: str, rows: Iterable[str], empty: str = "0") -> Iterator[str]:
    """Yield the lines of a constant array. Without rows it has the one element `empty`, because C has no empty array."""
    lines = list(rows)
    yield f"static const {declaration}[{count if lines else 1}] = {{"
    yield from (f"    {line}," for line in lines or [empty])
    yield "};"
