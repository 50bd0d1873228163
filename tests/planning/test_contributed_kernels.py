"""Models as onnxruntime-genai's builder writes them: operators that only onnxruntime knows, in opsets that ONNX does not pair them with."""

import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.system.errors import CheckFailed, ModelWarning

HEADS, GROUPS, HEAD, WIDTH = 4, 2, 16, 32
SIZES = {"batch": 1, "length": 4, "total": 12, "past": 8}


def _layer() -> onnx.ModelProto:
    generator = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((generator.standard_normal(shape) / 8).astype(np.float32), name)

    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["h", "g"], ["n"], axis=-1, epsilon=1e-5, stash_type=1),
        *(helper.make_node("MatMul", ["n", f"w{one}"], [one]) for one in "qkv"),
        helper.make_node("ReduceSum", ["mask", "one"], ["s"], keepdims=1),
        helper.make_node("Sub", ["s", "one"], ["s1"]),
        helper.make_node("Cast", ["s1"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "last"], ["all"], axis=0),
        helper.make_node("Cast", ["all"], ["total_length"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", ["q", "k", "v", "past_k", "past_v", "seqlens", "total_length", "cos", "sin"],
            ["a", "present_k", "present_v"], domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=1, name="gqa",
        ),
        helper.make_node("MatMul", ["a", "wo"], ["o"]),
        helper.make_node(
            "SkipSimplifiedLayerNormalization", ["h", "o", "g"], ["y", "", "", "sum"], domain="com.microsoft", epsilon=1e-5
        ),
    ]  # fmt: skip
    held = [
        weight("g", WIDTH), weight("wq", WIDTH, HEADS * HEAD), weight("wk", WIDTH, GROUPS * HEAD),
        weight("wv", WIDTH, GROUPS * HEAD), weight("wo", HEADS * HEAD, WIDTH), weight("cos", 64, HEAD // 2), weight("sin", 64, HEAD // 2),
        numpy_helper.from_array(np.asarray([1], np.int64), "one"), numpy_helper.from_array(np.asarray(1, np.int64), "last"),
    ]  # fmt: skip

    def info(name: str, *dims: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    given = [
        info("h", "batch", "length", WIDTH),
        info("mask", "batch", "total", kind=TensorProto.INT64),
        *(info(f"past_{one}", "batch", GROUPS, "past", HEAD) for one in "kv"),
    ]
    made = [
        info("y", "batch", "length", WIDTH),
        *(info(f"present_{one}", "batch", GROUPS, "total", HEAD) for one in "kv"),
    ]
    graph = helper.make_graph(nodes, "g", given, made, held)
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_layer_with_a_cache_is_planned_and_run() -> None:
    """onnxruntime infers the length of the past for the present keys, and would refuse the memory that the run needs."""
    with pytest.warns(
        ModelWarning, match="ONNX has no operator SimplifiedLayerNormalization in opset 14; onnxruntime takes it"
    ):
        planned = api.plan(_layer(), dims=SIZES)
    shapes = {buffer.name: buffer.shape for buffer in planned.plan.tensors}
    assert shapes["present_k"] == (1, GROUPS, 12, HEAD)
    assert planned.plan.unplanned == ()
    assert planned.verdict is not None and planned.verdict.equal


def test_grouped_attention_is_counted() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        result = api.inspect(_layer(), dims=SIZES).to_dict()
    layer = next(one for one in result["nodes"] if one["node"] == "gqa")
    # 4 queries of 4 heads against 12 keys of 16 elements, then as many products with the values.
    assert layer["macs"] == 2 * 4 * 4 * 12 * 16


def _sliding(window: int) -> onnx.ModelProto:
    """Return attention whose cache of keys slides in a window."""
    given = [
        helper.make_tensor_value_info("qkv", TensorProto.FLOAT, [1, 4, 4 * HEAD]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 33, HEAD]) for name in ("keys", "values")),
        helper.make_tensor_value_info("mask", TensorProto.INT64, [1, "all"]),
    ]
    held = [numpy_helper.from_array(np.asarray([1]), "one"), numpy_helper.from_array(np.asarray(1), "axis")]
    nodes = [
        helper.make_node("Shape", ["mask"], ["sizes"]),
        helper.make_node("Gather", ["sizes", "axis"], ["all"]),
        helper.make_node("Cast", ["all"], ["total"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["mask", "one"], ["sum"], keepdims=0),
        helper.make_node("Sub", ["sum", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", ["qkv", "", "", "keys", "values", "lengths", "total"], ["y", "k", "v"],
            domain="com.microsoft", num_heads=2, kv_num_heads=1, sliding_window_cache=1, local_window_size=window,
        ),
    ]  # fmt: skip
    made = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 2 * HEAD]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 33, HEAD]) for name in "kv"),
    ]
    graph = helper.make_graph(nodes, "g", given, made, held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_a_full_cache_that_slides_is_planned_and_run() -> None:
    planned = api.plan(_sliding(33), dims={"all": 41})
    assert planned.verdict is not None and planned.verdict.equal


def test_bytes_that_a_kernel_leaves_unwritten_are_the_reason_of_the_refusal() -> None:
    """With 13 tokens a cache of 33 is filled in part; the rest is as the memory was."""
    with pytest.raises(CheckFailed, match="with these sizes GroupQueryAttention leaves some of its bytes unwritten"):
        api.plan(_sliding(33), dims={"all": 13})
    assert api.plan(_sliding(33), dims={"all": 13}, verify=False).plan.unplanned == ()
