"""Mixtures of experts, cut along the inner axis of their experts: N of the first product and K of the second."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import onnxtile
from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.system.runtime import Session
from tests.contributed_models import DOMAIN, EXPERTS, INNER, ROWS, WIDTH, Weights, contributed, experts, info, model


def weights(made: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    return {tensor.name: tuple(tensor.dims) for tensor in made.graph.initializer}


def operators(made: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in made.graph.node]


def proto(found: Any) -> onnx.ModelProto:
    import onnx_ir as ir

    made: onnx.ModelProto = ir.to_proto(found.model)
    return made


def alone(op: str, operands: list[str], held: Weights, **attributes: Any) -> onnx.ModelProto:
    """A model of one mixture of experts over random rows and logits."""
    node = contributed(op, ["x", "logits", *operands], ["y"], name="experts", k=2, **attributes)
    inputs = [info("x", ROWS, WIDTH), info("logits", ROWS, EXPERTS)]
    return model([node], inputs, [info("y", ROWS, WIDTH)], held)


def same(one: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """Both give the same results on large random inputs, up to the rounding of sums."""
    draw = np.random.default_rng(1)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in one.graph.input}
    feeds = {name: (4 * draw.standard_normal(dims)).astype(np.float32) for name, dims in shapes.items()}
    first, second = (Session(m.SerializeToString()).run(feeds)["y"] for m in (one, other))
    assert np.abs(first).max() > 1e-3
    np.testing.assert_allclose(second, first, rtol=1e-4, atol=1e-5 * float(np.abs(first).max()))


def test_each_stretch_has_its_rows_and_columns() -> None:
    found = onnxtile.tile(experts(), max=24)
    made = proto(found)
    assert operators(made).count("MoE") == 3
    assert [d.to_dict() for d in found.result.experts] == [
        {"node": "experts", "op": "MoE", "experts": 4, "width": 32, "inner": 64, "step": 24, "tiles": 3, "nodes": 5}
    ]
    sizes = weights(made)
    assert [sizes[f"w1/{start}"] for start in (0, 24, 48)] == [(4, 24, 32), (4, 24, 32), (4, 16, 32)]
    assert [sizes[f"w2/{start}"] for start in (0, 24, 48)] == [(4, 32, 24), (4, 32, 24), (4, 32, 16)]
    assert not {"w1", "w2", "b1"} & sizes.keys()
    same(experts(), made)


def test_the_bias_of_the_result_is_added_once() -> None:
    made = proto(onnxtile.tile(experts(), max=16))
    biases = [len(node.input) > 5 and bool(node.input[5]) for node in made.graph.node if node.op_type == "MoE"]
    assert biases == [False, False, False, True]


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_stay_packed(bits: int) -> None:
    made = proto(onnxtile.tile(experts(bits), max=16))
    held = 8 // bits
    assert weights(made)["w2/16"] == (EXPERTS, WIDTH, 16 // held)
    assert weights(made)["s1/16"] == (EXPERTS, 16)
    same(experts(bits), made)


@pytest.mark.parametrize("activation", ["relu", "gelu", "identity"])
def test_every_activation_of_single_elements(activation: str) -> None:
    same(experts(activation=activation), proto(onnxtile.tile(experts(activation=activation), max=16)))


def gates(fusion: int) -> onnx.ModelProto:
    """A mixture of experts whose first product also makes the gates: interleaved (1), or behind all elements (2)."""
    w = Weights()
    operands = [w.floats("w1", EXPERTS, 2 * INNER, WIDTH), w.floats("b1", EXPERTS, 2 * INNER)]
    operands += [w.floats("w2", EXPERTS, WIDTH, INNER), w.floats("b2", EXPERTS, WIDTH)]
    return alone("MoE", operands, w, activation_type="swiglu", swiglu_fusion=fusion, activation_alpha=1.7)


def test_interleaved_gates_stay_with_their_elements() -> None:
    made = proto(onnxtile.tile(gates(1), max=16))
    assert weights(made)["w1/16"] == (EXPERTS, 32, WIDTH)
    same(gates(1), made)


def test_gates_behind_all_elements_stay_with_them() -> None:
    """onnxruntime's CPU takes interleaved gates alone, so the rows are compared."""
    made = proto(onnxtile.tile(gates(2), max=16, verify=False))
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    whole = numpy_helper.to_array(gates(2).graph.initializer[0])
    np.testing.assert_array_equal(arrays["w1/16"], np.concatenate([whole[:, 16:32], whole[:, 80:96]], axis=1))


def test_a_third_product_is_cut_like_the_first() -> None:
    """onnxruntime's CPU does not implement it; in numbers it is the product of two activations."""
    made = proto(onnxtile.tile(experts(gated=True), max=16, verify=False))
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    whole = {tensor.name: numpy_helper.to_array(tensor) for tensor in experts(gated=True).graph.initializer}
    for name in ("w1", "b1", "w3", "b3"):
        np.testing.assert_array_equal(arrays[f"{name}/16"], whole[name][:, 16:32])
    found = onnxtile.plan(made)
    assert (found.verdict, found.not_run) == (None, "onnxruntime's CPU does not implement this MoE")


def test_blocks_of_scales_are_not_cut() -> None:
    w, block = Weights(), 16
    operands = [w.whole("w1", np.uint8, EXPERTS, INNER, WIDTH // 2), w.scales("s1", EXPERTS, INNER, WIDTH // block)]
    operands += [w.floats("b1", EXPERTS, INNER), w.whole("w2", np.uint8, EXPERTS, WIDTH, INNER // 2)]
    operands += [w.scales("s2", EXPERTS, WIDTH, INNER // block), w.floats("b2", EXPERTS, WIDTH)]
    blocked = alone("QMoE", operands, w, activation_type="silu", expert_weight_bits=4, block_size=block)
    found = onnxtile.tile(blocked, max=40)
    assert [one.step for one in found.result.experts] == [32]
    assert weights(proto(found))["s2/32"] == (EXPERTS, WIDTH, 2)
    same(blocked, proto(found))
    over = onnxtile.tile(blocked, max=8).result
    assert [(one.node, one.over_limits) for one in over.skipped] == [("experts", True)]
    with pytest.raises(Infeasible, match="cut into stretches of 16 elements at least"):
        onnxtile.tile(blocked, max=8, strict=True)


def test_the_smaller_of_n_and_k_counts() -> None:
    assert [one.step for one in onnxtile.tile(experts(), max=(None, 16, 32)).result.experts] == [16]
    assert [one.step for one in onnxtile.tile(experts(), max="_x_x12").result.experts] == [12]
    assert onnxtile.tile(experts(), max=64).result.experts == ()


def test_one_is_left_out_on_request() -> None:
    found = onnxtile.tile(experts(), max=16, skip=("experts",)).result
    assert (found.experts, [one.reason for one in found.skipped]) == ((), ["left out on request"])
    with pytest.raises(UsageError, match="unknown node to skip 'expert'"):
        onnxtile.tile(experts(), max=16, skip=("expert",))


def test_what_is_not_understood_is_left_whole() -> None:
    def reason(change: Any) -> str:
        made = experts(8)
        change(made)
        return next(s.reason for s in onnxtile.tile(made, max=16, verify=False).result.skipped if s.node == "experts")

    def node(made: onnx.ModelProto) -> onnx.NodeProto:
        return next(n for n in made.graph.node if n.op_type == "QMoE")

    def zeros(made: onnx.ModelProto) -> None:
        made.graph.initializer.append(numpy_helper.from_array(np.zeros((EXPERTS, INNER), np.uint8), "z"))
        node(made).input.extend(["", "", "", "z"])

    def packed(made: onnx.ModelProto) -> None:
        node(made).attribute.append(helper.make_attribute("weights_prepacked", 1))

    def given(made: onnx.ModelProto) -> None:
        made.graph.initializer.remove(next(t for t in made.graph.initializer if t.name == "w1"))
        made.graph.input.append(helper.make_tensor_value_info("w1", onnx.TensorProto.UINT8, (EXPERTS, INNER, WIDTH)))

    assert "zero points" in reason(zeros)
    assert "not stored as whole numbers" in reason(packed)
    assert reason(given) == "its weights 'w1' are not an initializer"


def test_the_tiles_are_planned_and_run() -> None:
    tiled = onnxtile.tile(experts(), max=16)
    assert tiled.summary.startswith("4 nodes became 14, 6 tiles")
    found = onnxtile.plan(tiled.model)
    assert found.verdict is not None and found.verdict.equal
    assert tiled.to_dict()["experts"][0]["tiles"] == 4
    assert DOMAIN in {node.domain for node in tiled.model.graph}
