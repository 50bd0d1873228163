"""Sizes in bytes, as people write them."""

from __future__ import annotations

import re

_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1, "": 1}


def bytes_of(text: str) -> int | None:
    """Return the bytes that "256KiB", "1 MB" or "4096" mean; None for what is no such text.

    >>> bytes_of("256KiB")
    262144
    """
    found = re.fullmatch(r"(\d+)\s*([a-zA-Z]*)", text.strip())
    unit = None if found is None else _UNITS.get(found[2].lower())
    return None if found is None or unit is None else int(found[1]) * unit
