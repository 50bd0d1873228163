"""The run inside the arena: right for sound plans of all kinds of graphs, and wrong for wrong ones."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnxruntime import InferenceSession

from onnxtile import api
from onnxtile.arena.kernel import Corruption, Kernels
from onnxtile.arena.memory import ArenaMemory, tensor_to_bytes, to_array
from onnxtile.arena.run import ArenaExecutor, PlainRun
from onnxtile.kernels.aliases import LayoutFacts
from onnxtile.operators.table import operators
from onnxtile.planning.result import PlanResult
from onnxtile.system.errors import CheckFailed, ModelError
from onnxtile.system.runtime import Array, Binding, Session, as_text
from tests import build
from tests.planning.conftest import Case, aliases, outside, rows
from tests.planning.test_live import IF, LOOP, NESTED, RESIDUAL, UNREAD

CONCAT = """
joined (float[1,4,5] x) => (float[1,8,5] y, float[1,2,5] s) {
  a = Relu(x)
  b = Sigmoid(x)
  c = Concat<axis = 1>(a, b)
  s, t, u, v = Split<axis = 1, num_outputs = 4>(c)
  y = Concat<axis = 1>(v, u, t, s)
}
"""

SHAPES = """
shapes (float[2,3,4] x) => (float[6,4] y, int64[3] n) {
  a = Relu(x)
  n = Shape(a)
  two = Constant<value = int64[2] {-1, 4}>()
  b = Reshape(a, two)
  y = Softmax(b)
}
"""

STRINGS = """
strings (float[2,3] x, string[2] s) => (float[2,3] y, string[2] t) {
  t = Identity(s)
  y = Relu(x)
}
"""

SEQUENCES = """
sequences (float[4,3] x) => (float[4,3] y, seq(float[2,3]) parts) {
  a = Relu(x)
  two = Constant<value = int64 {2}>()
  parts = SplitToSequence<axis = 0>(a, two)
  one = Constant<value = int64 {1}>()
  second = SequenceAt(parts, one)
  more = SequenceInsert(parts, second)
  b = Exp(second)
  c = ConcatFromSequence<axis = 0>(more)
  d = Neg(c)
  from = Constant<value = int64[1] {0}>()
  to = Constant<value = int64[1] {4}>()
  e = Slice(d, from, to)
  y = Sub(e, a)
}
"""

EMPTY = """
empty (float[0,3] x, float[2,3] z) => (float[2,3] y, float[0,3] e) {
  e = Relu(x)
  a = Exp(z)
  y = Concat<axis = 0>(e, a)
}
"""

HALVES = """
halves (float16[3,5] x, bfloat16[4] w) => (float16[3,5] y, bfloat16[4] v, bool[3,5] b, uint8[3,5] u, double[3,5] d) {
  y = Relu(x)
  v = Identity(w)
  zero = Constant<value = float16 {0}>()
  b = Greater(x, zero)
  u = Cast<to = 2>(b)
  d = Cast<to = 11>(y)
}
"""

SOUND = {
    "residual": RESIDUAL,
    "if": IF,
    "nested if": NESTED,
    "loop": LOOP,
    "unread": UNREAD,
    "concat and split": CONCAT,
    "shapes": SHAPES,
    "strings": STRINGS,
    "sequences": SEQUENCES,
    "no elements": EMPTY,
    "element types": HALVES,
}


@pytest.mark.parametrize("planner", ["naive", "greedy-by-size"])
@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_a_sound_plan_gives_the_same_bits(text: str, planner: str) -> None:
    case = Case.of(text)
    result = case.plan(planner=planner)
    assert result.unplanned == ()
    verdict = case.run(result, runs=3)
    assert verdict.equal, verdict
    assert verdict.runs == 3
    assert verdict.outputs == tuple(value.name or "" for value in case.model.graph.outputs)


@pytest.mark.parametrize("alignment", [1, 2, 16, 64, 4096])
def test_any_alignment(alignment: int) -> None:
    case = Case.of(CONCAT)
    result = case.plan(alignment=alignment)
    assert all(b.offset % max(alignment, 4) == 0 for b in result.buffers if b.alias is None)
    assert case.run(result).equal


def test_both_branches_run() -> None:
    case = Case.of(IF)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    verdict = case.run(case.plan(), feeds=[{"x": x, "p": np.array(True)}, {"x": x, "p": np.array(False)}])
    assert (verdict.equal, verdict.runs) == (True, 2)


def test_scalars_beside_strings_are_fed() -> None:
    case = Case.of("mixed (float x, string[1] s) => (float y, string[1] t) { y = Exp(x) t = Identity(s) }")
    feeds = [{"x": np.float32(2), "s": np.array(["a"], object)}]
    assert case.run(case.plan(), feeds=feeds).equal
    assert case.run(case.plan()).equal


TEXTS = [b"a", "zürich".encode()]


@pytest.mark.parametrize("texts", [TEXTS, np.array(TEXTS), np.array(["a", "zürich"]), np.array(TEXTS, object)], ids=str)
def test_strings_reach_onnxruntime_as_objects(texts: Any) -> None:
    found = as_text(np.array(texts).reshape(1, 2))
    assert (found.dtype, found.tolist()) == (np.dtype(object), [["a", "zürich"]])
    with pytest.raises(ModelError, match="not UTF-8"):
        as_text(np.array([b"\xff"]))


def test_a_constant_of_strings_is_read_as_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    constant = onnx.TensorProto(name="c", data_type=onnx.TensorProto.STRING, dims=[2], string_data=TEXTS)
    nodes = [helper.make_node("Constant", [], ["c"], value=constant), helper.make_node("Equal", ["x", "c"], ["y"])]
    ends = [helper.make_tensor_value_info("x", 8, [2]), helper.make_tensor_value_info("y", 9, [2])]
    kept = helper.make_tensor_value_info("c", 8, [2])
    case = Case.of(build.model(nodes, ends[:1], [ends[1], kept], opset=20))
    kinds: list[str] = []
    run = InferenceSession.run

    def listening(self: InferenceSession, names: Any, feeds: Any, how: Any = None) -> Any:
        kinds.extend(array.dtype.kind for array in feeds.values() if isinstance(array, np.ndarray))
        return run(self, names, feeds, how)

    monkeypatch.setattr(InferenceSession, "run", listening)
    feeds = [{"x": np.array(["a", "b"])}, {"x": np.array([b"b", "zürich".encode()])}]
    assert case.run(case.plan(), feeds=feeds).equal
    assert kinds
    assert set(kinds) <= {"O", "b"}


OPTIONALS = {
    "tensor": "a = Exp(x) o = Optional(a) h = OptionalHasElement(o) e = OptionalGetElement(o) y = Relu(e)",
    "sequence": """s = SequenceConstruct(x, x) o = Optional(s) e = OptionalGetElement(o) z = Constant<value = int64 {0}>()
                   y = SequenceAt(e, z)""",
    "branches": """p = Constant<value = bool {1}>() r = Not(p)
                   o = If(r) <then_branch = t () => (optional(float[2]) a) { n = Neg(x) a = Optional(n) },
                              else_branch = f () => (optional(float[2]) b) { b = Optional(x) }>
                   e = OptionalGetElement(o) y = Add(e, x)""",
}


@pytest.mark.parametrize("body", OPTIONALS.values(), ids=OPTIONALS)
def test_an_optional_is_no_tensor(body: str) -> None:
    case = Case.of(f"g (float[2] x) => (float[2] y) {{ {body} }}")
    result = case.plan()
    assert outside(result)["o"] == "an optional has no fixed bytes"
    assert case.run(result).equal


def test_a_tensor_of_a_function_may_have_the_name_of_an_optional() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
        g (float[2] x) => (optional(float[2]) o, float[2] y) { o = Optional(x) e = OptionalGetElement(o) y = local.F(e) }
        <opset_import: ["" : 20], domain: "local"> F (a) => (b) { o = Neg(a) b = Exp(o) }""")
    verdict = api.plan(model).verdict
    assert verdict is not None and verdict.equal


def test_an_optional_that_a_function_returns_is_no_tensor() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 20, "local" : 1]>
        g (float[2] x) => (float[2] y, bool h) { o = local.F(x) h = OptionalHasElement(o) e = OptionalGetElement(o) y = Neg(e) }
        <opset_import: ["" : 20], domain: "local"> F (a) => (b) { b = Optional(a) }""")
    assert outside(api.plan(model).plan)["o"] == "an optional has no fixed bytes"


@pytest.mark.parametrize("alignment", [1, 2, 8, 16])
@pytest.mark.parametrize("operator", ["ReduceMean", "ReduceSum", "ReduceL2", "Softmax"])
def test_inputs_of_the_plain_run_lie_as_in_the_arena(operator: str, alignment: int) -> None:
    case = Case.of(f"""
    g (float[37,41] x, float[5] w, float[33,7] z) => (float[N,M] y, float[K,L] v, float[5] u) {{
      axis = Constant<value = int64[1] {{1}}>()
      y = {operator}(x{"" if operator == "Softmax" else ", axis"})
      v = {operator}(z{"" if operator == "Softmax" else ", axis"})
      u = Exp(w)
    }}
    """)
    result = case.plan(io="inside", alignment=alignment)
    verdict = case.run(result, runs=5)
    assert (verdict.equal, verdict.excused) == (True, {}), verdict


def test_equal_nodes_share_a_session() -> None:
    text = "same (float[2,3] x) => (float[2,3] y) {\n" + "\n".join(
        f"  v{i + 1} = Relu({f'v{i}' if i else 'x'})" for i in range(9)
    )
    case = Case.of(text + "\n  w = Exp(v9)\n  u = Add(v9, w)\n  y = Add(u, u)\n}")
    verdict = case.run(case.plan())
    assert verdict.equal
    assert (verdict.kernels, verdict.sessions) == (12, 4)


def test_nodes_share_a_session_at_all_sizes() -> None:
    case = Case.of("g (float[2,3] x, float[4,5] z) => (float[2,3] y, float[4,5] w) { y = Relu(x) w = Relu(z) }")
    kernels = Kernels(LayoutFacts(case.model, case.shapes, case.constants))
    first, second = map(kernels.kernel_of, case.model.graph)
    assert first.session is second.session
    assert first.kind != second.kind
    assert kernels.kinds == 2


def test_kernels_in_one_place_run_on_other_values_at_each_size() -> None:
    case = Case.of("g (float[4] x) => (float[1] y) { a = Exp(x) b = Neg(a) s = ReduceSum(b) t = Exp(s) y = Neg(t) }")
    verdict = case.run(case.plan(alignment=64))
    assert (verdict.equal, verdict.sessions, verdict.repeated) == (True, 5, 3)


def test_an_operator_that_needs_sizes_has_them() -> None:
    case = Case.of("""
    g (float[1,2,8] x) => (float[1,2,N] y) {
      sizes = Constant<value = int64[3] {1, 2, 5}>()
      y = Resize(x, , , sizes)
    }
    """)
    assert case.run(case.plan()).equal


def test_sequences_and_strings_are_ordinary_values() -> None:
    case = Case.of(SEQUENCES)
    result = case.plan()
    reason = "a sequence has no fixed bytes"
    assert outside(result) == {"x": "a graph input", "parts": reason, "more": reason}
    assert {"a", "second", "b", "c", "d", "e", "y"} == rows(result).keys()
    assert outside(Case.of(STRINGS).plan())["t"] == "strings have no fixed bytes"
    case = Case.of("g (string[2] s, string[2] t) => (bool[2] y) { y = Equal(s, t) }")
    assert rows(case.plan()).keys() == {"y"}


def test_a_sequence_inside_a_body_is_known_by_inference() -> None:
    case = Case.of("""
    g (bool c, float[5] x) => (float[5] y) {
      y = If (c) <then_branch = a () => (float[5] p) { zero = Constant<value = int64 {0}>() s = SequenceConstruct(x, x)
                   p = SequenceAt(s, zero) },
                  else_branch = b () => (float[5] q) { q = Neg(x) }>
    }
    """)
    result = case.plan()
    assert not result.unplanned
    assert outside(result)["s"] == "a sequence has no fixed bytes"
    assert case.run(result).equal


def test_functions_travel_with_their_calls() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
    calls (float[2,3] x) => (float[2,3] y) { a = local.twice(x) b = local.twice(a) y = local.other(b) }
    <domain: "local", opset_import: ["" : 20, "local" : 1]> twice (u) => (w) { v = local.other(u) w = Add(v, v) }
    <domain: "local", opset_import: ["" : 20]> other (u) => (v) { v = Neg(u) }
    """
    case = Case.of(onnx.parser.parse_model(text))
    result = case.plan()
    assert {row.name for row in result.tensors} == {"a", "b", "y"}
    assert (case.run(result).equal, case.run(result).sessions) == (True, 2)


def test_an_overridable_default_is_fed_as_it_stands() -> None:
    case = Case.of("""
    default (float[2,3] x, float[3] w) => (float[2,3] y) <float[3] w = {1.0, 2.0, 3.0}> { a = Mul(x, w) y = Relu(a) }
    """)
    assert outside(case.plan()) == {"x": "a graph input", "w": "a graph input"}
    assert case.run(case.plan()).equal
    x = np.ones((2, 3), np.float32)
    assert case.run(case.plan(), feeds=[{"x": x}, {"x": x, "w": np.ones(3, np.float32)}]).equal


def test_shapes_that_depend_on_the_data_are_unplanned_and_run_outside() -> None:
    case = Case.of("""
    nonzero (float[2,3] x) => (float[2,3] y, int64[2,N] i) { a = Relu(x) i = NonZero(a) y = Exp(a) }
    """)
    result = case.plan()
    assert [u.name for u in result.unplanned] == ["i"]
    assert "depends on the data" in result.unplanned[0].reason
    assert case.run(result).equal


def moved(result: PlanResult, name: str, offset: int) -> PlanResult:
    changed = tuple(replace(b, offset=offset) if b.name == name else b for b in result.buffers)
    return replace(result, buffers=changed)


@pytest.mark.parametrize(
    ("text", "mover", "onto"),
    [(RESIDUAL, "c", "a"), (RESIDUAL, "b", "a"), (UNREAD, "nobody_too", "early"), (IF, "b", "a"), (CONCAT, "b", "a")],
)
def test_a_tensor_on_a_live_neighbour_is_noticed(text: str, mover: str, onto: str) -> None:
    case = Case.of(text)
    result = case.plan()
    verdict = case.run(moved(result, mover, rows(result)[onto].offset))
    assert not verdict.equal
    assert verdict.differing is not None


def test_bytes_clash_in_part() -> None:
    case = Case.of(RESIDUAL)
    result = case.plan()
    verdict = case.run(moved(result, "b", rows(result)["a"].offset + 20))
    assert not verdict.equal


def test_a_view_that_is_moved_is_copied_and_where_it_clashes_noticed() -> None:
    case = Case.of("""
    chain (float[2,3] x) => (float[2,3] y, float[6] z) {
      flat = Constant<value = int64[1] {-1}>()
      a = Relu(x)
      b = Exp(x)
      z = Reshape(a, flat)
      y = Add(a, b)
    }
    """)
    result = case.plan_views()
    assert aliases(result) == {"z": "a"}
    assert case.run(result).equal
    assert not case.run(moved(result, "z", rows(result)["b"].offset)).equal


def test_a_clash_is_noticed_where_no_output_shows_it() -> None:
    case = Case.of("""
    hidden (float[2,3] x) => (float[2,3] y) {
      a = Relu(x)
      b = Exp(x)
      c = Sub(b, b)
      y = Mul(a, c)
    }
    """)
    result = case.plan_views()
    assert case.run(result).equal
    verdict = case.run(moved(result, "b", rows(result)["a"].offset))
    assert (verdict.equal, verdict.differing, verdict.step) == (False, "a", 3)


def test_a_kernel_that_stumbles_over_its_own_output_is_a_clash(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.of(RESIDUAL)
    result = case.plan_views()
    place = rows(result)["c"].offset
    run = Session.run_in_place

    def refusing(self: Session, inputs: Mapping[str, Binding], outputs: Mapping[str, Binding]) -> None:
        if any(binding.address == executors[0].blocks["arena"].address + place for binding in outputs.values()):
            raise ModelError("index out of bounds")
        run(self, inputs, outputs)

    executors = [ArenaExecutor(case.model, result, case.shapes, case.constants)]
    monkeypatch.setattr(Session, "run_in_place", refusing)
    assert executors[0].run({"x": np.ones((2, 3), np.float32)}) == Corruption("c", 2)


def test_several_arenas_are_blocks_of_their_own() -> None:
    case = Case.of(RESIDUAL)
    result = case.plan_views(capacity={"fast": 64, "slow": 1024})
    assert {buffer.arena for buffer in result.buffers} == {"fast", "slow"}
    assert result.arenas[0].size == 64
    assert case.run(result).equal


def test_a_write_around_the_arena_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.of(RESIDUAL)
    result = case.plan()
    run = ArenaExecutor.run

    def overrun(
        self: ArenaExecutor, feeds: Mapping[str, Array], order: Iterable[int] | None
    ) -> dict[str, Any] | Corruption:
        found = run(self, feeds, order)
        self.blocks["arena"]._after[0] ^= 1
        return found

    monkeypatch.setattr(ArenaExecutor, "run", overrun)
    verdict = case.run(result)
    assert (verdict.equal, verdict.red_zones, verdict.differing, verdict.runs) == (False, False, None, 1)


@pytest.mark.parametrize("offset", [-64, 64 * 3, 10**9])
def test_a_plan_that_leaves_the_arena_is_not_run(offset: int) -> None:
    case = Case.of(RESIDUAL)
    with pytest.raises(CheckFailed, match="'b' outside of the arena"):
        case.run(moved(case.plan(), "b", offset))


def test_a_plan_that_gives_too_few_bytes_is_not_run() -> None:
    case = Case.of(RESIDUAL)
    result = case.plan()
    small = tuple(replace(b, size=b.size - 4) for b in result.buffers)
    with pytest.raises(CheckFailed, match=r"gives '\w+' 20 bytes"):
        case.run(replace(result, buffers=small))


def test_an_operator_without_a_kernel_is_named() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20, "nobody.knows" : 1]>
    unknown (float[2,3] x) => (float[2,3] y) { y = nobody.knows.This(x) }
    """
    case = Case.of(onnx.parser.parse_model(text))
    with pytest.raises(ModelError, match="This"):
        case.run(case.plan())


def test_red_zones_notice_a_write_on_either_side() -> None:
    block = ArenaMemory(100, 256)
    block.fill(0xA5)
    assert block.address % 256 == 0
    block.bytes[:] = 1
    assert block.is_intact(0xA5)
    for zone, place in ((block._before, -1), (block._after, 0)):
        block.fill(0xA5)
        zone[place] = 0
        assert not block.is_intact(0xA5)


@pytest.mark.parametrize("dtype", ["INT4", "UINT4", "FLOAT16", "BFLOAT16", "BOOL", "INT64", "FLOAT8E4M3FN"])
def test_bytes_of_a_tensor_and_back(dtype: str) -> None:
    element = ir.DataType[dtype]
    array = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]]).astype(element.numpy())
    data = tensor_to_bytes(array, element)
    assert data.nbytes == -(-9 * element.bitwidth // 8)
    back = to_array(data, element, (3, 3))
    assert back.dtype == array.dtype
    assert np.array_equal(back.astype(np.float32), array.astype(np.float32))


def test_elements_of_half_a_byte() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    quantised (float[3,3] x, float scale) => (float[3,3] y, int4[3,3] q) {
      zero = Constant<value = int4 {0}>()
      p = QuantizeLinear<output_dtype = 22>(x, scale, zero)
      a = DequantizeLinear(p, scale)
      y = Neg(a)
      q = QuantizeLinear<output_dtype = 22>(y, scale, zero)
    }
    """
    case = Case.of(onnx.parser.parse_model(text))
    result = case.plan(alignment=1)
    assert [rows(result)[name].size for name in "payq"] == [5, 36, 36, 5]
    x = np.array([[-8, 7, 1], [2, -3, 4], [5, 6, -7]], np.float32)
    assert case.run(result, feeds=[{"x": x, "scale": np.array(scale, np.float32)} for scale in (1, 0.5, 2)]).equal


def test_random_numbers_are_drawn_once_for_both_runs() -> None:
    case = Case.of("""
    noisy (float[2,3] x) => (float[2,3] y) {
      a = Relu(x)
      n = RandomUniformLike(a)
      b = Add(a, n)
      y = Exp(b)
    }
    """)
    result = case.plan()
    verdict = case.run(result)
    assert verdict.equal
    assert verdict.excused == {"y": "it follows from 'n', which draws random numbers"}
    assert not case.run(moved(case.plan_views(), "n", rows(case.plan_views())["a"].offset)).equal


WIDER = "halves (float16[64,64] x) => (float16[64,64] y, float[2] z) {\n a0 = MatMul(x, x)\n"
WIDER += "".join(f" a{i + 1} = Mul(a{i}, x)\n b{i} = Cos(a{i + 1})\n a{i + 2} = Erf(b{i})\n" for i in range(0, 4, 2))
WIDER += " y = Softmax(a4)\n c = Constant<value = float[2] {1.0, 2.0}>() z = Neg(c)\n}"


def test_halves_that_onnxruntime_keeps_wider_are_compared_node_by_node() -> None:
    case = Case.of(WIDER)
    result = case.plan()
    verdict = case.run(result)
    assert verdict.equal
    assert verdict.excused.keys() <= {"y"}
    assert all("more than 16 bits" in reason for reason in verdict.excused.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_tensor_of_16_bits_on_a_live_neighbour_is_noticed(dtype: str) -> None:
    case = Case.of(f"""
    g ({dtype}[64] x, {dtype}[0] e) => ({dtype}[128] y) {{
      a = Concat<axis = 0>(x, e)
      b = Concat<axis = 0>(x, e)
      y = Concat<axis = 0>(a, b)
    }}
    """)
    result = case.plan(planner="naive", share=("view",))
    assert case.run(result).equal
    assert not case.run(moved(result, "b", rows(result)["y"].offset + 2)).equal
    assert not case.run(moved(result, "y", rows(result)["b"].offset + 2)).equal


def test_what_is_no_view_is_noticed_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case.of("g (float16[3,5] x) => (float16[5,3] y) { a = Relu(x) b = Transpose(a) y = Relu(b) }")
    result = case.plan_views(planner="naive")
    assert case.run(result).equal
    monkeypatch.setitem(operators(), "Transpose", replace(operators()["Transpose"], same="view"))
    verdict = case.run(moved(result, "b", rows(result)["a"].offset))
    assert (verdict.equal, verdict.differing, verdict.views) == (False, "b", 1)


def test_only_what_follows_from_a_random_number_is_not_compared_with_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case.of("""
    g (float[2,3] x, bool p) => (float[2,3] y, float[2,3] z, float[2,3] w) {
      n = RandomUniformLike(x)
      a = Exp(x)
      y = If (p) <then_branch = t () => (float[2,3] r) { r = Add(n, a) }, else_branch = e () => (float[2,3] s) { s = Neg(a) }>
      z = Neg(a)
      w = Add(z, a)
    }
    """)
    assert case.run(case.plan()).excused == {"y": "it follows from 'n', which draws random numbers"}
    whole = PlainRun.run

    def other(run: PlainRun, feeds: Any) -> dict[str, Any]:
        found = whole(run, feeds)
        found["w"].data[0] ^= 1
        return found

    monkeypatch.setattr(PlainRun, "run", other)
    assert (case.run(case.plan()).equal, case.run(case.plan()).differing) == (False, "w")


def test_a_function_that_draws_is_run_once_for_both() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 20, "local" : 1]>
    calls (float[2,3] x) => (float[2,3] y) { a = local.noisy(x) y = Neg(a) }
    <domain: "local", opset_import: ["" : 20]> noisy (u) => (w) { v = RandomUniformLike(u) w = Add(v, u) }
    """
    verdict = (case := Case.of(onnx.parser.parse_model(text))).run(case.plan())
    assert (verdict.equal, list(verdict.excused)) == (True, ["y"])


def test_a_dropout_that_trains_is_random() -> None:
    case = Case.of("""
    g (float[64] x) => (float[64] y, float[64] z) {
      rate = Constant<value = float {0.5}>()
      train = Constant<value = bool {1}>()
      y = Dropout(x, rate, train)
      z = Dropout(x, rate)
    }
    """)
    verdict = case.run(case.plan())
    assert (verdict.equal, list(verdict.excused)) == (True, ["y"])


def test_where_vectors_begin_is_the_same_beside_the_arena() -> None:
    # What comes before the first whole vector is computed by itself, and the sine there may be rounded otherwise.
    case = Case.of("""
    g (float[37] x, float[3] w) => (float[37] y, float[40] z) {
      a = Sin(x)
      b = Cos(a)
      c = Sin(w)
      z = Concat<axis = 0>(c, b)
      y = Sin(b)
    }
    """)
    result = case.plan(alignment=4, planner="naive")
    assert any(buffer.offset % 16 for buffer in result.buffers)
    verdict = case.run(result, runs=5)
    assert verdict.equal, verdict


def test_nodes_that_round_otherwise_are_excused_only_where_they_agree_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case = Case.of("g (float[4] x) => (float[4] y) { a = Exp(x) y = Neg(a) }")
    result = case.plan()
    whole = PlainRun.run

    def other(run: PlainRun, feeds: Any) -> dict[str, Any]:
        found = whole(run, feeds)
        found["y"].data[0] ^= 1
        return found

    monkeypatch.setattr(PlainRun, "run", other)
    verdict = case.run(result)
    assert (verdict.equal, verdict.differing) == (False, "y")
    monkeypatch.setattr(ArenaExecutor, "elsewhere", lambda run, feeds: other(PlainRun(run._model, run._shapes), feeds))
    verdict = case.run(result)
    assert verdict.equal
    assert "round differently" in verdict.excused["y"]
