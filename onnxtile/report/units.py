"""Bytes for people."""

from __future__ import annotations

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def unit_of(size: int) -> tuple[int, str]:
    """Return the largest unit that is not above `size` bytes: its bytes and its name."""
    power = min(max(size.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return 1 << 10 * power, _UNITS[power]


def readable(size: int) -> str:
    """Return `size` bytes with three digits: "512 bytes", "6.89 MiB"."""
    unit, name = unit_of(size)
    value = size / unit
    digits = 0 if size % unit == 0 else 3 - len(str(int(value)))
    return f"{value:,.{max(digits, 0)}f} {name}"
