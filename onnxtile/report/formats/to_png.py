"""The plan as a memory map in PNG: see report.picture."""

from __future__ import annotations

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.picture import render


def _write(plan: PlanJson, options: RenderOptions) -> bytes:
    return render(plan, options, "png")


FORMAT = Format("png", ".png", _write, "an image of the arena over the steps", picture=True, needs="matplotlib")
