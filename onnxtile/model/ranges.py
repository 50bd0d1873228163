"""Ranges as users write them: "0:100" means 0 to below 100, "16000" means exactly 16000."""

from __future__ import annotations

import math

from onnxtile.errors import UsageError


def parse_range(text: str) -> tuple[float, float]:
    """Return the ends of the range that `text` names; the second is not in it, unless both are the same. Raises UsageError."""
    low, colon, high = text.partition(":")
    try:
        ends = float(low), float(high if colon else low)
    except ValueError:
        raise UsageError(f"{text!r} is not a range", hint="write LOW:HIGH, as in 0:100") from None
    if not math.isfinite(ends[1] - ends[0]):
        raise UsageError(f"the range {text} is too wide", hint="its ends, and the difference of both, are numbers")
    if colon and not ends[0] < ends[1]:
        raise UsageError(f"the range {text} is empty", hint="HIGH is not in the range, as in Python")
    return ends
