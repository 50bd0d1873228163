"""FLOPs, counted by hand: two for each MAC, and those of operators without products."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onnxtile import api
from onnxtile.inspection.summary import Inspection

Graph = Callable[..., Inspection]

IMAGE = "float[2,4,6,6] x"
CASES = {
    "relu": (IMAGE, "Relu(x)", 288),
    "broadcast": ("float[5,1] x, float[7] z", "Add(x, z)", 35),
    "sigmoid": (IMAGE, "Sigmoid(x)", 4 * 288),
    "softmax": (IMAGE, "Softmax(x)", 5 * 288),
    "three summed": (IMAGE, "Sum(x, x, x)", 2 * 288),
    "mean of three": (IMAGE, "Mean(x, x, x)", 3 * 288),
    "clip at one bound": (f"{IMAGE}, float a", "Clip(x, a)", 288),
    "clip at two": (f"{IMAGE}, float a", "Clip(x, a, a)", 2 * 288),
    "moved": (IMAGE, "Transpose(x)", 0),
    "batch norm": (f"{IMAGE}, float[4] s", "BatchNormalization(x, s, s, s, s)", 2 * 288),
    "instance norm": (f"{IMAGE}, float[4] s", "InstanceNormalization(x, s, s)", 7 * 288 + 2 * 8),
    "layer norm": (f"{IMAGE}, float[6] s", "LayerNormalization(x, s, s)", 7 * 288 + 2 * 48),
    "layer norm of two axes": (f"{IMAGE}, float[6,6] s", "LayerNormalization <axis = 2> (x, s)", 6 * 288 + 2 * 8),
    "skip": ("float[2,3,4] x, float[4] s", "com.microsoft.SkipLayerNormalization(x, x, s, s, s)", 9 * 24 + 2 * 6),
    "max pool": (IMAGE, "MaxPool <kernel_shape = [3,2], strides = [3,2]> (x)", 2 * 4 * 2 * 3 * 6),
    "padded pool": (IMAGE, "AveragePool <kernel_shape = [3,3], pads = [1,1,1,1]> (x)", 9 * 288),
    "global pool": (IMAGE, "GlobalAveragePool(x)", 288),
    "mean": (IMAGE, "ReduceMean <axes = [3]> (x)", 288),
    "norm": (IMAGE, "ReduceL2 <axes = [3]> (x)", 2 * 288 + 48),
    "divided by a norm": (IMAGE, "LpNormalization <axis = 3> (x)", 3 * 288 + 48),
    "divided by a sum": (IMAGE, "LpNormalization <axis = 1, p = 1> (x)", 3 * 288),
    "mean and variance": (IMAGE, "MeanVarianceNormalization(x)", 5 * 288 + 2 * 4),
    "hardmax": (IMAGE, "Hardmax(x)", 288),
    "lrn": (IMAGE, "LRN <size = 5> (x)", 10 * 288),
    "quantised": (f"{IMAGE}, float s, uint8 z", "QuantizeLinear(x, s, z)", 5 * 288),
    "gemm": ("float[3,5] x, float[5,7] w, float[7] b", "Gemm <alpha = 0.5, beta = 2.0> (x, w, b)", 2 * 105 + 3 * 21),
    "outer": ("float[5] x, float[7] z", 'Einsum <equation = "i,j->ij"> (x, z)', 35),
    "trace": ("float[5,5] x", 'Einsum <equation = "ii->"> (x)', 5),
    "lstm": (
        "float[10,2,3] x, float[1,16,3] w, float[1,16,4] r",
        "LSTM <hidden_size = 4> (x, w, r)",
        10 * 2 * (2 * 16 * 7 + 18 * 4),
    ),
    "scattered": ("float[9] x, int64[4,1] i, float[4] u", 'ScatterND <reduction = "add"> (x, i, u)', 4),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "node", "flops"), CASES.values(), ids=CASES)
def test_counted_by_hand(graph: Graph, inputs: str, node: str, flops: int) -> None:
    kind = "uint8" if node.startswith("Quantize") else "float"
    shape = "[2,3,4]" if "microsoft" in node else ""
    totals = graph(f"g ({inputs}) => ({kind}{shape} y) {{ y = {node} }}", opset=17).totals
    assert sum(totals.flops.values()) == flops
    assert not totals.uncounted


def test_attention_has_the_flops_of_its_parts(graph: Graph) -> None:
    sizes = "float[2,4,5,8] q, float[2,4,7,8] k, float[2,4,7,8] v, float[5,7] m"
    whole = graph(f"g ({sizes}) => (float y) {{ y = Attention(q, k, v, m) }}", opset=23)
    parts = graph(
        f"g ({sizes}) => (float y) <float c = {{2}}> {{ t = Transpose<perm = [0,1,3,2]>(k)  s = MatMul(q, t)  d = Div(s, c)"
        " a = Add(d, m)  p = Softmax(a)  y = MatMul(p, v) }",
        opset=23,
    )
    assert sum(whole.totals.flops.values()) == sum(parts.totals.flops.values()) == 2 * 4 * 5 * 7 * (2 * 16 + 7)


def test_a_layer_normalisation_has_the_flops_of_its_parts(graph: Graph) -> None:
    whole = graph("g (float[3,8] x, float[8] s) => (float y) { y = LayerNormalization(x, s, s) }")
    parts = graph("""g (float[3,8] x, float[8] s) => (float y) <float two = {2}, float e = {0.00001}> {
        m = ReduceMean<axes = [-1]>(x)  d = Sub(x, m)  p = Pow(d, two)  v = ReduceMean<axes = [-1]>(p)
        ve = Add(v, e)  q = Sqrt(ve)  n = Div(d, q)  ns = Mul(n, s)  y = Add(ns, s) }""")
    assert sum(whole.totals.flops.values()) == sum(parts.totals.flops.values()) == 7 * 24 + 2 * 3


@pytest.mark.parametrize(
    ("node", "macs", "reason"),
    [
        ("y = foo.Bar(x)", None, "no rule counts the operator foo::Bar"),
        ("y = com.microsoft.Inverse(x)", 0, "no rule counts the FLOPs of com.microsoft::Inverse"),
        ("y = Det(x)", 0, "no rule counts the FLOPs of Det"),
        ("y = LSTM <hidden_size = 2, clip = 1.0> (v, v, v)", 96, "no rule counts the FLOPs of LSTM"),
        ("y = Dropout(x, , t)", 0, "training mode of Dropout"),
    ],
)
def test_what_nothing_counts_is_open_and_never_0(graph: Graph, node: str, macs: int | None, reason: str) -> None:
    constants = "<bool t = {1}, int64[1] i = {0}>"
    found = graph(f"g (float[4,4] x, float[1,4,4] v) => (float y) {constants} {{ {node} }}")
    assert found.layers[-1].work.operations is None
    assert found.layers[-1].to_dict()["flops"] is None
    assert found.layers[-1].work.total is None if macs is None else found.layers[-1].work.total is not None
    (remark,) = found.totals.uncounted
    assert reason in remark.reason
    assert found.to_dict()["flops"]["unknown"] == [remark.to_dict()]


@pytest.mark.parametrize(
    "node",
    [
        "InstanceNormalization(x, x, x)",
        "com.microsoft.Attention <num_heads = 2> (x, x)",
        "com.microsoft.NhwcMaxPool <kernel_shape = 3> (x)",
        'com.microsoft.MatMulNBits <K = "a"> (x, x)',
    ],
)
def test_operands_that_an_operator_does_not_have_are_open(graph: Graph, node: str) -> None:
    (remark,) = graph(f"g (float[4] x) => (float[4] y) {{ y = {node} }}").totals.uncounted
    assert "do not fit the operator" in remark.reason


def test_a_loop_of_unknown_length_has_open_flops_and_no_macs(graph: Graph) -> None:
    body = "<body = b (int64 i, bool c, float[3] s) => (bool d, float[3] r) { d = Identity(c) r = %s(s) }>"
    for op, times, flops in (("Neg", "k", None), ("Identity", "k", 0), ("Neg", "n", 15)):
        text = f"g (float[3] x, int64 k) => (float z) <int64 n = {{5}}> {{ z = Loop ({times}, , x) {body % op} }}"
        (layer,) = (one for one in graph(text).layers if one.op == "Loop")
        assert (layer.work.total, layer.work.operations) == (0, flops)


def test_resnet50_by_hand(light: Callable[[str], Path]) -> None:
    """The strides are in the 3×3 convolutions: their inputs have the size of the stage before."""
    result = api.inspect(light("resnet50"))
    stages = ((3, 64, 56, 56), (4, 128, 56, 28), (6, 256, 28, 14), (3, 512, 14, 7))
    inner = sum((2 * n - 1) * c * after**2 + c * before**2 for n, c, before, after in stages)
    outer = sum(n * 4 * c * after**2 for n, c, _, after in stages)
    shortcuts = sum(4 * c * after**2 for _, c, _, after in stages)
    first = 64 * 112**2
    assert result.totals.flops == {
        "Conv": 2 * 4_087_136_256,
        "BatchNormalization": 2 * (first + inner + outer + shortcuts),
        "Relu": first + inner + outer,
        "Sum": outer,
        "Gemm": 2 * 2048 * 1000 + 1000,
        "MaxPool": 9 * 64 * 56**2,
        "AveragePool": 49 * 2048,
        "Softmax": 5 * 1000,
    }
    assert result.to_dict()["flops"]["total"] == sum(layer.work.operations or 0 for layer in result.layers)
    assert not result.totals.uncounted


def test_a_vision_transformer_by_hand(zoo: Callable[[str], Path]) -> None:
    """12 blocks of width 64, 4 heads and 128 hidden, on 16 patches of 14 × 14 and a class token."""
    blocks, tokens, width, hidden, scores = 12, 17, 64, 128, 4 * 17 * 17
    products = tokens * (4 * width * width + 2 * width * hidden) + 2 * scores * width // 4
    biases, residuals = tokens * (5 * width + hidden), 2 * tokens * width
    assert api.inspect(zoo("dinov2_dy20")).totals.flops == {
        "MatMul": 2 * blocks * products,
        "Conv": 2 * 16 * width * 3 * 14**2 + 16 * width,
        "LayerNormalization": (2 * blocks + 1) * tokens * (7 * width + 2),
        "Add": blocks * (biases + residuals + scores) + tokens * width,
        "Gelu": 5 * blocks * tokens * hidden,
        "Softmax": 5 * blocks * scores,
        "Mul": blocks * (residuals + scores),
    }


@pytest.mark.parametrize(("name", "flops"), [("bert", 8_464_920), ("gpt2", 8_663_960), ("llama", 9_691_970)])
def test_two_exporters_of_one_network_give_the_same_flops(zoo: Callable[[str], Path], name: str, flops: int) -> None:
    """One writes normalisations and gelu as one operator, the other takes them apart."""
    found = [api.inspect(zoo(f"{name}_{exporter}")) for exporter in ("dy20", "ts14_sim")]
    assert [sum(one.totals.flops.values()) for one in found] == [flops, flops]
