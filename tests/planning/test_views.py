"""Views: who shares whose bytes, who does not, and that a run inside the arena agrees."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from tests import build
from tests.planning.conftest import Case, aliases, lives, outside, rows


def planned(text: str) -> Case:
    case = Case.of(text)
    verdict = case.run(case.plan_views())
    assert verdict.equal, verdict
    return case


def test_a_chain_of_views_lies_in_one_buffer() -> None:
    case = planned("""
    chain (float[2,6] x) => (float[12] y) {
      a = Relu(x)
      shape = Constant<value = int64[2] {3, 4}>()
      b = Reshape(a, shape)
      axes = Constant<value = int64[1] {0}>()
      c = Unsqueeze(b, axes)
      d = Flatten(c)
      e = Squeeze(c, axes)
      f = Identity(e)
      g = Cast<to = 1>(f)
      h = Exp(d)
      flat = Constant<value = int64[1] {-1}>()
      i = Reshape(g, flat)
      y = Neg(i)
    }
    """)
    result = case.plan_views()
    assert aliases(result) == dict.fromkeys("bcdefgi", "a")
    # The owner lives as long as all that lies in its bytes; a view has a life of its own.
    assert (lives(result)["a"], lives(result)["b"]) == ((0, 12), (2, 4))
    assert {rows(result)[name].offset for name in "abcdefgi"} == {rows(result)["a"].offset}
    assert result.arena_size == 2 * 64
    assert result.activation_bytes == 10 * 64
    assert case.run(result).views == 7


@pytest.mark.parametrize(
    ("node", "shape"),
    [
        ("Cast<to = 11>(a)", "double[2,3]"),
        ("Cast<to = 6>(a)", "int32[2,3]"),
        ("Transpose<perm = [1, 0]>(a)", "float[3,2]"),
        ("Relu(a)", "float[2,3]"),
        ("Expand(a, two)", "float[2,2,3]"),
    ],
)
def test_what_is_no_view_has_bytes_of_its_own(node: str, shape: str) -> None:
    case = planned(f"""
    no_view (float[2,3] x) => ({shape} y) {{
      two = Constant<value = int64[3] {{2, 1, 1}}>()
      a = Relu(x)
      b = {node}
      y = Identity(b)
    }}
    """)
    assert aliases(case.plan_views()) == {"y": "b"}


def test_a_view_of_an_input_lies_outside() -> None:
    case = planned("""
    of_input (float[2,3] x) => (float[6] y) {
      flat = Constant<value = int64[1] {-1}>()
      a = Reshape(x, flat)
      b = Identity(a)
      y = Exp(b)
    }
    """)
    result = case.plan_views()
    assert outside(result) == {
        "x": "a graph input",
        "a": "a view of 'x', which lies outside",
        "b": "a view of 'a', which lies outside",
    }
    assert list(rows(result)) == ["y"]
    assert case.run(result).kernels == 1


def test_an_output_that_is_a_view_of_an_input_is_copied_into_the_arena() -> None:
    case = planned("""
    copied (float[2,3] x) => (float[6] y, float[2,3] z) {
      flat = Constant<value = int64[1] {-1}>()
      y = Reshape(x, flat)
      a = Neg(y)
      z = Identity(x)
    }
    """)
    result = case.plan_views()
    assert aliases(result) == {}
    assert lives(result) == {"y": (1, 3), "a": (2, 2), "z": (3, 3)}


def test_a_view_of_such_a_copy_shares_its_bytes() -> None:
    case = planned("""
    of_copy (float[2,3] x) => (float[2,3] y, float[2,3] z) {
      y = Identity(x)
      a = Identity(y)
      z = Exp(a)
    }
    """)
    assert aliases(case.plan_views()) == {"a": "y"}


def test_two_outputs_may_be_views_of_one_buffer() -> None:
    case = planned("""
    pairs (float[2,3] x) => (float[6] y, float[3,2] z, float[2,3] b) {
      flat = Constant<value = int64[1] {-1}>()
      tall = Constant<value = int64[2] {3, 2}>()
      a = Relu(x)
      y = Reshape(a, flat)
      z = Reshape(a, tall)
      b = Exp(x)
    }
    """)
    result = case.plan_views()
    assert aliases(result) == {"y": "a", "z": "a"}
    assert lives(result)["a"] == (2, 5)
    assert result.arena_size == 2 * 64


def test_a_source_stays_readable_beside_its_view() -> None:
    case = planned("""
    both (float[2,3] x) => (float[2,3] y) {
      a = Relu(x)
      v = Identity(a)
      b = Exp(v)
      c = Add(a, b)
      y = Add(v, c)
    }
    """)
    assert lives(case.plan_views())["a"] == (0, 4)


def test_outputs_that_are_inputs_or_constants() -> None:
    case = planned("""
    as_it_is (float[2,3] x) => (float[2,3] x, float[2] w, float[2] c, float[2,3] y)
    <float[2] w = {1.0, 2.0}> {
      c = Constant<value = float[2] {3.0, 4.0}>()
      y = Exp(x)
    }
    """)
    result = case.plan_views()
    # Nothing writes the bytes of an input or an initializer; a constant that a node makes is written into the arena.
    assert list(rows(result)) == ["c", "y"]
    assert [constant.name for constant in result.constants] == ["w"]


def test_dropout_passes_its_input_on_and_may_give_a_mask() -> None:
    case = planned("""
    dropped (float[2,3] x) => (float[2,3] y, bool[2,3] mask) {
      a = Relu(x)
      b = Dropout(a)
      c, mask = Dropout(b)
      y = Exp(c)
    }
    """)
    assert aliases(case.plan_views()) == {"b": "a", "c": "a"}


def test_dropout_that_trains_has_bytes_of_its_own() -> None:
    case = Case.of("""
    trained (float[2,3] x) => (float[2,3] y) {
      ratio = Constant<value = float {0.0}>()
      training = Constant<value = bool {1}>()
      a = Relu(x)
      b = Dropout(a, ratio, training)
      y = Exp(b)
    }
    """)
    assert aliases(case.plan_views()) == {}
    assert case.run(case.plan_views()).equal


def test_the_training_of_old_dropouts_is_an_attribute() -> None:
    def case(**attributes: Any) -> Case:
        nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Dropout", ["a"], ["y"], **attributes)]
        values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy"]
        return Case.of(build.model(nodes, values[:1], values[1:], opset=6, ir_version=3))

    assert aliases(case(is_test=1).plan_views()) == {"y": "a"}
    assert aliases(case().plan_views()) == {}


def test_a_function_of_the_name_of_a_view_is_no_view() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
    calls (float[2,3] x) => (float[2,3] y) { a = Relu(x) b = local.Identity(a) y = Exp(b) }
    <domain: "local", opset_import: ["" : 20]>
    Identity (u) => (v) { v = Neg(u) }
    """
    case = Case.of(onnx.parser.parse_model(text))
    assert aliases(case.plan_views()) == {}
    assert case.run(case.plan_views(), feeds=[{"x": np.ones((2, 3), np.float32)}]).equal


@pytest.mark.parametrize("source", ["x", "a"])
@pytest.mark.parametrize("order", ["model", "min-peak", "any"])
def test_a_cast_to_its_own_type_of_what_must_survive_is_a_view_only(source: str, order: str) -> None:
    case = Case.of(f"g (float[4] x) => (float[4] a, float[4] y) {{ a = Relu(x) y = Cast<to = 1>({source}) }}")
    for io in ("inside", "outputs"):
        result = case.plan(io=io, order=order)
        assert aliases(result) == ({} if (source, io) == ("x", "outputs") else {"y": source})
        assert result.in_place == 0
        assert case.run(result).equal
