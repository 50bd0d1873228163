"""A range of bytes."""

from __future__ import annotations

from typing import NamedTuple


class ByteSpan(NamedTuple):
    """The bytes [start, end) of a tensor or buffer."""

    start: int
    end: int
