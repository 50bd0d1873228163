"""Rows that Resize and Pad take from neighbours: strips of every mode and size give what onnxruntime gives for the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.operators.node_view import NotApplicable
from onnxtile.operators.table import axis_links
from tests.fitting.networks import cut_into_strips, run
from tests.fitting.test_axis_maps import facts_of

WAYS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


def _chain(op: str, constants: dict[str, Any], rows: int, opset: int = 19, **attributes: Any) -> onnx.ModelProto:
    """Return a convolution, a Resize or Pad of its result, and a pooling."""
    weights = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32) / 4
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node(op, ["h", *constants], ["i"], name="one", **attributes),
        helper.make_node("MaxPool", ["i"], ["y"], kernel_shape=[3, 3], strides=[3, 3]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, rows, 9])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", "c", "h", "w"])
    arrays = [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items() if name]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w"), *arrays])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(["linear", "cubic", "nearest"]),
    way=st.sampled_from(WAYS),
    nearest=st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
    rows=st.integers(12, 24),
    scale=st.tuples(st.sampled_from([1.0, 0.5, 1.3, 2.0, 2.5, 4.0]), st.sampled_from([1.0, 1.7, 2.0])),
    gives_sizes=st.booleans(),
    step=st.integers(1, 4),
    opset=st.sampled_from([11, 13, 17, 19]),
)
def test_resized_strips_are_equal(
    mode: str, way: str, nearest: str, rows: int, scale: tuple[float, float], gives_sizes: bool, step: int, opset: int
) -> None:
    sizes = [1, 4, int(rows * scale[0]), int(9 * scale[1])]
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, *scale], np.float32)
    given_ = {"": none, "sizes": sizes} if gives_sizes else {"scales": scales}
    constants = {"roi" if opset < 13 else "": none, **given_}
    more = {"nearest_mode": nearest} if mode == "nearest" else {}
    way = way if opset > 18 or way != "half_pixel_symmetric" else "half_pixel"
    proto = _chain("Resize", constants, rows, opset, mode=mode, coordinate_transformation_mode=way, **more)
    if gives_sizes:
        proto.graph.node[1].input[:] = ["h", *(["roi", "roi"] if opset < 13 else ["", ""]), "sizes"]
    cut, _ = cut_into_strips(proto, step, exact=mode == "nearest")
    assert [node.op_type for node in cut.graph.node].count("Conv") > 1
    x = np.random.default_rng(1).standard_normal((1, 2, rows, 9)).astype(np.float32)
    whole, part = run(proto, x), run(cut, x)
    assert np.array_equal(whole, part) if mode == "nearest" else np.allclose(whole, part, rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(12, 20),
    pads=st.tuples(*[st.integers(0, 5)] * 4),
    step=st.integers(1, 4),
)
def test_mirrored_strips_are_equal_bit_for_bit(rows: int, pads: tuple[int, int, int, int], step: int) -> None:
    given_ = np.asarray([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64)
    proto = _chain("Pad", {"pads": given_}, rows, mode="reflect")
    cut, _ = cut_into_strips(proto, step, exact=True)
    assert [node.op_type for node in cut.graph.node].count("Conv") > 1
    x = np.random.default_rng(1).standard_normal((1, 2, rows, 9)).astype(np.float32)
    assert np.array_equal(run(proto, x), run(cut, x))


def test_extra_macs_of_resized_strips_are_those_of_the_written_products() -> None:
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, 2, 2], np.float32)
    cut, cost = cut_into_strips(_chain("Resize", {"roi": none, "scales": scales}, 20, mode="linear"), 4, exact=False)
    assert any(node.op_type == "MatMul" for node in cut.graph.node)
    assert cost.macs == onnxtile.inspect(cut).to_dict()["macs"]["total"]


def test_exact_leaves_interpolated_rows_whole() -> None:
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, 2, 2], np.float32)
    cut, _ = cut_into_strips(_chain("Resize", {"roi": none, "scales": scales}, 20, mode="linear"), 4, exact=True)
    assert [node.op_type for node in cut.graph.node].count("Resize") == 1


def test_a_part_that_is_resized_says_why() -> None:
    roi, scales = np.asarray([0, 0, 0, 0, 1, 1, 0.5, 1], np.float32), np.asarray([1, 1, 2, 1], np.float32)
    constants = {"roi": roi, "scales": scales}
    proto = _chain("Resize", constants, 20, mode="linear", coordinate_transformation_mode="tf_crop_and_resize")
    del proto.graph.node[0]
    proto.graph.node[0].input[0] = "x"
    with pytest.raises(NotApplicable, match="a part of its operand"):
        axis_links(facts_of(proto), 2)


def test_whole_rows_in_chunks_of_channels_are_mirrored() -> None:
    pads = np.asarray([0, 0, 2, 2, 0, 0, 2, 2], np.int64)
    proto = _chain("Pad", {"pads": pads}, 16, mode="reflect")
    weights = np.random.default_rng(1).standard_normal((2, 4, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(weights, "v"))
    proto.graph.node[2].CopyFrom(helper.make_node("Conv", ["i", "v"], ["y"]))
    cut, cost = cut_into_strips(proto, 0, exact=False, chunks=((0, 2),))
    assert cost.cut.chunks and [node.op_type for node in cut.graph.node].count("Pad") == 4
    x = np.random.default_rng(1).standard_normal((1, 2, 16, 9)).astype(np.float32)
    assert np.allclose(run(proto, x), run(cut, x), rtol=1e-5, atol=1e-5)
