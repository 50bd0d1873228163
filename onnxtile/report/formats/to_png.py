"""The plan as a memory map in PNG: see report.picture."""

from __future__ import annotations

from onnxtile.report.format import Format, Options, Plan
from onnxtile.report.picture import render


def _write(plan: Plan, options: Options) -> bytes:
    return render(plan, options, "png")


FORMAT = Format("png", ".png", _write, "an image of the arena over the steps", picture=True)
