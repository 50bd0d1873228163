"""What lies where and when: arenas apart, aliases in nobody's sum, steps of several nodes."""

from __future__ import annotations

from onnxtile.report.layout import arenas, arenas_in_use, step_names, steps
from tests.report.conftest import Plan, bare, row


def test_live_bytes_are_rounded_up_and_aliases_count_nothing() -> None:
    rows = [row("a", 0, 100, 0, 2), row("v", 0, 100, 1, 2, alias="a"), row("b", 128, 10, 1, 3)]
    (arena,) = arenas(bare(rows, alignment=64))
    assert arena.live == ((0, 128), (1, 192), (3, 64), (4, 0))
    assert (arena.peak, arena.peak_step, arena.gap) == (192, 1, 0)


def test_the_layout_agrees_with_the_plan(plan: Plan) -> None:
    (arena,) = arenas(plan)
    assert (arena.peak, arena.peak_step, arena.size) == (plan["peak"], plan["peak_step"], plan["arenas"][0]["size"])


def test_arenas_are_told_apart(odd: Plan) -> None:
    sram, dram = arenas(odd)
    assert {r["arena"] for r in sram.rows} == {"sram"} and {r["arena"] for r in dram.rows} == {"dram"}
    assert len(sram.rows) + len(dram.rows) == len(odd["buffers"])
    assert (sram.capacity, dram.capacity) == (1024, None)


def test_several_nodes_may_share_a_step() -> None:
    plan = bare([row("a", 0, 4, 0, 3)], schedule=["x", "y", "z"], steps=[0, 0, 2])
    assert steps(plan) == 4
    assert step_names(plan) == {0: "x, y", 2: "z"}


def test_an_arena_without_buffers_is_not_drawn_unless_another_plan_uses_it() -> None:
    names = ["a", "b", "c"]
    facts = [{"name": name, "size": 8, "capacity": None} for name in names]
    one = {**bare([{**row("x", 0, 8, 0, 1), "arena": "b"}]), "arenas": facts}
    two = {**bare([{**row("x", 0, 8, 0, 1), "arena": "c"}]), "arenas": facts}
    assert [[arena.name for arena in found] for found in arenas_in_use([one])] == [["b"]]
    assert [[arena.name for arena in found] for found in arenas_in_use([one, two])] == [["b", "c"], ["b", "c"]]
    assert [len(found) for found in arenas_in_use([bare([])])] == [1]
