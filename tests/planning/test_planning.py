"""What a plan says, its JSON, its options, and its marks in the model."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import onnx
import pytest

from onnxtile.declare.plan_document import document_of
from onnxtile.model import keys
from onnxtile.model.load import load
from onnxtile.model.save import raise_ir_version, to_bytes
from onnxtile.model.topology import clear_plan
from onnxtile.planning.offsets.effort import NORMAL
from onnxtile.planning.offsets.memories import allocate, memories
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.planning.planners import find_planner, planners
from onnxtile.planning.result import PlanResult
from onnxtile.planning.rows import annotate
from onnxtile.system.errors import Infeasible, UsageError
from tests.planning.conftest import Case, rows
from tests.planning.test_arena_run import SOUND
from tests.planning.test_live import RESIDUAL

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "plan.schema.json").read_text(encoding="utf-8"))

VIEWS = """
views (float[2,3] x) => (float[6] y, float[2,3] z) {
  flat = Constant<value = int64[1] {-1}>()
  a = Relu(x)
  b = Reshape(a, flat)
  y = Exp(b)
  z = Neg(a)
}
"""


def validate(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_the_json_of_every_plan_keeps_to_the_schema(text: str) -> None:
    document = document_of(Case.of(text).plan(digest="0" * 64, dims={"batch": 8}, capacity=10**6).to_dict())
    validate(document)
    assert json.loads(json.dumps(document)) == document


def test_what_the_json_says() -> None:
    assert Case.of(VIEWS).plan_views(digest="ab" * 32, dims={"n": 2}, capacity=1024).to_dict() == {
        "version": 1,
        "digest": "ab" * 32,
        "dims": {"n": 2},
        "bounds": {},
        "insides": [],
        "alignment": 64,
        "planner": "best",
        "arenas": [{"name": "arena", "capacity": 1024, "size": 192, "peak": 192}],
        "peak": 192,
        "peak_step": 4,
        "lower_bound": 192,
        "optimal": True,
        "optimal_over": "any order",  # of plans that share views only
        "any_order_bound": 192,
        "bound": "peak",
        "gap": 0,
        "ended": "lower bound reached",
        "activation_bytes": 256,
        "in_place": 0,
        "copies": {"avoided": 1, "avoided_bytes": 24, "remaining": 0, "remaining_bytes": 0},
        "io": "outputs",
        "overwrite_inputs": False,
        "order": "model",
        "steps": [0, 1, 2, 3, 4],
        "schedule": ["flat", "a", "b", "y", "z"],
        "operators": ["Constant", "Relu", "Reshape", "Exp", "Neg"],
        "operands": [[], ["x"], ["a", "flat"], ["b"], ["a"]],
        "results": [["flat"], ["a"], ["b"], ["y"], ["z"]],
        "attributes": [{}, {}, {}, {}, {}],
        "constant_nodes": ["flat"],
        "model": None,
        "inputs": [{"name": "x", "dtype": "FLOAT", "shape": [2, 3]}],
        "buffers": [
            buffer("a", 0, 1, 4, shape=(2, 3)),
            buffer("b", 0, 2, 3, alias="a"),
            buffer("y", 64, 3, 4, kind="output"),
            buffer("z", 128, 4, 4, kind="output", shape=(2, 3)),
        ],
        "constants": [{"name": "flat", "size": 8, "offset": 0, "dtype": "INT64", "shape": [1]}],
        "outside": [{"name": "x", "reason": "a graph input", "dtype": "FLOAT", "shape": [2, 3]}],
        "outputs": [{"name": "y", "dtype": "FLOAT", "shape": [6]}, {"name": "z", "dtype": "FLOAT", "shape": [2, 3]}],
        "unplanned": [],
        "bodies": [],
        "kernels": None,
        "totals": {"arenas": 192, "constants": 8},
    }


def buffer(
    name: str,
    offset: int,
    first: int,
    last: int,
    *,
    kind: str = "activation",
    alias: str | None = None,
    shape: tuple[int, ...] = (6,),
) -> dict[str, Any]:
    size = 24
    return {
        "name": name,
        "arena": "arena",
        "offset": offset,
        "size": size,
        "first": first,
        "last": last,
        "kind": kind,
        "alias": alias,
        "node": name,
        "dtype": "FLOAT",
        "shape": list(shape),
    }


@pytest.mark.parametrize("change", [{"version": 2}, {"peak": -1}, {"digest": "xyz"}, {"dims": {"n": 0}}, {"more": 1}])
def test_the_schema_refuses_what_is_no_plan(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(document_of(Case.of(VIEWS).plan().to_dict()) | change)


@pytest.mark.parametrize("planner", planners())
@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_every_planner_plans_every_graph(text: str, planner: str) -> None:
    result = Case.of(text).plan(planner=planner)
    assert result.planner == planner
    assert result.arena_size >= result.lower_bound == result.peak
    assert result.optimal == (result.arena_size == result.lower_bound)
    assert result == Case.of(text).plan(planner=planner)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignment": 0}, "the alignment must be a power of two, not 0"),
        ({"alignment": 3}, "the alignment must be a power of two, not 3"),
        ({"planner": "worst"}, "unknown planner 'worst'"),
        ({"capacity": -1}, "the capacity must not be negative: -1"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Case.of(RESIDUAL).plan(**options)


def test_over_capacity() -> None:
    message = r"at least 192 bytes, 128 more than its capacity of 64; live at step 2: a \(24\), b \(24\), c \(24\)"
    with pytest.raises(Infeasible, match=message):
        Case.of(RESIDUAL).plan_views(capacity=64)
    assert Case.of(RESIDUAL).plan_views(capacity=192).arenas[0].size == 192


OPEN = "free (float[N,3] x) => (float[N,3] y) { a = Relu(x) y = Exp(a) }"


def test_a_shape_that_is_not_known_leaves_a_tensor_unplanned() -> None:
    result = Case.of(OPEN).plan()
    reason = "its size depends on 'N': bind it with --dim N=N"
    assert {u.name: u.reason for u in result.unplanned} == {"a": reason, "y": reason}


def test_a_plan_without_all_tensors_is_not_optimal() -> None:
    result = Case.of(OPEN).plan()
    assert (result.optimal, result.ended) == (False, "unplanned tensors")
    validate(document_of(result.to_dict()))


def test_whether_all_tensors_fit_a_capacity_is_not_known_without_their_sizes() -> None:
    with pytest.raises(Infeasible, match=r"the size of 'a' and 1 more is not known: .* bind it with --dim N=N"):
        Case.of(OPEN).plan(capacity=2**30)
    data = "found (float[4] x) => (int64[1,M] y) { y = NonZero(x) }"
    with pytest.raises(Infeasible, match=r"the size of 'y' is not known: .* depends on the data \(NonZero\)") as raised:
        Case.of(data).plan(capacity={"fast": 64, "slow": 2**30})
    assert "--dim NAME=:N" in (raised.value.hint or "")


def marks(case: Case) -> dict[str, dict[str, str]]:
    """Return the metadata of each value and node after a round trip through the file format."""
    raise_ir_version(case.model)
    graph = onnx.load_from_string(to_bytes(case.model)).graph
    found = {v.name: {p.key: p.value for p in v.metadata_props} for v in (*graph.value_info, *graph.output)}
    found |= {f"node {n.output[0]}": {p.key: p.value for p in n.metadata_props} for n in graph.node}
    found["graph"] = {p.key: p.value for p in graph.metadata_props}
    return found


def test_the_marks_in_the_model() -> None:
    case = Case.of(VIEWS)
    annotate(case.model, case.plan_views())
    found = marks(case)
    assert found["a"] == {keys.ARENA: "arena", keys.OFFSET: "0", keys.SIZE: "24"}
    assert found["b"] == {keys.ARENA: "arena", keys.OFFSET: "0", keys.SIZE: "24", keys.ALIAS_OF: "a"}
    assert found["z"][keys.OFFSET] == "128"
    assert [found[f"node {name}"] for name in ("flat", "a", "b", "y", "z")] == [{keys.STEP: str(i)} for i in range(5)]
    assert json.loads(found["graph"][keys.PLAN]) == {
        "version": 1,
        "alignment": 64,
        "arenas": [{"name": "arena", "capacity": None, "size": 192, "peak": 192}],
        "peak": 192,
        "io": "outputs",
        "overwrite_inputs": False,
        "order": "model",
    }


def test_marking_again_replaces_what_was_there() -> None:
    case = Case.of(VIEWS)
    annotate(case.model, case.plan_views(planner="naive", alignment=128))
    before = marks(case)
    annotate(case.model, case.plan_views())
    after = marks(case)
    assert before["z"][keys.OFFSET] == "256"
    assert after["z"][keys.OFFSET] == "128"
    annotate(case.model, case.plan_views())
    assert marks(case) == after
    clear_plan(case.model)
    assert not any(marks(case).values())


def test_a_marked_model_has_the_same_plan() -> None:
    case = Case.of(VIEWS)
    annotate(case.model, case.plan_views())
    assert Case.of(case.model).plan() == case.plan()
    assert load(case.model).graph.metadata_props.keys() == {keys.PLAN}


def test_nodes_of_one_name_are_all_marked() -> None:
    case = Case.of(RESIDUAL)
    for node in case.model.graph:
        node.name = "same"
    annotate(case.model, case.plan_views())
    assert [node.metadata_props[keys.STEP] for node in case.model.graph] == ["0", "1", "2", "3"]
    assert case.plan().schedule == ("a", "b", "c", "y")


def test_the_plan_of_another_model_is_refused() -> None:
    case = Case.of(RESIDUAL)
    with pytest.raises(UsageError, match="belongs to another model"):
        annotate(case.model, Case.of(VIEWS).plan())
    assert not any(marks(case).values())


def test_the_model_stays_as_it_is() -> None:
    case = Case.of(VIEWS)
    before = to_bytes(case.model)
    result = case.plan()
    assert case.run(result).equal
    assert to_bytes(case.model) == before
    assert isinstance(result, PlanResult)
    assert rows(result)["y"].kind == "output"


def test_where_buffers_lie_is_gathered_once() -> None:
    problem = Problem((Buffer("a", 8, 0, 1), Buffer("b", 8, 0, 1)))
    allocation = allocate(problem, memories({"fast": 64, "slow": 64}), find_planner("best"), NORMAL)
    assert dict(allocation.places) == {"a": "fast", "b": "slow"}
    assert allocation.places is allocation.places, "it is asked for each buffer"
    assert allocation.offsets is allocation.offsets
