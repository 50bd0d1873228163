"""Patterns inside what models nest: functions of the user, and the bodies of If, Loop and Scan, there as anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
import pytest

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes

if TYPE_CHECKING:
    from tests.fusion.conftest import Fused, Lab

_NORM = """
    m = ReduceMean <axes = [-1], keepdims = 1> (a)
    d = Sub(a, m)
    two = Constant <value_float = 2.0> ()
    p = Pow(d, two)
    v = ReduceMean <axes = [-1], keepdims = 1> (p)
    e = Constant <value_float = 0.00001> ()
    s = Add(v, e)
    r = Sqrt(s)
    n = Div(d, r)
    w = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()
    k = Mul(n, w)
    z = Constant <value_floats = [0.5, 0.25, 0.125, 1.0]> ()
    b = Add(k, z)
"""

_IN_FUNCTION = f'<domain: "local", opset_import: ["": 17]> norm (a) => (b) {{ {_NORM} }}'
_LOOP = f"""
g (float[3, 4] x, int64 count, bool c) => (float[3, 4] y) {{
    y = Loop (count, c, x) <body = step (int64 i, bool go, float[3, 4] a) => (bool on, float[3, 4] b) {{ on = Identity(go) {_NORM} }}>
}}"""
_SCAN = f"""
g (float[3, 4] x, float[5, 4] rows) => (float[3, 4] last, float[5, 3, 4] y) {{
    last, y = Scan <num_scan_inputs = 1,
        body = step (float[3, 4] h, float[4] row) => (float[3, 4] t, float[3, 4] b) {{ a = Add(h, row) {_NORM} t = Tanh(b) }}> (x, rows)
}}"""
_IF = f"""
g (float[3, 4] a, bool c) => (float[3, 4] y) {{
    y = If (c) <then_branch = then () => (float[3, 4] b) {{ {_NORM} }}, else_branch = other () => (float[3, 4] t) {{ t = Tanh(a) }}>
}}"""


@pytest.mark.parametrize(
    ("graph", "functions"),
    [
        ("g (float[3, 4] x) => (float[3, 4] y) { h = local.norm(x) y = local.norm(h) }", _IN_FUNCTION),
        (
            "g (float[3, 4] x, bool which) => (float[3, 4] y) { y = local.perhaps(x, which) }",
            f"""<domain: "local", opset_import: ["": 17]> perhaps (a, c) => (y) {{
                y = If (c) <then_branch = then () => (b) {{ {_NORM} }}, else_branch = other () => (t) {{ t = Tanh(a) }}> }}""",
        ),
        (_LOOP, ""),
        (_SCAN, ""),
        (_IF, ""),
    ],
    ids=["function", "If in a function", "Loop", "Scan", "If"],
)
def test_a_layer_norm_in_a_body_is_fused_with_its_constants(lab: Lab, graph: str, functions: str) -> None:
    fused = lab.sound(lab.text(graph, functions=functions), "LayerNorm")
    assert fused.counts == [1]
    call = next(node for node in _nodes(fused) if node.domain == "onnxtile")
    # Two, epsilon, scale and bias are constants of the body, of 16 bytes at most: all are inside of the meta-op.
    assert len(call.inputs) == 1
    assert {node.op_type for node in _nodes(fused)}.isdisjoint({"Pow", "Constant", "Mul"})


def _nodes(fused: Fused) -> Iterator[ir.Node]:
    """Yield the nodes of the graph, of the functions of the user, and of all bodies in them."""
    yield from fused.model.graph.all_nodes()
    for function in fused.model.functions.values():
        if function.domain == "local":
            yield from function.all_nodes()


TWICE = """g (float[2,3] x) => (float[2,3] y) <float c = {5.0}, float s = {2.0}> {
    a = local.gelu(x)  b = Mul(a, c)  d = Add(b, s)  y = local.gelu(d) }"""
"""Both calls make values of the same names, and the graph has constants of other numbers with these."""


@pytest.mark.parametrize("patterns", [("QuickGeLU",), ("Mul->Sigmoid", "Mul<*-onnxtile::MetaOp")])
def test_a_function_that_was_written_out_is_unfused_at_each_of_its_calls(lab: Lab, patterns: tuple[str, ...]) -> None:
    function = """<domain: "local", opset_import: ["": 17]> gelu (v) => (r) {
        c = Constant <value_float = 1.702> ()  m = Mul(v, c)  s = Sigmoid(m)  r = Mul(v, s) }"""
    original = lab.text(TWICE, functions=function)
    fitted = api.fit(api.fuse(original, patterns).model, capacity="smallest").model
    assert fitted.graph.num_nodes() == 4
    assert not [key for key in fitted.functions if key[0] == "local"]
    restored = api.unfuse(onnx.ModelProto.FromString(to_bytes(fitted))).model
    assert [node.op_type for node in restored.graph if node.op_type != "Constant"] == [
        *("Mul", "Sigmoid", "Mul"),
        *("Mul", "Add"),
        *("Mul", "Sigmoid", "Mul"),
    ]
    lab.require_same_bits(load(original), restored)


def test_a_value_that_the_caller_gives_is_not_constant(lab: Lab) -> None:
    function = """<domain: "local", opset_import: ["": 17]> scaled <scale> (a) => (b) {
        s = Constant <value_float: float = @scale> () b = Mul(a, s) c = Tanh(b) }"""
    graph = "g (float[2] x) => (float[2] y) { y = local.scaled <scale = 2.0> (x) }"
    model = lab.text(graph, functions=function.replace("(b) {", "(c) {"))
    assert lab.fuse(model, "Mul[constant]->Tanh").counts == [0]


@pytest.mark.parametrize("opset", [17, 20])
def test_a_pattern_asks_for_shapes_after_another_has_fused(lab: Lab, opset: int) -> None:
    graph = """g (float[3, 4] x, float[4] w) => (float[3, 4] y) {
        a = Relu(x) b = Tanh(a) c = Mul(b, w) d = Relu(c) e = Tanh(d) y = Mul(e, e) }"""
    by_rank = "Mul[inputs[0].rank == 2 and inputs[1].shape == [4]]<*-onnxtile::MetaOp"
    fused = lab.sound(lab.text(graph, opset=opset), "Relu->Tanh", by_rank)
    assert fused.counts == [2, 1]
    twice = lab.sound(
        lab.text(graph, opset=opset), "Mul[inputs[1].rank == 1]->Relu", "Relu->Tanh[shape == [3, 4]]", by_rank
    )
    assert twice.counts == [1, 1, 0]


def test_a_test_that_asks_for_shapes_leaves_the_model_as_it_is(lab: Lab) -> None:
    graph = "g (float[3, 4] x) => (float[3, 4] y) { a = Relu(x) y = Tanh(a) }"
    fused = lab.fuse(lab.text(graph), "Relu->Tanh[rank == 3]")
    assert fused.counts == [0]
    assert "onnxtile" not in fused.model.graph.opset_imports


_QKV = "@.#x~>MatMul#q->Add#s;@.#x~>MatMul#k-1>Add#s;@.#x~>MatMul#v-1>Sub<-Add#s"
_PRODUCTS = "q = MatMul(a, w) k = MatMul(a, u) v = MatMul(a, z) s = Add(q, k) b = Sub(s, v)"
_WEIGHTS = """
    w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
    u = Constant <value = float[2, 2] {2, 0, 1, 4}> ()
    z = Constant <value = float[2, 2] {1, 5, 0, 4}> ()
"""
_BODY = f"bool go, float[3, 2] a) => (bool on, float[3, 2] b) {{ on = Identity(go) {_WEIGHTS} {_PRODUCTS} }}"
_BRANCHES = f"""
    then_branch = t () => (float[3, 2] b) {{ {_WEIGHTS} {_PRODUCTS} }},
    else_branch = e () => (float[3, 2] n) {{ n = Neg(a) }}
"""
LOOKED_AT = {
    "the result of a node": f"float[3, 2] x) => (float[3, 2] b, float[3, 2] y) {{ a = Relu(x) {_WEIGHTS} {_PRODUCTS} y = Exp(a) }}",
    "an input of the graph": f"float[3, 2] a) => (float[3, 2] b) {{ {_WEIGHTS} {_PRODUCTS} }}",
    "an input of a body": f"float[3, 2] x, int64 n, bool c) => (float[3, 2] y) {{ y = Loop (n, c, x) <body = s (int64 i, {_BODY}> }}",
    "a value around a body": f"float[3, 2] x, bool c) => (float[3, 2] y) {{ a = Relu(x) y = If (c) <{_BRANCHES}> }}",
}


@pytest.mark.parametrize("place", LOOKED_AT)
def test_what_is_only_looked_at_stays_outside(place: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({LOOKED_AT[place]}')
    result = api.fuse(model, [("QKV", _QKV)])
    assert result.fused == 1
    assert result.verdict is not None and result.verdict.equal
    (function,) = [f for f in result.model.functions.values() if f.domain == "onnxtile"]
    assert sorted(node.op_type for node in function if node.op_type != "Constant") == [
        "Add",
        "MatMul",
        "MatMul",
        "MatMul",
        "Sub",
    ]
    assert api.verify(model, api.unfuse(result.model).model).equal
