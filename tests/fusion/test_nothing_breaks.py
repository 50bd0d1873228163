"""Each way in which a fusion can break a model, as a graph made for it: the match is refused, or the fused model is right."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile import api
from onnxtile.fusion.pattern import from_query
from onnxtile.model import keys
from onnxtile.model.load import load
from onnxtile.model.save import to_bytes
from onnxtile.system.errors import ModelError
from tests import build

if TYPE_CHECKING:
    from tests.fusion.conftest import Lab

TWO_SITES = """g (float[2,4] x, float[2,4] z, float[4,4] w, float[4] b) => (float[2,4] y, float[2,4] v) {
    h = MatMul(x, w)  y = Add(h, b)  k = MatMul(z, w)  v = Add(k, b) }"""


@pytest.mark.filterwarnings("ignore:ONNX has no operator")
@pytest.mark.parametrize("operator", ["LayerNormalization", "SimplifiedLayerNormalization"])
def test_an_operator_of_onnxruntime_in_the_standard_domain_is_in_no_function(operator: str) -> None:
    """onnxruntime crashes when it loads a function with one: it takes these in graphs alone."""
    scale = numpy_helper.from_array(np.ones(4, np.float32), "s")
    nodes = [helper.make_node(operator, ["x", "s"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 4]) for name in "xy")
    result = api.fuse(build.model(nodes, [given], [made], [scale], opset=14, ir_version=8), [f"{operator}->Relu"])
    assert [node.op_type for node in result.model.graph] == [operator, "Relu"]
    assert operator in result.patterns[0].refused[0].reason


def test_shared_inputs_and_equal_bodies(lab: Lab) -> None:
    fused = lab.sound(lab.text(TWO_SITES), lab.linear)
    assert fused.counts == [2]
    assert len(fused.model.functions) == 1


def test_a_shared_initializer_stays_where_it_is(lab: Lab) -> None:
    source = lab.text(
        """g (float[2,4] x) => (float[2,4] y, float[2,4] v, float[4,4] u)
        <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4] b = {1,2,3,4}> {
        h = MatMul(x, w)  y = Add(h, b)  v = MatMul(x, w)  u = Mul(w, b) }"""
    )
    fused = lab.sound(source, lab.linear)
    assert fused.ops == ["Linear", "MatMul", "Mul"]
    assert set(fused.model.graph.initializers) == {"w", "b"}


@pytest.mark.parametrize(
    "written", ["<float c = {3.0}> {", "{ c = Constant<value = float {3.0}>()", "{ c = Constant<value_float = 3.0>()"]
)
def test_a_constant_of_many_sites_goes_when_the_last_has_taken_it(lab: Lab, written: str) -> None:
    sites = " ".join(f"a{i} = Mul(x, c) y{i} = Exp(a{i})" for i in range(3))
    outputs = ", ".join(f"float[2] y{i}" for i in range(3))
    fused = lab.sound(lab.text(f"g (float[2] x) => ({outputs}) {written} {sites} }}"), "Mul->Exp")
    assert fused.ops == ["MetaOp"] * 3
    assert not fused.model.graph.initializers
    assert len(fused.model.functions) == 1
    shared = lab.sound(
        lab.text(f"g (float[2] x) => ({outputs}, float[2] z) {written} {sites} z = Add(x, c) }}"), "Mul->Exp"
    )
    assert sorted(shared.ops)[-3:] == ["MetaOp"] * 3 and "Add" in shared.ops


def test_equal_initializers_of_many_names_come_back_under_their_names(lab: Lab) -> None:
    source = lab.text(
        """g (float[2] x) => (float[2] y, float[2] z) <float c = {3.0}, float d = {3.0}> {
        a = Mul(x, c) y = Exp(a)  b = Mul(x, d) z = Exp(b) }"""
    )
    fused = lab.sound(source, "Mul->Exp")
    assert len(fused.model.functions) == 1


@pytest.mark.parametrize("written", ["<float c = {3.0}> {", "{ c = Constant<value = float {3.0}>()"])
def test_a_constant_that_is_a_graph_output_stays(lab: Lab, written: str) -> None:
    fused = lab.sound(
        lab.text(f"g (float[2] x) => (float[2] y, float c) {written} a = Mul(x, c) y = Exp(a) }}"), "Mul->Exp"
    )
    assert fused.ops[-1] == "MetaOp"
    assert [v.name for v in fused.model.graph.outputs] == ["y", "c"]


def test_an_overridable_initializer_is_not_taken_in(lab: Lab) -> None:
    source = lab.text("g (float[2] x, float c = {3.0}) => (float[2] y) { a = Mul(x, c) y = Exp(a) }")
    fused = lab.sound(source, "Mul->Exp")
    assert [v.name for v in fused.model.graph.inputs] == ["x", "c"]
    assert [v.name for v in fused.node("MetaOp").inputs if v is not None] == ["x", "c"]


def test_a_value_read_by_others_too_refuses_a_pattern_of_one_output(lab: Lab) -> None:
    source = lab.text("g (float[2] x) => (float[2] y, float[2] z) { h = Neg(x)  i = Abs(h)  y = Exp(i)  z = Relu(i) }")
    one = api.fuse(source, [from_query("Neg->Abs~>Exp")])
    assert one.fused == 1
    lab.sound(source, from_query("Neg->Abs~>Exp"))
    strict = lab.sound(source, *_one_output("Neg->Abs~>Exp"))
    assert strict.counts == [0]
    assert "'i'" in strict.refusals[0] and "read outside" in strict.refusals[0]


def _one_output(query: str) -> tuple[Any, ...]:
    return (replace(from_query(query), outputs=1),)


def test_a_graph_output_inside_a_match(lab: Lab) -> None:
    source = lab.text("g (float[2] x) => (float[2] h, float[2] y) { h = Neg(x)  y = Abs(h) }")
    assert lab.sound(source, *_one_output("Neg~>Abs")).counts == [0]
    fused = lab.sound(source, "Neg~>Abs")
    assert fused.ops == ["MetaOp"]
    assert [v.name for v in fused.model.graph.outputs] == ["h", "y"]


def test_an_output_given_twice(lab: Lab) -> None:
    source = lab.text("g (float[2] x) => (float[2] y) { h = Neg(x)  y = Abs(h) }")
    source.graph.output.append(source.graph.output[0])
    with suppress(ModelError):  # a checker that refuses it is as good
        load(source)
        lab.sound(source, "Neg->Abs")


IF = """g (float[2] x, bool c) => (float[2] y) {{
    {before}
    y = If (c) <
        then_branch = t () => (float[2] t) {{ {then} }},
        else_branch = e () => (float[2] e) {{ {otherwise} }}
    > }}"""


def test_a_body_reads_an_inner_value_of_a_match(lab: Lab) -> None:
    source = lab.text(IF.format(before="h = Neg(x) i = Abs(h)", then="t = Add(h, i)", otherwise="e = Relu(i)"))
    assert lab.sound(source, *_one_output("Neg~>Abs")).counts == [0]
    fused = lab.sound(source, "Neg~>Abs")
    assert fused.ops == ["MetaOp", "If"]
    assert len(fused.node("MetaOp").outputs) == 2
    source = lab.text(IF.format(before="h = Neg(x) i = Abs(h)", then="t = Identity(i)", otherwise="e = Relu(i)"))
    assert lab.sound(source, *_one_output("Neg->Abs")).counts == [1]


def test_matches_in_bodies(lab: Lab) -> None:
    text = IF.format(
        before="k = Relu(x)", then="h = Neg(k) t = Abs(h)", otherwise="m = Neg(x) n = Abs(m) e = Add(n, k)"
    )
    fused = lab.sound(lab.text(text), "Neg->Abs")
    assert fused.counts == [2]
    assert len(fused.model.functions) == 1
    assert fused.ops == ["Relu", "If"]


def test_bodies_that_use_the_same_names(lab: Lab) -> None:
    text = IF.format(before="k = Relu(x)", then="h = Neg(k) t = Abs(h)", otherwise="h = Neg(x) e = Abs(h)")
    lab.sound(lab.text(text), "Neg->Abs")


def test_a_constant_of_the_graph_around_a_body(lab: Lab) -> None:
    text = IF.format(
        before="k = Constant<value_float = 2.0>()", then="h = Mul(x, k) t = Exp(h)", otherwise="e = Relu(x)"
    )
    fused = lab.sound(lab.text(text), "Mul->Exp")
    assert fused.counts == [1]
    assert fused.ops == ["Constant", "If"]


MEASURED = """g (float[2,3] x, float[6] z) => (float[?,?] y{more}) {{
    h = Neg(x)  s = Shape(h)  c = Reshape(z, s)  i = Add(h, c)  y = Abs(i){rest} }}"""


def test_what_only_measures_a_match_for_itself_becomes_part_of_it(lab: Lab) -> None:
    """Neg -> Shape -> Reshape -> Add stands between Neg and Add."""
    fused = lab.sound(lab.text(MEASURED.format(more="", rest="")), "Neg~>Add->Abs")
    assert fused.counts == [1]
    assert fused.ops == ["MetaOp"]


CROSSED = """g (float[2] x) => (float[2] c, float[2] d) {
    a = Neg(x)  b = Neg(x)  s = Abs(a)  t = Abs(b)  c = Add(a, t)  d = Add(b, s) }"""


NEEDED = "g (float[2] x) => (float[2] y) { h = Neg(x)  i = Relu(h)  y = Add(h, i) }"
"""Neg and Add without Relu would stand before it and after it."""
COUNTED: dict[str, tuple[str, str, int, str]] = {
    "an exclusive edge to what others read": (
        "g (float[2] x) => (float[2] y, float[2] z) { h = Neg(x)  y = Abs(h)  z = Relu(h) }",
        *("Neg->Abs", 0, ""),
    ),
    "an edge into a body": (
        IF.format(before="h = Neg(x)", then="t = Abs(h)", otherwise="e = Abs(h)"),
        *("Neg~>Abs", 0, ""),
    ),
    "a node with a body": (
        IF.format(before="h = Neg(x)", then="t = Abs(h)", otherwise="e = Relu(h)"),
        *(".~*>If", 0, ""),
    ),
    "nodes in the body of a Loop": (
        """g (float[2] x) => (float[2] y) <int64 n = {3}, bool c = {1}> {
        y = Loop (n, c, x) <body = b (int64 i, bool p, float[2] s) => (bool q, float[2] r) {
            q = Identity(p)  h = Neg(s)  k = Abs(h)  r = Add(k, x) }> }""",
        *("Neg->Abs", 1, ""),
    ),
    "a value named as in a body": (
        "g (float[2] x0) => (float[2] y0) { v0 = Neg(x0) c0 = Abs(v0) y0 = Exp(c0) }",
        *("Neg->Abs->Exp", 1, ""),
    ),
    "what would close a cycle": (NEEDED, "Neg~>Add", 0, "cycle"),
    "a cycle by way of a body": (
        IF.format(before="h = Neg(x)", then="t = Relu(h)", otherwise="e = Exp(h)").replace("y =", "i =")[:-1]
        + "y = Add(h, i) }",
        *("Neg~>Add", 0, "cycle"),
    ),
    # Neg a with Add c needs Abs b, Neg b with Add d needs Abs a: each alone is fine, both would be a cycle.
    "two matches that need each other": (CROSSED, "Neg~0>Add", 1, "cycle"),
    **{
        f"a measure that is read elsewhere: {rest}": (
            MEASURED.format(more=f", {kind} t", rest=f"  t = {rest}"),
            *("Neg~>Add->Abs", 0, "cycle"),
        )
        for kind, rest in (("int64[2]", "Identity(s)"), ("float[?,?]", "Neg(c)"), ("float[2,3]", "Exp(h)"))
    },
}


@pytest.mark.parametrize("case", COUNTED)
def test_a_match_is_fused_or_refused(lab: Lab, case: str) -> None:
    text, query, count, reason = COUNTED[case]
    fused = lab.sound(lab.text(text), query)
    assert fused.counts == [count]
    assert reason in "".join(fused.refusals[:1])


BETWEEN = """g (float[2] x, float[2] z) => (float[2] y, float[2] v) {
    h = Neg(x)  r = Relu(h)  q = Exp(z)  s = Exp(r)  p = Abs(q)  i = Abs(h)  y = Add(i, q)  v = Add(s, p) }"""


def test_nodes_between_move_and_come_back(lab: Lab) -> None:
    fused = lab.sound(lab.text(BETWEEN), "Neg~>Abs")
    assert fused.counts == [1]
    names = [node.op_type for node in fused.model.graph]
    assert names.index("MetaOp") < names.index("Relu")
    moved = [node.op_type for node in fused.model.graph if keys.PLACE in node.metadata_props]
    assert moved == ["Relu", "Exp"]


@pytest.mark.parametrize("order", list(itertools.permutations(("Neg~>Abs", "Exp~*>Add", "Relu~>Exp"))))
def test_nodes_that_moved_are_matched_by_a_later_run(lab: Lab, tmp_path: Path, order: tuple[str, ...]) -> None:
    source = lab.text(BETWEEN)
    path = tmp_path / "model.onnx"
    api.save(load(source), path)
    for i, query in enumerate(order):
        fused = api.fuse(path, [from_query(query, f"Step{i}")])
        api.save(fused.model, path, force=True)
    lab.require_same_bits(load(source), load(path))
    lab.require_same_meaning(load(source), api.unfuse(path).model)


def test_a_node_that_two_runs_move_goes_back_to_both_places(lab: Lab, tmp_path: Path) -> None:
    source = lab.text(
        """g (float[2] x, float[2] z) => (float[2] c, float[2] d, float[2] e, float[2] m) {
        a = Neg(x)  k = Exp(z)  f = Relu(a)  m = Add(f, k)  n = Tanh(z)  c = Abs(a)  e = Sin(k)  d = Cos(n) }"""
    )
    path = tmp_path / "model.onnx"
    for first, second in itertools.permutations(("Neg~>Abs", "Exp~>Sin"), 2):
        api.save(api.fuse(source, [from_query(first, "First")]).model, path)
        fused = api.fuse(path, [from_query(second, "Second")])
        assert fused.fused == 1
        lab.require_same_meaning(load(source), api.unfuse(fused.model).model)


def test_duplicate_branches(lab: Lab) -> None:
    branch = " ".join(f"a{i} = Mul(x, x) b{i} = Exp(a{i}) c{i} = Mul(b{i}, x)" for i in range(4))
    fused = lab.sound(
        lab.text(f"g (float[2] x) => (float[2] y) {{ {branch} y = Sum(c0, c1, c2, c3) }}"), "Mul->Exp->Mul"
    )
    assert fused.counts == [4]
    assert len(fused.model.functions) == 1
    assert len({node.name for node in fused.model.graph}) == fused.model.graph.num_nodes()


def test_an_operand_given_twice(lab: Lab) -> None:
    fused = lab.sound(
        lab.text("g (float[2] x) => (float[2] y) { h = Neg(x)  i = Mul(h, h)  y = Add(i, x) }"), "Mul-*>Add", "Neg~*>."
    )
    assert fused.counts == [1, 1]


def test_a_node_of_that_name_is_there(lab: Lab) -> None:
    source = lab.text(TWO_SITES)
    source.graph.node[0].name = "y/Linear"
    source.graph.node[2].name = "v/Linear_2"
    fused = lab.sound(source, lab.linear)
    names = [node.name for node in fused.model.graph]
    assert len(set(names)) == len(names)


OWN = """<domain: "onnxtile", opset_import: ["": 17]> Linear (a) => (c) { c = Add(a, a) }"""


def test_a_function_of_that_name_is_there(lab: Lab) -> None:
    source = lab.text(TWO_SITES.replace("v = Add(k, b)", "v0 = Add(k, b) v = onnxtile.Linear(v0)"), functions=OWN)
    source.opset_import.append(helper.make_opsetid("onnxtile", 1))
    fused = lab.sound(source, lab.linear)
    assert fused.counts == [2]
    assert {f.name for f in fused.model.functions.values()} == {"Linear", "Linear.2"}
    restored = api.unfuse(fused.model).model
    assert restored.graph.opset_imports["onnxtile"] == 1


FUNCTION = """<domain: "local", opset_import: ["": 17]> dense <k: int = 1> (a, w, b) => (c) {
    h = MatMul(a, w)  i = Add(h, b)  c = Relu(i) }"""


def test_a_match_in_a_function_of_the_user(lab: Lab) -> None:
    source = lab.text(
        "g (float[2,4] x, float[4,4] w, float[4] b) => (float[2,4] y) { h = local.dense(x, w, b)  y = local.dense(h, w, b) }",
        functions=FUNCTION.replace("<k: int = 1> ", ""),
    )
    fused = lab.sound(source, lab.linear)
    assert fused.counts == [1]
    function = fused.model.functions["local", "dense", ""]
    assert [node.op_type for node in function] == ["Linear", "Relu"]
    assert function.opset_imports[keys.DOMAIN] == 1


def test_an_attribute_of_the_function_around_is_left_alone(lab: Lab) -> None:
    source = lab.text(
        "g (float[2,4] x) => (float[2,4] y) { y = local.f<k = 1>(x) }",
        functions='<domain: "local", opset_import: ["": 17]> f <k> (a) => (c) { h = Neg(a)  c = Softmax<axis: int = @k>(h) }',
    )
    fused = lab.sound(source, "Neg->Softmax")
    assert fused.counts == [0]
    assert "'axis'" in fused.refusals[0]


def test_nothing_is_matched_inside_a_meta_op(lab: Lab, tmp_path: Path) -> None:
    """The body of a meta-op is shared by its calls: neither the same run nor a later one looks into it."""
    source = lab.text("g (float[2] x) => (float[2] y) { a = Neg(x)  b = Abs(a)  c = Exp(b)  y = Relu(c) }")
    fused = lab.sound(source, from_query("Neg->Abs->Exp", "Outer"), from_query("Neg->Abs", "Inner"))
    assert fused.counts == [1, 0]
    path = tmp_path / "model.onnx"
    api.save(fused.model, path)
    assert api.fuse(path, [from_query("Neg->Abs", "Inner")]).fused == 0


def test_bodies_equal_but_for_their_opset_are_two_functions(lab: Lab) -> None:
    body = "{ h = ReduceSum(a)  c = Neg(h) }"
    source = lab.text(
        "g (float[2,2] x) => (float[1,1] y) { a = ReduceSum(x)  b = Neg(a)  c = local.f(x)  y = Add(b, c) }",
        functions=f'<domain: "local", opset_import: ["": 17]> f (a) => (c) {body}',
    )
    fused = lab.sound(source, "ReduceSum->Neg")
    assert len([f for f in fused.model.functions.values() if f.domain == keys.DOMAIN]) == 1
    source.functions[0].opset_import[0].version = 18
    with suppress(ModelError):  # a checker that asks for one opset in the whole model is as good
        other = lab.fuse(source, "ReduceSum->Neg", verify=False)
        assert len([f for f in other.model.functions.values() if f.domain == keys.DOMAIN]) == 2


def test_operators_of_other_domains(lab: Lab) -> None:
    source = lab.text("g (float[2] x) => (float[2] y) { h = com.microsoft.Gelu(x)  y = Neg(h) }")
    fused = lab.sound(source, "com.microsoft::Gelu->Neg")
    assert fused.counts == [1]
    assert next(iter(fused.model.functions.values())).opset_imports == {"com.microsoft": 1, "": 17}


def test_the_default_domain_written_out(lab: Lab) -> None:
    source = lab.text(TWO_SITES)
    source.opset_import[0].domain = "ai.onnx"
    fused = lab.sound(source, lab.linear)
    assert fused.counts == [2]


def test_unnamed_nodes(lab: Lab) -> None:
    source = lab.text(BETWEEN)
    assert {node.name for node in source.graph.node} == {""}
    fused = lab.sound(source, "Neg~>Abs")
    assert [node.name for node in fused.model.graph if node.op_type != "MetaOp"] == [""] * 6


def test_nodes_of_one_name(lab: Lab) -> None:
    source = lab.text(BETWEEN)
    for node in source.graph.node:
        node.name = "same"
    lab.require_restored(lab.fuse(source, "Neg~>Abs", "Exp~*>.", verify=False))  # onnxruntime refuses such a model


@pytest.mark.parametrize(
    ("body", "query"),
    [
        ("h = Clip(x, , m)  y = Neg(h)", "Clip->Neg"),
        ("h = Neg(x)  y = Clip(h, , m)", "Neg->Clip"),
        ("h = Neg(x)  y, idle = Dropout(h)", "Neg->Dropout"),
        ("h, i = TopK<axis = 0>(x, k)  y = Neg(h)", "TopK->Neg"),
        ("h, = MaxPool<kernel_shape = [1]>(x3)  y = Squeeze(h)", "MaxPool->Squeeze"),
    ],
)
def test_optional_inputs_and_outputs_that_are_not_there(lab: Lab, body: str, query: str) -> None:
    source = lab.text(
        f"""g (float[2] x, float[1,1,2] x3, float[4] z) => (float[2] y) <float m = {{0.5}}, int64[1] k = {{2}}> {{ {body} }}""",
        opset=13,
    )
    fused = lab.fuse(source, query, verify=False)
    assert fused.counts == [1]
    lab.sound(source, query)


@pytest.mark.parametrize("dtype", ["float16", "double", "int32", "int64"])
def test_element_types(lab: Lab, dtype: str) -> None:
    source = lab.text(TWO_SITES.replace("float", dtype))
    assert lab.sound(source, lab.linear).counts == [2]


def test_bfloat16(lab: Lab) -> None:
    source = lab.text(
        """g (bfloat16[2] x) => (bfloat16[2] y) {
        a = Cast<to = 1>(x)  d = Cast<to = 1>(c)  b = Mul(a, d)  e = Cast<to = 16>(b)  y = Identity(e) }"""
    )
    source.graph.initializer.append(numpy_helper.from_array(np.asarray([2.5, 3], ml_dtypes.bfloat16), "c"))
    fused = lab.sound(source, "Cast-*>Mul->Cast")
    assert fused.counts == [1]


def test_quantised_models_keep_their_annotations(lab: Lab) -> None:
    source = lab.text(
        """g (float[4] x) => (float[4] y, float[4] r) <float s = {0.1}, uint8 z = {8}> {
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)  h = Relu(d)  i = Neg(h)  y = Exp(i)  r = Abs(h) }"""
    )
    for name in ("h", "y", "i"):
        annotation = source.graph.quantization_annotation.add(tensor_name=name)
        annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
        annotation.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="z")
    fused = lab.sound(source, "DequantizeLinear->Relu", "Neg->Exp")
    assert fused.counts == [1, 1]
    kept = {a.tensor_name for a in ir.to_proto(fused.model).graph.quantization_annotation}
    assert kept == {"h", "y"}


def _annotated(lab: Lab) -> onnx.ModelProto:
    """Return a model in which everything that can say something says it."""
    source = lab.text(BETWEEN)
    source.producer_name, source.producer_version, source.doc_string = "maker", "1.2", "a model"
    source.domain, source.model_version = "example.org", 7
    source.metadata_props.add(key="author", value="somebody")
    graph = source.graph
    graph.doc_string = "a graph"
    graph.metadata_props.add(key="g", value="1")
    for i, node in enumerate(graph.node):
        node.name, node.doc_string = f"/block/n{i}", f"node {i} ü"
        node.metadata_props.add(key="k", value=f"{i}")
        node.metadata_props.add(key="stack", value='a "quoted"\nline')
        if node.output[0] not in {"y", "v"}:
            info = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, ["n" if i % 2 else 2])
            info.doc_string = f"value {i}"
            info.metadata_props.add(key="v", value=f"{i}")
            graph.value_info.append(info)
    for value in (*graph.input, *graph.output):
        value.doc_string = f"about {value.name}"
        value.metadata_props.add(key="io", value=value.name)
    graph.value_info[0].type.denotation = "TENSOR"
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    return source


@pytest.mark.parametrize("query", ["Neg~>Abs", "Exp~*>Add", "Abs~*>Add", "Neg~>Relu->Exp"])
def test_metadata_doc_strings_and_value_info_survive(lab: Lab, query: str) -> None:
    source = _annotated(lab)
    fused = lab.sound(source, query)
    assert sum(fused.counts) > 0
    before, after = lab.meaning(fused.original), lab.meaning(fused.model)
    for part in ("header", "metadata", "inputs", "outputs"):
        assert before[part] == after[part], part
    named = {name for node in after["nodes"] for name in node[6]}
    assert {n: v for n, v in before["value_info"].items() if n in named} == after["value_info"]
    own = {node[3]: node for node in before["nodes"]}
    for node in after["nodes"]:
        if node[1].partition(".")[0] != "MetaOp":
            kept = {k: v for k, v in node[-1].items() if not k.startswith("pkg.onnxtile")}
            assert (node[4], kept) == (own[node[3]][4], own[node[3]][-1])


def test_the_call_is_named_after_the_module(lab: Lab) -> None:
    assert lab.fuse(_annotated(lab), "Neg~>Abs").node("MetaOp").name == "/block/MetaOp"


def test_sequences_inside_a_match(lab: Lab) -> None:
    source = lab.text(
        """g (float[4] x) => (float[4] y, seq(float[2]) s) <int64 two = {2}, int64 zero = {0}> {
        s = SplitToSequence<axis = 0>(x, two)  h = SequenceAt(s, zero)  t = SequenceInsert(s, h)
        u = ConcatFromSequence<axis = 0>(t)  y = Slice(u, zero1, four1) }""".replace(
            "int64 zero =", "int64[1] zero1 = {0}, int64[1] four1 = {4}, int64 zero ="
        )
    )
    info = helper.make_tensor_sequence_value_info("t", TensorProto.FLOAT, None)
    source.graph.value_info.append(info)
    fused = lab.sound(source, "SequenceInsert->ConcatFromSequence", "SplitToSequence~>SequenceAt")
    assert fused.counts == [1, 1]


def test_ir_version_3_with_initializers_among_the_inputs(lab: Lab) -> None:
    """Such inputs are no inputs once the IR version is raised; unfuse lists them again, in their places."""
    source = lab.text(
        "g (float[2] x) => (float[2] y) { a = Mul(x, c)  h = Exp(a)  y = Add(h, d) }".replace(
            "(float[2] x)", "(float c, float[2] x, float[2] d)"
        ),
        ir_version=3,
    )
    source.graph.initializer.append(numpy_helper.from_array(np.asarray(3, np.float32), "c"))
    source.graph.initializer.append(numpy_helper.from_array(np.asarray([1, 2], np.float32), "d"))
    fused = lab.sound(source, "Mul->Exp")
    assert fused.model.ir_version == 10
    assert [v.name for v in fused.model.graph.inputs] == ["x"]
    assert [v.name for v in api.unfuse(fused.model).model.graph.inputs] == ["c", "x", "d"]
    assert to_bytes(lab.sound(source, "Conv->Relu").model) == to_bytes(ir.from_proto(source))


def test_external_data_stays_where_it_is(lab: Lab, tmp_path: Path) -> None:
    w = numpy_helper.from_array(np.arange(4096, dtype=np.float32).reshape(64, 64) / 4096, "w")
    b = numpy_helper.from_array(np.arange(64, dtype=np.float32), "b")
    source = lab.text(
        "g (float[2,64] x) => (float[2,64] y) { h = MatMul(x, w)  i = Add(h, b)  y = Relu(i) }".replace(
            "y = Relu", "y = Relu"
        )
    )
    source.graph.initializer.extend([w, b])
    path = tmp_path / "in.onnx"
    onnx.save(source, path, save_as_external_data=True, location="in.bin", size_threshold=0)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    fused = lab.sound(path, lab.linear)
    assert fused.counts == [1]
    api.save(fused.model, tmp_path / "out.onnx")
    assert {file.name for file in tmp_path.iterdir()} == {"in.onnx", "in.bin", "out.onnx"}
    assert all((tmp_path / name).read_bytes() == data for name, data in before.items())
    lab.require_same_bits(load(path), load(tmp_path / "out.onnx"))
    lab.require_same_meaning(load(path), api.unfuse(tmp_path / "out.onnx").model)


def test_a_small_external_constant_goes_into_the_function(lab: Lab, tmp_path: Path) -> None:
    source = lab.text("g (float[2] x) => (float[2] y) <float c = {3.0}> { a = Mul(x, c)  y = Exp(a) }")
    onnx.save(source, tmp_path / "in.onnx", save_as_external_data=True, location="in.bin", size_threshold=0)
    fused = lab.fuse(tmp_path / "in.onnx", "Mul->Exp")
    (folder := tmp_path / "elsewhere").mkdir()
    api.save(fused.model, folder / "out.onnx")
    assert [file.name for file in folder.iterdir()] == ["out.onnx"]
    lab.require_same_bits(load(source), load(folder / "out.onnx"))


def test_a_large_constant_is_an_input_of_the_meta_op(lab: Lab) -> None:
    source = lab.text("g (float[8] x) => (float[8] y) <float[8] c = {1,2,3,4,5,6,7,8}> { a = Mul(x, c)  y = Exp(a) }")
    fused = lab.sound(source, "Mul->Exp")
    assert [v.name for v in fused.node("MetaOp").inputs if v is not None] == ["x", "c"]


def test_inputs_stand_in_the_order_of_the_query(lab: Lab) -> None:
    source = lab.text("g (float[2] p, float[2] q, float[2] r) => (float[2] y) { h = Sub(q, p)  y = Mul(r, h) }")
    fused = lab.fuse(source, "Sub-*>Mul")
    assert [v.name for v in fused.node("MetaOp").inputs if v is not None] == ["q", "p", "r"]


def _shuffled(source: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return `source` with its nodes in another topological order, and its initializers and value_info in any."""
    generator = random.Random(seed)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(source)
    graph = shuffled.graph
    left = list(graph.node)
    known = {"", *(v.name for v in graph.input), *(t.name for t in graph.initializer)}
    ordered = []
    while left:
        ready = [node for node in left if known.issuperset(node.input)]
        node = generator.choice(ready)
        left.remove(node)
        known.update(node.output)
        ordered.append(node)
    infos, tensors = list(graph.value_info), list(graph.initializer)
    generator.shuffle(infos)
    generator.shuffle(tensors)
    for field, values in (("node", ordered), ("value_info", infos), ("initializer", tensors)):
        copies = [type(value).FromString(value.SerializeToString()) for value in values]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    return shuffled


def _said(model: ir.Model) -> tuple[Any, Any, Any]:
    """Return the calls, the functions in their order, and the other nodes of a fused model."""
    proto = ir.to_proto(model)
    nodes = {(n.name, n.op_type, n.overload, tuple(n.input), tuple(n.output)) for n in proto.graph.node}
    functions = [f.SerializeToString(deterministic=True) for f in proto.functions]
    return nodes, functions, {t.name for t in proto.graph.initializer}


def test_the_order_of_the_file_changes_nothing(lab: Lab, transformer: Path) -> None:
    source = onnx.load(transformer)
    plain = api.fuse(source, lab.five, verify=False)
    other = api.fuse(_shuffled(source, 0), lab.five, verify=False)
    assert _said(other.model) == _said(plain.model)
    lab.require_same_bits(load(source), other.model)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_a_crossed_file_changes_nothing(lab: Lab, seed: int) -> None:
    for text, query in (
        (CROSSED, "Neg~0>Add"),
        (BETWEEN, "Neg~>Abs"),
        (BETWEEN, ".~*>Add"),
        (CROSSED, ".[rank == 1]~*>."),
    ):
        source = lab.text(text)
        plain = api.fuse(source, [query], verify=False)
        fused = lab.sound(_shuffled(source, seed), query)
        assert _said(fused.model) == _said(plain.model)
        assert fused.patterns == plain.patterns or {p.calls for p in fused.patterns} == {
            p.calls for p in plain.patterns
        }


def test_the_model_of_the_caller_is_not_changed(lab: Lab, transformer: Path) -> None:
    proto = onnx.load(transformer)
    before = proto.SerializeToString(deterministic=True)
    api.fuse(proto, lab.five, verify=False)
    assert proto.SerializeToString(deterministic=True) == before
    model = ir.from_proto(proto)
    data = to_bytes(model)
    api.fuse(model, lab.five, verify=False)
    assert to_bytes(model) == data


def test_without_a_match_the_model_stays_as_it_is(lab: Lab) -> None:
    source = lab.text(TWO_SITES, ir_version=8)
    fused = lab.sound(source, "Conv->Relu")
    assert fused.model.ir_version == 8
    assert keys.DOMAIN not in fused.model.graph.opset_imports
