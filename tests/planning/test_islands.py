"""Plans of quantised models: islands are kernels, their bytes are those of stored tensors, and the check knows views by itself."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.declare.plan_document import KernelCount, document_of
from onnxtile.system.errors import UsageError
from tests import build
from tests.bench.ideal_arena import ideal, tensor_sizes
from tests.fusion.test_islands import quantised_attention

SCHEMA = Path(__file__).parents[2] / "docs" / "plan.schema.json"


def _residual(scale: float = 0.05) -> onnx.ModelProto:
    """Return Conv -> Sigmoid beside it -> Add of both -> Reshape whose result has `scale`, between 8-bit ports."""
    nodes: list[onnx.NodeProto] = []
    held = {
        "s": np.float32(0.05),
        "t": np.asarray(scale, np.float32),
        "z": np.int8(1),
        "w": np.ones((4, 4, 3, 3), np.int8),
        "shape": np.asarray([4, 256], np.int64),
    }

    def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], name=f"n_{output}", **attributes))
        return output

    def stored(value: str) -> str:
        add("QuantizeLinear", [value, "s", "z"], f"{value}_q")
        return add("DequantizeLinear", [f"{value}_q", "s", "z"], f"{value}_d")

    weight = add("DequantizeLinear", ["w", "s", "z"], "w_d")
    conv = stored(add("Conv", [stored("x"), weight], "conv", pads=[1, 1, 1, 1]))
    total = stored(add("Add", [stored(add("Sigmoid", [conv], "gate")), conv], "sum"))
    add("QuantizeLinear", [add("Reshape", [total, "shape"], "flat"), "t", "z"], "flat_q")
    return build.model(nodes, {"x": [1, 4, 16, 16]}, {"flat_q": (TensorProto.INT8, [4, 256])}, held)


def test_the_arena_has_the_bytes_of_stored_tensors() -> None:
    proto = _residual()
    result = api.plan(proto).plan
    assert {buffer.dtype for buffer in result.tensors} == {"INT8"}
    assert result.kernels == KernelCount(islands=4, float_tensors=8)
    assert result.arena_size <= ideal(proto, tensor_sizes(proto, {})) == 3072
    assert api.plan(proto, kernels="nodes").plan.arena_size > 2 * result.arena_size


def test_weights_count_as_stored_and_totals_are_told() -> None:
    result = api.plan(_residual()).plan
    assert {one.name: one.size for one in result.constants}["w"] == 4 * 4 * 3 * 3
    assert not any(one.name == "w_d" for one in result.constants)
    told = result.to_dict()
    assert told["totals"] == {"arenas": result.arena_size, "constants": sum(one.size or 0 for one in result.constants)}
    jsonschema.validate(document_of(told), json.loads(SCHEMA.read_text()))


def test_elementwise_islands_write_over_an_operand_of_equal_size() -> None:
    result = api.plan(_residual()).plan
    aliases = {buffer.name: buffer.alias for buffer in result.buffers if buffer.alias is not None}
    assert aliases["sum_q"] in {"conv_q", "gate_q"}
    assert result.arena_size == 2048


def test_a_reshape_between_equal_scales_is_a_view_and_the_check_agrees(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    onnx.save(_residual(), file)
    planned = api.plan(file)
    plan = planned.plan
    rows = {buffer.name: buffer for buffer in plan.buffers}
    assert rows["flat_q"].offset == rows["sum_q"].offset
    assert api.check_plan(file, plan).sound
    api.save(planned.model, tmp_path / "planned.onnx")
    assert api.check_plan(file, tmp_path / "planned.onnx").sound
    told = tmp_path / "plan.json"
    told.write_text(json.dumps(document_of(plan.to_dict())))
    assert api.check_plan(file, told).sound


def test_kernels_of_another_name_are_refused() -> None:
    with pytest.raises(UsageError, match="invalid kernels='all'"):
        api.plan(_residual(), kernels="all")


def test_sums_of_quantised_operators_may_lie_over_their_operands() -> None:
    held = {"s": np.float32(0.1), "z": np.uint8(128)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("QLinearSigmoid", ["a", "s", "z", "s", "z"], ["b"], domain="com.microsoft"),
        helper.make_node("QLinearAdd", ["a", "s", "z", "b", "s", "z", "s", "z"], ["c"], domain="com.microsoft"),
        helper.make_node("QLinearMul", ["c", "s", "z", "c", "s", "z", "s", "z"], ["d"], domain="com.microsoft"),
    ]
    given = {"x": [1, 512]}
    planned = api.plan(build.model(nodes, given, {"d": (TensorProto.UINT8, [1, 512])}, held, com_microsoft=1))
    assert planned.plan.arena_size == 1024
    assert planned.verdict is not None and planned.verdict.equal


def _joined_and_cut(scale: float = 0.05) -> onnx.ModelProto:
    """Return two MaxPools, their Concat along the channels with `scale`, and a Split of it, all between 8-bit ports."""
    nodes: list[onnx.NodeProto] = []
    held = {"s": np.float32(0.05), "t": np.asarray(scale, np.float32), "z": np.int8(1)}

    def stored(value: str, by: str) -> str:
        nodes.append(helper.make_node("QuantizeLinear", [value, by, "z"], [f"{value}_q"], name=f"q_{value}"))
        nodes.append(helper.make_node("DequantizeLinear", [f"{value}_q", by, "z"], [f"{value}_d"], name=f"d_{value}"))
        return f"{value}_d"

    given = stored("x", "s")
    nodes += [helper.make_node("MaxPool", [given], [name], kernel_shape=[1, 1], name=name) for name in ("a", "b")]
    nodes.append(helper.make_node("Concat", [stored("a", "s"), stored("b", "s")], ["c"], axis=1, name="c"))
    nodes.append(helper.make_node("Split", [stored("c", "t")], ["l", "r"], axis=1, name="split"))
    for name in ("l", "r"):
        nodes.append(helper.make_node("GlobalAveragePool", [stored(name, "t")], [f"{name}_mean"], name=f"{name}_mean"))
        nodes.append(helper.make_node("QuantizeLinear", [f"{name}_mean", "t", "z"], [f"{name}_out"]))
    shapes = {"x": [1, 4, 16, 16]}
    return build.model(nodes, shapes, {f"{name}_out": (TensorProto.INT8, [1, 4, 1, 1]) for name in ("l", "r")}, held)


def _joined_by_operator(scale: float = 0.05) -> onnx.ModelProto:
    """Return two max pools of an 8-bit tensor, their QLinearConcat with `scale`, and the mean of it by channel."""
    held = {"s": np.float32(0.05), "t": np.asarray(scale, np.float32), "z": np.uint8(1)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("MaxPool", ["q"], ["a"], kernel_shape=[1, 1], name="a"),
        helper.make_node("MaxPool", ["q"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], name="b"),
        helper.make_node(
            "QLinearConcat", ["t", "z", "a", "s", "z", "b", "s", "z"], ["c"], axis=1, name="c", domain="com.microsoft"
        ),
        helper.make_node(
            "QLinearGlobalAveragePool",
            ["c", "t", "z", "t", "z"],
            ["m"],
            channels_last=0,
            name="m",
            domain="com.microsoft",
        ),
    ]
    return build.model(nodes, {"x": [1, 4, 16, 16]}, {"m": (TensorProto.UINT8, [1, 8, 1, 1])}, held, com_microsoft=1)


@pytest.mark.parametrize(
    ("make", "parts", "whole"),
    [(_joined_and_cut, [("a", "b"), ("l", "r")], "c_q"), (_joined_by_operator, [("a", "b")], "c")],
)
def test_joins_and_cuts_between_equal_scales_copy_nothing(
    tmp_path: Path, make: Callable[[], onnx.ModelProto], parts: list[tuple[str, str]], whole: str
) -> None:
    file, end = tmp_path / "model.onnx", whole[1:]
    onnx.save(make(), file)
    planned = api.plan(file)
    rows = {buffer.name: buffer for buffer in planned.plan.buffers}
    start = rows[whole].offset
    for first, second in parts:
        assert (rows[f"{first}{end}"].offset, rows[f"{second}{end}"].offset) == (start, start + 1024)
    assert planned.verdict is not None and planned.verdict.equal
    assert api.check_plan(file, planned.plan).sound
    assert planned.plan.arena_size == 3072


@pytest.mark.parametrize(
    ("make", "size", "alone", "named"),
    [
        (_residual, 2048, {"flat_q"}, {"flat_q"}),
        (_joined_and_cut, 4096, {"a_q", "b_q"}, {"a_q", "c_q"}),
        (_joined_by_operator, 4096, {"a", "b"}, {"'a'", "'c'"}),
    ],
)
def test_the_check_refuses_shared_bytes_between_different_scales(
    tmp_path: Path, make: Callable[..., onnx.ModelProto], size: int, alone: set[str], named: set[str]
) -> None:
    """The plan for equal scales is claimed of a model whose scales differ: there the same bytes would hold other numbers."""
    same, other = tmp_path / "same.onnx", tmp_path / "other.onnx"
    onnx.save(make(), same)
    onnx.save(make(0.06), other)
    claimed, right = api.plan(same).plan, api.plan(other).plan
    assert right.arena_size == size
    assert {buffer.alias for buffer in right.buffers if buffer.name in alone} == {None}
    kernels = replace(claimed, schedule=right.schedule, operators=right.operators, copies=right.copies)
    failures = [str(one) for one in api.check_plan(other, replace(kernels, digest=right.digest)).failures]
    assert any(name in one for name in named for one in failures), failures


def test_quantised_attention_stores_no_scores(tmp_path: Path) -> None:
    """The input is quantised to 1,024 bytes, as many as Q, K and V, and V before its Transpose; the scores would take 8,192."""
    file = tmp_path / "model.onnx"
    onnx.save(quantised_attention(64, 8), file)
    planned = api.plan(file, io="outside")
    rows = {buffer.name: buffer for buffer in planned.plan.buffers}
    assert planned.plan.arena_size == 4 * 1024
    assert rows["context_q"].offset == rows["query_t_q"].offset
    assert not {"scores_q", "weights_q"} & rows.keys()
    assert planned.verdict is not None and planned.verdict.equal
    assert api.check_plan(file, planned.plan).sound


def test_attention_with_open_sizes_is_chosen_by_the_sizes_that_are_bound(tmp_path: Path) -> None:
    proto = quantised_attention(64, 8)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    for held in (one for one in proto.graph.initializer if one.name in ("heads", "flat")):
        numbers = numpy_helper.to_array(held).copy()
        numbers[0] = -1
        held.CopyFrom(numpy_helper.from_array(numbers, held.name))
    file = tmp_path / "model.onnx"
    onnx.save(proto, file)
    planned = api.plan(file, io="outside", dims={"batch": 2})
    assert planned.plan.arena_size == 2 * 4 * 1024
    assert api.check_plan(file, planned.plan).sound
