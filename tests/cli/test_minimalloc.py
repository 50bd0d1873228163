"""The command that stands in for MiniMalloc: its arguments, its exit codes and its output."""

from __future__ import annotations

import csv
import sys
from itertools import combinations
from pathlib import Path

import pytest

from onnxtile.cli import minimalloc
from tests.cli.conftest import Done, Run
from tests.conftest import MINIMALLOC

PROBLEM = "id,lower,upper,size\na,0,3,4\nb,2,5,8\nc,3,9,4\n"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path) -> Run:
    """Give a function that runs the command in a folder with a small problem, in.csv."""
    (tmp_path / "in.csv").write_text(PROBLEM)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["minimalloc", *arguments])
        code = 0
        try:
            minimalloc.main()
        except SystemExit as end:
            assert isinstance(end.code, int)
            code = end.code
        out, err = capfdbinary.readouterr()
        return Done(code, out, err.decode())

    return call


def require_solution(path: Path, capacity: int) -> None:
    """Fail unless the rows in `path` share no byte while both are live, and end within `capacity`."""
    rows = list(csv.DictReader(path.read_text().splitlines()))
    for row in rows:
        assert 0 <= int(row["offset"]) <= capacity - int(row["size"])
    for one, other in combinations(rows, 2):
        if int(one["lower"]) < int(other["upper"]) and int(other["lower"]) < int(one["upper"]):
            below, above = sorted((one, other), key=lambda row: int(row["offset"]))
            assert int(below["offset"]) + int(below["size"]) <= int(above["offset"])


@pytest.mark.parametrize("capacity", [["--capacity=12"], ["--capacity", "12"], ["-capacity=12"]])
def test_it_writes_the_rows_with_their_offsets(capacity: list[str], call: Run, tmp_path: Path) -> None:
    done = call(*capacity, "--input=in.csv", "--output=out.csv")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("Elapsed time ")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.rpartition(",")[0] for line in lines] == PROBLEM.splitlines()
    require_solution(tmp_path / "out.csv", 12)


def test_over_capacity_it_fails_and_writes_nothing(call: Run, tmp_path: Path) -> None:
    done = call("--capacity=11", "--input=in.csv", "--output=out.csv")
    assert done.code == 1
    assert done.err.count("\n") == 1 and "needs at least 12 bytes" in done.err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity=12", "--input=none.csv"], "Opening file none.csv failed."),
        (["--capacity=many", "--input=in.csv"], "argument --capacity/-capacity: invalid int value: 'many'"),
        (["--capacity=12", "--input=in.csv", "--colour=red"], "unrecognized arguments: --colour=red"),
        (["--capacity=12", "--input=in.csv", "--timeout=soon"], "not a duration: 'soon'"),
        (["--capacity=-1", "--input=in.csv"], "the capacity must not be negative: -1"),
        (["--input=in.csv"], "more than its capacity of 0"),
        (["--capacity=12", "--input=bad.csv"], "bad.csv: line 1: missing column 'size'"),
    ],
)
def test_whatever_is_wrong_the_code_is_1_with_one_line(
    arguments: list[str], message: str, call: Run, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text("id,lower,upper\na,0,1\n")
    done = call(*arguments, "--output=out.csv")
    assert done.code == 1
    assert message in done.err and done.err.count("\n") == 1
    assert not (tmp_path / "out.csv").exists()


def test_the_other_names_and_columns_of_minimalloc(call: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("buffer,start,end,size,alignment,hint,gaps\na,0,2,4,8,-1,\n=b,2,4,8,1,-1,\n")
    done = call("--capacity=20", "--input=in.csv", "--output=out.csv", "--validate", "--nocanonical_only")
    assert done.code == 0 and "Validation PASS, height" in done.err
    header, first, second = (tmp_path / "out.csv").read_text().splitlines()
    assert header == "id,lower,upper,size,alignment,offset"
    assert first.startswith("a,0,3,4,8,") and second.startswith("=b,2,5,8,1,")
    require_solution(tmp_path / "out.csv", 20)
    assert int(first.rpartition(",")[2]) % 8 == 0


def test_the_smallest_arena_is_searched_where_asked_for(call: Run) -> None:
    done = call("--capacity=1000", "--input=in.csv", "--minimize_capacity", "--validate", "--timeout=1m30.5s")
    assert done.code == 0
    assert done.err.endswith("Validation PASS, height 12\n")


def test_gaps_that_are_not_used_are_named_where_nothing_fits(call: Run, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id,lower,upper,size,gaps\na,0,9,4,2-4\nb,2,4,4,\n")
    done = call("--capacity=4", "--input=in.csv", "--output=out.csv")
    assert done.code == 1
    assert "gaps are not used" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("name", "ABCDEFGHIJK")
def test_the_problems_of_minimalloc(name: str, call: Run, tmp_path: Path) -> None:
    path = MINIMALLOC / f"{name}.1048576.csv"
    if not path.exists():
        pytest.skip("the problems are not beside this checkout")
    done = call("--capacity=1048576", f"--input={path}", "--output=out.csv")
    assert done.code == 0, done.err
    require_solution(tmp_path / "out.csv", 1048576)
