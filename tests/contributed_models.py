"""Small models of operators that only onnxruntime has, as its exporters write them: mixtures of experts, packed and quantised attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "com.microsoft"
ROWS, WIDTH, INNER, EXPERTS, HEADS = 6, 32, 64, 4, 4


class Weights:
    """Random weights by name, the same in every run."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self.all: list[onnx.TensorProto] = []

    def floats(self, name: str, *shape: int) -> str:
        self.all.append(numpy_helper.from_array((self._draw.standard_normal(shape) / 8).astype(np.float32), name))
        return name

    def whole(self, name: str, dtype: type[np.integer], *shape: int) -> str:
        limits = np.iinfo(dtype)
        self.all.append(numpy_helper.from_array(self._draw.integers(limits.min, limits.max, shape).astype(dtype), name))
        return name

    def scales(self, name: str, *shape: int) -> str:
        found = np.abs(self._draw.standard_normal(shape)) / 100 + 0.001
        self.all.append(numpy_helper.from_array(found.astype(np.float32), name))
        return name


def info(name: str, *dims: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Weights,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights.all)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)], ir_version=10
    )


def contributed(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), domain=DOMAIN, **attributes)


def experts(bits: int = 0, activation: str = "silu", gated: bool = False, k: int = 2) -> onnx.ModelProto:
    """A block with a mixture of experts: floats, or weights of `bits`; `gated` by a third product."""
    w = Weights()
    routed = [
        contributed(
            "SkipSimplifiedLayerNormalization", ["x", "r", w.floats("g", WIDTH)], ["n", "", "", "s"], epsilon=1e-5
        ),
        helper.make_node("MatMul", ["n", w.floats("router", WIDTH, EXPERTS)], ["logits"], name="route"),
    ]
    shared = {"k": k, "activation_type": activation, "normalize_routing_weights": 1, "name": "experts"}
    if not bits:
        operands = [w.floats("w1", EXPERTS, INNER, WIDTH), w.floats("b1", EXPERTS, INNER)]
        operands += [w.floats("w2", EXPERTS, WIDTH, INNER), w.floats("b2", EXPERTS, WIDTH)]
        operands += [w.floats("w3", EXPERTS, INNER, WIDTH), w.floats("b3", EXPERTS, INNER)] if gated else []
        mixed = contributed("MoE", ["n", "logits", *operands], ["m"], **shared)
    else:
        held = 8 // bits
        operands = [w.whole("w1", np.uint8, EXPERTS, INNER, WIDTH // held), w.scales("s1", EXPERTS, INNER)]
        operands += [w.floats("b1", EXPERTS, INNER)]
        operands += [w.whole("w2", np.uint8, EXPERTS, WIDTH, INNER // held), w.scales("s2", EXPERTS, WIDTH)]
        operands += [w.floats("b2", EXPERTS, WIDTH)]
        mixed = contributed("QMoE", ["n", "logits", *operands], ["m"], expert_weight_bits=bits, **shared)
    nodes = [*routed, mixed, helper.make_node("Add", ["m", "s"], ["y"], name="residual")]
    return model(nodes, [info("x", ROWS, WIDTH), info("r", ROWS, WIDTH)], [info("y", ROWS, WIDTH)], w)


def quantised_attention() -> onnx.ModelProto:
    w = Weights()
    held = {"sx": np.float32(0.02), "sw": np.float32(0.01), "zx": np.uint8(128), "zw": np.int8(0)}
    w.all += [numpy_helper.from_array(np.asarray(number), name) for name, number in held.items()]
    operands = ["x", w.whole("w", np.int8, WIDTH, 3 * WIDTH), w.floats("b", 3 * WIDTH), "sx", "sw", "", "zx", "zw"]
    nodes = [
        contributed("QAttention", operands, ["a"], num_heads=HEADS, name="qa"),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return model(nodes, [info("x", 1, ROWS, WIDTH, kind=TensorProto.UINT8)], [info("y", 1, ROWS, WIDTH)], w)


def packed_heads(tokens: int | str = 10) -> onnx.ModelProto:
    """PackedMultiHeadAttention, which onnxruntime has for GPUs only."""
    w, whole = Weights(), TensorProto.INT32
    nodes = [
        *(
            helper.make_node("MatMul", ["p", w.floats(f"w{one}", WIDTH, WIDTH)], [one], name=f"to_{one}")
            for one in "qkv"
        ),
        contributed(
            "PackedMultiHeadAttention", ["q", "k", "v", "", "places", "ends"], ["a"], num_heads=HEADS, name="attend"
        ),
        helper.make_node("MatMul", ["a", w.floats("wo", WIDTH, WIDTH)], ["o"], name="out"),
        helper.make_node("Add", ["o", "p"], ["y"], name="residual"),
    ]
    inputs = [info("p", tokens, WIDTH), info("places", 2, ROWS, kind=whole), info("ends", 3, kind=whole)]
    return model(nodes, inputs, [info("y", tokens, WIDTH)], w)


def packed_attention() -> onnx.ModelProto:
    """Padding removed, attention over packed tokens, padding restored: for GPUs only, and of a length that data decide."""
    w = Weights()
    weights = [w.floats("w", WIDTH, 3 * WIDTH), w.floats("b", 3 * WIDTH)]
    nodes = [
        contributed("RemovePadding", ["x", "lengths"], ["p", "places", "ends", "longest"], name="pack"),
        contributed("PackedAttention", ["p", *weights, "places", "ends"], ["a"], num_heads=HEADS),
        contributed("RestorePadding", ["a", "places"], ["y"], name="unpack"),
    ]  # fmt: skip
    inputs = [info("x", 2, ROWS, WIDTH), info("lengths", 2, kind=TensorProto.INT32)]
    return model(nodes, inputs, [info("y", 2, ROWS, WIDTH)], w)


def paged_attention() -> onnx.ModelProto:
    w, kind = Weights(), TensorProto.FLOAT16
    nodes = [
        contributed(
            "PagedAttention", ["q", "k", "v", "keys", "values", "ends", "pasts", "table"], ["a", "keys1", "values1"],
            num_heads=4, kv_num_heads=2, name="attend",
        ),
        helper.make_node("Add", ["a", "q"], ["y"], name="residual"),
    ]  # fmt: skip
    cache, whole = (8, 16, 2, 8), TensorProto.INT32
    inputs = [info("q", 10, 32, kind=kind), *(info(n, 10, 16, kind=kind) for n in "kv")]
    inputs += [*(info(n, *cache, kind=kind) for n in ("keys", "values")), info("ends", 3, kind=whole)]
    inputs += [info("pasts", 2, kind=whole), info("table", 2, 4, kind=whole)]
    outputs = [info("y", 10, 32, kind=kind), *(info(n, *cache, kind=kind) for n in ("keys1", "values1"))]
    return model(nodes, inputs, outputs, w)


def group_norm() -> onnx.ModelProto:
    w = Weights()
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 3, 1]),
        contributed(
            "GroupNorm", ["t", w.floats("g", WIDTH), w.floats("b", WIDTH)], ["n"], groups=4, activation=1, epsilon=1e-5
        ),
        helper.make_node("Transpose", ["n"], ["y"], perm=[0, 3, 1, 2]),
    ]
    return model(nodes, [info("x", 1, WIDTH, 4, 4)], [info("y", 1, WIDTH, 4, 4)], w)
