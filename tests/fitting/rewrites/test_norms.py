"""Normalisations over rows, which are put together strip by strip."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import onnxtile
from onnxtile.fitting.editing import ModelEdit
from onnxtile.fitting.rewrites.means import sum_norms
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from tests.fitting.networks import run

EXPORTED = """flat = Reshape(a, three) b = InstanceNormalization(flat, gone, gzero) shape = Shape(a) c = Reshape(b, shape)
    d = Mul(c, wide_scale) e = Add(d, wide_bias)"""
"""GroupNorm as torch writes it before opset 18."""
NORMS = {
    "instances": (17, "e = InstanceNormalization(a, scale, bias)"),
    "plain instances": (17, "e = InstanceNormalization<epsilon=0.25>(a, ones, zeros)"),
    "groups": (21, "e = GroupNormalization<num_groups=4>(a, scale, bias)"),
    "groups as exported": (17, EXPORTED),
    "channels, rows and columns": (17, "e = LayerNormalization<axis=1>(a, all_scale, all_bias)"),
    "rows and columns": (17, "e = LayerNormalization<axis=-2, epsilon=0.1>(a, map_scale)"),
}
CHANNELS, ROWS, COLUMNS = 16, 12, 16
MAP = CHANNELS * ROWS * COLUMNS * 4


def normalised(name: str) -> onnx.ModelProto:
    """Return a convolution, a normalisation of its map, and a convolution with half of its channels."""
    opset, norm = NORMS[name]
    proto = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}]>
        g (float[1,3,{ROWS},{COLUMNS}] x) => (float[1,8,{ROWS},{COLUMNS}] y) <float[1,{CHANNELS},{ROWS},{COLUMNS}] e> {{
            a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0) {norm} [relu] r = Relu(e)
            y = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(r, w1) }}"""
    )
    random = np.random.default_rng(0)

    def drawn(*sizes: int) -> Any:
        return random.standard_normal(sizes).astype(np.float32)

    constants: dict[str, Any] = {
        "w0": drawn(CHANNELS, 3, 3, 3),
        "w1": drawn(8, CHANNELS, 3, 3) / 12,
        "scale": drawn(CHANNELS),
        "bias": drawn(CHANNELS),
        "ones": np.ones(CHANNELS, np.float32),
        "zeros": np.zeros(CHANNELS, np.float32),
        "gone": np.ones(4, np.float32),
        "gzero": np.zeros(4, np.float32),
        "wide_scale": drawn(CHANNELS, 1, 1),
        "wide_bias": drawn(CHANNELS, 1, 1),
        "all_scale": drawn(CHANNELS, ROWS, COLUMNS),
        "all_bias": drawn(CHANNELS, ROWS, COLUMNS),
        "map_scale": drawn(ROWS, COLUMNS),
        "three": np.asarray([1, 4, -1], np.int64),
    }
    read = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(numpy_helper.from_array(constants[name], name) for name in constants if name in read)
    return proto


def edited(proto: onnx.ModelProto) -> tuple[ir.Model, list[ir.Node]]:
    """Return a model after the rewrite, and the nodes that went."""
    made = load(proto)
    edit = ModelEdit(made, resolve(made, run=True))
    changed = sum_norms(edit)
    edit.drop_unread()
    return made, changed


@pytest.mark.parametrize("name", NORMS)
def test_sums_normalise_as_the_operator_does(name: str) -> None:
    proto = normalised(name)
    made, changed = edited(proto)
    assert len(changed) == 1
    ops = [node.op_type for node in made.graph]
    assert not any(op.endswith("Normalization") for op in ops)
    assert {"ReduceSum", "ReduceSumSquare"} <= {*ops}
    x = np.random.default_rng(1).standard_normal((1, 3, ROWS, COLUMNS)).astype(np.float32)
    np.testing.assert_allclose(run(ir.to_proto(made), x), run(proto, x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["instances", "groups as exported", "rows and columns"])
def test_no_second_map_lives_beside_one_that_is_normalised(name: str) -> None:
    proto = normalised(name)
    fitted = onnxtile.fit(proto, capacity=MAP + MAP // 4 - 1, budget="0%")
    assert fitted.before.arena >= MAP + MAP // 2
    assert fitted.after.arena < MAP + MAP // 4
    assert fitted.after.macs == fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_a_variance_far_below_the_mean_keeps_its_digits() -> None:
    """The mean of squares without the square of the mean would be off by as much as the variance."""
    proto = normalised("plain instances")
    bias = numpy_helper.from_array(np.full(CHANNELS, 3000, np.float32), "b0")
    proto.graph.initializer.append(bias)
    proto.graph.node[0].input.append("b0")
    x = np.random.default_rng(1).standard_normal((1, 3, ROWS, COLUMNS)).astype(np.float32)
    made, changed = edited(proto)
    assert changed
    np.testing.assert_allclose(run(ir.to_proto(made), x), run(proto, x), rtol=2e-2, atol=2e-2)


def test_a_scale_that_is_computed_is_left() -> None:
    proto = normalised("instances")
    norm = next(node for node in proto.graph.node if node.op_type == "InstanceNormalization")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("given", onnx.TensorProto.FLOAT, [CHANNELS]))
    norm.input[1] = "given"
    assert not edited(proto)[1]


def test_the_last_axis_alone_is_left() -> None:
    proto = normalised("rows and columns")
    norm = next(node for node in proto.graph.node if node.op_type == "LayerNormalization")
    next(attribute for attribute in norm.attribute if attribute.name == "axis").i = 3
    norm.input[1] = "columns"
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(COLUMNS, np.float32), "columns"))
    assert not edited(proto)[1]


def test_a_result_that_is_read_between_the_reshapes_is_normalised_in_the_form_of_the_node() -> None:
    """Groups are one channel to the node: its own result stays, and both readers take it."""
    proto = normalised("groups as exported")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [1, 4, MAP // 16]))
    made, changed = edited(proto)
    assert len(changed) == 1
    assert [value.name for value in made.graph.outputs] == ["y", "b"]
    x = np.random.default_rng(1).standard_normal((1, 3, ROWS, COLUMNS)).astype(np.float32)
    np.testing.assert_allclose(run(ir.to_proto(made), x), run(proto, x), rtol=1e-4, atol=1e-4)


def test_exact_keeps_normalisations() -> None:
    fitted = onnxtile.fit(normalised("instances"), capacity="smallest", tolerance="exact")
    assert "ReduceSum" not in {node.op_type for node in fitted.model.graph}
