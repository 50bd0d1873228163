"""Sample inputs: of the right type and shape, and inside what their consumers allow."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import onnxtile
from onnxtile.model.feeds import draw, sample_feeds
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import ModelError, OverLimit
from onnxtile.system.runtime import Array

Text = Callable[..., onnx.ModelProto]


def feeds(model: ir.Model, seed: int = 0) -> dict[str, Array]:
    return sample_feeds(model, resolve(model).sizes, seed=seed)


def test_the_same_seed_gives_the_same_and_another_gives_other(text: Text) -> None:
    model = load(text("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"))
    np.testing.assert_array_equal(feeds(model)["x"], feeds(model)["x"])
    assert not np.array_equal(feeds(model)["x"], feeds(model, 1)["x"])


def test_a_shape_of_more_bytes_than_can_be_counted_is_too_much(text: Text) -> None:
    model = load(text(f"g (float[{2**62}, 3] x) => (float[{2**62}, 3] y) {{ y = Relu(x) }}"))
    with pytest.raises(OverLimit, match="memory"):
        feeds(model)


@pytest.mark.parametrize("kind", sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED", "INT2", "UINT2"}))
def test_every_element_type_is_drawn(kind: str) -> None:
    if kind not in ir.DataType.__members__:
        pytest.skip("not known to onnx_ir")
    value = ir.Value(name="x", shape=ir.Shape([50]), type=ir.TensorType(ir.DataType[kind]))
    array = draw(np.random.default_rng(0), value, lambda _: (50,))
    assert array.shape == (50,)
    if kind != "STRING":
        assert ir.DataType.from_numpy(array.dtype) == ir.DataType[kind]
    if kind in {"INT32", "INT64", "UINT8", "INT4"}:
        assert array.astype(np.int64).min() >= 0


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather(t, i)",
        "j = Unsqueeze(i, a) g = Gather(t, j) y = Squeeze(g, a)",
        "j = Cast <to = 6> (i) y = Gather(t, j)",
        "j = Identity(i) k = Identity(j) y = Gather(t, k)",
    ],
)
def test_indices_reach_the_whole_axis_and_no_further(text: Text, body: str) -> None:
    model = load(
        text(
            f"g (int64[500] i) => (float[A, B] y) <float[7, 1] t = {{0, 1, 2, 3, 4, 5, 6}}, int64[1] a = {{0}}> {{ {body} }}"
        )
    )
    assert set(feeds(model)["i"].tolist()) == set(range(7))


def test_an_array_of_more_dimensions_than_numpy_has_is_refused(text: Text) -> None:
    dims = ", ".join(["1"] * 66)
    with pytest.raises(ModelError, match=r"the tensor 'x' has 66 dimensions, .* at most 64"):
        feeds(load(text(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu(x) }}")))


def test_the_shortest_axis_decides(text: Text) -> None:
    model = load(
        text(
            "g (int64[500] i) => (float[A] y) <float[7] t = {0, 1, 2, 3, 4, 5, 6}, float[3] u = {0, 1, 2}>"
            " { a = Gather(t, i) b = Gather(u, i) y = Add(a, b) }"
        )
    )
    assert feeds(model)["i"].max() == 2


def test_other_integers_are_0_or_1(text: Text) -> None:
    model = load(text("g (int64[100] i, bool[100] b) => (int64[100] y) { y = Where(b, i, i) }"))
    assert set(feeds(model)["i"].tolist()) == {0, 1}
    assert set(feeds(model)["b"].tolist()) == {False, True}


def test_defaults_are_not_fed(text: Text) -> None:
    model = load(text("g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }", opset=7))
    assert list(feeds(model)) == ["x"]


def test_an_input_without_a_shape_is_an_error_that_says_what_to_do(small: onnx.ModelProto) -> None:
    with pytest.raises(ModelError, match="'x'") as caught:
        feeds(load(small))
    assert caught.value.hint == "give them, for example --dim N=1"


def test_sequences_get_two_tensors() -> None:
    x = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [])
    graph = helper.make_graph([helper.make_node("SequenceLength", ["x"], ["y"])], "g", [x], [y])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    sample = sample_feeds(model, lambda _: (2,))["x"]
    assert [(one.shape, one.dtype) for one in sample] == [((2,), np.float32)] * 2


def with_input(kind: onnx.TypeProto, op: str, result: int) -> onnx.ModelProto:
    x, y = helper.make_value_info("x", kind), helper.make_tensor_value_info("y", result, [])
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


PAIR = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
PAIRS = helper.make_sequence_type_proto(PAIR)


@pytest.mark.parametrize("kind", [PAIR, PAIRS])
def test_an_optional_value_has_the_content_that_its_type_says(kind: onnx.TypeProto) -> None:
    model = load(with_input(helper.make_optional_type_proto(kind), "OptionalHasElement", TensorProto.BOOL))
    sample = feeds(model)["x"]
    assert [one.shape for one in (sample if isinstance(sample, list) else [sample])] == [(2,)] * (1 + (kind is PAIRS))


@pytest.mark.parametrize(
    ("kind", "op", "result"),
    [
        (PAIRS, "SequenceLength", TensorProto.INT64),
        (helper.make_optional_type_proto(PAIR), "OptionalHasElement", TensorProto.BOOL),
    ],
)
def test_models_with_inputs_that_are_no_tensors_are_planned_and_verified(
    kind: onnx.TypeProto, op: str, result: int
) -> None:
    model = with_input(kind, op, result)
    run = onnxtile.plan(model).verdict
    assert run is not None and run.equal
    assert onnxtile.fuse(model).fused == 0
    verdict = onnxtile.verify(model, model, edge=True)
    assert verdict.equal
    assert "empty" in verdict.inputs


def test_an_edge_that_the_model_refuses_is_skipped() -> None:
    model = with_input(helper.make_optional_type_proto(PAIR), "OptionalGetElement", TensorProto.FLOAT)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]))
    assert "empty" in onnxtile.verify(model, model, edge=True).skipped


def test_an_input_without_a_random_content_is_an_error() -> None:
    kind = onnx.TypeProto()
    kind.sparse_tensor_type.CopyFrom(onnx.TypeProto.SparseTensor(elem_type=TensorProto.FLOAT))
    value = ir.Value(name="x", shape=ir.Shape([2]), type=ir.serde.deserialize_type_proto_for_type(kind))
    with pytest.raises(ModelError, match="sparse"):
        draw(np.random.default_rng(0), value, lambda _: (2,))


def test_a_sequence_of_known_sizes_leaves_the_sizes_behind_it_known() -> None:
    x, i = helper.make_value_info("x", PAIRS), helper.make_tensor_value_info("i", TensorProto.INT64, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["?"])
    graph = helper.make_graph([helper.make_node("SequenceAt", ["x", "i"], ["y"])], "g", [x, i], [y])
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    assert resolve(model).sizes(model.graph.outputs[0]) == (2,)


def test_floats_are_of_the_type_they_should_be() -> None:
    value = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.BFLOAT16))
    assert draw(np.random.default_rng(0), value, lambda _: (2,)).dtype == ml_dtypes.bfloat16
