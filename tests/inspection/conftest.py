"""What the tests of this room share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from models.make_mobilenet_v2 import mobilenet_v2
from onnxtile.inspection.summary import Inspection, summarise
from onnxtile.model.load import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="graph")
def _graph() -> Callable[..., Inspection]:
    """Give a function that inspects a graph in ONNX text."""

    def look(text: str, *, opset: int = 17, training: bool = False, functions: str = "") -> Inspection:
        opsets = f'"": {opset}, "com.microsoft": 1, "local": 1, "foo": 1, "ai.onnx.ml": 3'
        model = onnx.parser.parse_model(f"<ir_version: 10, opset_import: [{opsets}]> {text} {functions}")
        read = load(model)
        return summarise(read, training=read if training else None)

    return look


@pytest.fixture(scope="session", name="mobilenet")
def _mobilenet() -> onnx.ModelProto:
    return mobilenet_v2()
