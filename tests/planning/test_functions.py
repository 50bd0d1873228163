"""Plans of calls of local functions: each call has a plan of its function's body, with rows of its own, and is run by it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from hypothesis import given
from onnx import helper, numpy_helper

from onnxtile import api
from onnxtile.declare.plan_document import PlannedBody, document_of
from onnxtile.kernels import aliases as find
from onnxtile.kernels.aliases import containers
from onnxtile.model import keys
from onnxtile.planning.result import PlanResult
from onnxtile.report.format import Emission
from onnxtile.shapes import opened_calls as unfolding
from onnxtile.shapes.opened_calls import unfold
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.errors import CheckFailed, ModelError
from onnxtile.tiling.limits import Limits
from tests import build
from tests.bench.large_graphs import functions
from tests.draws import draws
from tests.planning.conftest import Case, rows
from tests.planning.test_bodies import flat
from tests.planning.test_random_graphs import models

_HEAD = '<ir_version: 10, opset_import: ["" : 20, "local" : 1]>\n'

_FUNCTIONS = """
<domain: "local", opset_import: ["" : 20, "local" : 1]> twice <axis: int = 0>(u) => (w) {
  v = local.other(u)
  c = Concat<axis: int = @axis>(v, u)
  s, t = Split<axis: int = @axis, num_outputs = 2>(c)
  w = Add(s, t)
}
<domain: "local", opset_import: ["" : 20]> other (u) => (v) { e = Exp(u) v = Neg(e) }
<domain: "local", opset_import: ["" : 20]> shaped (u, to, more) => (v, n) {
  zero = Constant<value = int64[2] {0, 0}>()
  sizes = Add(to, zero)
  r = Reshape(u, sizes)
  v = Transpose(r)
  n = Shape(u)
}
<domain: "local", opset_import: ["" : 20]> either (p, u) => (v) {
  v = If (p) <then_branch = t () => (a) { e = Exp(u) a = Neg(e) }, else_branch = f () => (b) { b = Abs(u) }>
}
<domain: "local", opset_import: ["" : 20]> listed (u) => (v) {
  q = SequenceConstruct(u, u)
  one = Constant<value = int64 {1}>()
  e = SequenceAt(q, one)
  v = Sin(e)
}
<domain: "local", opset_import: ["" : 20]> noisy (u) => (v) { r = RandomUniformLike(u) v = Add(r, u) }
"""

GRAPHS = {
    "twice": "float[2,3] x) => (float[2,3] y) { a = local.twice(x) y = local.twice<axis = 1>(a)",
    "one operand twice, one left out": """float[2,3] x) => (float[2,3] y, int64[2] k) {
      a = Exp(x) s = Constant<value = int64[2] {3, 2}>() y, k = local.shaped(a, s)""",
    "in branches": """float[2,3] x, bool p) => (float[2,3] y) { a = Exp(x)
      y = If (p) <then_branch = t () => (float[2,3] r) { r = local.twice(a) },
                  else_branch = e () => (float[2,3] q) { q = local.either(p, a) }>""",
    "in a loop": """float[2,3] x) => (float[2,3] y) { a = Exp(x)
      trip = Constant<value = int64 {3}>() go = Constant<value = bool {1}>()
      y = Loop (trip, go, a) <body = step (int64 i, bool c, float[2,3] u) => (bool d, float[2,3] w) {
        d = Identity(c) h = local.twice(u) w = Tanh(h) }>""",
    "a sequence inside": "float[2,3] x) => (float[2,3] y) { a = Exp(x) y = local.listed(a)",
    "random inside": "float[2,3] x) => (float[2,3] y) { a = Exp(x) b = local.noisy(a) y = Neg(b)",
    "nothing left of the call": "float[2,3] x) => (float[2,3] y) { c = Constant<value = float {2.0}>() d = local.other(c) y = Mul(x, d)",
}


def model(graph: str) -> onnx.ModelProto:
    """Return the model of a graph in ONNX text, with the functions."""
    return onnx.parser.parse_model(f"{_HEAD} g ({graph} }}{_FUNCTIONS}")


@pytest.mark.parametrize(
    "options", [{}, {"order": "any"}, {"order": "min-peak"}, {"alignment": 1, "io": "inside"}], ids=str
)
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_what_is_made_in_a_function_has_a_place_and_runs_there(graph: str, options: dict[str, Any]) -> None:
    case = Case.of(model(graph))
    result = case.plan(**options)
    assert result.unplanned == ()
    assert case.run(result).equal
    calls = [body for body in flat(result) if body.attribute is None]
    assert all(body.buffers for body in calls)
    assert bool(calls) == ("d = local.other(c)" not in graph)


def test_each_call_has_rows_of_its_own() -> None:
    case = Case.of(model(GRAPHS["twice"]))
    result = case.plan(share=("view",), planner="naive")
    first, second = result.bodies
    assert [(body.node, body.attribute) for body in result.bodies] == [("a", None), ("y", None)]
    assert [body.node for body in (*first.bodies, *second.bodies)] == ["v", "v"]
    assert {row.name: row.shape for row in first.tensors}["c"] == (4, 3)
    assert {row.name: row.shape for row in second.tensors}["c"] == (2, 6)
    assert {row.kind for row in (*first.tensors, *second.tensors)} == {"activation", "output"}
    assert rows(result)["a (workspace)"].size == first.size
    schema = json.loads((Path(__file__).parents[2] / "docs" / "plan.schema.json").read_text())
    jsonschema.validate(json.loads(json.dumps(document_of(result.to_dict()))), schema)


def test_a_tensor_in_a_function_on_one_that_is_in_use_is_noticed() -> None:
    case = Case.of(model(GRAPHS["twice"]))
    result = case.plan(share=("view",), planner="naive")

    def wrong(body: PlannedBody) -> PlannedBody:
        place = {row.name: row.offset for row in body.buffers}
        moved = tuple(replace(row, offset=place["s"]) if row.name == "t" else row for row in body.buffers)
        return replace(body, buffers=moved)

    verdict = case.run(replace(result, bodies=(result.bodies[0], wrong(result.bodies[1]))))
    assert (verdict.equal, verdict.differing) == (False, "s")
    small = replace(result.bodies[1], size=result.bodies[1].size - 64)
    with pytest.raises(CheckFailed, match="outside of the workspace of 'y'"):
        case.run(replace(result, bodies=(result.bodies[0], small)))


def test_the_model_stays_as_it_is() -> None:
    source = model(GRAPHS["twice"])
    before = source.SerializeToString()
    result = api.plan(source)
    assert source.SerializeToString() == before
    assert [node.attributes.keys() for node in result.model.graph] == [set(), {"axis"}]
    again = api.plan(result.model)
    assert again.plan.buffers == result.plan.buffers
    x = next(iter(result.model.graph.inputs))
    assert [node.op_type for node in x.consumers()] == ["twice"]
    # The functions' values are those of all calls: their addresses stand in the JSON only.
    inner = (value for function in result.model.functions.values() for node in function for value in node.outputs)
    assert not any(keys.OFFSET in value.metadata_props for value in inner)


def test_every_format_takes_a_plan_with_functions(tmp_path: Path) -> None:
    plan = api.plan(model(GRAPHS["in branches"])).plan.to_dict()
    files = [tmp_path / f"p.{ending}" for ending in ("json", "csv", "h", "html", "svg", "trace.json", "tflm.json")]
    content = Emission.from_paths(files).content(plan)
    assert b"y/then_branch/r/v" in content[tmp_path / "p.trace.json"]
    assert content.keys() == set(files)


def test_a_wrapped_layer_is_planned_as_one_that_is_not_wrapped() -> None:
    weights = numpy_helper.from_array(np.ones((512, 96), np.float32), "w")
    ends = [helper.make_tensor_value_info("x", 1, [64, 512]), helper.make_tensor_value_info("y", 1, [64, 96])]
    layer = build.model([helper.make_node("MatMul", ["x", "w"], ["y"])], ends[:1], ends[1:], [weights], opset=20)
    sizes: dict[bool, int] = {}
    for wrap in (False, True):
        tiled = api.tile(layer, Limits(m=32, k=32, n=32), wrap=wrap, verify=False).model
        found = api.plan(tiled)
        assert found.plan.optimal
        sizes[wrap] = found.plan.arena_size
    # The result is handed out of the body: it is there twice.
    assert sizes[False] < sizes[True] <= sizes[False] + 64 * 96 * 4


def test_a_meta_op_is_one_kernel() -> None:
    text = "g (float[2,3] x) => (float[2,3] y) { a = Sigmoid(x) b = Mul(x, a) y = Neg(b) }"
    source = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{text}')
    fused = api.fuse(source, verify=False).model
    assert fused.functions
    assert api.plan(fused).plan.bodies == ()
    for function in fused.functions.values():
        del function.metadata_props[keys.META_OP]
    assert [body.attribute for body in api.plan(fused).plan.bodies] == [None] * len(fused.functions)


def test_a_function_of_other_operator_versions_is_one_kernel() -> None:
    text = f"{_HEAD} g (float[3] x) => (float[3] y) {{ a = local.f(x) y = Abs(a) }}\n"
    case = Case.of(
        onnx.parser.parse_model(text + '<domain: "local", opset_import: ["" : 19]> f (u) => (v) { v = Neg(u) }')
    )
    result = case.plan()
    assert result.bodies == ()
    assert case.run(result).equal


def test_functions_that_call_each_other_twice_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = "".join(
        f'<domain: "local", opset_import: ["" : 20, "local" : 1]> f{i} (u) => (v) {{ w = local.f{i - 1}(u) v = local.f{i - 1}(w) }}\n'
        for i in range(1, 8)
    )
    text = f"{_HEAD} g (float[3] x) => (float[3] y) {{ y = local.f7(x) }}\n{functions}"
    text += '<domain: "local", opset_import: ["" : 20]> f0 (u) => (v) { v = Neg(u) }'
    case = Case.of(onnx.parser.parse_model(text))
    opened = unfold(case.model, case.shapes, case.constants)
    assert sum(node.op_type == "Neg" for node in opened.model.graph.all_nodes()) == 128
    assert unfold(*opened) == opened
    monkeypatch.setattr(unfolding, "_MOST", 100)
    with pytest.raises(ModelError, match="more than 100 nodes"):
        unfold(case.model, case.shapes, case.constants)


def test_sizes_that_are_bounds_outside_are_bounds_inside() -> None:
    graph = "float[2,3] x) => (float[N] y) { i = NonZero(x) g = Transpose(i) f = GatherND(x, g) a = local.twice(f) y = Neg(a)"
    source = model(graph)
    result: PlanResult = api.plan(source, dims={"i": ":6"}).plan
    (body, _) = (found := flat(result))
    assert {row.shape for row in body.tensors} == {(6,), (12,)}
    assert len(found) == 2


@pytest.mark.parametrize("options", [{}, {"order": "any"}, {"io": "inside", "alignment": 4}], ids=str)
@draws(15)
@given(plain=models())
def test_a_random_graph_in_a_function_runs_as_planned(options: dict[str, Any], plain: onnx.ModelProto) -> None:
    """All nodes in one function, whose operands are the inputs and the constants of the graph."""
    graph = plain.graph
    reads = [*(value.name for value in graph.input), *(value.name for value in graph.initializer)]
    made = [value.name for value in graph.output]
    inside = helper.make_function("local", "all", reads, made, list(graph.node), list(plain.opset_import))
    call = helper.make_node("all", reads, [f"{name}_out" for name in made], domain="local", name="call")
    outputs = [
        helper.make_tensor_value_info(f"{v.name}_out", 1, [d.dim_value for d in v.type.tensor_type.shape.dim])
        for v in graph.output
    ]
    around = helper.make_graph([call], "g", list(graph.input), outputs, list(graph.initializer))
    imports = [*plain.opset_import, helper.make_opsetid("local", 1)]
    model_of = helper.make_model(around, functions=[inside], opset_imports=imports, ir_version=10)
    result = api.plan(model_of, search="greedy-by-size", **options)
    assert not result.plan.unplanned
    assert [body.node for body in result.plan.bodies] == ["call"]
    assert result.verdict is not None and result.verdict.equal


def test_values_that_are_no_tensors_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not again for each of the calls, with a walk through the whole model."""
    walks: list[ir.Model] = []

    def counted(model: ir.Model, shapes: Shapes) -> dict[ir.Value, ir.TypeProtocol]:
        walks.append(model)
        return containers(model, shapes)

    monkeypatch.setattr(find, "containers", counted)
    result = api.plan(functions(100), verify=False)
    assert len(result.plan.bodies) == 20
    assert len(walks) <= 2
