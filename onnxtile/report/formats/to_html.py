"""The plan as one interactive page: see report.page."""

from __future__ import annotations

from onnxtile.report.format import Format
from onnxtile.report.page import render

FORMAT = Format("html", ".html", render, "an interactive page: the arena over the steps", picture=True)
