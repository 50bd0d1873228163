"""A model is raised to a newer opset without a change of what is constant in it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper
from onnxruntime import InferenceSession

from onnxtile.model.constants import Constants
from onnxtile.model.opset import raised
from onnxtile.shapes.resolve import resolve, shapes_of_raised
from onnxtile.system.errors import ModelError


def old_model() -> ir.Model:
    """Return a model of IR version 3, which lists its initializer as an input."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], name="fc"), helper.make_node("Relu", ["h"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, (2, 3)), helper.make_tensor_value_info("w", 1, (3, 4))],
        [helper.make_tensor_value_info("y", 1, (2, 4))],
        [numpy_helper.from_array(np.ones((3, 4), np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)])
    model.ir_version = onnx.IR_VERSION_2017_11_3
    return ir.from_proto(model)


def test_initializers_that_old_models_list_as_inputs_stay_constants() -> None:
    model = raised(old_model(), 11)
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert model.graph.initializers["w"] in Constants(model)


def test_values_that_are_in_both_models_keep_their_shapes() -> None:
    source = old_model()
    model = raised(source, 11)
    shapes = shapes_of_raised(source, resolve(source), model)
    assert shapes is not None
    assert [shapes.dims(value) for node in model.graph for value in node.outputs] == [(2, 4), (2, 4)]


def test_shapes_are_not_carried_to_values_that_the_converter_adds() -> None:
    source = old_model()
    model = raised(source, 11)
    node = ir.Node("", "Abs", [model.graph[0].outputs[0]], outputs=[ir.Value(name="new")])
    model.graph.append(node)
    assert shapes_of_raised(source, resolve(source), model) is None


@pytest.mark.parametrize(
    "text",
    [
        "y = Identity(m)",
        "y = If(c) <then_branch = t () => (bool[2] a) { a = Not(m) }, else_branch = e () => (bool[2] a) { a = Identity(m) }>",
    ],
)
def test_masks_of_dropout_that_are_read_stay_as_they_are(text: str) -> None:
    """onnxruntime fills the mask with False before opset 12, and with True from then on."""
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 11]> g (float[2] x, bool c) => (bool[2] y) {{ d, m = Dropout(x) {text} }}'
    )
    with pytest.raises(ModelError, match="Dropout of opset 11"):
        raised(ir.from_proto(model), 13)


def test_masks_of_dropout_that_nobody_reads_do_not_matter() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 11]> g (float[2] x) => (float[2] d) { d, m = Dropout(x) }'
    )
    assert raised(ir.from_proto(model), 13).graph.opset_imports[""] == 13


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("operator", ["Upsample", "Resize"])
def test_resized_elements_stay_as_they_are(operator: str, mode: str) -> None:
    opset = {"Upsample": 9, "Resize": 10}[operator]
    model = onnx.parser.parse_model(f"""<ir_version: 4, opset_import: ["" : {opset}]>
        g (float[1,2,3,5] x) => (float[1,2,N,M] y) <float[4] s = {{1.0, 1.0, 2.0, 2.0}}> {{ y = {operator}<mode = "{mode}">(x, s) }}""")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 2, 3, 5)).astype(np.float32)}
    newer = ir.to_proto(raised(ir.from_proto(model), 13))
    expected, got = (InferenceSession(one.SerializeToString()).run(None, feeds)[0] for one in (model, newer))
    assert np.array_equal(expected, got)
