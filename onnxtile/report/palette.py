"""The colours of pictures, light enough for black letters on them.

Those of kinds are told apart in print and by the colour-blind (after Okabe and Ito, 2002).
"""

from __future__ import annotations

from onnxtile.report.format import PlanJson
from onnxtile.report.layout import BufferJson

SHARED = "alias"
"""The kind of an activation that lies inside the bytes of another tensor."""

COLORS = {
    "activation": "#7fb2d9",
    SHARED: "#c6dff0",
    "output": "#e69f00",
    "input": "#56b98b",
    "workspace": "#cc79a7",
    "constant": "#bdb76b",
}
CATEGORIES = (
    *("#7fb2d9", "#f2a65a", "#86c99a", "#e48fa8", "#b5a4e0", "#e9cf6b"),
    *("#72cbc6", "#cba68c", "#b9c96f", "#a8c8f0", "#d9a3d3", "#9fb0a2"),
)
"""Colours of groups without an order, the most distinct first."""

GIVEN = "#56b98b"
"""The colour of graph inputs."""

OTHER = "#c3c7cb"
PEAK = "#b2182b"
GAP = "#a6a6a6"
EDGE = "#3d5a73"


def kind_of(row: BufferJson) -> str:
    """Return the kind as which `row` is coloured."""
    return SHARED if row.get("alias") is not None and row["kind"] == "activation" else str(row["kind"])


def kinds(plan: PlanJson) -> list[str]:
    """Return the kinds that a plan has, those with a colour of their own first."""
    found = {kind_of(row) for row in plan["buffers"]}
    return [*(kind for kind in COLORS if kind in found), *sorted(found - COLORS.keys())]


def color(kind: str) -> str:
    """Return the colour of `kind`."""
    return COLORS.get(kind, OTHER)


_RAMP = ("#7ea6e0", "#72c4d4", "#82cfa5", "#b9d67c", "#f0d268", "#f4a765", "#e98a94", "#c79be0")
"""The colours through which a ramp runs."""


def ramp(count: int) -> list[str]:
    """Return `count` colours in even distances along the ramp."""
    return [_between(i / max(count - 1, 1) * (len(_RAMP) - 1)) for i in range(count)]


def _between(at: float) -> str:
    low = min(int(at), len(_RAMP) - 2)
    parts = ((int(_RAMP[low][i : i + 2], 16), int(_RAMP[low + 1][i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(start + (end - start) * (at - low)):02x}" for start, end in parts)
