"""Plans that hold in every order: what they cost, that they are sound in all, and that unsound ones are refused."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from onnxtile.planning.schedule import shuffled, shuffled_steps
from onnxtile.system.errors import CheckFailed, UsageError
from tests.planning.conftest import Case, aliases, rows
from tests.planning.test_arena_run import SOUND
from tests.planning.test_schedules import BRANCHES, PARALLEL

Find = Callable[[str], Path]

TURNS = """
turns (float[4,4] x) => (float[4,4] y) {
  a = Relu(x)
  b = Sin(a)
  c = Transpose(b)
  d = Transpose(a)
  e = Transpose(d)
  y = Add(c, e)
}
"""


def test_branches_do_not_share_bytes() -> None:
    case = Case.of(TURNS)
    own, every = case.plan(), case.plan(order="any")
    assert own.arena_size == 3 * 64
    assert every.arena_size == 5 * 64
    assert (every.peak, every.lower_bound, every.bound) == (3 * 64, 5 * 64, "every order")
    assert every.optimal
    assert (own.bound, own.optimal) == ("peak", True)
    place = {name: buffer.offset for name, buffer in rows(every).items()}
    assert not {place["b"], place["c"]} & {place["d"], place["e"]}


def test_a_plan_for_one_order_does_not_hold_in_others() -> None:
    case = Case.of(TURNS)
    result = replace(case.plan(), order="any")
    assert not case.run(result, runs=20).equal
    assert case.run(case.plan(order="any"), runs=20).equal


@pytest.mark.parametrize("text", [BRANCHES, PARALLEL, TURNS, *SOUND.values()])
def test_all_orders_give_the_same_bits(text: str) -> None:
    case = Case.of(text)
    assert case.run(case.plan(order="any"), runs=8).equal


@pytest.mark.parametrize(("name", "size"), [("inception_v1", 4_646_400), ("squeezenet", 3_928_576)])
def test_real_models(name: str, size: int, light: Find) -> None:
    case = Case.of(light(name))
    result = case.plan(order="any")
    assert result.arena_size == size
    assert case.run(result, runs=2).equal


def test_an_operand_is_written_over_only_by_its_only_reader() -> None:
    case = Case.of(PARALLEL)
    assert "a" in aliases(case.plan()).values()
    assert aliases(case.plan(order="any")).keys() == {"y"}


def test_streams_have_no_meaning_there() -> None:
    with pytest.raises(UsageError, match="holds for any number of streams"):
        Case.of(PARALLEL).plan(order="any", streams=2)


def test_other_orders_are_orders(light: Find) -> None:
    after = Case.of(light("inception_v1")).graph().after
    seen = set()
    for seed in range(3):
        order = shuffled(after, seed)
        place = {kernel: at for at, kernel in enumerate(order)}
        assert sorted(order) == list(range(len(after)))
        assert all(place[before] < at for kernel, at in place.items() for before in after[kernel])
        seen.add(order)
    assert len(seen) == 3
    assert shuffled_steps(range(len(after)), 1) == tuple(range(len(after)))
    assert {shuffled_steps((0, 1, 1), seed) for seed in range(9)} == {(0, 1, 2), (0, 2, 1)}


@pytest.mark.parametrize(
    ("name", "onto", "sound"),
    [("d", "b", False), ("e", "b", False), ("e", "c", False), ("y", "a", True), ("y", "b", True), ("y", "d", True)],
)
def test_the_graph_must_say_who_is_first(name: str, onto: str, sound: bool) -> None:
    case = Case.of(TURNS)
    result = case.plan_views(order="any", planner="naive")
    place = {b.name: b.offset for b in result.buffers} | {name: rows(result)[onto].offset}
    moved = replace(result, buffers=tuple(replace(b, offset=place[b.name]) for b in result.buffers))
    assert case.audit(moved).sound == sound


def test_tensors_that_share_bytes_as_aliases_are_kept_apart_too() -> None:
    """Written over its operand, which another node reads: in the order of the file before, in another after."""
    case = Case.of("g (float[4,4] x) => (float[4,4] y) { a = Transpose(x) b = Transpose(a) c = Sin(a) y = Add(b, c) }")
    result = case.plan()
    assert aliases(result)["c"] == "a"
    assert case.audit(result).sound
    found = case.audit(replace(result, order="any")).failures
    assert "'a' and 'c' share bytes, and the graph does not say which is first" in map(str, found)


def test_a_planner_that_forgets_conflicts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxtile.planning.layout.conflicts", lambda *_: frozenset())
    with pytest.raises(CheckFailed, match="share bytes, and the graph does not say which is first"):
        Case.of(TURNS).plan(order="any")


def test_an_order_for_every_order_is_the_models_own(light: Find) -> None:
    result = Case.of(light("squeezenet")).plan(order="any")
    assert all(first < second for first, second in pairwise(result.steps))
