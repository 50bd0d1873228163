"""The plan as a memory map in SVG: see report.picture."""

from __future__ import annotations

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.picture import render


def _write(plan: PlanJson, options: RenderOptions) -> bytes:
    return render(plan, options, "svg")


FORMAT = Format("svg", ".svg", _write, "a vector image of the arena over the steps", picture=True, needs="matplotlib")
