"""Bytes for people."""

from __future__ import annotations

import math

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def unit_of(size: int) -> tuple[int, str]:
    """Return the largest unit that is not above `size` bytes: its bytes and its name."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return 1 << 10 * power, _UNITS[power]


def readable(size: int) -> str:
    """Return `size` bytes with three digits: "512 bytes", "6.89 MiB"."""
    unit, name = unit_of(size)
    digits = 0 if size % unit == 0 else max(0, 3 - len(str(size // unit)))
    # Half of the last digit goes up, as in the page.
    value = math.floor(size / unit * 10**digits + 0.5) / 10**digits
    return f"{value:,.{digits}f} {name}"
