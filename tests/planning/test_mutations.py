"""Plans that are wrong in one place: refused by the check, and by the run where bytes clash. For every planner, order and kind of alias."""

from dataclasses import replace
from typing import Any

import pytest

from onnxtile.declare.plan_document import PlannedBuffer
from onnxtile.planning.result import PlanResult
from tests.planning.conftest import Case

MIXED = """
mixed (float[1,4,5,5] x) => (float[1,8,25] y, float[1,4,5,5] z) {
  shape = Constant<value = int64[3] {1, 8, 25}>()
  a = MaxPool<kernel_shape = [1, 1]>(x)
  b = AveragePool<kernel_shape = [1, 1]>(x)
  c = Concat<axis = 1>(a, b)
  d = Exp(c)
  e, f = Split<axis = 1, num_outputs = 2>(d)
  g = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(e)
  h = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(f)
  z = Add(g, h)
  k = Concat<axis = 1>(g, h)
  l = Reshape(k, shape)
  y = Softmax<axis = 2>(l)
}
"""

PLANNERS = ["best", "exact", "greedy-by-size", "naive", "slots"]
WAYS: list[dict[str, Any]] = [{"order": "model"}, {"order": "min-peak"}, {"order": "any"}, {"streams": 2}]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_planner = pytest.mark.parametrize("planner", PLANNERS)


@pytest.fixture(scope="module")
def case() -> Case:
    return Case.of(MIXED)


def owners(result: PlanResult) -> list[PlannedBuffer]:
    return [buffer for buffer in result.buffers if buffer.alias is None]


def moved(result: PlanResult, owner: str, shift: int) -> PlanResult:
    """Return `result` with `owner` and all that lies in it moved, in an arena that is as large as that needs."""
    buffers = [replace(b, offset=b.offset + shift) if owner in {b.name, b.alias} else b for b in result.buffers]
    size = max(result.arena_size, *(b.offset + b.size for b in buffers))
    return replace(result, buffers=tuple(buffers), arenas=(replace(result.arenas[0], size=size),))


@every_planner
@every_way
def test_the_plan_itself_is_sound_and_runs(case: Case, planner: str, way: dict[str, Any]) -> None:
    result = case.plan(planner=planner, **way)
    assert case.run(result).equal


@every_planner
@every_way
def test_one_buffer_moved_onto_a_live_one(case: Case, planner: str, way: dict[str, Any]) -> None:
    result = case.plan(planner=planner, **way)
    pairs = [
        (mover, victim)
        for mover in owners(result)
        for victim in owners(result)
        if mover is not victim and mover.first <= victim.last and victim.first <= mover.last
    ]
    assert pairs
    for mover, victim in pairs:
        found = case.audit(moved(result, mover.name, victim.offset - mover.offset)).failures
        assert any("are live together" in failure.reason for failure in found), (mover.name, victim.name)
    mover, victim = pairs[0]
    assert not case.run(moved(result, mover.name, victim.offset - mover.offset)).equal


@pytest.mark.parametrize("rule", ["in place", "view", "cut", "join"])
def test_an_alias_taken_too_early_is_seen_by_both(rule: str) -> None:
    """What shares the bytes of an operand is read or written while that is still needed: bytes clash, and no luck helps three times."""
    nodes = {
        "in place": "b = Exp(a)",
        "view": "flat = Constant<value = int64[1] {-1}>()\n n = Neg(a)\n b = Reshape(n, flat)",
        "cut": "n = Neg(a)\n b, rest = Split<axis = 0, num_outputs = 2>(n)",
        "join": "n = Neg(a)\n b = Concat<axis = 0>(n, n)",
    }
    shapes = {"in place": "4,6", "view": "24", "cut": "2,6", "join": "8,6"}
    text = f"g (float[4,6] x) => (float[{shapes[rule]}] b, float[4,6] y) {{ a = Sin(x)\n {nodes[rule]}\n y = Abs(a) }}"
    early = Case.of(text)
    result = early.plan()
    assert early.run(result).equal
    offset = next(b.offset for b in result.buffers if b.name == "a")
    moved = tuple(replace(b, offset=offset) if b.name in {"b", "n"} else b for b in result.buffers)
    arena = replace(result.arenas[0], size=result.arena_size + 1024)
    wrong = replace(result, buffers=moved, arenas=(arena,))
    assert not early.run(wrong).equal
    assert not early.audit(wrong).sound
