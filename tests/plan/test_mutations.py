"""Plans that are wrong in one place: refused by the check, and by the run where bytes clash. For every planner, order and kind of alias."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from onnxtile.plan import planning
from onnxtile.plan.problem import Buffer, Plan, Problem
from onnxtile.plan.proof import check as checks
from onnxtile.plan.proof.check import check
from onnxtile.plan.proof.tenant import Take, Tenant
from onnxtile.plan.result import PlanResult
from tests.plan.conftest import Case, aliases

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

PLANNERS = ["best", "exact", "first-fit", "greedy-by-breadth", "greedy-by-size", "naive", "slots"]
WAYS: list[dict[str, Any]] = [{"order": "model"}, {"order": "min-peak"}, {"order": "any"}, {"streams": 2}]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_planner = pytest.mark.parametrize("planner", PLANNERS)


@dataclass
class Proof:
    """What the check was given, and the plan that came of it."""

    problem: Problem
    plan: Plan
    tenants: tuple[Tenant, ...]
    result: PlanResult


@pytest.fixture(scope="module")
def case() -> Case:
    return Case.of(MIXED)


@pytest.fixture
def proof(case: Case, planner: str, way: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Proof:
    found: list[Any] = []
    require = checks.require

    def listening(*given: Any) -> None:
        require(*given)
        found[:] = given

    monkeypatch.setattr(planning, "require", listening)
    result = case.plan(planner=planner, **way)
    return Proof(found[0], found[1], tuple(found[2]), result)


def neighbours(problem: Problem) -> Iterator[tuple[Buffer, Buffer]]:
    for one in problem.buffers:
        for other in problem.buffers:
            if one is not other and one.lower < other.upper and other.lower < one.upper:
                yield one, other


def test_all_kinds_of_alias_are_in_it(case: Case) -> None:
    used = {take.rule for way in WAYS for take in takes(case, way)}
    assert used == {"view", "in place", "cut", "join"}


def takes(case: Case, way: dict[str, Any]) -> Iterator[Take]:
    found: list[Tenant] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "require", lambda _problem, _plan, tenants: found.extend(tenants))
        case.plan(**way)
    yield from (take for tenant in found for take in tenant.takes)


@every_planner
@every_way
def test_the_plan_itself_is_sound_and_runs(case: Case, proof: Proof) -> None:
    assert check(proof.problem, proof.plan, proof.tenants) == ()
    assert case.run(proof.result).equal


@every_planner
@every_way
def test_one_offset_moved(case: Case, proof: Proof) -> None:
    pairs = list(neighbours(proof.problem))
    assert pairs
    for mover, victim in pairs:
        offsets = {**proof.plan.offsets, mover.name: proof.plan.offsets[victim.name]}
        assert check(proof.problem, replace(proof.plan, offsets=offsets), proof.tenants)
    mover, victim = pairs[0]
    shift = proof.plan.offsets[victim.name] - proof.plan.offsets[mover.name]
    lodged = {mover.name, *(name for name, owner in aliases(proof.result).items() if owner == mover.name)}
    end = max(b.offset + b.size + shift for b in proof.result.buffers if b.name in lodged)
    wrong = replace(
        proof.result,
        buffers=tuple(replace(b, offset=b.offset + shift) if b.name in lodged else b for b in proof.result.buffers),
        arenas=(replace(proof.result.arenas[0], size=max(end, proof.result.arena_size)),),
    )
    assert not case.run(wrong).equal


@every_planner
@every_way
def test_one_alias_made_unlawful(proof: Proof) -> None:
    rules = {"view", "in place", "cut", "join"}
    sharing = [tenant for tenant in proof.tenants if tenant.takes]
    assert sharing
    for tenant in sharing:
        others = tuple(other for other in proof.tenants if other is not tenant)
        first = tenant.takes[0]
        for rule in rules - {first.rule}:
            wrong = replace(tenant, takes=(Take(first.source, rule),))
            assert check(proof.problem, proof.plan, (*others, wrong)), (tenant.name, rule)
        assert check(proof.problem, proof.plan, (*others, replace(tenant, offset=tenant.offset + tenant.granule // 2)))


@every_planner
@every_way
def test_one_life_cut_short(proof: Proof) -> None:
    for buffer in proof.problem.buffers:
        if buffer.upper - buffer.lower < 2:
            continue
        for short in (replace(buffer, upper=buffer.upper - 1), replace(buffer, lower=buffer.lower + 1)):
            buffers = tuple(short if b is buffer else b for b in proof.problem.buffers)
            assert check(replace(proof.problem, buffers=buffers), proof.plan, proof.tenants), short


@pytest.mark.parametrize("rule", ["in place", "view", "cut", "join"])
def test_an_alias_taken_too_early_is_seen_by_the_run(rule: str) -> None:
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
    assert not early.run(replace(result, buffers=moved, arenas=(arena,))).equal
