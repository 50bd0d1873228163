"""Live ranges on small graphs, told by both ways of finding them."""

import onnx_ir as ir
import pytest

from onnxtile.check.addresses import timeline
from onnxtile.check.graph import GraphModel
from onnxtile.check.sharing import RunOrder
from onnxtile.kernels.kernel_graph import live_ranges
from onnxtile.model.constants import Constants
from onnxtile.model.topology import node_ids
from onnxtile.model.validity import without_weights
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.errors import ModelError
from tests.planning.conftest import Case, lives, outside, rows

RESIDUAL = """
residual (float[2,3] x) => (float[2,3] y) {
  a = Relu(x)
  b = Sigmoid(a)
  c = Tanh(b)
  y = Add(a, c)
}
"""

IF = """
branches (float[2,3] x, bool p) => (float[2,3] y) {
  a = Relu(x)
  b = Sigmoid(a)
  c = If (p) <
    then_branch = then_graph () => (float[2,3] t) { u = Tanh(a)  t = Neg(u) },
    else_branch = else_graph () => (float[2,3] e) { e = Identity(b) }
  >
  y = Exp(c)
}
"""

HANDED_OUT = """
handed_out (float[2,3] x, bool p) => (float[2,3] y) {
  a = Relu(x)
  b = Exp(a)
  c = Neg(b)
  d = If (p) <
    then_branch = then_graph () => (a) { unread = Neg(b) },
    else_branch = else_graph () => (b) { unread_too = Neg(a) }
  >
  y = Add(c, d)
}
"""

NESTED = """
nested (float[2,3] x, bool p, bool q) => (float[2,3] y) {
  a = Relu(x)
  b = Neg(x)
  c = If (p) <
    then_branch = outer_then () => (float[2,3] t) {
      t = If (q) <
        then_branch = inner_then () => (float[2,3] i) { i = Exp(a) },
        else_branch = inner_else () => (float[2,3] j) { j = Exp(b) }
      >
    },
    else_branch = outer_else () => (float[2,3] e) { e = Neg(b) }
  >
  y = Exp(c)
}
"""

LOOP = """
looped (float[2,3] x) => (float[2,3] y, float[3,2,3] stack) {
  a = Relu(x)
  b = Neg(x)
  trip = Constant<value = int64 {3}>()
  go = Constant<value = bool {1}>()
  y, stack = Loop (trip, go, b) <
    body = step (int64 i, bool c, float[2,3] carried) => (bool c_out, float[2,3] next, float[2,3] seen) {
      c_out = Identity(c)
      next = Add(carried, a)
      seen = Exp(next)
    }
  >
  z = Neg(y)
}
"""

UNREAD = """
unread (float[2,3] x) => (float[2,3] early, float[2,3] late) {
  early = Relu(x)
  nobody = Exp(early)
  late = Neg(x)
  nobody_too = Exp(x)
}
"""

GRAPHS = [RESIDUAL, IF, NESTED, LOOP, UNREAD]


def test_a_value_lives_from_its_step_to_its_last_reader() -> None:
    result = Case.of(RESIDUAL).plan_views()
    assert lives(result) == {"a": (0, 3), "b": (1, 2), "c": (2, 3), "y": (3, 3)}
    assert result.peak == 3 * 64
    assert outside(result) == {"x": "a graph input"}
    assert (rows(result)["y"].kind, rows(result)["c"].kind) == ("output", "activation")


def test_outputs_live_to_the_end_and_what_nobody_reads_for_its_own_step() -> None:
    assert lives(Case.of(UNREAD).plan_views()) == {
        "early": (0, 3),
        "nobody": (1, 1),
        "late": (2, 3),
        "nobody_too": (3, 3),
    }


def test_what_a_body_reads_is_live_while_its_node_runs() -> None:
    result = Case.of(IF).plan_views()
    assert lives(result) == {"a": (0, 2), "b": (1, 2), "c": (2, 3), "y": (3, 3), "c (workspace)": (2, 2)}
    assert outside(result) == {"x": "a graph input", "p": "a graph input"}


def test_what_a_body_hands_out_is_live_while_its_node_runs() -> None:
    # The ONNX checker refuses such a body, so it comes from elsewhere.
    model = ir.from_onnx_text(f'<ir_version: 10, opset_import: ["" : 20]>{HANDED_OUT}')
    found = lives_of_the_kernels(Case(model, Shapes({}, {}), Constants(model)))
    assert found == {"a": (0, 4), "b": (1, 4), "c": (2, 5), "d": (3, 5), "y": (4, 5)}
    assert lives_of_the_check(model) == found


def test_what_a_body_inside_a_body_reads_is_live_while_the_outer_node_runs() -> None:
    result = Case.of(NESTED).plan_views()
    assert lives(result) == {"a": (0, 2), "b": (1, 2), "c": (2, 3), "y": (3, 3), "c (workspace)": (2, 2)}


def test_a_loop_reads_what_it_carries_and_what_it_captures() -> None:
    result = Case.of(LOOP).plan_views()
    workspace = {"y (workspace)": (4, 4)}
    assert lives(result) == {"a": (0, 4), "b": (1, 4), "y": (4, 5), "stack": (4, 5), "z": (5, 5), **workspace}
    assert [c.name for c in result.constants] == ["trip", "go"]
    assert outside(result) == {"x": "a graph input"}


@pytest.mark.parametrize("text", GRAPHS)
def test_lives_are_those_that_the_check_finds(text: str) -> None:
    case = Case.of(text)
    assert lives_of_the_check(case.model) == lives_of_the_kernels(case)


def lives_of_the_kernels(case: Case) -> dict[str | None, tuple[int, int]]:
    graph = case.graph()
    return {graph.tensors[number].name: life for number, life in live_ranges(graph, graph.own_order).items()}


def lives_of_the_check(model: ir.Model) -> dict[str | None, tuple[int, int]]:
    ids, graph = tuple(node_ids(model.graph).values()), GraphModel(without_weights(model)).graph
    line = timeline(graph, ids, tuple(range(len(ids))), graph.results, ())
    assert isinstance(line, RunOrder)
    made = [value for node in graph.nodes for value in node.outputs if value.name]
    return {value.name: (line.first(value), line.last(value) + 1) for value in made}


def test_the_schedule_names_every_node_once() -> None:
    result = Case.of(LOOP).plan_views()
    assert result.schedule == ("a", "b", "trip", "go", "y", "z")


def test_a_node_before_what_it_reads_is_refused() -> None:
    case = Case.of(RESIDUAL)
    model = case.model
    last = list(model.graph)[-1]
    model.graph.remove(last)
    model.graph.insert_before(next(iter(model.graph)), last)
    with pytest.raises(ModelError, match="the node 'y' reads 'a', which is made after it"):
        case.graph()
