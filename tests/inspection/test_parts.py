"""Operators and their attributes, parameters, bytes read and written, and what a backward pass keeps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxtile.inspection.summary import Inspection

Graph = Callable[..., Inspection]


def test_attributes_have_ranges_with_their_defaults(graph: Graph) -> None:
    result = graph(
        "g (float[1,4,8,8] x, float[4,4,3,3] v, float[4,2,1,1] w) => (float[1,4,6,6] y)"
        " { h = Conv <kernel_shape = [3, 3]> (x, v)  y = Conv <group = 2> (h, w) }"
    )
    (conv,) = result.operators
    assert (conv.op, conv.count) == ("Conv", 2)
    ranges = {one.name: one for one in conv.attributes}
    assert (ranges["group"].values, ranges["group"].low, ranges["group"].high) == ((1, 2), 1, 2)
    assert (ranges["kernel_shape"].values, ranges["kernel_shape"].nodes) == (((3, 3),), 1)
    assert ranges["auto_pad"].values == ("NOTSET",)


def test_parameters_are_what_is_learnt(graph: Graph) -> None:
    """The shape of the Reshape and the scalar are none; a weight that two nodes read is one."""
    result = graph(
        "g (float[2,3] x) => (float[6] y) <float[3] w = {1,2,3}, float s = {0.5}, int64[1] t = {6}, float[9] unread = {1,2,3,4,5,6,7,8,9}>"
        " { a = Mul(x, w)  b = Add(a, w)  c = Mul(b, s)  y = Reshape(c, t) }"
    )
    assert (result.parameters.tensors, result.parameters.elements, result.parameters.bytes) == (1, 3, 12)
    assert result.parameters.others == 4 + 8


def test_parameters_are_counted_as_they_are_stored(graph: Graph) -> None:
    """Eight bits and a scale for each column; and once, though one node reads them turned over."""
    result = graph(
        "g (float[2,3] x) => (float[2,2] z, float q) <int8[2,3] w = {1,2,3,4,5,6}, float[2] s = {0.5,0.25}, float16[3] h = {1,2,3}>"
        " { d = DequantizeLinear <axis = 0> (w, s)  t = Transpose(d)  z = MatMul(x, t)  k = Cast <to = 1> (h)"
        "   y = Mul(x, d)  r = Add(y, k)  q = ReduceSum <keepdims = 0> (r) }"
    )
    assert result.parameters.by_dtype == {"float": 2, "float16": 3, "int8": 6}
    assert (result.parameters.tensors, result.parameters.bytes) == (3, 6 + 8 + 6)


def test_constants_that_are_computed_are_parameters_and_no_layers(graph: Graph) -> None:
    result = graph(
        "g (float[2,3] x) => (float[2,3] y) <int64[1] n = {3}> { w = ConstantOfShape(n)  v = Neg(w)  y = Mul(x, v) }"
    )
    assert result.parameters.elements == 3
    assert [layer.op for layer in result.layers] == ["Mul"]


@pytest.mark.parametrize(
    ("node", "read", "written"),
    [
        ("y = Neg(x)", 400, 400),
        ("y = Mul(x, x)", 400, 400),
        ("y = Gather(x, i)", 2 * 8 + 2 * 40, 2 * 40),
        ("y = Shape(x)", 0, 16),
        ("y = Cast <to = 10> (x)", 400, 200),
    ],
)
def test_bytes_that_are_moved(graph: Graph, node: str, read: int, written: int) -> None:
    kind = "int64" if "Shape" in node else "float16" if "Cast" in node else "float"
    result = graph(f"g (float[10,10] x) => ({kind} y) <int64[2] i = {{0, 1}}> {{ {node} }}")
    assert (result.layers[0].read, result.layers[0].written) == (read, written)


def test_intensity_is_macs_for_each_byte(graph: Graph) -> None:
    (layer,) = graph("g (float[10,20] a, float[20,30] b) => (float[10,30] y) { y = MatMul(a, b) }").layers
    assert layer.intensity == 6000 / (4 * (200 + 600 + 300))


W = "float[4,4] w = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}"


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ("y = MatMul(x, w)", {"x"}),
        ("h = MatMul(x, w)  y = Relu(h)", {"x", "y"}),
        ("h = MatMul(x, w)  y = Gelu(h)", {"x", "h"}),
        ("h = MatMul(x, w)  y = Add(h, x)", {"x"}),
        ("h = MatMul(x, w)  k = MatMul(h, w)  y = Add(h, k)", {"x", "h"}),
        ("h = MatMul(x, w)  y = Mul(h, x)", {"x"}),
        ("h = MatMul(x, w)  y = Mul(h, h)", {"x", "h"}),
        ("h = Relu(x)  y = MatMul(h, w)", {"h"}),
        ("h = MatMul(x, w)  y = Softmax(h)", {"x", "y"}),
        ("h = MatMul(x, w)  y = PRelu(h, w)", {"x", "h"}),
        ("h = MatMul(x, w)  y = Max(h, x)", {"x", "h"}),
        ("h = MatMul(x, w)  y = Div(h, x)", {"x"}),
        ("h = Sigmoid(x)  y = Exp(h)", set()),
        ("h = MatMul(x, w)  s = Sign(h)  y = Exp(s)", {"x"}),
    ],
)
def test_what_a_gradient_needs_is_kept_once(graph: Graph, body: str, kept: set[str]) -> None:
    """Inputs are not trained: where no parameter is behind, nothing is kept."""
    result = graph(f"g (float[4,4] x) => (float[4,4] y) <{W}> {{ {body} }}", opset=20, training=True)
    assert result.training is not None and {value.name for value in result.training.values} == kept
    assert result.training.bytes == 64 * len(kept)
    assert not result.training.unknown


@pytest.mark.parametrize(
    ("body", "kept", "size"),
    [
        ("h = MatMul(x, w)  y = Dropout(h)", {"x", "y:mask"}, 64 + 64),
        ("a = MatMul(x, w)  h = Relu(a)  k = Flatten(h)  y = MatMul(k, w)", {"x", "h"}, 128),
        ("a = MatMul(x, w)  h = Transpose(a)  k = Identity(h)  y = MatMul(k, w)", {"x", "a"}, 128),
        (
            "a = MatMul(x, w)  s = Constant<value_ints = [1, 1, 4, 4]>()  h = Reshape(a, s)"
            "  p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(h)  y = Sqrt(p)",
            {"x", "a", "p:indices", "y"},
            64 + 64 + 4 * 8 + 4 * 4,
        ),
    ],
)
def test_masks_and_indices_are_kept_and_views_are_not(graph: Graph, body: str, kept: set[str], size: int) -> None:
    result = graph(f"g (float[4,4] x) => (float y) <{W}> {{ {body} }}", opset=17, training=True)
    assert result.training is not None and {value.name for value in result.training.values} == kept
    assert result.training.bytes == size == sum(result.training.by_operator.values())


def test_a_gradient_goes_through_sequences_and_stops_at_bodies(graph: Graph) -> None:
    body = "then_branch = t () => (float[2,4] p) { p = Exp(b) }, else_branch = e () => (float[2,4] q) { q = Neg(b) }"
    result = graph(
        f"g (bool c, float[4,4] x) => (float[2,4] y) <{W}, int64 n = {{2}}, int64 i = {{1}}>"
        f" {{ h = MatMul(x, w)  s = SplitToSequence(h, n)  a = SequenceAt(s, i)  b = Exp(a)  y = If (c) <{body}> }}",
        training=True,
    )
    assert result.training is not None
    assert {value.name for value in result.training.values} == {"x", "b"}
    assert result.training.unknown == ("y",)


def test_what_is_kept_has_a_size_or_is_said_to_have_none(graph: Graph) -> None:
    weight = "float[4,4] w = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0}"
    result = graph(f"g (float[N,4] x) => (float[N,4] y) <{weight}> {{ y = MatMul(x, w) }}", training=True)
    assert result.training is not None
    assert (result.training.bytes, result.training.of_unknown_size) == (0, 1)


def test_a_gradient_that_no_rule_knows_is_named(graph: Graph) -> None:
    result = graph(
        f"g (float[4,4] x) => (float[4,4] y) <{W}> {{ h = MatMul(x, w)  y = com.microsoft.Gelu(h) }}", training=True
    )
    assert result.training is not None
    assert result.training.unknown == ("y",)


def test_what_a_batch_normalisation_gathers_is_not_trained(graph: Graph) -> None:
    four = " ".join(f"float[3] {name} = {{1, 2, 3}}," for name in "sbmv").rstrip(",")
    result = graph(f"g (float[1,3,2,2] x) => (float[1,3,2,2] y) <{four}> {{ y = BatchNormalization(x, s, b, m, v) }}")
    assert (result.parameters.elements, result.parameters.trainable) == (12, 6)


def test_constants_are_told_from_activations_in_what_is_read(graph: Graph) -> None:
    result = graph(
        f"g (float[2,4] x, int64[3] i) => (float y) <{W}>"
        " { h = MatMul(x, w)  e = Gather(w, i)  g = Gather(h, i)  s = Shape(w)  y = Add(h, h) }"
    )
    assert [(layer.read, layer.weights) for layer in result.layers if layer.op != "Shape"] == [
        (32 + 64, 64),
        (3 * 16 + 24, 48),
        (3 * 16 + 24, 0),
        (32, 0),
    ]
    assert result.traffic.weights == 64 + 48


def test_what_is_open_says_how_to_give_it(graph: Graph) -> None:
    result = graph("g (float[N,4] x, float[M,N] z, float[?,3] t) => (float y) { y = Relu(x) }")
    assert result.open == ("--dim N=N", "--dim M=N", "--shape t=Nx3")
    assert graph("g (float[2,4] x) => (float y) { y = Relu(x) }").open == ()
