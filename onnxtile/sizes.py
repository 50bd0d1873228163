"""Whole numbers and sizes in bytes, as people write them."""

from __future__ import annotations

import re

_UNITS = {
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 2**10, "m": 2**20, "g": 2**30},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1, "": 1},
}
"""Bytes of a unit, in lower case: k, m and g count by 1,024 as compilers and linkers do, kB, MB and GB by 1,000."""
_DIGITS = 30
"""Of a number, at most: a longer one is a mistake, and Python refuses to read those of more than 4,300."""
LARGEST_COUNT = 2**63 - 1
"""The largest number that an option takes: that of a dimension in ONNX."""
MOST_RUNS = 1_000_000
"""Sets of random inputs that may be asked for."""


def whole(text: str) -> int | None:
    """Return the whole number that `text` is, digits only; None for what is none, or has more than 30 digits.

    >>> whole("262144")
    262144
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def bytes_of(text: str) -> int | None:
    """Return the bytes that "256KiB", "256k", "1.25 MB" or "4096" mean; None for other texts, and where these are no whole bytes.

    >>> bytes_of("1.25KiB")
    1280
    """
    found = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?\s*([a-zA-Z]*)", text.strip())
    if found is None or (unit := _UNITS.get(found[3].lower())) is None:
        return None
    decimals = found[2] or ""
    number, parts = whole(found[1] + decimals), int("1" + "0" * len(decimals))
    return None if number is None or number * unit % parts else number * unit // parts
