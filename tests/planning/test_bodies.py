"""Plans of the bodies of If, Loop and Scan: inside the arena, checked, and run there."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile import api
from onnxtile.check.audit import require
from onnxtile.check.reading import from_marks
from onnxtile.declare.plan_document import PlannedBody, PlannedBuffer
from onnxtile.model import keys
from onnxtile.model.topology import clear_plan
from onnxtile.planning.bodies import with_bodies
from onnxtile.planning.offsets.problem import Buffer, OptimalityProof, Problem
from onnxtile.planning.result import PlanResult
from onnxtile.planning.rows import annotate
from onnxtile.planning.workspaces import WorkspaceBuffer, WorkspaceRules
from onnxtile.system import errors
from tests.build import Find
from tests.draws import draws
from tests.planning.conftest import Case, outside, rows
from tests.planning.test_live import IF, LOOP, NESTED

SCAN = """
scanned (float[2] start, float[3,2] x) => (float[2] last, float[2,3] all) {
  a = Neg(x)
  last, all = Scan <num_scan_inputs = 1, scan_output_axes = [1], scan_input_directions = [1],
    body = step (float[2] sum, float[2] slice) => (float[2] next, float[2] seen) {
      b = Exp(slice)
      next = Add(sum, b)
      seen = Relu(next)
    }> (start, a)
}
"""

SWAP = """
swapped (float[2] x, float[2] y) => (float[2] p, float[2] q) {
  a = Neg(x)
  b = Exp(y)
  trip = Constant<value = int64 {3}>()
  go = Constant<value = bool {1}>()
  p, q = Loop (trip, go, a, b) <body = step (int64 i, bool c, float[2] u, float[2] v) => (bool d, float[2] w, float[2] z) {
      d = Identity(c)
      w = Identity(v)
      z = Identity(u)
    }>
}
"""

NO_TURN = LOOP.replace("int64 {3}", "int64 {0}").replace("float[3,2,3]", "float[0,2,3]")

UNTIL = """
until (float[2] x) => (float[2] y) {
  a = Neg(x)
  go = Constant<value = bool {1}>()
  most = Constant<value = float {9}>()
  y = Loop ("", go, a) <body = step (int64 i, bool c, float[2] u) => (bool d, float[2] w) {
      e = Abs(u)
      one = Constant<value = float {1}>()
      w = Add(e, one)
      s = ReduceSum<keepdims = 0>(w)
      d = Less(s, most)
    }>
}
"""

IN_A_LOOP = """
inside (float[2,3] x) => (float[2,3] y) {
  a = Relu(x)
  trip = Constant<value = int64 {4}>()
  go = Constant<value = bool {1}>()
  two = Constant<value = int64 {2}>()
  y = Loop (trip, go, a) <body = step (int64 i, bool c, float[2,3] u) => (bool d, float[2,3] w) {
      d = Identity(c)
      e = Exp(u)
      early = Less(i, two)
      f = If (early) <
        then_branch = first () => (float[2,3] t) { s = Neg(e)  t = Tanh(s) },
        else_branch = second () => (float[2,3] r) { q = Sigmoid(e)  r = Add(q, a) }>
      w = Sub(f, e)
    }>
}
"""

GRAPHS = {"if": IF, "nested": NESTED, "loop": LOOP, "scan": SCAN, "swap": SWAP, "no turn": NO_TURN, "until": UNTIL}
GRAPHS["if in a loop"] = IN_A_LOOP
every_graph = pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS)


def flat(result: PlanResult) -> list[PlannedBody]:
    todo, found = list(result.bodies), []
    while todo:
        found.append(todo.pop(0))
        todo.extend(found[-1].bodies)
    return found


@every_graph
@pytest.mark.parametrize(
    ("order", "planner"), [("model", "naive"), ("min-peak", "best"), ("any", "greedy-by-size"), ("any", "best")]
)
def test_every_tensor_of_a_body_has_a_place_and_runs_there(text: str, order: str, planner: str) -> None:
    case = Case.of(text)
    result = case.plan(order=order, planner=planner)
    assert result.unplanned == ()
    placed = {b.name for body in flat(result) for b in body.buffers}
    inner = [v for graph in case.model.graph.subgraphs() for v in graph.inputs]
    made = [v for n in case.model.graph.all_nodes() if n.graph is not case.model.graph for v in n.outputs]
    constant = {v for v in made if v in case.constants}
    assert {v.name for v in (*inner, *made) if v not in constant} <= placed
    assert case.run(result).equal


@every_graph
def test_bodies_lie_in_the_workspaces_of_their_nodes(text: str) -> None:
    result = Case.of(text).plan(planner="naive")
    workspaces = rows(result)
    for body in result.bodies:
        workspace = workspaces.get(f"{body.node} (workspace)")
        assert workspace is not None
        assert workspace.kind == "workspace"
        for one in body.buffers:
            assert workspace.offset <= one.offset <= one.offset + one.size <= workspace.offset + workspace.size


def test_branches_share_the_larger_workspace() -> None:
    result = Case.of(IF).plan()
    assert rows(result)["c (workspace)"].size == max(body.size for body in result.bodies)
    assert {body.attribute for body in result.bodies} == {"then_branch", "else_branch"}


def shifted(result: PlanResult, move: Callable[[PlannedBuffer], int], names: set[str]) -> PlanResult:
    """Return `result` with the rows called `names` by `move` bytes further."""

    def row(buffer: PlannedBuffer) -> PlannedBuffer:
        return replace(buffer, offset=buffer.offset + move(buffer)) if buffer.name in names else buffer

    def inside(body: PlannedBody) -> PlannedBody:
        return replace(body, buffers=tuple(map(row, body.buffers)), bodies=tuple(map(inside, body.bodies)))

    return replace(result, buffers=tuple(map(row, result.buffers)), bodies=tuple(map(inside, result.bodies)))


FEEDS = {"x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)}


@pytest.mark.parametrize(
    ("text", "name", "onto"),
    [(IN_A_LOOP, "e", "a"), (IN_A_LOOP, "q", "a"), (IN_A_LOOP, "u", "a"), (LOOP, "next", "a")],
)
def test_a_tensor_of_a_body_outside_of_its_workspace_is_refused(text: str, name: str, onto: str) -> None:
    case = Case.of(text)
    result = case.plan(share=("view",))
    place = rows(result)[onto].offset
    with pytest.raises(errors.CheckFailed, match=f"'{name}' outside of the workspace of "):
        case.run(shifted(result, lambda row: place - row.offset, {name}), feeds=[FEEDS])


@pytest.mark.parametrize(("text", "onto"), [(IN_A_LOOP, "a"), (LOOP, "a"), (IN_A_LOOP, "y")])
def test_a_workspace_with_its_bodies_on_a_tensor_in_use_is_noticed(text: str, onto: str) -> None:
    case = Case.of(text)
    result = case.plan(share=("view",), planner="naive")
    workspace = next(row for row in result.buffers if row.kind == "workspace")
    names = {workspace.name, *(row.name for body in flat(result) for row in body.buffers)} - {onto}
    by = rows(result)[onto].offset - workspace.offset
    wrong = shifted(result, lambda _: by, names)
    wider = replace(wrong, arenas=tuple(replace(arena, size=arena.size + 4096) for arena in wrong.arenas))
    assert not case.run(wider, feeds=[FEEDS]).equal


@pytest.mark.parametrize("field", ["row", "body"])
@pytest.mark.parametrize("text", [LOOP, IN_A_LOOP, UNTIL, SCAN])
def test_a_workspace_that_is_too_small_for_its_bodies_is_refused(text: str, field: str) -> None:
    case = Case.of(text)
    result = case.plan()
    workspaces = tuple(replace(b, size=b.size - 64) if b.kind == "workspace" else b for b in result.buffers)
    bodies = tuple(replace(body, size=body.size - 64) for body in result.bodies)
    small = replace(result, buffers=workspaces) if field == "row" else replace(result, bodies=bodies)
    with pytest.raises(errors.CheckFailed, match="outside of the workspace of "):
        case.run(small)


@pytest.mark.parametrize("other", ["a", "y"])
def test_what_lies_beside_its_bodies_in_the_workspace_of_a_node_is_nobody_elses(other: str) -> None:
    """A node with a body has a workspace of its own behind it, too."""
    case = Case.of(LOOP)
    result = case.plan(share=("view",), planner="naive", workspaces=WorkspaceRules.from_texts({"Loop": "128"}, False))
    assert case.run(result, feeds=[FEEDS]).equal
    workspace = next(row for row in result.buffers if row.kind == "workspace")
    end = workspace.offset + workspace.size - 64
    assert not case.run(shifted(result, lambda row: end - row.offset, {other}), feeds=[FEEDS]).equal


@pytest.mark.parametrize("text", [LOOP, IN_A_LOOP, UNTIL])
def test_a_body_that_is_planned_wrongly_is_refused(text: str) -> None:
    """All buffers of the body at its start."""
    case = Case.of(text)
    result = case.plan(share=("view",))
    body = result.bodies[0]
    start = min(b.offset for b in body.buffers)
    wrong = replace(body, buffers=tuple(replace(b, offset=start) for b in body.buffers))
    found = case.audit(replace(result, bodies=(wrong, *result.bodies[1:]))).failures
    assert any(failure.body == "y/body" and "are live together" in failure.reason for failure in found)


@draws(12)
@given(
    st.lists(
        st.tuples(st.sampled_from(["Relu", "Exp", "Neg", "Add", "Concat", "Reshape"]), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 3),
    st.sampled_from(["model", "any"]),
)
def test_random_bodies(nodes: list[tuple[str, int]], turns: int, order: str) -> None:
    known, lines = ["u", "a"], []
    for number, (operator, pick) in enumerate(nodes):
        one, other, made = known[pick % len(known)], known[pick // 2 % len(known)], f"v{number}"
        if operator == "Concat":
            lines += [
                f"h{number}, k{number} = Split<axis = 0, num_outputs = 2>({one})",
                f"{made} = Concat<axis = 0>(k{number}, h{number})",
            ]
        elif operator == "Reshape":
            lines += [
                f"r{number} = Reshape({one}, flat)",
                f"s{number} = Abs(r{number})",
                f"{made} = Reshape(s{number}, back)",
            ]
        else:
            lines.append(f"{made} = {operator}({one}, {other})" if operator == "Add" else f"{made} = {operator}({one})")
        known.append(made)
    body = "\n".join(["d = Identity(c)", *lines, f"w = Tanh({known[-1]})"])
    case = Case.of(f"""
    random (float[2,3] x) => (float[2,3] y) {{
      a = Relu(x)
      trip = Constant<value = int64 {{{turns}}}>()
      go = Constant<value = bool {{1}}>()
      flat = Constant<value = int64[1] {{6}}>()
      back = Constant<value = int64[2] {{2, 3}}>()
      z = Loop (trip, go, a) <body = step (int64 i, bool c, float[2,3] u) => (bool d, float[2,3] w) {{ {body} }}>
      y = Add(z, a)
    }}""")
    result = case.plan(order=order)
    assert result.unplanned == ()
    assert case.run(result, runs=2).equal


def test_a_real_model_with_branches_in_branches(silero: Find) -> None:
    """The other sampling rate's branch cannot run on these inputs; nothing else is left out."""
    shapes = {"input": (1, 576), "state": (2, 1, 128)}
    result = api.plan(silero("silero_vad"), shapes=shapes, inputs={"sr": (16000, 16000)})
    assert result.plan.unplanned == ()
    reasons = ("a graph input", "a constant that no step reads", "never made")
    assert all(row.reason.startswith(reasons) for row in result.plan.outside)
    assert len(flat(result.plan)) == 50
    assert result.verdict is not None and result.verdict.equal


def test_the_tensors_of_bodies_are_marked_in_the_model() -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{IN_A_LOOP}')
    result = api.plan(model, verify=False)
    marks = {
        value.name: (int(value.metadata_props[keys.OFFSET]), int(value.metadata_props[keys.SIZE]))
        for node in result.model.graph.all_nodes()
        for value in node.outputs
        if keys.OFFSET in value.metadata_props
    }
    placed = {b.name: (b.offset, b.size) for body in flat(result.plan) for b in body.tensors if b.kind != "input"}
    assert placed.items() <= marks.items()
    assert {"e", "f", "q", "s", "w"} <= placed.keys()
    inputs = (value for graph in result.model.graph.subgraphs() for value in graph.inputs)
    assert all(keys.OFFSET in value.metadata_props for value in inputs)
    clear_plan(result.model)
    assert not any(value.metadata_props for graph in result.model.graphs() for value in graph.inputs)


def test_bodies_in_one_of_several_arenas() -> None:
    case = Case.of(IN_A_LOOP)
    size = next(b.size for b in case.plan().buffers if b.kind == "workspace")
    for capacity in ({"fast": size, "slow": 4096}, {"fast": size - 1, "slow": 4096}):
        result = case.plan(capacity=capacity)
        (workspace,) = (b for b in result.buffers if b.kind == "workspace")
        assert {b.arena for body in flat(result) for b in body.buffers} == {workspace.arena}
        assert case.run(result).equal


def test_a_view_of_what_lies_around_a_body_is_a_copy_with_a_place() -> None:
    case = Case.of("""
    around (float[2,3] x, bool p) => (float[6] y, float[2,3] z) {
      a = Relu(x)
      flat = Constant<value = int64[1] {6}>()
      y = If (p) <
        then_branch = t () => (float[6] u) { v = Reshape(a, flat)  u = Exp(v) },
        else_branch = e () => (float[6] w) { r = Reshape(x, flat)  w = Neg(r) }>
      z = Neg(a)
    }
    """)
    result = case.plan()
    assert [row.name for row in result.outside] == ["x", "p"]
    assert {"v", "r"} <= {b.name for body in flat(result) for b in body.buffers}
    assert case.run(result).equal


def test_a_body_that_makes_no_tensor_runs_with_its_node() -> None:
    case = Case.of("""
    listed (float[2,3] x, bool p) => (float[2,3] y) {
      a = Relu(x)
      s = If (p) <
        then_branch = t () => (seq(float[2,3]) u) { n = Neg(a)  u = SequenceConstruct(n, a) },
        else_branch = e () => (seq(float[2,3]) w) { w = SequenceConstruct(a) }>
      zero = Constant<value = int64 {0}>()
      b = SequenceAt(s, zero)
      y = Exp(b)
    }
    """)
    assert case.run(case.plan()).equal


def test_a_plan_is_no_better_than_those_of_its_bodies() -> None:
    case = Case.of("""
    outer (float[4] x, bool c) => (float[4] y) {
      y = If(c) <
        then_branch = p () => (float[4] t) { a = Transpose(x) b = Transpose(a) d = Transpose(b) e = Transpose(d) t = Transpose(e) },
        else_branch = q () => (float[4] f) { f = Neg(x) }>
    }
    """)
    naive, best = case.plan(planner="naive"), case.plan()
    assert (best.arena_size, best.optimal, best.ended) == (3 * 64, True, "lower bound reached")
    assert (naive.arena_size, naive.peak) == (6 * 64, 6 * 64)
    assert (naive.lower_bound, naive.optimal, naive.bound, naive.ended) == (3 * 64, False, "bodies", "heuristic")
    assert case.run(naive).equal


def test_what_a_body_hands_out_of_the_arena_may_be_seen_under_another_shape() -> None:
    case = Case.of("""
    outer (float[4] x, float[3,4] m) => (float[4] s, float[3,4] r, float[12] y) {
      s, r = Scan(x, m) <num_scan_inputs = 1,
        body = b (float[4] v, float[4] a) => (float[4] w, float[4] o) { w = Sin(v) o = Add(w, a) }>
      flat = Constant<value = int64[1] {-1}>()
      z = Reshape(r, flat)
      y = Exp(z)
    }
    """)
    result = case.plan(io="outside")
    assert "r" in outside(result)
    assert case.run(result).equal


ODD = """
odd (float[5] x, uint8[701] u, bool p) => (uint8[5] y, uint8[701] v) {
  a = Neg(x)
  b = BitwiseNot(u)
  v = BitwiseNot(b)
  y = If (p) <
    then_branch = t () => (uint8[5] r) { s = Exp(a)  m = Cast<to = 2>(s)  w = Cast<to = 11>(m)  q = Cos(w)  r = Cast<to = 2>(q) },
    else_branch = e () => (uint8[5] k) { z = Sin(a)  k = Cast<to = 2>(z) }>
}
"""


@pytest.mark.parametrize("alignment", [1, 2, 4, 64])
@pytest.mark.parametrize("order", ["model", "any"])
def test_what_lies_in_a_body_is_aligned_to_its_elements(alignment: int, order: str) -> None:
    case = Case.of(ODD)
    result = case.plan(alignment=alignment, order=order, planner="naive")
    sizes = {"FLOAT": 4, "DOUBLE": 8, "UINT8": 1, "BOOL": 1}
    inside = [b for body in flat(result) for b in body.tensors]
    assert {b.dtype for b in inside} == {"FLOAT", "DOUBLE", "UINT8"}
    assert all(b.offset % sizes[b.dtype or ""] == 0 for b in (*result.tensors, *inside))
    assert all(b.offset % alignment == 0 for b in inside if b.alias is None)
    assert case.run(result).equal


WORKSPACES_ALONE = """<ir_version: 10, opset_import: ["" : 20]> g (float[2, 3] x) => (float[2, 3] y) <int64 n = {3}, bool go = {1}> {
      y = Loop (n, go, x) <body = l (int64 turn, bool on, float[2, 3] v) => (bool o, float[2, 3] w)
        { t = Exp(v)  o = Not(on)  w = Sin(t) }> }"""
"""All tensors of the main graph lie outside. The body has 9 bytes of a number of turns and a truth value, and floats."""


@pytest.mark.parametrize("alignment", [1, 2, 64])
def test_an_arena_of_workspaces_alone_is_rounded_to_the_elements_in_them(alignment: int) -> None:
    case = Case.of(onnx.parser.parse_model(WORKSPACES_ALONE))
    result = case.plan(io="outside", alignment=alignment)
    assert case.run(result).equal
    annotate(case.model, result)
    require(case.model, from_marks(case.model, "model.onnx"), case.shapes, case.constants)


def test_a_peak_of_workspaces_alone_that_is_rounded_to_anything_else_is_refused() -> None:
    case = Case.of(onnx.parser.parse_model(WORKSPACES_ALONE))
    result = case.plan(io="outside", alignment=1)
    bytes_ = result.buffers[0].size
    require(case.model, result, case.shapes, case.constants)
    for peak in {bytes_, *(-(-bytes_ // unit) * unit for unit in (2, 4, 16))} - {result.peak}:
        arena = replace(result.arenas[0], size=result.arena_size + 16, peak=peak)
        for wrong in (replace(result, peak=peak), replace(result, arenas=(arena,))):
            with pytest.raises(errors.CheckFailed, match=f"peak .*is {peak}, not {result.peak}"):
                require(case.model, wrong, case.shapes, case.constants)


def test_the_bound_over_all_orders_is_not_above_the_plan_where_states_lie_in_a_concat() -> None:
    """The next values of both states take their bytes in the Concat, of which the smaller is not aligned."""
    text = """g (float[6, 4] x, float[2, 4] z) => (float[6, 4] y, float[2, 4] w) <int64 n = {2}, bool go = {1}> {
      y, w = Loop (n, go, x, z) <body = l (int64 turn, bool on, float[6, 4] a, float[2, 4] b)
        => (bool o, float[6, 4] c, float[2, 4] d)
        { joined = Concat <axis = 0> (b, a)  o = Identity(on)  c = Neg(x)  d = Neg(b) }> }"""
    case = Case.of(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}'))
    result = case.plan()
    assert result.any_order_bound is not None and result.any_order_bound <= result.arena_size


def test_smaller_bodies_lower_a_bound_of_parts_by_all_that_they_spare() -> None:
    """The buffers of the bound live in parts, so that a peak of whole buffers says nothing of it."""
    held = Buffer("held", 60, 0, 4)
    workspace = WorkspaceBuffer(Buffer("workspace", 60, 1, 2), (0,), is_own=True)
    problem = Problem((held, workspace.buffer), 1)
    body: Any = SimpleNamespace(size=60, proof=OptimalityProof(20, "peak", "effort"))
    proof = with_bodies(problem, OptimalityProof(100, "parts", "effort"), [workspace], {0: (body,)})
    assert proof.lower_bound == 100 - (60 - 20)
