"""Bare problems on the command line: what comes out, and that a bad one is a line with the right exit code."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

GOOD = "id,lower,upper,size\na,0,3,100\nb,1,2,300\nc,2,4,100\n"


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("", (), ("p.csv: line 1: missing column 'id'", "the columns are id, lower, upper, size")),
        ("id,lower,size\na,0,4\n", (), ("p.csv: line 1: missing column 'upper'",)),
        (GOOD + "a,8,9,4\n", (), ("p.csv: line 5: the id 'a' is repeated",)),
        (GOOD + "d,8,9,-4\n", (), ("p.csv: line 5", "'d' has a negative size: -4")),
        (GOOD + "d,8,8,4\n", (), ("p.csv: line 5", "'d' has an empty live range: [8, 8)")),
        (GOOD + "d,9,8,4\n", (), ("p.csv: line 5", "'d' has an empty live range: [9, 8)")),
        (GOOD + "d,8,9,four\n", (), ("p.csv: line 5: size must be a whole number, not 'four'",)),
        (GOOD + "d,8,9.5,4\n", (), ("p.csv: line 5: upper must be a whole number, not '9.5'",)),
        (GOOD + "d,8\n", (), ("p.csv: line 5: upper must be a whole number, not ''",)),
        (GOOD, ("--alignment", 0), ("invalid --alignment 0",)),
        (GOOD, ("--alignment", 3), ("the alignment must be a power of two, not 3",)),
        (GOOD, ("--planner", "exakt"), ("invalid --planner 'exakt'", "did you mean 'exact'?")),
        (GOOD, ("--effort", "much"), ("invalid --effort 'much'", "low, normal, high, or a number of steps")),
        (GOOD, ("--time", "soon"), ("invalid --time 'soon'", "5s")),
        (GOOD, ("--dim", "n=4"), ("--dim is for models, not for a bare problem",)),
        (GOOD, ("--bound", "n=4"), ("--bound is for models, not for a bare problem",)),
        (GOOD, ("--order", "any"), ("--order is for models, not for a bare problem",)),
        (GOOD, ("--io", "inside"), ("--io is for models, not for a bare problem",)),
        (GOOD, ("--workspace", "Relu=4"), ("--workspace is for models, not for a bare problem",)),
        (GOOD, ("--inputs", "x.npz"), ("--inputs is for models, not for a bare problem",)),
        (GOOD, ("-o", "m.onnx"), ("--output is for models, not for a bare problem",)),
    ],
)
def test_a_bad_problem_is_one_line(
    run: Run, tmp_path: Path, text: str, arguments: tuple[object, ...], words: tuple[str, ...]
) -> None:
    (tmp_path / "p.csv").write_text(text)
    done = run("plan", "p.csv", *arguments)
    assert (done.code, done.out) == (2, ""), done
    assert done.err.startswith("error: ")
    assert done.err.count("\n") == 1
    assert all(word in done.err for word in words), done.err


def test_no_file_and_no_text(run: Run, tmp_path: Path) -> None:
    assert "none.csv: no such file" in run("plan", "none.csv").err.lower()
    (tmp_path / "p.csv").write_bytes(b"id,lower,upper,size\n\xff")
    done = run("plan", "p.csv")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "p.csv: not UTF-8 text" in done.err


@pytest.mark.parametrize(("capacity", "shortfall"), [("200", "200"), ("399", "1")])
def test_too_small_a_capacity_fails_with_what_is_live(run: Run, tmp_path: Path, capacity: str, shortfall: str) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    done = run("plan", "p.csv", "--capacity", capacity, "--emit", "out.csv")
    assert done.code == 1
    assert f"{shortfall} more than its capacity of {capacity}; live at step 1: b (300), a (100)" in done.err, done.err
    assert not (tmp_path / "out.csv").exists()


def test_what_comes_out_is_a_plan_and_the_same_every_time(run: Run, tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(GOOD)
    done = run("plan", "p.csv", "--capacity", "400", "--json", "-", "-q", "--emit", "out.csv")
    assert done.code == 0
    plan = json.loads(done.out)
    assert (plan["arenas"][0]["size"], plan["lower_bound"], plan["optimal"], plan["ended"]) == (
        400,
        400,
        True,
        "lower bound reached",
    )
    with (tmp_path / "out.csv").open() as lines:
        rows = {row["id"]: int(row["offset"]) for row in csv.DictReader(lines)}
    assert rows == {buffer["name"]: buffer["offset"] for buffer in plan["buffers"]}
    assert run("plan", "p.csv", "--capacity", "400", "--json", "-", "-q").out == done.out


def test_a_search_that_is_cut_short_says_by_what(run: Run, tmp_path: Path) -> None:
    # Never more than 3 bytes are live, and yet the second of two that start at multiples of 4 ends at 5.
    (tmp_path / "p.csv").write_text("id,size,lower,upper,alignment\na,1,0,2,4\nb,1,0,2,4\nc,1,1,2,1\n")
    ends = []
    for effort in ("0", "normal"):
        plan = json.loads(run("plan", "p.csv", "--effort", effort, "--json", "-", "-q").out)
        assert plan["arenas"][0]["size"] == plan["lower_bound"] + plan["gap"] == 5, plan
        ends.append((plan["optimal"], plan["lower_bound"], plan["bound"], plan["ended"]))
    assert ends == [(False, 3, "peak", "effort"), (True, 5, "search", "search ended")]
