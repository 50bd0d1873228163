"""Workspaces that kernels share, and such that are theirs for the whole run: by operator and by node."""

from dataclasses import replace
from pathlib import Path

import onnx.parser
import pytest

import onnxtile
from onnxtile.declare.plan_document import PlannedBuffer
from onnxtile.planning.planners import planners
from onnxtile.planning.result import PlanResult
from onnxtile.planning.workspaces import WorkspaceRules
from onnxtile.system.errors import UsageError
from tests.planning.conftest import Case

CHAIN = """
chain (float[64] x) => (float[64] y) {
  [first] a = Softmax(x)
  [second] b = Exp(a)
  [third] c = Softmax(b)
  [fourth] d = Neg(c)
  [fifth] y = Softmax(d)
}
"""


def planned(graph: str = CHAIN, shared: bool = False, order: str = "model", **texts: str) -> PlanResult:
    """Return a plan with these workspaces that was checked, and run inside its arena."""
    case = Case.of(graph)
    plan = case.plan(workspaces=WorkspaceRules.from_texts(texts, shared), order=order)
    assert case.run(plan).equal
    return plan


def workspaces(plan: PlanResult) -> dict[str, tuple[int, int, int]]:
    return {row.name: (row.size, row.first, row.last) for row in plan.buffers if row.kind == "workspace"}


def test_a_unique_workspace_is_kept_for_the_whole_run() -> None:
    plan = planned(Softmax="100 unique")
    names = ["first (unique workspace)", "third (unique workspace)", "fifth (unique workspace)"]
    assert workspaces(plan) == dict.fromkeys(names, (100, 0, 4))
    assert plan.arena_size == 256 + 3 * 128


def test_kernels_share_the_largest_of_their_workspaces() -> None:
    plan = planned(Softmax="100 shared", Neg="300 shared", Exp="50")
    assert workspaces(plan) == {"(workspace)": (300, 0, 4), "second (workspace)": (50, 1, 1)}


def test_unique_bytes_add_up_and_shared_ones_do_not() -> None:
    """Three kernels with shared sizes 100, 300 and 100, and unique sizes 64, 128 and 64."""
    plan = planned(Softmax="100 shared; 64 unique", Neg="300 shared; 128 unique", order="model")
    sizes = [row.size for row in plan.buffers if row.kind == "workspace"]
    assert sorted(sizes) == [64, 64, 64, 128, 300]
    assert plan.arena_size == 256 + 320 + 3 * 64 + 128


def test_the_rule_of_a_node_comes_before_that_of_its_operator() -> None:
    plan = planned(Softmax="100", third="400 unique", fifth="0")
    assert workspaces(plan) == {"first (workspace)": (100, 0, 0), "third (unique workspace)": (400, 0, 4)}


def test_a_node_without_a_name_is_that_of_its_first_output() -> None:
    plan = planned(CHAIN.replace("[third]", ""), c="64 unique")
    assert workspaces(plan) == {"c (unique workspace)": (64, 0, 4)}


def test_all_kernels_may_share_beside_unique_bytes() -> None:
    plan = planned(shared=True, Softmax="100; 200 shared", Exp="50; 10 unique")
    assert workspaces(plan) == {"(workspace)": (300, 0, 4), "second (unique workspace)": (10, 0, 4)}


@pytest.mark.parametrize("planner", list(planners()))
def test_unique_workspaces_of_every_planner(planner: str) -> None:
    case = Case.of(CHAIN)
    plan = case.plan(
        planner=planner, workspaces=WorkspaceRules.from_texts({"Softmax": "100 unique"}, False), order="any"
    )
    assert case.run(plan).equal


def test_a_node_with_bodies_may_have_unique_bytes_beside_them() -> None:
    graph = """
    g (bool c, float[64] x) => (float[64] y) {
      [choice] z = If(c) <then_branch = t () => (float[64] u) { u = Hardmax(x) }, else_branch = e () => (float[64] w) { w = Neg(x) }>
      y = Relu(z)
    }"""
    plan = planned(graph, If="32; 500 unique")
    assert workspaces(plan) == {"choice (workspace)": (288, 0, 0), "choice (unique workspace)": (500, 0, 1)}


def test_the_metadata_have_them(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{CHAIN}')
    rules = {"Softmax": "100 unique; 20", "Neg": "300 shared"}
    onnxtile.plan(model, layout={"workspaces": rules}).save(tmp_path / "planned.onnx")
    audit = onnxtile.check_plan(tmp_path / "planned.onnx", tmp_path / "planned.onnx")
    assert (audit.sound, audit.workspaces) == (True, 7)


def test_the_check_notices_one_that_is_overwritten_or_too_short() -> None:
    case, plan = Case.of(CHAIN), planned(Softmax="100 unique")

    def changed(**fields: int) -> PlanResult:
        def row(one: PlannedBuffer) -> PlannedBuffer:
            return replace(one, **fields) if one.name == "third (unique workspace)" else one  # type: ignore[arg-type]

        return replace(plan, buffers=tuple(map(row, plan.buffers)))

    tensor = next(row for row in plan.buffers if row.name == "y")
    over = [str(failure) for failure in case.audit(changed(offset=tensor.offset)).failures]
    assert any("live together" in text for text in over)
    short = [str(failure) for failure in case.audit(changed(first=2, last=2)).failures]
    assert any("first of 'third (unique workspace)' is 2, not 0" in text for text in short)
    verdict = case.run(changed(offset=tensor.offset))
    assert not verdict.equal


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"Softmax": "100 unique; 200 unique"}, "has two rules for unique bytes"),
        ({"Softmax": "unique"}, "unique"),
        ({"Softmax": "100 uniq"}, "cannot be read|not a number of bytes"),
        ({"sixth": "100"}, "unknown operator 'sixth'"),
    ],
)
def test_rules_that_say_nothing_are_refused(rules: dict[str, str], message: str) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]>\n{CHAIN}')
    with pytest.raises(UsageError, match=message):
        onnxtile.plan(model, layout={"workspaces": rules})


def test_shared_rules_hold_for_one_order_only() -> None:
    with pytest.raises(UsageError, match="cannot share one workspace") as error:
        Case.of(CHAIN).plan(workspaces=WorkspaceRules.from_texts({"Softmax": "100 shared"}, False), order="any")
    assert error.value.hint == "leave 'shared' out of the rules"


def test_a_unique_workspace_in_a_body_is_refused() -> None:
    graph = """
    g (bool c, float[64] x) => (float[64] y) {
      y = If(c) <then_branch = t () => (float[64] u) { [inner] u = Softmax(x) }, else_branch = e () => (float[64] w) { w = Neg(x) }>
    }"""
    with pytest.raises(UsageError, match="the workspace of 'inner' cannot be unique"):
        planned(graph, Softmax="100 unique")
