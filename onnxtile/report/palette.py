"""The colour of each kind of tensor in pictures, told apart in print and by the colour-blind (after Okabe and Ito, 2002)."""

from __future__ import annotations

from onnxtile.report.format import Plan
from onnxtile.report.layout import Row

SHARED = "inside another's bytes"
"""What an activation is that owns no bytes."""

COLORS = {
    "activation": "#7fb2d9",
    SHARED: "#c6dff0",
    "output": "#e69f00",
    "input": "#56b98b",
    "workspace": "#cc79a7",
    "constant": "#bdb76b",
}
OTHER = "#b3b3b3"
PEAK = "#b2182b"
GAP = "#a6a6a6"
EDGE = "#3d5a73"


def kind_of(row: Row) -> str:
    """Return the kind as which `row` is coloured."""
    return SHARED if row.get("alias") is not None and row["kind"] == "activation" else str(row["kind"])


def kinds(plan: Plan) -> list[str]:
    """Return the kinds that a plan has, those with a colour of their own first."""
    found = {kind_of(row) for row in plan["buffers"]}
    return [*(kind for kind in COLORS if kind in found), *sorted(found - COLORS.keys())]


def color(kind: str) -> str:
    """Return the colour of `kind`."""
    return COLORS.get(kind, OTHER)
