"""Constants: which values are, and what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.constants import Constants, constant_attribute, made_tensor
from onnxtile.model.load import load
from onnxtile.model.preserved import copied_tensor
from onnxtile.system import runtime
from onnxtile.system.runtime import Array
from tests import build
from tests.build import Text, ValueOf


def test_initializers_and_what_follows_from_them_are_constant(text: Text, value_of: ValueOf) -> None:
    model = load(
        text("g (float[2] x) => (float[2] y) <float[2] w = {1, 4}> { a = Sqrt(w) b = Add(a, w) y = Mul(x, b) }")
    )
    constants = Constants(model)
    assert [name for name in ("x", "w", "a", "b", "y") if value_of(model, name) in constants] == ["w", "a", "b"]
    np.testing.assert_array_equal(constants.array(value_of(model, "b")), np.array([2, 6], np.float32))
    np.testing.assert_array_equal(constants.array(value_of(model, "w")), np.array([1, 4], np.float32))
    assert None not in constants
    with pytest.raises(KeyError):
        constants.array(value_of(model, "y"))


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value = float[2] {1, 2}", np.array([1, 2], np.float32)),
        ("value_float = 1.5", np.float32(1.5)),
        ("value_floats = [1.5, 2.0]", np.array([1.5, 2], np.float32)),
        ("value_int = 3", np.int64(3)),
        ("value_ints = [3, 4]", np.array([3, 4], np.int64)),
        ('value_string = "a"', np.asarray("a", object)),
        ('value_strings = ["a", "b"]', np.asarray(["a", "b"], object)),
    ],
)
def test_a_constant_node_holds_what_its_attribute_says(text: Text, attribute: str, expected: Array) -> None:
    kind = {"f": "float", "i": "int64", "O": "string"}[expected.dtype.kind]
    model = load(text(f"g () => ({kind}[N] y) {{ y = Constant <{attribute}> () }}"))
    value = model.graph.outputs[0]
    array = Constants(model).array(value)
    assert array.dtype == expected.dtype
    np.testing.assert_array_equal(array, expected)
    assert constant_attribute(value).name == attribute.split(maxsplit=1)[0]


def test_a_chain_from_constant_of_shape(text: Text, value_of: ValueOf) -> None:
    model = load(
        text(
            "g (float[2] x) => (float[2, 3] y) <int64[2] s = {2, 3}, float[1] k = {5}>"
            " { z = ConstantOfShape(s) f = Add(z, k) y = Add(f, x2) }".replace(
                "y = ", "x2 = Unsqueeze(x, o) y = "
            ).replace("{ z", "{ o = Constant <value_ints = [1]> () z")
        )
    )
    np.testing.assert_array_equal(Constants(model).array(value_of(model, "f")), np.full((2, 3), 5, np.float32))


def test_a_long_chain_of_constants_is_no_deep_recursion() -> None:
    nodes = [helper.make_node("Add", [f"v{i}", "v0"], [f"v{i + 1}"]) for i in range(3000)]
    model = load(build.model(nodes, {}, {"v3000": [1]}, {"v0": np.ones(1, np.float32)}))
    constants = Constants(model)
    np.testing.assert_array_equal(constants.array(model.graph.outputs[0]), [3001])
    np.testing.assert_array_equal(constants.array(model.graph.node(10).outputs[0]), [12])


def test_many_constants_are_computed_in_one_run(text: Text, value_of: ValueOf, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = (
        "g (float[1] x) => (float[1] y) <float[1] w = {1}> { a = Add(w, w) b = Add(a, w) c = Add(a, b) y = Add(c, x) }"
    )
    model = load(text(graph))
    constants = Constants(model)
    loaded: list[bytes] = []
    real = runtime.Session.__init__

    def counted(session: runtime.Session, model: bytes, **options: Any) -> None:
        loaded.append(model)
        real(session, model, **options)

    monkeypatch.setattr(runtime.Session, "__init__", counted)
    values = [value_of(model, name) for name in ("c", "a", "b", "w")]
    constants.prepare(values)
    assert [constants.array(value).tolist() for value in values] == [[5], [2], [3], [1]]
    assert len(loaded) == 1


@pytest.mark.parametrize(("ir_version", "constant"), [(3, True), (4, False), (10, False)])
def test_an_initializer_that_is_an_input_may_be_overridden_from_ir_version_4(
    text: Text, value_of: ValueOf, ir_version: int, constant: bool
) -> None:
    graph = "g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }"
    model = load(text(graph, ir_version=ir_version, opset=7))
    assert (value_of(model, "w") in Constants(model)) is constant


@pytest.mark.parametrize(
    "node",
    [
        "y = RandomNormalLike(w)",
        "y = RandomUniform <shape = [3]> ()",
        "y = Bernoulli(w)",
        "y = foo.Anything(w)",
        "y = local.noise(w)",
        "y = local.outer(w)",
        "t = Constant <value = bool {1}> () y = If (t) <then_branch = a () => (float[3] p) { p = Relu(w) },"
        " else_branch = b () => (float[3] q) { q = Abs(w) }>",
    ],
)
def test_chance_unknown_domains_and_bodies_are_not_constant(text: Text, node: str) -> None:
    functions = (
        '<domain: "local", opset_import: ["": 17]> noise (a) => (b) { n = RandomNormalLike(a) b = Add(a, n) }'
        '<domain: "local", opset_import: ["": 17, "local": 1]> outer (a) => (b) { b = local.noise(a) }'
    )
    model = load(text(f"g () => (float[3] y) <float[3] w = {{1, 2, 3}}> {{ {node} }}", functions=functions))
    assert model.graph.outputs[0] not in Constants(model)


def test_functions_of_constants_are_constant(text: Text, value_of: ValueOf) -> None:
    functions = (
        '<domain: "local", opset_import: ["": 17]> twice (a) => (b) { b = Add(a, a) }'
        '<domain: "local", opset_import: ["": 17]> five () => (b) { b = Constant <value = float[1] {5}> () }'
    )
    graph = "g () => (float[1] y) <float[1] w = {1}> { a = local.twice(w) f = local.five() y = Add(a, f) }"
    model = load(text(graph, functions=functions))
    np.testing.assert_array_equal(Constants(model).array(value_of(model, "y")), [7])


def test_values_in_bodies_see_the_constants_around_them(text: Text, value_of: ValueOf) -> None:
    model = load(
        text(
            "g (bool c, float[1] x) => (float[1] y) <float[1] w = {1}> { v = Add(w, w) y = If (c) <"
            "then_branch = a () => (float[1] p) { k = Constant <value = float[1] {2}> () m = Add(k, v) p = Mul(m, x) },"
            "else_branch = b () => (float[1] q) { k = Constant <value = float[1] {9}> () q = Mul(k, v) }> }"
        )
    )
    constants = Constants(model)
    np.testing.assert_array_equal(constants.array(value_of(model, "m")), [4])
    np.testing.assert_array_equal(constants.array(value_of(model, "q")), [18])
    assert value_of(model, "p") not in constants
    assert value_of(model, "y") not in constants


def test_an_operator_with_several_outputs(text: Text, value_of: ValueOf) -> None:
    graph = "g () => (float[2] y) <float[4] w = {1, 2, 3, 4}> { a, b = Split <axis = 0> (w) y = Sub(b, a) }"
    model = load(text(graph, opset=11))
    constants = Constants(model)
    np.testing.assert_array_equal(constants.array(value_of(model, "a")), [1, 2])
    np.testing.assert_array_equal(constants.array(value_of(model, "y")), [2, 2])


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT16", "INT4", "UINT4", "FLOAT8E4M3FN"])
def test_element_types_that_numpy_lacks(kind: str) -> None:
    number = getattr(TensorProto, kind)
    nodes = [helper.make_node("Cast", ["w"], ["f"], to=1), helper.make_node("Cast", ["f"], ["y"], to=number)]
    model = load(
        build.model(nodes, {}, {"y": (number, [3])}, [helper.make_tensor("w", number, [3], [1, 2, 3])], opset=21)
    )
    array = Constants(model).array(model.graph.outputs[0])
    assert ir.DataType.from_numpy(array.dtype) == ir.DataType[kind]
    np.testing.assert_array_equal(array.astype(np.float32), [1, 2, 3])


def test_strings_are_computed(text: Text) -> None:
    model = load(
        text('g () => (string[2] y) { a = Constant <value_strings = ["a", "b"]> () y = StringConcat(a, a) }', opset=20)
    )
    assert Constants(model).array(model.graph.outputs[0]).tolist() == ["aa", "bb"]


def test_the_model_stays_as_it_is(text: Text) -> None:
    model = load(text("g () => (float[2] y) <float[2] w = {1, 4}> { a = Sqrt(w) y = Add(a, w) }"))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    Constants(model).array(model.graph.outputs[0])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_functions_have_constants_too_but_none_that_their_caller_says(text: Text) -> None:
    proto = text("g (float[2] x) => (float[2] y) { y = local.f <by = 2.0> (x) }")
    proto.functions.append(
        onnx.parser.parse_function(
            """<domain: "local", opset_import: ["" : 12]> f <by> (a) => (e) {
            c = Constant <value_ints = [2, 1]> () i = Constant <value_int = 0> () d = Unsqueeze <axes = [0]> (c)
            s = Constant <value_float: float = @by> () t = Sqrt(s) e = Mul(a, t) }"""
        )
    )
    proto.opset_import.append(helper.make_opsetid("local", 1))
    model = ir.from_proto(proto)
    constants = Constants(model)
    made = [value for node in next(iter(model.functions.values())) for value in node.outputs]
    assert [value.name for value in made if value in constants] == ["c", "i", "d"]
    # Unsqueeze took its axes as an attribute before opset 13, which the function imports.
    np.testing.assert_array_equal(constants.array(made[2]), [[2, 1]])


def test_a_made_tensor_of_texts_is_one_of_strings() -> None:
    texts = np.array([["ä", "b"]], dtype=object)
    made = made_tensor(texts, "t")
    assert (made.dtype, made.name, made.shape.numpy(), made.nbytes) == (ir.DataType.STRING, "t", (1, 2), 3)
    assert ir.to_proto(made).string_data == ["ä".encode(), b"b"]
    numbers = made_tensor(np.arange(6.0).reshape(2, 3).T, "n")
    assert numbers.shape.numpy() == (3, 2) and numbers.numpy().flags.c_contiguous


def test_a_copy_of_strings_has_bytes() -> None:
    copy = copied_tensor(ir.StringTensor([b"ab", b"c"], shape=ir.Shape([2]), name="one"), "two")
    assert (copy.name, copy.nbytes) == ("two", 3)
    assert ir.to_proto(copy).string_data == [b"ab", b"c"]


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_constants_have_the_bits_of_a_run_of_the_whole_model(text: Text, offset: int) -> None:
    """Some kernels round by the distance of their operands from a multiple of 64 bytes."""
    proto = text("""g (float[1] x) => (float[1, 64, 37] y) {
        e = Constant <value_floats = [1.0]> () s = Expand (e, n) b = Sub (s, s)
        y, m, d = BatchNormalization <training_mode = 1> (w, s, b, b, s)
    }""")
    numbers = np.random.default_rng(0).standard_normal((1, 64, 37)).astype(np.float32)
    proto.graph.initializer.append(numpy_helper.from_array(numbers, "w"))
    proto.graph.initializer.append(numpy_helper.from_array(np.asarray([64]), "n"))
    expected = runtime.Session(proto.SerializeToString()).run({"x": np.zeros(1, np.float32)})["y"]
    model = load(proto)
    memory = np.empty(numbers.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    placed = memory[start : start + numbers.nbytes].view(np.float32).reshape(numbers.shape)
    placed[...] = numbers
    model.graph.initializers["w"].const_value = ir.Tensor(placed, name="w")
    found = Constants(model).array(model.graph.outputs[0])
    np.testing.assert_array_equal(found, expected)
