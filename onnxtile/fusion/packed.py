"""Long text as short text: compressed, and written in characters that metadata can have.

bzip2 has one implementation, so the same text gives the same characters everywhere.
"""

from __future__ import annotations

import base64
import bz2

_MOST_BYTES = 2**28
"""Of a text that is unpacked: the records of a model of a million nodes take less."""


def packed(text: bytes) -> str:
    """Return `text` compressed, in base 85."""
    return base64.b85encode(bz2.compress(text)).decode()


def unpacked(text: str) -> bytes:
    """Return the text that `packed` was given. Raises ValueError for anything else, and where it takes more than 256 MiB."""
    decompressor = bz2.BZ2Decompressor()
    try:
        data = decompressor.decompress(base64.b85decode(text), max_length=_MOST_BYTES)
    except (OSError, EOFError) as error:
        raise ValueError(str(error)) from None
    if not decompressor.eof or decompressor.unused_data:
        raise ValueError("it is cut off, or too long")
    return data
