"""Small models, and models with weights in files, that all tests of this room share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests import build
from tests.build import Text


@pytest.fixture(name="text")
def _text() -> Text:
    """Give a function that reads a model in ONNX text: its graph, and its functions."""

    def parse(graph: str, *, functions: str = "", ir_version: int = 10, opset: int = 17) -> onnx.ModelProto:
        opsets = f'"": {opset}, "local": 1, "foo": 1'
        return onnx.parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{opsets}]> {graph} {functions}")

    return parse


@pytest.fixture(name="small")
def _small(text: Text) -> onnx.ModelProto:
    return text("g (float[N, 3] x) => (float[N, 3] y) <float[3] w = {1, 2, 3}> { h = Relu(x) y = Add(h, w) }")


@pytest.fixture(name="external")
def _external(tmp_path: Path) -> Path:
    """A model whose 4000 bytes of weights lie beside it, in a folder of its own."""
    folder = tmp_path / "in"
    folder.mkdir()
    weights = numpy_helper.from_array(np.arange(1000, dtype=np.float32), "w")
    tiny = numpy_helper.from_array(np.array([1000], np.int64), "s")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1000]) for name in "xy")
    nodes = [helper.make_node("Add", ["x", "w"], ["h"]), helper.make_node("Reshape", ["h", "s"], ["y"])]
    model = build.model(nodes, [x], [y], [weights, tiny])
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


@pytest.fixture(name="value_of")
def _value_of() -> Callable[[ir.Model, str], ir.Value]:
    """Give a function that finds a value by its name, in any graph."""

    def find(model: ir.Model, name: str) -> ir.Value:
        for graph in model.graphs():
            outputs = (output for node in graph for output in node.outputs)
            for value in (*graph.inputs, *graph.initializers.values(), *outputs):
                if value.name == name:
                    return value
        raise KeyError(name)

    return find
