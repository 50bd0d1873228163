"""Rows that Resize and Pad take from neighbours: strips of every mode and size give what onnxruntime gives for the whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.fitting.axis_maps import Uncut, links
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.region import Cut
from onnxtile.fitting.regions import FitSchedule, RegionCost, Regions
from onnxtile.fitting.unblocking.unblock import UnblockedModel, unblock
from onnxtile.fitting.write import write
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.model.shapes import resolve
from tests.fitting.test_axis_maps import facts_of

WAYS = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"]


def _run(proto: onnx.ModelProto, x: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


def _chain(op: str, constants: dict[str, Any], rows: int, **attributes: Any) -> onnx.ModelProto:
    """Return a convolution, a Resize or Pad of its result, and a pooling."""
    weights = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32) / 4
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node(op, ["h", *constants], ["i"], name="one", **attributes),
        helper.make_node("MaxPool", ["i"], ["y"], kernel_shape=[3, 3], strides=[3, 3]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, rows, 9])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", "c", "h", "w"])
    arrays = [numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(weights, "w"), *arrays])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10)


def _cut(proto: onnx.ModelProto, step: int, *, exact: bool) -> tuple[onnx.ModelProto, RegionCost]:
    """Return a model cut into strips of `step` rows of its first operand from end to end, and what the cut costs."""
    made = load(proto)
    shapes = resolve(made, run=True)
    edited = unblock(made, shapes, exact=exact) or UnblockedModel(made, shapes, ())
    constants = Constants(edited.model)
    regions = Regions(read_network(edited.model, edited.shapes, constants, exact=exact))
    cost = regions.cost(0, len(regions.network.kernels), Cut(step))
    assert cost is not None
    write(edited.model, FitSchedule((cost,)), regions, edited.shapes, constants)
    return ir.to_proto(edited.model), cost


@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(["linear", "cubic", "nearest"]),
    way=st.sampled_from(WAYS),
    nearest=st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
    rows=st.integers(12, 24),
    scale=st.tuples(st.sampled_from([1.0, 0.5, 1.3, 2.0, 2.5, 4.0]), st.sampled_from([1.0, 1.7, 2.0])),
    gives_sizes=st.booleans(),
    step=st.integers(1, 4),
)
def test_resized_strips_are_equal(
    mode: str, way: str, nearest: str, rows: int, scale: tuple[float, float], gives_sizes: bool, step: int
) -> None:
    sizes = [1, 4, int(rows * scale[0]), int(9 * scale[1])]
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, *scale], np.float32)
    constants = {"roi": none, "none": none, "sizes": sizes} if gives_sizes else {"roi": none, "scales": scales}
    more = {"nearest_mode": nearest} if mode == "nearest" else {}
    proto = _chain("Resize", constants, rows, mode=mode, coordinate_transformation_mode=way, **more)
    cut, _ = _cut(proto, step, exact=mode == "nearest")
    assert [node.op_type for node in cut.graph.node].count("Conv") > 1
    x = np.random.default_rng(1).standard_normal((1, 2, rows, 9)).astype(np.float32)
    whole, part = _run(proto, x), _run(cut, x)
    assert np.array_equal(whole, part) if mode == "nearest" else np.allclose(whole, part, rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    mode=st.sampled_from(["reflect", "wrap"]),
    rows=st.integers(12, 20),
    pads=st.tuples(*[st.integers(0, 5)] * 4),
    step=st.integers(1, 4),
)
def test_mirrored_strips_are_equal_bit_for_bit(
    mode: str, rows: int, pads: tuple[int, int, int, int], step: int
) -> None:
    given_ = np.asarray([0, 0, *pads[:2], 0, 0, *pads[2:]], np.int64)
    proto = _chain("Pad", {"pads": given_}, rows, mode=mode)
    cut, _ = _cut(proto, step, exact=True)
    # A first row that comes from the other end needs all rows.
    assert mode == "wrap" or [node.op_type for node in cut.graph.node].count("Conv") > 1
    x = np.random.default_rng(1).standard_normal((1, 2, rows, 9)).astype(np.float32)
    assert np.array_equal(_run(proto, x), _run(cut, x))


def test_extra_macs_of_resized_strips_are_those_of_the_written_products() -> None:
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, 2, 2], np.float32)
    cut, cost = _cut(_chain("Resize", {"roi": none, "scales": scales}, 20, mode="linear"), 4, exact=False)
    assert any(node.op_type == "MatMul" for node in cut.graph.node)
    assert cost.macs == onnxtile.inspect(cut).to_dict()["macs"]["total"]


def test_exact_leaves_interpolated_rows_whole() -> None:
    none, scales = np.zeros(0, np.float32), np.asarray([1, 1, 2, 2], np.float32)
    cut, _ = _cut(_chain("Resize", {"roi": none, "scales": scales}, 20, mode="linear"), 4, exact=True)
    assert [node.op_type for node in cut.graph.node].count("Resize") == 1


def test_a_part_that_is_resized_says_why() -> None:
    roi, scales = np.asarray([0, 0, 0, 0, 1, 1, 0.5, 1], np.float32), np.asarray([1, 1, 2, 1], np.float32)
    constants = {"roi": roi, "scales": scales}
    proto = _chain("Resize", constants, 20, mode="linear", coordinate_transformation_mode="tf_crop_and_resize")
    del proto.graph.node[0]
    proto.graph.node[0].input[0] = "x"
    with pytest.raises(Uncut, match="a part of its operand"):
        links(facts_of(proto), 2)
