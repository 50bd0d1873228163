"""The script that quantises models, and what plan makes of a model in each of its forms."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.make_quantised import quantise
from onnxtile import api
from tests import build


def _network(file: Path) -> Path:
    """Write Conv, Relu, a residual Add, GlobalAveragePool and MatMul."""
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((generator.standard_normal(shape) / 4).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "b"], ["d"], pads=[1, 1, 1, 1], name="conv2"),
        helper.make_node("Add", ["d", "r"], ["s"], name="add"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w"], ["y"], name="product"),
    ]
    held = [weight("a", 32, 3, 3, 3), weight("b", 32, 32, 3, 3), weight("w", 32, 10)]
    onnx.save(build.model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 10]}, held, ir_version=8), file)
    return file


@pytest.mark.parametrize("form", ["qdq", "qdq-u8s8", "qoperator", "dynamic", "int4", "int4-qdq"])
def test_a_model_in_each_form_is_planned_and_run(form: str, tmp_path: Path) -> None:
    source, target = _network(tmp_path / "float.onnx"), tmp_path / "quantised.onnx"
    quantise(source, form, target)
    planned, floats = api.plan(target), api.plan(source)
    assert planned.verdict is not None and planned.verdict.equal
    assert planned.plan.unplanned == ()
    assert planned.plan.constant_bytes < floats.plan.constant_bytes
    if form.startswith("q"):
        assert planned.plan.arena_size <= floats.plan.arena_size / 4 + 64


def test_a_transposed_weight_that_the_model_computes_is_quantised(tmp_path: Path) -> None:
    """The quantiser turns Gemm into MatMul and transposes the weight, whose old shape the model describes."""
    source, target = tmp_path / "float.onnx", tmp_path / "quantised.onnx"
    ones = numpy_helper.from_array(np.ones(1, np.float32), "value")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["w"], value=ones, name="fill"),
        helper.make_node("Gemm", ["x", "w"], ["y"], transB=1, name="product"),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 16])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])]
    described = [helper.make_tensor_value_info("w", TensorProto.FLOAT, [8, 16])]
    shape = numpy_helper.from_array(np.asarray([8, 16]), "shape")
    graph = helper.make_graph(nodes, "g", given, made, [shape], value_info=described)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    quantise(source, "dynamic", target)
    assert "MatMulInteger" in {node.op_type for node in onnx.load(target).graph.node}


def _gated(file: Path) -> Path:
    """Write a decomposed HardSwish that a pool and a product read, then ConvTranspose, BatchNormalization and Relu."""
    generator = np.random.default_rng(0)

    def held(name: str, array: np.ndarray) -> onnx.TensorProto:
        return numpy_helper.from_array(array.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], pads=[1, 1, 1, 1], name="conv"),
        helper.make_node("Add", ["c", "three"], ["more"], name="add"),
        helper.make_node("Clip", ["more", "zero", "six"], ["clipped"], name="clip"),
        helper.make_node("Mul", ["c", "clipped"], ["product"], name="mul"),
        helper.make_node("Div", ["product", "six"], ["swish"], name="div"),
        helper.make_node("GlobalAveragePool", ["swish"], ["pooled"], name="pool"),
        helper.make_node("Mul", ["swish", "pooled"], ["gated"], name="gate"),
        helper.make_node("ConvTranspose", ["gated", "b"], ["up"], strides=[2, 2], name="up"),
        helper.make_node("BatchNormalization", ["up", "s", "m", "m", "s"], ["norm"], name="norm"),
        helper.make_node("Relu", ["norm"], ["relu"], name="relu"),
        helper.make_node("Conv", ["relu", "d"], ["y"], name="last"),
    ]
    normal = generator.standard_normal
    weights = [
        *(held(name, np.asarray(number)) for name, number in (("zero", 0), ("three", 3), ("six", 6))),
        *(held("a", normal((32, 3, 3, 3))), held("b", normal((32, 8, 2, 2))), held("d", normal((1, 8, 1, 1)))),
        *(held("s", np.ones(8)), held("m", np.zeros(8))),
    ]
    onnx.save(build.model(nodes, {"x": [1, 3, 16, 16]}, {"y": [1, 1, 32, 32]}, weights, ir_version=8), file)
    return file


def test_qoperator_and_qdq_forms_need_the_same_arena(tmp_path: Path) -> None:
    """The quantiser leaves the division, ConvTranspose and BatchNormalization in float where it writes QLinear operators."""
    source, arenas = _gated(tmp_path / "float.onnx"), {}
    for form in ("qdq", "qoperator"):
        quantise(source, form, tmp_path / f"{form}.onnx")
        planned = api.plan(tmp_path / f"{form}.onnx")
        assert planned.verdict is not None and planned.verdict.equal
        arenas[form] = planned.plan.arena_size
    assert arenas["qoperator"] <= 1.01 * arenas["qdq"]


def _residuals(file: Path) -> Path:
    """Write three blocks of two Convs, whose residuals are Sums followed by Relu."""
    generator = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array((generator.standard_normal((16, wide, 3, 3)) / 8).astype(np.float32), f"w{place}")
        for place, wide in enumerate([3, *[16] * 6])
    ]
    nodes = [helper.make_node("Conv", ["x", "w0"], ["r0"], pads=[1, 1, 1, 1], name="stem")]
    for block in range(3):
        first, second = f"w{2 * block + 1}", f"w{2 * block + 2}"
        nodes += [
            helper.make_node("Conv", [f"r{block}", first], [f"a{block}"], pads=[1, 1, 1, 1], name=f"first{block}"),
            helper.make_node("Conv", [f"a{block}", second], [f"b{block}"], pads=[1, 1, 1, 1], name=f"second{block}"),
            helper.make_node("Sum", [f"b{block}", f"r{block}"], [f"s{block}"], name=f"sum{block}"),
            helper.make_node("Relu", [f"s{block}"], [f"r{block + 1}"], name=f"relu{block}"),
        ]
    made = {"r3": [1, 16, 16, 16]}
    onnx.save(build.model(nodes, {"x": [1, 3, 16, 16]}, made, weights, opset=13, ir_version=8), file)
    return file


def test_residuals_that_are_sums_are_quantised_in_both_forms(tmp_path: Path) -> None:
    """A float sum of many quantised tensors needs the bytes of all of them, in every plan that keeps its bits."""
    source, arenas = _residuals(tmp_path / "float.onnx"), {}
    for form in ("qdq", "qoperator"):
        quantise(source, form, tmp_path / f"{form}.onnx")
        arenas[form] = api.plan(tmp_path / f"{form}.onnx", io="outside").plan.arena_size
    assert arenas["qoperator"] <= 1.01 * arenas["qdq"]


def _kinds(file: Path) -> tuple[Path, set[str]]:
    """Write a chain of operators of many kinds; return their types, too."""
    generator = np.random.default_rng(0)

    def held(name: str, array: np.ndarray) -> onnx.TensorProto:
        return numpy_helper.from_array(array, name)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return held(name, (generator.standard_normal(shape) / 4).astype(np.float32))

    steps: list[tuple[str, list[str], dict[str, Any]]] = [
        ("Conv", ["stem"], {"pads": [1, 1, 1, 1]}),
        ("HardSwish", [], {}),
        ("Conv", ["depthwise"], {"pads": [1, 1, 1, 1], "group": 8}),
        ("Sigmoid", [], {}),
        ("MaxPool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("ConvTranspose", ["up"], {"strides": [2, 2]}),
        ("Pad", ["pads"], {}),
        ("AveragePool", [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("Resize", ["", "scales"], {"mode": "nearest"}),
        ("InstanceNormalization", ["ones8", "zeros8"], {}),
        ("Transpose", [], {"perm": [0, 2, 3, 1]}),
        ("Reshape", ["rows"], {}),
        ("LayerNormalization", ["ones8", "zeros8"], {}),
        ("MatMul", ["square"], {}),
        ("Gelu", [], {}),
        ("Softmax", [], {}),
        ("ReduceMean", ["one"], {"keepdims": 0}),
        ("Gemm", ["square", "zeros8"], {}),
        ("Mul", ["square"], {}),
        ("Add", ["square"], {}),
    ]
    nodes, last = [], "x"
    for place, (op, inputs, attributes) in enumerate(steps):
        nodes.append(helper.make_node(op, [last, *inputs], [f"v{place}"], name=f"n{place}", **attributes))
        last = f"v{place}"
    nodes.append(helper.make_node("Split", [last], ["left", "right"], name="split", axis=1, num_outputs=2))
    nodes.append(helper.make_node("Concat", ["right", "left"], ["y"], name="join", axis=1))
    weights = [
        *(
            weight("stem", 8, 3, 3, 3),
            weight("depthwise", 8, 1, 3, 3),
            weight("up", 8, 8, 2, 2),
            weight("square", 8, 8),
        ),
        *(held("ones8", np.ones(8, np.float32)), held("zeros8", np.zeros(8, np.float32))),
        *(held("pads", np.asarray([0, 0, 1, 1, 0, 0, 1, 1])), held("scales", np.asarray([1, 1, 2, 2], np.float32))),
        *(held("rows", np.asarray([1, -1, 8])), held("one", np.asarray([1]))),
    ]
    onnx.save(build.model(nodes, {"x": [1, 3, 16, 16]}, {"y": [8, 8]}, weights, opset=20, ir_version=9), file)
    return file, {node.op_type for node in nodes}


def test_every_kind_of_operator_that_the_quantiser_leaves_is_an_island(tmp_path: Path) -> None:
    source, kinds = _kinds(tmp_path / "float.onnx")
    quantise(source, "qdq", tmp_path / "qdq.onnx")
    fused = api.fuse(tmp_path / "qdq.onnx", ["quantised"])
    left = {node.op_type for node in fused.model.graph} & kinds
    assert fused.verdict is not None and fused.verdict.equal
    assert left == set()
