"""Open dimensions of a model with a cache of keys get sizes that its attention takes."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.load import load
from onnxtile.verification.open_sizes import assignments
from onnxtile.verification.trials import run_original

HEAD = 24


def _decoder(**attributes: Any) -> onnx.ModelProto:
    """Return a product with packed weights and a GroupQueryAttention whose lengths are sums of a mask."""
    held = [
        numpy_helper.from_array(np.ones((8, 4 * HEAD), np.float32), "w"),
        numpy_helper.from_array(np.asarray([1]), "one"),
        numpy_helper.from_array(np.asarray(1), "axis"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["qkv"]),
        helper.make_node("ReduceSum", ["mask", "one"], ["kept"]),
        helper.make_node("Sub", ["kept", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "axis"], ["length"]),
        helper.make_node("Cast", ["length"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention", ["qkv", "", "", "keys", "values", "lengths", "total"], ["y", "k", "v"],
            domain="com.microsoft", num_heads=2, kv_num_heads=1, **attributes,
        ),
    ]  # fmt: skip
    past: list[int | str] = ["batch", 1, "past", "head"]
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "tokens", 8]),
        helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "all"]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, past) for name in ("keys", "values")),
    ]
    made = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", 2 * HEAD]),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 1, "all", HEAD]) for name in "kv"),
    ]
    known = [helper.make_tensor_value_info("qkv", TensorProto.FLOAT, ["batch", "tokens", 4 * HEAD])]
    graph = helper.make_graph(nodes, "g", given, made, held, value_info=known)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def test_the_first_sizes_are_those_that_the_attention_takes() -> None:
    """No size of the list is 24: the head size comes from the weights, the length of the mask from the tokens and the past."""
    trials, dims = run_original(load(_decoder()))
    assert dims == next(assignments(load(_decoder()))).dims
    assert (dims["batch"], dims["head"]) == (1, HEAD)
    assert dims["all"] == dims["past"] + dims["tokens"]
    assert trials[0].results["k"].shape == (1, 1, dims["all"], HEAD)


@pytest.mark.parametrize("window", [33, 2000])
def test_a_cache_that_slides_holds_its_window(window: int) -> None:
    proto = _decoder(sliding_window_cache=1, local_window_size=window)
    assert next(assignments(load(proto))).dims["past"] == window
