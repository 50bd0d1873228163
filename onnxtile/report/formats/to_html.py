"""The plan as one interactive page: see report.page."""

from __future__ import annotations

from onnxtile.report.format import Format
from onnxtile.report.page import render

FORMAT = Format("html", ".html", render, picture=True)
