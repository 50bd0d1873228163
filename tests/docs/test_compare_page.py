"""The page of the benchmark beside the peers: where a peer needs less, its number is bold; failures are said."""

from __future__ import annotations

from typing import Any

from tests.bench.compare_page import BEGIN, END, page, written

ABOUT = {"date": "2026-11-22", "machine": "two cores", "onnxtile": "abc", "versions": {"onnxsim": "0.8.1"}}


def _plan(arena: int, other: int, seconds: float) -> dict[str, Any]:
    cost = {"seconds": 2.0, "memory": 200_000_000}
    vela = {"greedy": {"arena": 5_000, "seconds": 0.1}, "hillclimb": {"failed": "not done in 120 s"}}
    costs = {"plan": cost, "no proof": cost, "onnxsim": {"seconds": seconds, "memory": 300_000_000}}
    sim = {"arena": other, "left_out": 3}
    return {"arena": arena, "proved": None, "same buffers": 4_000, "vela": vela, "onnxsim": sim, "costs": costs}


def test_a_peer_that_wins_is_bold_and_one_that_does_not_is_not() -> None:
    text = page({"about": ABOUT, "plan": {"a": _plan(4_000, 3_000, 1.0), "b": _plan(4_000, 5_000, 4.0)}})
    a, b = (line for line in text.splitlines() if line.startswith(("| a |", "| b |")))
    assert "| **3,000** (3) | 4,000 | 5,000 | not done in 120 s |" in a
    assert "| **1.00** | 300 |" in a
    assert "**" not in b
    assert "median 1.25, most 2.00" in text
    assert "onnxsim 0.8.1" in text


def test_a_problem_that_does_not_fit_has_no_faster_time() -> None:
    slow = {"arena": 100, "seconds": 2.0}
    row = {"capacity": 100, "onnxtile": slow, "vela greedy": {"arena": 120, "seconds": 0.1}}
    row |= {"MiniMalloc": {"arena": 100, "seconds": 1.0}, "vela hillclimb": {"failed": "not done in 120 s"}}
    text = page({"about": ABOUT, "problems": {"A": row}})
    assert "| A | 100 | 100 | 2.0 | 100 | **1.0** | 120 | 0.1 | not done in 120 s |  |" in text


def test_a_wrong_result_is_said() -> None:
    counts = {"layernorm": 1, "gelu": 2, "attention": 3}
    own = {"counts": counts, "seconds": 1.0, "memory": 1e8, "verdict": "equal"}
    tools = {"onnxtile": own, "other": own | {"verdict": "WRONG"}, "missing": {"failed": "not installed"}}
    text = page({"about": ABOUT, "fuse": {"m": {"there": {"layernorm": 1, "gelu": 2}, "tools": tools}}})
    assert "| m | other | 1 of 1 | 2 of 2 | 3 of ? | WRONG | 1.00 | 100 |" in text
    assert "| m | missing | not installed |" in text


def test_the_part_is_replaced_and_the_rest_of_the_page_stays() -> None:
    once = written("# Title\n\nText.\n", "first\n")
    assert once == f"# Title\n\n{BEGIN}first\n{END}\nText.\n"
    assert written(once, "second\n") == once.replace("first", "second")
