"""Fragments: parts of queries that the variants of a pattern file share, each written once and named in braces: `{chain}`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnxtile.errors import PatternError, unknown
from onnxtile.query.syntax import Span

_REFERENCE = re.compile(r"\{\s*([A-Za-z_]\w*)\s*\}")
_MAX_LENGTH = 100_000
"""Characters of a query with all fragments in place; the parser takes less."""


@dataclass(frozen=True)
class _Piece:
    """Characters of an expanded text, and their source: the text itself (None) or a fragment, from `start` on."""

    text: str
    fragment: str | None
    start: int


@dataclass(frozen=True)
class Expanded:
    """A query or condition with its fragments in place."""

    pieces: tuple[_Piece, ...]

    @property
    def text(self) -> str:
        """The text that is parsed."""
        return "".join(piece.text for piece in self.pieces)

    def origin(self, span: Span) -> tuple[str | None, Span]:
        """Return the fragment in which a span of the text begins (None: no fragment), and the span there, cut at its end."""
        end = 0
        for piece in self.pieces:
            begin, end = end, end + len(piece.text)
            if span[0] < end:
                break
        start = piece.start + span[0] - begin
        return piece.fragment, (start, piece.start + min(span[1], max(end, span[0] + 1)) - begin)


def expanded(text: str, fragments: Mapping[str, str]) -> Expanded:
    """Return `text` with the `fragments` it names, and those that these name, in place.

    Raises PatternError for an unknown fragment, for one that contains itself, and where the text becomes too long.
    """
    pieces: list[_Piece] = []
    length = 0
    for piece in _pieces(text, fragments):
        length += len(piece.text) + 1  # an empty piece takes time as well
        if length > _MAX_LENGTH:
            raise PatternError(f"with its fragments this is longer than {_MAX_LENGTH:,} characters")
        pieces.append(piece)
    return Expanded(tuple(pieces) or (_Piece("", None, 0),))


def _pieces(text: str, fragments: Mapping[str, str]) -> Iterator[_Piece]:
    """Yield the pieces of `text` in order. Fragments may name one another in any depth, so that what is open stands in a table."""
    open_: dict[str | None, tuple[str, int]] = {None: (text, 0)}
    while open_:
        name, (text, done) = open_.popitem()
        reference = _REFERENCE.search(text, done)
        yield _Piece(text[done : None if reference is None else reference.start()], name, done)
        if reference is None:
            continue
        inner = reference[1]
        open_[name] = text, reference.end()
        if inner not in fragments:
            error = unknown("fragment", inner, fragments)
            raise PatternError(str(error), hint=error.hint if fragments else "name it in a table [fragments]")
        if inner in open_:
            above = " > ".join(filter(None, (*open_, inner)))
            raise PatternError(f"the fragment {inner!r} contains itself: {above}")
        open_[inner] = fragments[inner], 0
