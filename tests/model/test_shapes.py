"""Shapes: what inference knows, what runs add, and what nobody can know."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.binding import bind
from onnxtile.model.known import NOTHING
from onnxtile.model.load import load
from onnxtile.model.topology import main_graphs
from onnxtile.shapes import infer as engines
from onnxtile.shapes import propagation
from onnxtile.shapes.propagation import Propagation
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import ModelError, ModelWarning
from tests import build
from tests.build import Text, ValueOf, parsed

ZOO = Path(__file__).parents[3] / "shared" / "zoo"


def unknown(model: ir.Model, shapes: Shapes) -> list[str]:
    outputs = (value for node in model.graph for value in node.outputs)
    return [value.name or "" for value in outputs if shapes.sizes(value) is None]


def test_sizes_symbols_and_element_types(text: Text, value_of: ValueOf) -> None:
    model = load(text("g (float[N, 3] x) => (int64[N, 3] y) { h = Relu(x) y = Cast <to = 7> (h) }"))
    shapes = resolve(model)
    assert shapes.dims(value_of(model, "h")) == ("N", 3)
    assert shapes.sizes(value_of(model, "h")) is None
    assert shapes.dtype(value_of(model, "h")) == ir.DataType.FLOAT
    assert shapes.dtype(value_of(model, "y")) == ir.DataType.INT64
    assert value_of(model, "h").shape is None


def test_what_the_file_declares_does_not_overrule_what_follows_from_the_graph(text: Text, value_of: ValueOf) -> None:
    proto = text("g (float[2, 3] x) => (float[A, B] y) { h = Relu(x) y = Abs(h) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.INT8, [9]))
    model = load(proto)
    shapes = resolve(model)
    assert shapes.sizes(value_of(model, "h")) == (2, 3)
    assert shapes.dtype(value_of(model, "h")) == ir.DataType.FLOAT
    assert shapes.sizes(value_of(model, "y")) == (2, 3)


@pytest.mark.parametrize("declared", ["A", "A, 3", "2, 3", "A, B"])
def test_only_what_cannot_be_true_is_a_wrong_declaration(text: Text, declared: str) -> None:
    model = load(text(f"g (float[2, 3] x) => (float[{declared}] y) {{ h = Relu(x) y = Abs(h) }}"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        assert resolve(model).sizes(model.graph.outputs[0]) == (2, 3)
    said = ["the model declares the output 'y' as [A], and it is [2, 3]"] if declared == "A" else []
    assert [str(one.message) for one in warned] == said


def test_an_unknown_operator_keeps_what_the_file_declares_and_passes_it_on(text: Text, value_of: ValueOf) -> None:
    proto = text("g (float[2, 3] x) => (float[M] y) { h = foo.Bar(x) r = Relu(h) y = foo.Bar(r) }")
    proto.graph.value_info.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, [9]))
    model = load(proto)
    shapes = resolve(model)
    assert shapes.sizes(value_of(model, "h")) == (9,)
    assert shapes.sizes(value_of(model, "r")) == (9,)
    assert shapes.dims(value_of(model, "y")) == ("M",)
    assert "inference" in shapes.reason(value_of(model, "y"))


@pytest.mark.parametrize(
    "body",
    [
        "y = Add(x, w)",
        "y = MatMul(x, w)",
        "y = Transpose <perm = [0, 1, 2]> (x)",
    ],
)
def test_shapes_that_contradict_each_other_are_an_error(text: Text, body: str) -> None:
    zeros = ", ".join(["0"] * 20)
    model = load(text(f"g (float[2, 3] x) => (float[A, B] y) <float[4, 5] w = {{{zeros}}}> {{ {body} }}"))
    with pytest.raises(ModelError):
        resolve(model, run=True)


def test_a_declaration_that_a_run_contradicts_is_not_believed(text: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    """No inference follows it; without a run it is all that is known, with one it is a warning."""
    nothing = lambda _, graphs: [NOTHING for values in graphs for _ in values]  # noqa: E731
    monkeypatch.setattr(engines, "_infer_onnx", nothing)
    monkeypatch.setattr("onnxtile.shapes.resolve._with_computed", lambda _, shapes, __, ___=(): shapes)
    model = load(text("g (float[2, 3] x) => (float[2, 4] y) { y = Relu(x) }"))
    assert resolve(model).sizes(model.graph.outputs[0]) == (2, 4)
    with pytest.warns(ModelWarning, match=r"declares the output 'y' as \[2, 4\], and it is \[2, 3\]"):
        assert resolve(model, run=True).sizes(model.graph.outputs[0]) == (2, 3)


def test_at_sizes_that_a_model_cannot_run_with_the_rest_is_known(text: Text) -> None:
    """A table of four positions, and sequences of any length: inspect counts what it can."""
    graph = """g (float[seq] x) => (float[A] y, float[B] z) <float[4] t = {1, 2, 3, 4}> { d = Shape(x) y = Expand(t, d) z = Neg(x) }"""
    model = load(text(graph))
    bind(model, {"seq": 7}, {})
    shapes = resolve(model)
    assert [shapes.sizes(value) for value in model.graph.outputs] == [None, (7,)]


@pytest.mark.parametrize("size", ["2", "N"])
def test_where_the_inference_of_the_whole_model_stumbles_each_node_is_asked_alone(
    text: Text, value_of: ValueOf, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    nothing = lambda _, graphs: [NOTHING for values in graphs for _ in values]  # noqa: E731
    monkeypatch.setattr(engines, "_infer_onnx", nothing)
    model = load(text(f"g (float[{size}, 3] x) => (float[A, B] y) {{ h = Relu(x) y = Transpose(h) }}"))
    shapes = resolve(model)
    assert str(shapes.dims(value_of(model, "y"))) == str((3, int(size) if size.isdigit() else size))
    assert shapes.dtype(value_of(model, "h")) == ir.DataType.FLOAT


@pytest.mark.parametrize("name", ["?", "unk__12:0", "a b", "2*", "", "N-1", "1x"])
def test_odd_names_of_dimensions_do_no_harm(small: onnx.ModelProto, value_of: ValueOf, name: str) -> None:
    for info in (*small.graph.input, *small.graph.output):
        info.type.tensor_type.shape.dim[0].dim_param = name
    model = load(small)
    dims = resolve(model).dims(value_of(model, "h"))
    assert dims is not None and dims[1] == 3


def test_values_in_bodies_have_shapes_each_its_own(text: Text, value_of: ValueOf) -> None:
    model = load(
        text(
            "g (bool c, float[2, 3] x) => (float[A, B] y) <float[1] k = {2}> { y = If (c) <"
            "then_branch = a () => (float[A, B] p) { m = Mul(x, k) p = Relu(m) },"
            "else_branch = b () => (float[A, B] q) { m = Transpose(x) n = Transpose(m) q = Abs(n) }> }"
        )
    )
    shapes = resolve(model)
    found = [shapes.sizes(v) for g in model.graphs() for n in g for v in n.outputs if v.name == "m"]
    assert found == [(2, 3), (3, 2)]
    assert shapes.sizes(value_of(model, "y")) == (2, 3)


def test_a_loop(text: Text, value_of: ValueOf) -> None:
    model = load(
        text(
            "g (float[4] x) => (float[4] y) <int64 n = {3}, bool t = {1}> { y = Loop (n, t, x) <body = b "
            "(int64 i, bool c, float[4] s) => (bool d, float[4] r) { d = Identity(c) r = Add(s, s) }> }"
        )
    )
    assert resolve(model, run=True).sizes(value_of(model, "y")) == (4,)
    assert resolve(model).sizes(value_of(model, "r")) == (4,)


def test_calls_of_functions(text: Text, value_of: ValueOf) -> None:
    functions = (
        '<domain: "local", opset_import: ["": 17]> up (a) => (b) { s = Shape(a) z = ConstantOfShape(s) b = Add(a, z) }'
    )
    model = load(text("g (float[2, 3] x) => (float[A, B] y) { y = local.up(x) }", functions=functions))
    assert resolve(model).sizes(value_of(model, "y")) == (2, 3)


_AROUND = """<ir_version: 8, opset_import: ["": 17, "local": 1, "com.microsoft": 1]>
g (uint8[1,3,8,8] q, float s, uint8 z, float[5,3,3,3] w) => (float y) { y = local.outer(q, s, z, w) }
<domain: "local", opset_import: ["": 17, "com.microsoft": 1, "local": 1]>
outer (q, s, z, w) => (y) { f = com.microsoft.DequantizeLinear(q, s, z) %s }
<domain: "local", opset_import: ["": 17, "com.microsoft": 1]>
inner %s"""
_NUMBERS = "v = Constant<value_ints = [16, 4]>() c = Constant<value_ints = [8, 24]>() y = local.inner(f, v, c)"


@pytest.mark.parametrize(
    ("outer", "inner", "sizes"),
    [
        (
            "v = Neg(f) y = local.inner(v, w)",
            "(a, w) => (y) { v = Conv(a, w) y = com.microsoft.Gelu(v) }",
            (1, 5, 6, 6),
        ),
        (
            _NUMBERS,
            "(f, a, b) => (y) { v = Add(a, b) t = Sub(v, a) r = Reshape(f, t) y = com.microsoft.Gelu(r) }",
            (8, 24),
        ),
    ],
)
def test_a_function_may_make_a_value_of_a_name_that_the_caller_uses(
    outer: str, inner: str, sizes: tuple[int, ...]
) -> None:
    model = load(onnx.parser.parse_model(_AROUND % (outer, inner)))
    assert resolve(model, run=True).sizes(model.graph.outputs[0]) == sizes


# What inference lacks, a run shows: here the values that a Where passes on.
CHAIN = (
    (
        "g (float[2, 3] x) => (float[A, B] y) <int64[2] o = {1, 1}, int64[2] m = {-1, 3}, int64[2] n = {-1, -1}>"
        " { e = Equal(m, n) s = Where(e, o, m) t = Abs(s) y = Expand(r, t) }"
    )
    .replace("y = Expand", "z = Constant <value = float[1, 1] {1}> () y = Expand")
    .replace("Expand(r", "Expand(z")
)


@pytest.mark.parametrize("step", ["", ", u"])
def test_a_slice_along_axes_that_are_not_known_has_no_known_size(text: Text, value_of: ValueOf, step: str) -> None:
    """The engine took the first axis, as if none were given: here that has one row, and 140 rows on there is none."""
    cut = f"<int64[1] s = {{140}}, int64[1] e = {{143}}> {{ y = Slice(x, s, e, a{step}) }}"
    model = load(text(f"g (float[1,144] x, int64[1] a, int64[1] u) => (float[A,B] y) {cut}"))
    assert resolve(model).sizes(value_of(model, "y")) is None


def test_a_run_shows_what_inference_lacks(text: Text, value_of: ValueOf) -> None:
    model = load(text(CHAIN))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    assert resolve(model, run=True).sizes(value_of(model, "y")) == (1, 3)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_no_node_is_asked_alone_where_one_call_for_the_model_leaves_nothing_open(
    text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Propagation, "run", lambda _, **__: asked.append(None))
    resolve(load(text("g (float[2, 3] x) => (float[A, B] y) { h = Relu(x) y = Transpose(h) }")))
    assert not asked
    resolve(load(text(CHAIN)))
    assert asked


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("n = NonZero(x) y = Transpose(n)", "NonZero"),
        ("f = Flatten <axis = 0> (x) u = Unique(f) y = Neg(u)", "Unique"),
        ("c = Greater(x, k) f = Reshape(c, m) g = Reshape(x, m) y = Compress(g, f)", "Compress"),
        ("a = ReduceMax <keepdims = 0> (x) b = Abs(a) i = Cast <to = 7> (b) y = Range(z, i, o)", "Range"),
        ("a = ReduceMax <keepdims = 0> (x) i = Cast <to = 7> (a) j = Mul(i, z) l = Add(j, o) q = Reshape(l, m)"
         " y = ConstantOfShape(q)", "ConstantOfShape"),
        ("n = NonZero(x) s = Shape(n) y = ConstantOfShape(s)", "NonZero"),
    ],
)  # fmt: skip
def test_shapes_that_depend_on_the_data_stay_unknown_with_the_reason(text: Text, body: str, cause: str) -> None:
    inits = "<float k = {0}, int64[1] m = {-1}, int64 z = {0}, int64 o = {1}>"
    proto = text(f"g (float[4, 4] x) => (float[A] y) {inits} {{ {body} }}")
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    onnx_types = {"ConstantOfShape": 1, "Range": 7, "NonZero": 7, "Unique": 1, "Compress": 1}
    proto.graph.output[0].type.tensor_type.elem_type = 1 if "y = ConstantOfShape" in body else onnx_types[cause]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "A"
    if "Transpose" in body or "Shape(n)" in body:
        proto.graph.output[0].type.tensor_type.shape.dim.add().dim_param = "B"
    model = load(proto)
    shapes = resolve(model, run=True)
    output = model.graph.outputs[0]
    assert shapes.sizes(output) is None
    assert f"depends on the data ({cause}" in shapes.reason(output)


def test_runs_that_disagree_are_told(monkeypatch: pytest.MonkeyPatch, text: Text) -> None:
    # As an operator of a domain that nobody looks into would.
    monkeypatch.setattr("onnxtile.shapes.resolve.data_dependent", lambda _: {})
    model = load(text("g (bool[4, 4] x) => (int64[2, A] y) { y = NonZero(x) }"))
    shapes = resolve(model, run=True)
    assert "runs gave" in shapes.reason(model.graph.outputs[0])


def test_token_ids_stay_inside_the_table(text: Text, value_of: ValueOf) -> None:
    rows = ", ".join(["0.5"] * 6)
    model = load(
        text(
            f"g (int64[1, 5] ids) => (float[A, B, C] y) <float[3, 2] table = {{{rows}}}, int64[2] m = {{-1, 1}},"
            " int64[2] o = {1, 1}, int64[2] n = {-1, -1}>"
            " { h = Gather(table, ids) e = Equal(m, n) s = Where(e, o, m) y = Expand(h, s) }"
        )
    )
    assert resolve(model, run=True).sizes(value_of(model, "y")) == (1, 5, 2)


def test_sequences_and_strings_are_no_obstacle(text: Text, value_of: ValueOf) -> None:
    model = load(
        text(
            "g (float[2, 3] x) => (float[A, B] y) { s = SequenceConstruct(x, x) i = Constant <value_int = 0> () y = SequenceAt(s, i) }"
        )
    )
    shapes = resolve(model, run=True)
    assert shapes.dtype(value_of(model, "s")) is None
    assert shapes.sizes(value_of(model, "s")) is None
    assert shapes.sizes(value_of(model, "y")) == (2, 3)
    strings = load(text('g (string[2] x) => (string[A] y) { y = StringNormalizer <case_change_action = "UPPER"> (x) }'))
    assert resolve(strings, run=True).dtype(strings.graph.outputs[0]) == ir.DataType.STRING


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16", "INT4", "FLOAT8E4M3FN"])
def test_element_types_that_numpy_lacks_are_run(kind: str) -> None:
    number = getattr(TensorProto, kind)
    nodes = [
        helper.make_node("Equal", ["m", "n"], ["e"]),
        helper.make_node("Where", ["e", "o", "m"], ["s"]),
        helper.make_node("Cast", ["x"], ["f"], to=1),
        helper.make_node("Reshape", ["f", "s"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=number),
    ]
    inits = [
        numpy_helper.from_array(np.array(v, np.int64), n) for n, v in {"m": [-1, 2], "n": [-1, -1], "o": [3, 3]}.items()
    ]
    x, y = helper.make_tensor_value_info("x", number, [6]), helper.make_tensor_value_info("y", number, ["A", "B"])
    model = load(build.model(nodes, [x], [y], inits, opset=21))
    shapes = resolve(model, run=True)
    assert shapes.sizes(model.graph.outputs[0]) == (3, 2)
    assert shapes.dtype(model.graph.outputs[0]) == ir.DataType[kind]


def test_a_run_that_onnxruntime_refuses_is_an_error(text: Text) -> None:
    made = text("g (float[2, 3] x) => (float[A, B] y) { y = com.microsoft.Inverse(x) }")
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model = load(made)
    with pytest.raises(ModelError, match="onnxruntime"):
        resolve(model, run=True)


def test_an_operator_without_a_kernel_is_the_reason_why_a_size_is_not_known(text: Text) -> None:
    model = load(text("g (float[2] x) => (float[A] y) { y = foo.Bar(x) }"))
    shapes = resolve(model, run=True)
    assert shapes.dims(model.graph.outputs[0]) == ("A",)
    assert shapes.reason(model.graph.outputs[0]) == (
        "no inference knows its shape, and onnxruntime's CPU has no kernel for foo.Bar; "
        "the model can declare it in value_info"
    )


def test_without_sizes_of_the_inputs_nothing_is_run(text: Text) -> None:
    model = load(text("g (float[N] x) => (float[A] y) { y = foo.Bar(x) }"))
    shapes = resolve(model, run=True)
    assert shapes.dims(model.graph.outputs[0]) == ("A",)
    assert shapes.reason(model.graph.outputs[0]) == "inputs have open dimensions: give --dim N=N"


def test_sizes_computed_in_one_body_are_not_those_of_a_name_in_another(text: Text) -> None:
    """onnx notes the value of `b5` in a branch, and would take it for that of `b5` in the body of the Scan."""
    model = load(
        text("""g (float[2,3,8] x, bool p) => (float[2,3,8] y, float[2,24] w) <int64[1] zero = {0}> {
          w = If (p) <
            then_branch = t () => (float[2,24] r) {
              b2 = Shape(x) b4 = Gather(b2, zero) b5 = Constant<value = int64[1] {24}>() b6 = Concat<axis = 0>(b4, b5) r = Reshape(x, b6) },
            else_branch = e () => (float[2,24] q) { c = Constant<value = int64[2] {2, 24}>() q = Reshape(x, c) }>
          y = Scan <num_scan_inputs = 1, body = body (float[3,8] b1) => (float[3,8] o) <int64[1] b4 = {24}> {
            b2 = Shape(x) b3 = Gather(b2, zero) b5 = Concat<axis = 0>(b3, b4) b6 = Reshape(x, b5) o = Neg(b1) }>(x)
        }""")
    )
    shapes = resolve(model)
    assert [shapes.sizes(node.outputs[0]) for node in model.graph.all_nodes() if node.outputs[0].name == "b6"] == [
        (2,),
        (2, 24),
    ]


def test_external_weights_are_read_for_a_run(external: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(external)
    monkeypatch.setattr(engines, "_infer_onnx", lambda _, graphs: [NOTHING for values in graphs for _ in values])
    monkeypatch.setattr("onnxtile.shapes.resolve._with_computed", lambda _, shapes, __, ___=(): shapes)
    model.graph.outputs[0].shape = None
    assert resolve(model, run=True).sizes(model.graph.outputs[0]) == (1000,)


@pytest.mark.skipif(not ZOO.is_dir(), reason="the zoo of models is not here")
@pytest.mark.parametrize("name", ["bert_ts14", "swin_ts14", "dinov2div_ts14_sim0436", "gpt2_dy20", "clip_text_ts14"])
def test_static_models_of_the_zoo_are_known_through_and_through(name: str) -> None:
    model = load(ZOO / f"{name}.onnx")
    assert unknown(model, resolve(model, run=True)) == []


@pytest.mark.skipif(not ZOO.is_dir(), reason="the zoo of models is not here")
@pytest.mark.parametrize("name", ["bert_dy20dyn", "gpt2_ts14dyn", "llama_ts14dyn_sim"])
def test_symbolic_models_of_the_zoo_are_known_once_bound(name: str) -> None:
    model = load(ZOO / f"{name}.onnx")
    names = dict.fromkeys(d.value for v in model.graph.inputs for d in v.shape or () if isinstance(d, ir.SymbolicDim))
    bind(model, {name: 8 for name in names if name}, {})
    assert unknown(model, resolve(model, run=True)) == []


def test_constants_of_equal_names_in_sibling_bodies_are_told_apart() -> None:
    text = """<ir_version: 10, opset_import: ["" : 15]>
      g (float[2, 1, 4, 1] x, bool c) => (float[2, 4] y, float[2, 1, 4, 1] z) <int64 n = {3}, bool go = {1}, int64[1] zero = {0}> {
        z = Loop(n, go, x) <body = l (int64 i, bool on, float[2, 1, 4, 1] a) => (bool on, float[2, 1, 4, 1] d) <int64[1] size = {1}>
          { e = Slice(a, zero, size, zero)  d = Neg(a) }>
        y = If(c) <then_branch = t () => (float[2, 4] r) <int64[1] size = {4}>
                    { s = Shape(x)  f = Gather(s, zero)  g = Concat <axis = 0> (f, size)  q = Reshape(x, g)  r = Neg(q) },
                  else_branch = o () => (float[2, 4] r) <int64[2] size = {2, 4}> { q = Reshape(x, size)  r = Exp(q) }> }"""
    model = load(onnx.parser.parse_model(text))
    shapes = resolve(model)
    reshaped = [node.outputs[0] for node in model.graph.all_nodes() if node.op_type == "Reshape"]
    assert [shapes.dims(value) for value in reshaped] == [(2, 4), (2, 4)]
    bodies = [graph for graph in main_graphs(model) if graph is not model.graph]
    tensors = [value.const_value for graph in bodies for value in graph.initializers.values()]
    assert [tensor.name for tensor in tensors if tensor is not None] == ["size", "size", "size"]


def test_an_optional_value_has_no_element_type_and_its_content_has(value_of: ValueOf) -> None:
    """A run shows the tensor in it: a plan over ranges, which is not run, then contradicted its own check."""
    text = """<ir_version: 10, opset_import: ["": 18]> g (float[2, 3] x) => (float[2, 3] y) {
        h = Optional (x)
        k = Identity (h)
        y = OptionalGetElement (k)
    }"""
    model = load(onnx.parser.parse_model(text))
    shapes = resolve(model, run=True)
    assert [shapes.dtype(value_of(model, name)) for name in "hk"] == [None, None]
    assert shapes.dtype(value_of(model, "y")) == ir.DataType.FLOAT


# Shapes in the bodies of If, Loop and Scan, and of what these hand out.


def known(model: ir.Model) -> tuple[Shapes, dict[str, tuple[int, ...] | None]]:
    shapes = resolve(model)
    inner = [value for graph in model.graph.subgraphs() for value in graph.inputs]
    made = [value for node in model.graph.all_nodes() for value in node.outputs]
    return shapes, {value.name or "": shapes.sizes(value) for value in (*inner, *made)}


def test_what_a_loop_carries_has_the_shape_that_it_was_given(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[2,3] x) => (float[A,B] y, float[C,D,E] s) <int64 n = {5}, bool go = {1}> {
              y, s = Loop (n, go, x) <body = step (int64 i, bool c, float[] carried) => (bool d, float[] next, float[] seen)
                { d = Identity(c)  next = Neg(carried)  seen = Transpose(next) }> }""")
        )
    )
    assert (sizes["carried"], sizes["next"], sizes["seen"]) == ((2, 3), (2, 3), (3, 2))
    assert (sizes["y"], sizes["s"], sizes["i"], sizes["c"]) == ((2, 3), (5, 3, 2), (), ())


@pytest.mark.parametrize("condition", ["go", '""'])
def test_a_loop_needs_no_condition(text: Text, condition: str) -> None:
    """Both engines forget the type of the condition in the body of a Loop that has none, and what is made of it."""
    _, sizes = known(
        load(
            text(f"""g (float[2,3] x, float[2,3] k) => (float[A,B] y, float[A,B] z) <int64 n = {{5}}, bool go = {{1}}> {{
              y, z = Loop (n, {condition}, x, k) <body = step (int64 i, bool c, float[2,3] carried, float[2,3] more)
                => (bool d, float[2,3] next, float[2,3] next) {{ d = Identity(c)  next = Neg(carried) }}> }}""")
        )
    )
    assert (sizes["y"], sizes["z"], sizes["d"], sizes["next"]) == ((2, 3), (2, 3), (), (2, 3))


@pytest.mark.parametrize("form", ["value_ints = [2]", "value = int64[1] {2}", "value_int = 2"])
def test_a_number_in_a_body_counts_in_every_form(text: Text, form: str) -> None:
    _, sizes = known(
        load(
            text(f"""g (float[2,8] x) => (float[2,8] y) <int64 n = {{5}}, bool go = {{1}}, int64[1] k = {{7}}, int64[1] one = {{1}}> {{
              y = Loop (n, go, x) <body = step (int64 i, bool c, float[2,8] v) => (bool d, float[2,8] v)
                {{ d = Identity(c)  h = Shape(x)  r = Reshape(x, h)
                  s = Constant<{form}>()  from = Reshape(s, one)  part = Slice(r, from, k, one) }}> }}""")
        )
    )
    assert (sizes["r"], sizes["part"]) == ((2, 8), (2, 5))


def test_several_numbers_say_nothing_of_how_often_a_body_runs(text: Text) -> None:
    """Such a Loop is wrong, and that is for onnxruntime to say."""
    _, sizes = known(
        load(
            text("""g (float[2] x) => (float[2] y, float[A,2] z) <int64[3] n = {1, 2, 3}, bool go = {1}> {
              y, z = Loop (n, go, x) <body = step (int64 i, bool c, float[2] v) => (bool d, float[2] v, float[2] w)
                { d = Identity(c)  w = Neg(v) }> }""")
        )
    )
    assert (sizes["w"], sizes["z"]) == ((2,), None)


def test_what_grows_in_a_loop_has_no_size_but_what_does_not_has_one(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[2,3] x) => (float[A,B] y, float[C,D] z) <int64 n = {5}, bool go = {1}> {
              y, z = Loop (n, go, x, x) <body = step (int64 i, bool c, float[] grows, float[] stays)
                => (bool d, float[] more, float[] same)
                { d = Identity(c)  more = Concat<axis = 0>(grows, x)  same = Add(stays, x)  wide = Transpose(more) }> }""")
        )
    )
    assert (sizes["grows"], sizes["more"], sizes["wide"], sizes["y"]) == (None,) * 4
    assert (sizes["stays"], sizes["same"], sizes["z"]) == ((2, 3),) * 3


@pytest.mark.parametrize(
    ("limit", "goes_on", "expected"), [("n", "Identity(c)", (4, 2)), ("k", "Identity(c)", None), ("n", "Not(c)", None)]
)
def test_how_often_a_loop_runs_decides_what_it_collects(
    limit: str, goes_on: str, expected: tuple[int, ...] | None, text: Text
) -> None:
    graph = f"""g (float[2] x, int64 k) => (float[A] y, float[C,D] s) <int64 n = {{4}}, bool go = {{1}}> {{
      y, s = Loop ({limit}, go, x) <body = step (int64 i, bool c, float[] carried) => (bool d, float[] next, float[] seen)
        {{ d = {goes_on}  next = Neg(carried)  seen = Exp(next) }}> }}"""
    _, sizes = known(load(text(graph)))
    assert (sizes["s"], sizes["seen"]) == (expected, (2,))


def test_the_slices_of_a_scan_and_what_it_collects(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[7] start, float[7,5] x) => (float[A] last, float[B,C] all) {
              last, all = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
                body = step (float[] sum, float[] slice) => (float[] next, float[] seen) { next = Add(sum, slice)  seen = Exp(next) }>
              (start, x) }""")
        )
    )
    assert {name: sizes[name] for name in ("sum", "slice", "seen", "last", "all")} == {
        **dict.fromkeys(("sum", "slice", "seen", "last"), (7,)),
        "all": (7, 5),
    }


BRANCHES = """g (float[2,COLUMNS] x, bool p) => (float[A] y) <int64[1] one = {1}, int64[1] f = {2}> {
  y = If (p) <
    then_branch = t () => (float[] a) { s = Squeeze(x, one)  a = Expand(s, f) },
    else_branch = e () => (float[] b) { r = ReduceSum<keepdims = 0>(x, one)  b = Neg(r) }> }"""


def test_what_comes_after_a_node_that_cannot_run_is_never_made(text: Text) -> None:
    model = load(text(BRANCHES.replace("COLUMNS", "3")))
    shapes, sizes = known(model)
    never = {value.name: shapes.never(value) for node in model.graph.all_nodes() for value in node.outputs}
    assert never["s"] == never["a"] == "never made: Squeeze cannot run on tensors of these shapes"
    assert (never["y"], never["r"], never["b"]) == (None, None, None)
    assert sizes["y"] == (2,)


def test_both_branches_say_what_comes_out(text: Text) -> None:
    model = load(text(BRANCHES.replace("COLUMNS", "1")))
    shapes, sizes = known(model)
    assert (sizes["a"], sizes["b"], sizes["y"]) == ((2,), (2,), (2,))
    assert not any(shapes.never(value) for node in model.graph.all_nodes() for value in node.outputs)


def test_a_branch_that_is_always_taken_decides(text: Text) -> None:
    _, sizes = known(
        load(
            text("""g (float[2,3] x) => (float[A,B] y) <int64 two = {2}, int64 at = {0}> {
              d = Shape(x)  n = Gather(d, at)  p = Equal(n, two)
              y = If (p) < then_branch = t () => (float[] a) { a = Transpose(x) },
                           else_branch = e () => (float[] b) { b = Neg(x) }> }""")
        )
    )
    assert (sizes["a"], sizes["b"], sizes["y"]) == ((3, 2), (2, 3), (3, 2))


def _asked(monkeypatch: pytest.MonkeyPatch, proto: onnx.ModelProto) -> tuple[int, Shapes, ir.Model]:
    """Return how often onnx's inference and sessions are asked for the shapes of a model, and these shapes."""
    asked: list[object] = []

    def counted(home: object, name: str) -> None:
        function = getattr(home, name)

        def count(*given: Any, **named: Any) -> Any:
            asked.append(name)
            return function(*given, **named)

        monkeypatch.setattr(home, name, count)

    counted(onnx.shape_inference, "infer_shapes")
    counted(propagation, "Session")
    model = load(proto)
    shapes = resolve(model)
    monkeypatch.undo()
    return len(asked), shapes, model


def _layers(number: int) -> onnx.ModelProto:
    """Return layers with biases of their own, after an operator that ONNX lacks, and numbers that each of them computes."""
    nodes = ["h0 = com.microsoft.Gelu (x)"]
    biases = []
    for index in range(number):
        biases.append(f"float[4] b{index} = {{{index}, 1, 2, 3}}")
        nodes += [f"h{index + 1} = Add (h{index}, b{index})", f"p{index} = Slice (pads, last, first, zero, back)"]
        nodes += [f"q{index} = Transpose (p{index})", f"r{index} = Reshape (q{index}, flat)"]
        nodes.append(f"y{index} = Pad (h{index + 1}, r{index})")
    constants = "int64[2, 2] pads = {0, 1, 2, 3}, int64[1] last = {-1}, int64[1] first = {-9}, "
    constants += "int64[1] zero = {0}, int64[1] back = {-1}, int64[1] flat = {-1}, "
    results = ", ".join(f"float[a{index}, b{index}] y{index}" for index in range(number))
    text = f"g (float[3, 4] x) => ({results}) <{constants}{', '.join(biases)}> {{ {' '.join(nodes)} }}"
    return parsed(text, **{"com.microsoft": 1})


def test_equal_layers_are_asked_once_whatever_their_weights(monkeypatch: pytest.MonkeyPatch, value_of: ValueOf) -> None:
    few, _, _ = _asked(monkeypatch, _layers(2))
    many, shapes, model = _asked(monkeypatch, _layers(12))
    assert few == many
    assert {shapes.sizes(value_of(model, f"y{index}")) for index in range(12)} == {(3 + 2 + 3, 4 + 0 + 1)}


def test_floats_that_decide_a_size_are_no_weights(value_of: ValueOf) -> None:
    """Two Resizes differ in their scales alone."""
    nodes = "h = com.microsoft.Gelu (x) a = Resize (h, , small) b = Resize (h, , large)"
    text = f"g (float[3, 4] x) => (float[A, B] a, float[C, D] b) <float[2] small = {{1, 2}}, float[2] large = {{2, 3}}> {{ {nodes} }}"
    model = load(parsed(text, **{"com.microsoft": 1}))
    shapes = resolve(model)
    assert [shapes.sizes(value_of(model, name)) for name in "ab"] == [(3, 8), (6, 12)]


def test_pads_as_an_exporter_computes_them_take_no_run(
    text: Text, value_of: ValueOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch has the pads of the last axis first, each with its begin before its end: exporters turn them round in the graph."""
    monkeypatch.setattr(propagation, "Session", None)
    body = """
        three = Constant <value_int = 3> ()
        eight = Constant <value_int = 8> ()
        rest = Mod (eight, three)
        front = Constant <value_ints = [0]> ()
        flat = Reshape (rest, one)
        given = Concat <axis = 0> (front, flat, front, front)
        rows = Reshape (given, pairs)
        turned = Slice (rows, last, first, front, back)
        columns = Transpose <perm = [1, 0]> (turned)
        pads = Reshape (columns, back)
        y = Pad (x, pads)
    """
    constants = (
        "int64[1] one = {1}, int64[2] pairs = {-1, 2}, int64[1] last = {-1}, int64[1] first = {-9223372036854775807}"
    )
    model = load(text(f"g (float[4, 5] x) => (float[A, B] y) <{constants}, int64[1] back = {{-1}}> {{{body}}}"))
    assert resolve(model).sizes(value_of(model, "y")) == (4, 7)
