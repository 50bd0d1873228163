"""Formulas of sizes as people write them."""

from __future__ import annotations

import re


def in_words(formula: str) -> str:
    """Return an expression of Python as people write it.

    >>> in_words("1024*batch*seq**2 + 64")
    '1,024·batch·seq² + 64'
    """
    text = re.sub(r"\*\*(\d+)", lambda power: power[1].translate(_RAISED), formula)
    return re.sub(r"\b\d{4,}\b", lambda number: f"{int(number[0]):,}", text.replace("*", "·"))


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
