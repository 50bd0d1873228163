"""The work of each family of operators, counted by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onnxtile.inspection.summary import Inspection

Graph = Callable[..., Inspection]

CASES = {
    "conv": ("float[1,4,8,8] x, float[6,4,3,3] w", "Conv(x, w)", 6 * 6 * 6 * 4 * 9, 0),
    "conv_bias": ("float[1,4,8,8] x, float[6,4,3,3] w, float[6] b", "Conv(x, w, b)", 216 * 36, 216),
    "grouped": ("float[2,4,8,8] x, float[6,2,3,3] w", "Conv <group = 2> (x, w)", 2 * 216 * 18, 0),
    "depthwise_1d": ("float[1,4,9] x, float[4,1,3] w", "Conv <group = 4> (x, w)", 4 * 7 * 3, 0),
    "conv_integer": ("uint8[1,4,8,8] x, uint8[6,4,3,3] w", "ConvInteger(x, w)", 216 * 36, 0),
    "transposed": ("float[1,4,8,8] x, float[4,6,3,3] w", "ConvTranspose <strides = [2,2]> (x, w)", 4 * 64 * 54, 0),
    "matmul": ("float[2,3,5,7] a, float[7,11] b", "MatMul(a, b)", 2 * 3 * 5 * 7 * 11, 0),
    "broadcast": ("float[2,1,5,7] a, float[3,7,11] b", "MatMul(a, b)", 2 * 3 * 5 * 7 * 11, 0),
    "vector": ("float[7] a, float[7,11] b", "MatMul(a, b)", 77, 0),
    "dot": ("float[7] a, float[7] b", "MatMul(a, b)", 7, 0),
    "integer": ("uint8[5,7] a, uint8[7,11] b", "MatMulInteger(a, b)", 385, 0),
    "gemm": ("float[7,5] a, float[11,7] b, float[11] c", "Gemm <transA = 1, transB = 1> (a, b, c)", 385, 55),
    "fused_matmul": ("float[7,5] a, float[7,11] b", "com.microsoft.FusedMatMul <transA = 1> (a, b)", 385, 0),
    "einsum": ("float[2,5,7] a, float[2,7,11] b", 'Einsum <equation = "bij,bjk->bik"> (a, b)', 770, 0),
    "einsum_dots": ("float[2,3,5,7] a, float[7,11] b", 'Einsum <equation = "...ij,jk"> (a, b)', 6 * 385, 0),
    "outer": ("float[5] a, float[7] b", 'Einsum <equation = "i,j->ij"> (a, b)', 0, 0),
    "trace": ("float[5,5] a", 'Einsum <equation = "ii->i"> (a)', 0, 0),
    "lstm": (
        "float[10,2,3] x, float[2,16,3] w, float[2,16,4] r, float[2,32] b",
        'LSTM <hidden_size = 4, direction = "bidirectional"> (x, w, r, b)',
        10 * 2 * 2 * 4 * 4 * (3 + 4),
        10 * 2 * 2 * 4 * 4 * 2,
    ),
    "gru": ("float[10,2,3] x, float[1,12,3] w, float[1,12,4] r", "GRU <hidden_size = 4> (x, w, r)", 20 * 12 * 7, 0),
    "relu": ("float[5] a", "Relu(a)", 0, 0),
    "gelu_ms": ("float[5] a", "com.microsoft.Gelu(a)", 0, 0),
}  # fmt: skip


@pytest.mark.parametrize(("inputs", "node", "macs", "additions"), CASES.values(), ids=CASES)
def test_counted_by_hand(graph: Graph, inputs: str, node: str, macs: int, additions: int) -> None:
    declared = {"com.microsoft.FusedMatMul": "float[5,11] y", "com.microsoft.Gelu": "float[5] y"}
    kind = "int32" if "Integer" in node else "float"
    output = next((text for op, text in declared.items() if node.startswith(op)), f"{kind}[A] y")
    if output.endswith("[A] y"):
        output = f"{kind} y"
    result = graph(f"g ({inputs}) => ({output}) {{ y = {node} }}")
    assert sum(result.totals.macs.values()) == macs
    assert sum(result.totals.additions.values()) == additions
    assert not result.totals.unknown


def test_attention_of_four_and_of_three_dimensions(graph: Graph) -> None:
    """Two queries heads to a key head; the past lengthens the keys."""
    four = "float[2,4,5,8] q, float[2,2,7,8] k, float[2,2,7,6] v"
    result = graph(f"g ({four}) => (float y) {{ y = Attention(q, k, v) }}", opset=23)
    assert result.totals.macs == {"Attention": 2 * 4 * 5 * 7 * (8 + 6)}
    three = "float[2,5,32] q, float[2,7,16] k, float[2,7,12] v"
    packed = graph(
        f"g ({three}) => (float y) {{ y = Attention <q_num_heads = 4, kv_num_heads = 2> (q, k, v) }}", opset=23
    )
    assert packed.totals.macs == result.totals.macs


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ('y = Einsum <equation = "ij,jk,kl->il"> (x, x, x)', "depends on their order"),
        ("y = foo.Bar(x)", "no rule counts the operator foo::Bar"),
        ("y = com.microsoft.SparseAttention(x)", "no rule counts"),
        (
            "v = Unsqueeze(x, i) w = Unsqueeze(x, i) y = Conv <group = 2> (v, w)",
            "weights are for 8 channels, and its input has 4",
        ),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(graph: Graph, node: str, reason: str) -> None:
    result = graph(f"g (float[4,4] x) => (float y) <int64[1] i = {{0}}> {{ {node} }}")
    (remark,) = result.totals.unknown
    assert reason in remark.reason
    assert result.layers[-1].work.total is None
    assert result.layers[-1].intensity is None


FUNCTION = """
<opset_import: ["": 17], domain: "local"> Twice <transB: int = 0> (a, b) => (y)
{ h = Gemm <transB: int = @transB> (a, b)  y = Gemm <transB: int = @transB> (h, b) }
"""


def test_calls_have_the_work_of_their_bodies(graph: Graph) -> None:
    text = "g (float[3,5] a, float[5,5] b) => (float[3,5] z) { y = local.Twice <transB = 1> (a, b)  z = local.Twice(y, b) }"
    result = graph(text, functions=FUNCTION)
    assert result.totals.macs == {"Gemm": 4 * 75}
    assert [layer.work.total for layer in result.layers] == [150, 150]


def test_a_body_that_works_makes_its_node_unknown(graph: Graph) -> None:
    body = "then_branch = t () => (float[3,3] p) { p = %s }, else_branch = e () => (float[3,3] q) { q = Neg(x) }"
    text = "g (bool c, float[3,3] x) => (float[3,3] y) { y = If (c) <%s> }"
    busy, idle = (graph(text % (body % node)) for node in ("MatMul(x, x)", "Abs(x)"))
    assert [totals.macs for totals in busy.bodies.values()] == [{"MatMul": 27}, {}]
    assert "number of runs" in busy.totals.unknown[0].reason
    assert not idle.totals.unknown


LOOP = "z = Loop (%s, x) <body = b (int64 i, bool c, float[3,3] s) => (bool d, float[3,3] r) {%%s r = MatMul(s, s)}>"
ENDS = "m = ReduceMax <keepdims = 0> (s) o = ReduceMin <keepdims = 0> (s) d = Less(m, o)"
SCAN = "z = Scan <num_scan_inputs = 1, scan_input_axes = [1], body = b (float[3,3] s, float[3] q) => (float[3,3] r) {%s}> (x, v)"
IF = "z = If (%s) <then_branch = a () => (float[3,3] r) {%%s}, else_branch = e () => (float[3,3] w) {w = Neg(x)}>"
PLACES = {
    "loop": (LOOP % "n, t", "d = Identity(c)", 5),
    "loop without condition": (LOOP % "n, ", "d = Identity(c)", 5),
    "loop that ends itself": (LOOP % "n, t", ENDS, None),
    "loop of unknown length": (LOOP % "k, t", "d = Identity(c)", None),
    "loop that never starts": (LOOP % "n, f", "d = Identity(c)", None),
    "while": (LOOP % ", t", "d = Identity(c)", None),
    "scan": (SCAN, "m = MatMul(s, s) r = Add(m, q)", 7),
    "if": (IF % "t", "r = MatMul(x, x)", 1),
    "if not": (IF % "f", "r = MatMul(x, x)", 0),
}


@pytest.mark.parametrize(("node", "body", "times"), PLACES.values(), ids=PLACES)
def test_how_often_a_body_runs(graph: Graph, node: str, body: str, times: int | None) -> None:
    constants = "<int64 n = {5}, bool t = {1}, bool f = {0}>"
    inside = graph(f"g (float[3,3] x, float[3,7] v, int64 k) => (float[3,3] z) {constants} {{ {node % body} }}")
    if times is None:
        assert "number of runs" in inside.totals.unknown[0].reason
        assert inside.totals.macs == {}
    else:
        assert inside.totals.macs == ({"MatMul": 27 * times} if times else {})
        assert not inside.totals.unknown
    (of_body,) = (totals.macs for totals in inside.bodies.values() if totals.macs)
    assert of_body == {"MatMul": 27}


def test_a_function_with_a_loop_has_the_work_of_all_passes(graph: Graph) -> None:
    function = """
    <opset_import: ["": 17], domain: "local"> Powers (a) => (y)
    { n = Constant <value_int = 4> ()
      y = Loop (n, , a) <body = b (int64 i, bool c, float[3,3] s) => (bool d, float[3,3] r) { d = Identity(c) r = MatMul(s, a) }> }
    """
    result = graph("g (float[3,3] x) => (float[3,3] z) { y = local.Powers(x) z = local.Powers(y) }", functions=function)
    assert [layer.work.total for layer in result.layers] == [108, 108]


def test_linear_attention_and_causal_convolution(graph: Graph) -> None:
    """One product for the state, one to read it; the delta rules read it before they write."""
    inputs = "float[2,5,24] q, float[2,5,12] k, float[2,5,8] v, float[2,5,2] d"
    for rule, operands, through in (("linear", "", 1), ("gated", ", , d", 1), ("gated_delta", ", , d, d", 2)):
        node = f'LinearAttention <q_num_heads = 4, kv_num_heads = 2, update_rule = "{rule}"> (q, k, v{operands})'
        result = graph(f"g ({inputs}) => (float[2,5,16] y, float[2,2,6,4] s) {{ y, s = {node} }}", opset=27)
        assert result.totals.macs == {"LinearAttention": 2 * 5 * (6 * 4) * (4 + 2 * through)}
    result = graph(
        "g (float[2,6,9] x, float[6,1,4] w, float[6] b) => (float[2,6,9] y, float[2,6,3] s) { y, s = CausalConvWithState(x, w, b) }",
        opset=27,
    )
    assert result.totals.macs == {"CausalConvWithState": 2 * 6 * 9 * 4}
    assert result.totals.additions == {"CausalConvWithState": 2 * 6 * 9}
