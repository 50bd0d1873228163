"""Problems as CSV with MiniMalloc's columns, good and bad."""

from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnxtile
from onnxtile.planning.offsets import csv_problem
from onnxtile.planning.offsets.csv_problem import read_problem
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.system.errors import UsageError


def test_columns_in_any_order_and_one_that_is_not_asked_for() -> None:
    text = "size,id,lower,upper,colour,alignment\n4,a,0,3,red,\n10,b,1,2,blue,8\n"
    assert read_problem(text) == Problem((Buffer("a", 4, 0, 3), Buffer("b", 10, 1, 2, 8)), 1)


def test_what_editors_add_is_no_matter() -> None:
    text = "\ufeffid, lower, upper, size\r\na, 0, 3, 4\r\n\r\n"
    assert read_problem(text) == Problem((Buffer("a", 4, 0, 3),), 1)


def test_bytes_moved() -> None:
    assert read_problem("id,lower,upper,size,moved\na,0,3,4,40\nb,0,3,4,\n").buffers[0].moved == 40


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: missing column 'id'"),
        ("id,lower,upper\n", "line 1: missing column 'size'"),
        ("id,lower,upper,size\na,0,1,4\na,0,1,4\n", "line 3: the id 'a' is repeated"),
        ("id,lower,upper,size\na,0,1,-4\n", "line 2: the buffer 'a' has a negative size: -4"),
        ("id,lower,upper,size\na,3,3,4\n", r"line 2: the buffer 'a' has an empty live range: \[3, 3\)"),
        ("id,lower,upper,size\na,0,1,many\n", "line 2: size must be a whole number, not 'many'"),
        ("id,lower,upper,size\na,0,1,0x10\n", "line 2: size must be a whole number, not '0x10'"),
        ("id,lower,upper,size\na,0,1,1e3\n", "line 2: size must be a whole number, not '1e3'"),
        ("id,lower,upper,size\na,0\n", "line 2: upper must be a whole number, not ''"),
        ("id,lower,upper,size\n,0,1,4\n", "line 2: the id is empty"),
        ("id,lower,upper,size\na,-2,1,4\n", "line 2: steps must be between 0 and"),
        ("id,lower,upper,size,size\na,0,1,4,4\n", "line 1: column 'size' is repeated"),
        ("id,lower,upper,size\na,0,1,9007199254740993\n", "the sizes add up to more than"),
        ("id,lower,upper,size,moved\na,0,1,4,-1\n", "line 2: the buffer 'a' moves a negative number of bytes"),
        ('id,lower,upper,size\n"a,0,1,4\n' + "x" * 200_000, "line 3: not CSV"),
        ("id,lower,upper,size,alignment\na,0,1,4,3\n", "line 2: the alignment must be a power of two, not 3"),
    ],
)
def test_what_is_no_problem_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_problem(text)


PLAIN = st.tuples(st.integers(0, 3), st.integers(3, 9), st.integers(0, 9)).map(lambda row: ",".join(map(str, row)))
ODD = st.lists(
    st.sampled_from(["", "1", "+2", " 3", "4 ", "-5", "x", "1_0", "\u0663", '"6"', '"', str(2**60)]), max_size=5
)


@given(
    rows=st.lists(
        st.tuples(st.sampled_from("abcdef"), PLAIN | ODD.map(",".join)).map(",".join) | st.just(""), max_size=6
    ),
    header=st.sampled_from(
        ["id,lower,upper,size", "id,lower,upper,size,alignment", "", "id,lower,upper", "\ufeffid,lower,upper,size"]
    ),
)
def test_column_by_column_is_as_row_by_row(rows: list[str], header: str) -> None:
    def outcome() -> object:
        try:
            return read_problem("\n".join([header, *rows]))
        except UsageError as error:
            return str(error), error.hint

    found = outcome()
    with patch.object(csv_problem, "_plain", return_value=None):
        assert found == outcome()


PINNED = "id,lower,upper,size,pin,memory\na,0,2,64,256,sram\nb,0,2,64,,\nc,1,3,64,,dram\n"


def test_pins_and_memories_are_columns(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(PINNED)
    plan = onnxtile.plan_problem(tmp_path / "p.csv", capacity={"sram": 512, "dram": 512})
    found = {row.name: (row.arena, row.offset) for row in plan.buffers}
    assert found == {"a": ("sram", 256), "b": ("sram", 0), "c": ("dram", 0)}


def test_a_pinned_part_pins_its_buffer(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(
        "id,lower,upper,size,part_of,part_start,pin\nb0,0,2,64,b,0,\nb1,0,4,64,b,64,192\na,0,4,64,,,0\n"
    )
    plan = onnxtile.plan_problem(tmp_path / "p.csv")
    assert {row.name: row.offset for row in plan.buffers} == {"b": 128, "a": 0}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("id,lower,upper,size,pin\na,0,2,64,-4\n", "line 2: the buffer 'a' has a negative pin: -4"),
        ("id,lower,upper,size,pin\na,0,2,64,x\n", "line 2: pin must be a whole number"),
        (
            "id,lower,upper,size,pin\na,0,2,64,0\nb,1,3,64,32\n",
            "the pins of two tensors that are live together overlap: 'a' at 0",
        ),
        ("id,lower,upper,size,memory\na,0,2,64,flash\n", "'flash', which has no capacity"),
        ("id,lower,upper,size,part_of,part_start,pin\nb0,0,2,64,b,0,0\nb1,0,4,64,b,64,0\n", "at least its start 64"),
        ("id,lower,upper,size,part_of,part_start,pin\nb0,0,2,64,b,0,0\nb1,0,4,64,b,64,96\n", "parts of 'b' have pins"),
    ],
)
def test_pins_that_no_plan_can_have(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(UsageError, match=reason):
        onnxtile.plan_problem(tmp_path / "p.csv", capacity=1 << 20)
