"""Inputs and outputs inside the arena or outside of it; constants in a region of their own."""

from dataclasses import replace

import onnx
import pytest

from onnxtile.check.audit import check, require
from onnxtile.kernels.from_onnx import PlanScope
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import CheckFailed, UsageError
from onnxtile.verbs.flows.plan import plan
from tests.build import Find
from tests.planning.conftest import Case, aliases, lives, outside, rows
from tests.planning.test_arena_run import SOUND

CHAIN = """
chain (float[2,3] x, float[2,3] w) => (float[2,3] y, float[6] z) {
  flat = Constant<value = int64[1] {-1}>()
  a = Neg(x)
  b = Add(a, w)
  y = Exp(b)
  z = Reshape(b, flat)
}
"""


def test_outputs_inside_and_inputs_outside_by_default() -> None:
    result = Case.of(CHAIN).plan()
    assert (result.io, result.overwrite_inputs) == ("outputs", False)
    assert outside(result).keys() == {"x", "w"}


def test_inputs_inside_are_there_from_the_first_step_to_the_last() -> None:
    case = Case.of(CHAIN)
    result = case.plan(io="inside")
    assert outside(result) == {}
    assert {name: lives(result)[name] for name in "xw"} == {"x": (0, 4), "w": (0, 4)}
    assert rows(result)["x"].kind == "input"
    assert not {"x", "w"} & {*aliases(result), *aliases(result).values()}
    assert case.run(result).equal


def test_inputs_are_written_over_on_request_only() -> None:
    case = Case.of(CHAIN)
    result = case.plan(io="inside", overwrite_inputs=True)
    owner = {name: aliases(result).get(name, name) for name in rows(result)}
    assert owner["x"] == owner["a"]
    assert result.arena_size < case.plan(io="inside").arena_size
    assert case.run(result).equal


def test_outputs_outside() -> None:
    case = Case.of(CHAIN)
    result = case.plan(io="outside")
    assert outside(result) == {"x": "a graph input", "w": "a graph input", "y": "a graph output", "z": "a graph output"}
    assert rows(result).keys() == {"a", "b"}
    assert case.run(result).equal


@pytest.mark.parametrize(("overwrite", "order"), [(False, "model"), (True, "min-peak"), (True, "any")])
@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_inputs_inside_give_the_same_bits(text: str, overwrite: bool, order: str) -> None:
    case = Case.of(text)
    result = case.plan(io="inside", overwrite_inputs=overwrite, order=order)
    assert result.unplanned == ()
    assert case.run(result).equal


@pytest.mark.parametrize("io", ["inside", "outside"])
def test_real_models(io: str, light: Find) -> None:
    case = Case.of(light("squeezenet"))
    result = case.plan(io=io)
    assert result.optimal
    assert case.run(result, runs=1).equal


def test_an_input_that_is_written_over_is_noticed() -> None:
    case = Case.of(CHAIN)
    wrong = replace(case.plan(io="inside", overwrite_inputs=True), overwrite_inputs=False)
    assert case.run(wrong).differing in {"x", "w"}


def test_the_check_knows_that_inputs_are_there_before_the_first_step() -> None:
    case = Case.of("g (float[4] x, float[4] w) => (float[4] y) { a = Neg(x) y = Add(a, w) }")
    result = case.plan(io="inside", overwrite_inputs=True, share=("view",))
    place = {b.name: b.offset for b in result.buffers} | {"a": rows(result)["w"].offset}
    moved = replace(result, buffers=tuple(replace(b, offset=place[b.name]) for b in result.buffers))
    assert any("are live together (step 0)" in str(failure) for failure in case.audit(moved).failures)


def test_what_makes_no_sense_is_refused() -> None:
    graph = Case.of(CHAIN).model.graph
    with pytest.raises(UsageError, match="cannot be overwritten"):
        PlanScope(graph, "outputs", overwrite_inputs=True)
    with pytest.raises(UsageError, match="invalid io 'insides'"):
        PlanScope(graph, "insides")


def test_constants_lie_one_behind_the_other_in_a_region_of_their_own(light: Find) -> None:
    result = Case.of(light("squeezenet")).plan()
    end = 0
    for constant in result.constants:
        assert constant.size is not None and constant.offset is not None
        assert constant.offset % 64 == 0
        assert end <= constant.offset < end + 64
        end = constant.offset + constant.size
    assert len(result.constants) > 50


def test_strings_among_constants_have_no_place() -> None:
    text = """g (float[1] x) => (float[1] y, string[1] t) {
      s = Constant<value_strings = ["a"]>()
      t = Identity(s)
      one = Constant<value = float[1] {1}>()
      y = Add(x, one)
    }"""
    result = Case.of(text).plan()
    assert [(c.name, c.offset) for c in result.constants if c.size is not None] == [("one", 0)]
    assert all(c.offset is None for c in result.constants if c.size is None)


def test_a_kept_input_that_is_written_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:

    from onnxtile.kernels.kernel_graph import Schedule
    from onnxtile.planning import layout as graph_layout

    case = Case.of(CHAIN)
    laid = graph_layout._LayoutTerms.layout

    def careless(self: graph_layout._LayoutTerms, schedule: Schedule) -> graph_layout.Layout:
        return laid(replace(self, graph=replace(self.graph, keeps_given=False)), schedule)

    monkeypatch.setattr(graph_layout._LayoutTerms, "layout", careless)
    with pytest.raises(CheckFailed, match="the plan is not sound"):
        case.plan(io="inside")


def test_an_output_outside_is_a_copy_of_what_it_is_a_view_of() -> None:
    case = Case.of("""
    g (float[4] x) => (float[4] y, float[4] z) {
      a = Relu(x)
      y = Identity(a)
      b = Exp(a)
      c = Exp(b)
      z = Add(c, c)
    }
    """)
    assert case.run(case.plan(io="outside")).equal


def test_a_part_of_an_input_outside_is_made_beside_one_that_is_an_output() -> None:
    case = Case.of("""
    g (float[8] x) => (float[1,3] y, float[5] b) {
      s = Constant<value = int64[2] {3, 5}>()
      a, b = Split<axis = 0>(x, s)
      c = Flatten<axis = 0>(a)
      y = Relu(c)
    }
    """)
    result = case.plan()
    assert outside(result)["a"] == "a part of 'x', which lies outside"
    assert case.run(result).equal


FROM_CONSTANTS = """
g (float[4] x) => (float[4] c, float[4] y, float[4] z) {
  k = Constant<value = float[4] {1, 2, 3, 4}>()
  c = Exp(k)
  a = Add(x, c)
  y = Sin(a)
  z = Add(a, c)
}
"""


@pytest.mark.parametrize("io", ["outputs", "inside", "outside"])
def test_an_output_that_is_computed_from_constants_is_not_lost(io: str) -> None:
    case = Case.of(FROM_CONSTANTS)
    result = case.plan(io=io)
    if io == "outside":
        assert outside(result)["c"] == "a graph output"
        assert "c" not in rows(result)
    else:
        assert lives(result)["c"] == (1, 4)
        assert rows(result)["c"].kind == "output"
    assert case.run(result).equal


# Constants in the lists of a plan: also those that no step reads, and those that share a name.


UNREAD = """<ir_version: 10, opset_import: ["": 17]>
  g (float[3] x, bool c) => (float[3] y) <float[2] w = {1, 2}, float h = {0.5}> {
    k = Constant <value_float = 2.0> ()
    t = Mul(h, k)
    s = Mul(x, t)
    y = If (c) <then_branch = t () => (float[3] a) <float u = {1}> { v = Constant <value_float = 1.0> ()  a = Neg(s) },
                else_branch = e () => (float[3] b) { b = Abs(s) }>
  }"""


def test_a_constant_that_no_step_reads_is_outside_with_the_reason() -> None:
    found = plan(onnx.parser.parse_model(UNREAD)).plan
    reason = "a constant that no step reads"
    assert {row.name for row in found.outside if row.reason == reason} == {"w", "h", "k", "u", "v"}
    assert [row.name for row in found.constants] == ["t"]


def test_the_check_misses_one_that_is_not_listed() -> None:
    model = load(onnx.parser.parse_model(UNREAD))
    shapes, constants = resolve(model), Constants(model)
    found = plan(model, verify=False).plan
    assert not check(model, found, shapes, constants).failures
    less = replace(found, outside=tuple(row for row in found.outside if row.name != "u"))
    with pytest.raises(CheckFailed, match="'u' is not listed as outside"):
        require(model, less, shapes, constants)


NAMESAKES = """<ir_version: 10, opset_import: ["": 17, "local": 1]>
  g (float[3] x) => (float[1] y) <int64[1] k = {1}, float[2] w = {1, 2}> {
    e = Constant <value_ints = [2]> ()  s = Slice(x, k, e)  y = local.half (s) }
  <domain: "local", opset_import: ["": 17]> half (a) => (b) {
    z = Constant <value_float = 3.0> ()  d = Mul(a, z)  k = Constant <value_floats = [0.5, 0.5]> ()
    c = Mul(d, k)  b = ReduceMax <axes = [0]> (c) }"""


def test_constants_of_one_name_are_aligned_each_to_its_element() -> None:
    """A function has names of its own: here 8 bytes of int64 and 8 bytes of float32 are both called k."""

    model = load(onnx.parser.parse_model(NAMESAKES))
    found = plan(model, alignment=1).plan
    rows = [row for row in found.constants if row.name == "k"]
    assert {row.dtype for row in rows} == {"INT64", "FLOAT"}
    shapes, constants = resolve(model), Constants(model)
    wrong = tuple(
        replace(row, offset=4 + (row.offset or 0)) if row.dtype == "INT64" else row for row in found.constants
    )
    assert any(
        "not aligned to 8" in str(one)
        for one in check(model, replace(found, constants=wrong), shapes, constants).failures
    )
