"""The plan as a memory map in SVG: see report.picture."""

from __future__ import annotations

from onnxtile.report.format import Format, Options, Plan
from onnxtile.report.picture import render


def _write(plan: Plan, options: Options) -> bytes:
    return render(plan, options, "svg")


FORMAT = Format("svg", ".svg", _write, "a vector image of the arena over the steps", picture=True)
