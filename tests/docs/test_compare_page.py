"""The page of the benchmark beside the peers: where a peer needs less, its number is bold; failures are said."""

from __future__ import annotations

import datetime
import math
import re
from argparse import Namespace
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import pytest

from tests.bench import measure
from tests.bench.all import steps
from tests.bench.commands import costs_in_turn, spread
from tests.bench.compare import most
from tests.bench.compare_page import BEGIN, END, page, written
from tests.bench.compare_rewriting import counted
from tests.bench.peers import own_version
from tests.bench.tables import DOCS, Table

ABOUT = {"rows": 60, "machine": "two cores", "versions": {"onnxsim": "0.8.1"}}
TAKEN = {"date": "2026-11-22", "load": 7.2, "onnxtile": "abc, Python 3.11.7"}


def _page(part: str, rows: dict[str, Any]) -> str:
    return page({part: {"about": ABOUT, "rows": {name: row | {"taken": TAKEN} for name, row in rows.items()}}})


def _plan(arena: int, other: int, seconds: float) -> dict[str, Any]:
    cost = {"seconds": 2.0, "memory": 200_000_000}
    vela = {"greedy": {"arena": 5_000, "seconds": 0.1}, "hillclimb": {"failed": "not done in 120 s"}}
    costs = {"plan": cost, "no proof": cost, "onnxsim": {"seconds": seconds, "memory": 300_000_000}}
    sim = {"arena": other, "left_out": 3}
    return {"arena": arena, "proved": None, "same buffers": 4_000, "vela": vela, "onnxsim": sim, "costs": costs}


def test_a_peer_that_wins_is_bold_and_one_that_does_not_is_not() -> None:
    rows = {"a": _plan(4_000, 3_000, 1.0), "b": _plan(4_000, 5_000, 4.0), "c": {"failed": "the command fails"}}
    text = _page("plan", rows)
    a, b = (line for line in text.splitlines() if line.startswith(("| a |", "| b |")))
    assert "| **3,000** (3) | 4,000 | 5,000 | not done in 120 s | **2.00** | **2.00** | 200 | 300 |" in a
    assert "**" not in b
    assert "median 1.25 (0.50 to 2.00)" in text
    assert "onnxsim's: less in 1, equal in 0, more in 1." in text
    assert "onnxsim 0.8.1" in text
    assert "wrote this part, on two cores." in text
    assert (
        "3 of 60 rows, measured on 2026-11-22 with onnxtile at abc and Python 3.11.7, at a load of 7 to 7 (processes that want a core)."
        in " ".join(text.split())
    )
    assert "| c | the command fails |" in text


def test_a_part_without_rows_keeps_its_section() -> None:
    rows = {
        "plan": {"a": _plan(4_000, 3_000, 1.0) | {"taken": TAKEN}},
        "micro": {"m": {"failed": "it fails", "taken": TAKEN}},
    }
    old = page({part: {"about": ABOUT, "rows": found} for part, found in rows.items()})
    text = written("# Benchmarks\n\nMore.\n", old)
    new = page({"plan": {"about": ABOUT, "rows": {"b": _plan(9_000, 3_000, 1.0) | {"taken": TAKEN}}}}, text)
    assert "| m | it fails |" in new and "| b | 9,000" in new and "| a | 4,000" not in new
    assert page({"plan": {"about": ABOUT, "rows": {}}}, text) == old


def test_a_problem_that_does_not_fit_has_no_faster_time() -> None:
    slow = {"arena": 100, "seconds": 2.0}
    row = {"capacity": 100, "onnxtile": slow, "vela greedy": {"arena": 120, "seconds": 0.1}}
    row |= {"MiniMalloc": {"arena": 100, "seconds": 1.0}, "vela hillclimb": {"failed": "not done in 120 s"}}
    text = _page("problems", {"A": row})
    assert "| A | 100 | 100 | 2.00 | 100 | **1.00** | 120 | 0.10 | not done in 120 s |  |" in text


def test_a_wrong_result_is_said() -> None:
    counts = {"layernorm": 1, "gelu": 2, "attention": 3, "rmsnorm": 0}
    own = {"counts": counts, "seconds": 1.0, "memory": 1e8, "verdict": "equal"}
    tools = {
        "onnxtile": own,
        "onnxsim": own | {"verdict": "WRONG", "seconds": 0.5, "certify": "proved"},
        "gone": {"failed": "not installed"},
    }
    there = {"layernorm": 1, "gelu": 2, "rmsnorm": 0}
    text = _page("fuse", {"m": {"there": there, "tools": tools}, "n": {"there": {}, "tools": tools}})
    assert "| onnxsim | 2 | 0 | WRONG 2 | 1 of 1 | 0 of 0 | 2 of 2 | 0 of 0 | 2.00 (2.00 to 2.00) | 100 |" in text
    assert "| gone | 2 | 0 | fails 2 |" in text
    assert "| m | 1/0/2/? | 1/0/2/3; 1.00 | 1/0/2/3; **0.50**; WRONG | not installed |" in text
    assert "| n | unknown |" in text
    assert "| x | 1 | 1 | none | 1 of 1 | 0 of 0 | 1 of 1 + 2 | 0 of 0 |" in _page(
        "fuse",
        {
            "m": {
                "there": {"layernorm": 1, "gelu": 1, "rmsnorm": 0},
                "tools": {"x": own | {"counts": {**counts, "gelu": 3}}, **tools},
            }
        },
    )
    assert "--certify says of its own results, model by model: proved 2." in " ".join(text.split())
    assert "Quicker than onnxtile on most models: onnxsim (in 2 of 2)." in text


def test_commands_take_turns_and_a_failed_one_is_not_repeated(tmp_path: Path) -> None:
    note = tmp_path / "turns"

    def command(name: str, code: int) -> list[str]:
        return ["sh", "-c", f"echo {name} >> {note}; exit {code}"]

    costs = costs_in_turn({"a": command("a", 0), "b": command("b", 1), "c": command("c", 0)})
    assert note.read_text().split() == ["a", "b", "c", "a", "c", "a", "c"]
    assert math.isnan(costs["b"].seconds) and costs["a"].seconds < 1 and costs["c"].memory > 0


def test_a_planner_of_a_runtime_that_takes_less_is_bold() -> None:
    lines = ["| a | 900 | 300 | 400 | 400 | equal |", "| b | 900 | 500 | 400 | 400 | equal |"]
    text = _page("micro", {"all": {"lines": lines}})
    assert "| a | 900 | **300** | 400 | 400 | equal |" in text
    assert "| b | 900 | 500 |" in text


def test_rows_of_quantised_models_stand_in_one_table() -> None:
    rows = {
        "a": {"lines": ["| a | qdq | 1 |", "| a | dynamic | 2 |"]},
        "b": {"lines": ["| b | qdq | 3 |"]},
        "c": {"failed": "none"},
    }
    lines = [line for line in _page("quantised", rows).splitlines() if line.startswith("|")]
    assert [line[:5] for line in lines] == ["| mod", "|---|", "| a |", "| a |", "| b |", "| c |"]


def test_counts_of_queries_are_summed() -> None:
    text = _page(
        "queries", {"a": {"queries": 17, "both": 1_000, "Aidge": 3}, "b": {"queries": 3, "both": 500, "onnxtile": 2}}
    )
    assert "| all | 20 | 1,500 | 3 | 2 | 0 | 0 |" in text


def test_operators_in_functions_count_once() -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 17, "onnxtile" : 1]>
    main (float[4] x) => (float[4] z) { y = onnxtile.MultiHeadAttention(x) z = onnxtile.RMSNorm.2(y) }
    <domain: "onnxtile", opset_import: ["" : 17, "onnxtile" : 1]>
    MultiHeadAttention (x) => (y) { a = onnxtile.SkipRMSNorm(x) y = onnxtile.RMSNorm(a) }
    <domain: "onnxtile", opset_import: ["" : 17, "onnxtile" : 1]> SkipRMSNorm (x) => (y) { a = Add(x, x) y = onnxtile.RMSNorm(a) }
    """
    found = counted(onnx.parser.parse_model(text.replace("RMSNorm.2", "RMSNorm")))
    assert found == {"layernorm": 0, "rmsnorm": 3, "gelu": 0, "attention": 1}


def test_the_first_models_are_of_many_families() -> None:
    assert spread(["a_1", "a_2", "b_1", "c", "b_2", "a_3"]) == ["a_1", "b_1", "c", "a_2", "b_2", "a_3"]
    assert (most("", "plan"), most("4", "plan"), most("plan=3,4", "plan"), most("plan=3,4", "fuse")) == (None, 4, 3, 4)


def test_a_table_prints_its_rows_and_replaces_that_of_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure.main(["loop-orders", "--sizes", "16", "--memories", "1", "--tiles", "80"])
    first, _, row = capsys.readouterr().out.splitlines()
    assert first == "| product | memory | all loops upwards | serpentine | chosen |"
    cells = [int(cell.replace(",", "")) for cell in row.strip("| ").split(" | ")[2:]]
    assert row.startswith("| 16³ | 1 KiB | ") and cells[0] >= cells[1] >= cells[2] > 0

    page = tmp_path / "page.md"
    page.write_text("a\n<!-- begin of the table of t -->\nold\n<!-- end of the table of t -->\nb\n")
    rows = [("m", 1_000), ("k", 0.5), "below", ("l", True)]
    Table("", ("n", "x"), lambda _: iter(rows), page=page).show(Namespace(), "t")
    shown = "| n | x |\n|---|---:|\n| m | 1,000 |\n| k | 0.50 |\n| l | yes |\n"
    said = f"below\nMeasured on {datetime.date.today()} at {own_version()}.\n"
    assert (
        page.read_text() == f"a\n<!-- begin of the table of t -->\n{shown}\n{said}<!-- end of the table of t -->\nb\n"
    )
    assert "below" in capsys.readouterr().out


def test_each_marked_table_is_one_that_is_measured_for_its_page() -> None:
    for file in DOCS.parent.glob("*.md"):
        marks = set(re.findall(r"begin of the table of (.+) -->", file.read_text("utf-8")))
        assert marks <= {name for name, table in measure.TABLES.items() if table.page == file}, file.name
        assert marks or file != DOCS


def test_one_command_measures_each_marked_table(tmp_path: Path) -> None:
    names = {step.name for step in steps(tmp_path, tmp_path, "python", onnxsim="")}
    marks = (
        re.findall(r"begin of the table of (.+) -->", file.read_text("utf-8")) for file in DOCS.parent.glob("*.md")
    )
    assert set(chain.from_iterable(marks)) <= names


def test_the_part_is_replaced_and_the_rest_of_the_page_stays() -> None:
    once = written("# Title\n\nText.\n", "first\n")
    assert once == f"# Title\n\n{BEGIN}first\n{END}\nText.\n"
    assert written(once, "second\n") == once.replace("first", "second")
