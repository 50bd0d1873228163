"""Names inside rectangles: which fit, how large, and how shortened."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

_ASPECT = 0.62
"""Width of a character of a sans-serif face, in its size."""

_LINE = 1.25
"""Height of a line, in its size."""

_LEAST = 6
"""Characters without which a shortened name says nothing."""

_PLAIN = re.compile(r"_output_0$")
"""The end of all names that PyTorch's exporter writes."""


@dataclass(frozen=True)
class Box:
    """A rectangle in points with a name, and more text that follows the name where both fit."""

    name: str
    more: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Label:
    """A text centred at x, y; `size` in points."""

    text: str
    x: float
    y: float
    size: float
    upright: bool


def fitting(boxes: Iterable[Box], smallest: float, largest: float, line: float | None = None) -> Iterator[Label]:
    """Yield a label for each box in which one fits with characters between `smallest` and `largest` points, along its longer side.

    A label keeps clear of a vertical `line`, where it fits beside it.
    """
    for box in boxes:
        label = _label(beside(box, line), smallest, largest) or _label(box, smallest, largest)
        if label is not None:
            yield label


def beside(box: Box, line: float | None) -> Box:
    """Return the wider part of `box` beside a vertical `line`; all of it where that does not cross."""
    if line is None or not box.x < line < box.x + box.width:
        return box
    left, right = line - box.x, box.x + box.width - line
    return replace(box, width=left) if left > right else replace(box, x=line, width=right)


def _label(box: Box, smallest: float, largest: float) -> Label | None:
    upright = box.height > box.width
    length, depth = (box.height, box.width) if upright else (box.width, box.height)
    if depth / _LINE < smallest:
        return None
    text = shortened(box.name, box.more, int(length / (_ASPECT * smallest)))
    size = min(largest, depth / _LINE, length / (_ASPECT * max(len(text), 1)))
    if not text:
        return None
    return Label(text, box.x + box.width / 2, box.y + box.height / 2, round(size, 2), upright)


def shortened(name: str, more: str, room: int) -> str:
    """Return `name`, and `more` if that fits too, in at most `room` characters; else its end, where names differ; else nothing.

    The end is of whole parts of the path, if one fits.
    """
    short = _PLAIN.sub("", name)
    for text in (name + more, short + more, short):
        if len(text) <= room:
            return text
    if room < _LEAST:
        return ""
    at = short.find("/", max(1, len(short) - room + 1))
    return f"…{short[at if at >= 0 else len(short) - room + 1 :]}"
