"""What inspect says of quantised models: element types of products, scales, zero points and axes."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from tests import build


def _linear(form: str) -> onnx.ModelProto:
    """Return x (2×8, uint8) times w (8×4, int8, a scale for each column), as QDQ or QLinearMatMul nodes."""
    held = {
        "xs": np.float32(0.5),
        "xz": np.uint8(128),
        "w": np.ones((8, 4), np.int8),
        "ws": np.asarray([1, 2, 3, 4], np.float32),
        "wz": np.zeros(4, np.int8),
    }
    if form == "qdq":
        nodes = [
            helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
            helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=1),
            helper.make_node("MatMul", ["xf", "wf"], ["yf"]),
            helper.make_node("QuantizeLinear", ["yf", "xs", "xz"], ["y"]),
        ]
    else:
        nodes = [helper.make_node("QLinearMatMul", ["x", "xs", "xz", "w", "ws", "wz", "xs", "xz"], ["y"])]
    return build.model(nodes, {"x": (TensorProto.UINT8, [2, 8])}, {"y": (TensorProto.UINT8, [2, 4])}, held)


def _inspected(model: Any) -> dict[str, Any]:
    return api.inspect(model).to_dict()


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_products_are_counted_by_the_stored_types_of_their_factors(form: str) -> None:
    assert _inspected(_linear(form))["macs"]["by_operand_types"] == {"uint8 x int8": 2 * 8 * 4}


def test_a_fused_model_tells_the_same_of_its_kernels() -> None:
    before, after = _inspected(_linear("qdq")), _inspected(api.fuse(_linear("qdq"), ["quantised"]).model)
    assert after["macs"]["by_operand_types"] == before["macs"]["by_operand_types"]
    assert sorted(map(str, after["quantisation"])) == sorted(map(str, before["quantisation"]))


def test_each_tensor_has_its_scales_zero_points_and_axis() -> None:
    found = {one["tensor"]: one for one in _inspected(_linear("qdq"))["quantisation"]}
    assert found["x"] == {
        "tensor": "x", "dtype": "uint8", "scale": [0.5], "zero_point": [128.0], "axis": None, "block_size": None,
    }  # fmt: skip
    assert found["w"]["scale"] == [1, 2, 3, 4]
    assert (found["w"]["dtype"], found["w"]["axis"]) == ("int8", 1)
    assert found["y"]["scale"] == [0.5]


def test_packed_weights_are_named_with_their_bits_and_blocks() -> None:
    held = {"w": np.zeros((4, 1, 16), np.uint8), "s": np.full(4, 0.25, np.float32)}
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=32, N=4, bits=4, block_size=32
    )
    told = _inspected(build.model([node], {"x": [2, 32]}, {"y": [2, 4]}, held, com_microsoft=1))
    assert told["macs"]["by_operand_types"] == {"float x int4": 2 * 32 * 4}
    assert (told["quantisation"][0]["dtype"], told["quantisation"][0]["block_size"]) == ("int4", 32)
    # Two operations a product, and one for each weight that is scaled.
    assert told["flops"]["total"] == 2 * 2 * 32 * 4 + 32 * 4


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_scales_of_columns_have_the_axis_of_the_columns(form: str) -> None:
    found = {one["tensor"]: one for one in _inspected(_linear(form))["quantisation"]}
    assert (found["w"]["axis"], found["w"]["scale"]) == (1, [1, 2, 3, 4])


_U8, _F = TensorProto.UINT8, TensorProto.FLOAT
_SCALE = [((), _F, 0.5), ((), _U8, 3)]


def _alone(op: str, operands: list[Any], made: list[tuple[str, int, list[int]]], **attributes: Any) -> onnx.ModelProto:
    """Return a model of one node of onnxruntime's; operands are constants of a shape, an element type and a number, or named inputs."""
    given, held, names = [], [], []
    for place, operand in enumerate(operands):
        if isinstance(operand[0], str):
            given.append(helper.make_tensor_value_info(operand[0], operand[1], operand[2]))
            names.append(operand[0])
        else:
            shape, kind, number = operand
            array = np.full(shape, number, helper.tensor_dtype_to_np_dtype(kind))
            held.append(numpy_helper.from_array(array, f"c{place}"))
            names.append(f"c{place}")
    node = helper.make_node(op, names, [name for name, _, _ in made], domain="com.microsoft", **attributes)
    outputs = [helper.make_tensor_value_info(*one) for one in made]
    return build.model([node], given, outputs, held, com_microsoft=1)


def test_the_tensors_of_a_quantised_concat_and_choice_are_listed() -> None:
    a, b = ("a", _U8, [2, 4]), ("b", _U8, [2, 4])
    joined = _alone("QLinearConcat", [*_SCALE, a, *_SCALE, b, *_SCALE], [("y", _U8, [4, 4])], axis=0)
    chosen = _alone(
        "QLinearWhere", [("c", TensorProto.BOOL, [2, 4]), a, *_SCALE, b, *_SCALE, *_SCALE], [("y", _U8, [2, 4])]
    )
    for model in (joined, chosen):
        found = [(one["tensor"], one["scale"], one["zero_point"]) for one in _inspected(model)["quantisation"]]
        assert found == [(name, [0.5], [3.0]) for name in ("a", "b", "y")]


def test_weights_of_products_with_a_float_result_are_listed() -> None:
    x, w = ("x", _U8, [2, 8]), ((8, 4), _U8, 1)
    scaled = _alone("MatMulIntegerToFloat", [x, w, ((), _F, 0.5), ((4,), _F, 0.25)], [("y", _F, [2, 4])])
    found = {one["tensor"]: one for one in _inspected(scaled)["quantisation"]}
    assert found["x"]["scale"] == [0.5]
    assert (found["c1"]["axis"], found["c1"]["scale"], found["c1"]["zero_point"]) == (1, [0.25] * 4, None)
