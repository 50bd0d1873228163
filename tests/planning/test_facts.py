"""A field of the facts of a model reaches every plan: of states, of the nodes inside meta-ops, of two memories, and the quick arena."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.kernels import aliases
from onnxtile.kernels.aliases import Alias, LayoutFacts
from onnxtile.kernels.from_onnx import States
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.planning import model_plan
from onnxtile.planning.model_plan import PlanSettings, facts_of, quick_allocation
from onnxtile.planning.movement import plan as movement_plan
from onnxtile.shapes.opened_calls import Unfolded, unfold
from onnxtile.shapes.resolve import resolve
from onnxtile.system.dataclass import dataclass
from tests.planning.test_states import GROWING, model

GELU = """
g (float[1, 64] x) => (float[1, 64] y) <float half = {0.5}, float one = {1.0}, float root = {1.4142135}> {
  a = Div(x, root)
  b = Erf(a)
  c = Add(b, one)
  d = Mul(x, c)
  e = Mul(d, half)
  f = Relu(e)
  y = Exp(f)
}
"""


@dataclass(frozen=True)
class Apart(LayoutFacts):
    """Facts with a field of their own, by which no result may be written over an operand."""

    apart: bool = False


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each node of a plan was asked for its overwritten operands with the field."""
    found: list[bool] = []
    overwrites = aliases.overwrites

    def of_plan(
        opened: Unfolded, settings: PlanSettings, known: LayoutFacts | None = None
    ) -> tuple[LayoutFacts, States]:
        return Apart(*opened, apart=True), facts_of(opened, settings, known)[1]

    def with_field(node: ir.Node, facts: LayoutFacts) -> Iterator[Alias]:
        found.append(isinstance(facts, Apart) and facts.apart)
        return iter(()) if found[-1] else overwrites(node, facts)

    monkeypatch.setattr(model_plan, "facts_of", of_plan)
    monkeypatch.setattr(movement_plan, "facts_of", of_plan)
    monkeypatch.setattr(aliases, "overwrites", with_field)
    return found


def test_a_plan_of_states_has_it(asked: list[bool]) -> None:
    planned = onnxtile.plan(model(GROWING), dims={"past": 15}, state={"past_k": "present_k"}, verify=False)
    assert len(planned.plan.states) == 1 and planned.plan.in_place == 0
    assert asked and all(asked)


def test_a_plan_of_the_nodes_inside_meta_ops_has_it(asked: list[bool]) -> None:
    fused = onnxtile.fuse(model(GELU, opset=20), ["GeLU"], verify=False)
    planned = onnxtile.plan(fused.model, layout={"workspaces": {"GeLU": "inside"}}, verify=False)
    assert [row.in_arena for row in planned.plan.insides] == [True]
    assert len(asked) > fused.nodes_after and all(asked)


def test_a_plan_of_two_memories_has_it(asked: list[bool]) -> None:
    memories = {"sram": 768, "dram": 65536}
    onnxtile.plan(model(GELU, opset=20), capacity=memories, movement="activations", verify=False)
    assert asked and all(asked)


def test_the_quick_arena_has_it(asked: list[bool]) -> None:
    read = load(model(GELU, opset=20))
    opened = unfold(read, resolve(read, run=True), Constants(read))
    assert quick_allocation(opened, PlanSettings()).size > 0
    assert asked and all(asked)
