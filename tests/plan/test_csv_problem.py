"""Problems as CSV with MiniMalloc's columns, good and bad."""

import pytest

from onnxtile.errors import UsageError
from onnxtile.plan.csv_problem import read_problem
from onnxtile.plan.problem import Buffer, Problem


def test_columns_in_any_order_and_one_that_is_not_asked_for() -> None:
    text = "size,id,lower,upper,colour,alignment\n4,a,0,3,red,\n10,b,1,2,blue,8\n"
    assert read_problem(text, capacity=20) == Problem((Buffer("a", 4, 0, 3), Buffer("b", 10, 1, 2, 8)), 1, 20)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: there is no column 'id'"),
        ("id,lower,upper\n", "line 1: there is no column 'size'"),
        ("id,lower,upper,size\na,0,1,4\na,0,1,4\n", "line 3: the id 'a' is there twice"),
        ("id,lower,upper,size\na,0,1,-4\n", "line 2: the buffer 'a' has a negative size: -4"),
        ("id,lower,upper,size\na,3,3,4\n", r"line 2: the buffer 'a' has an empty life: \[3, 3\)"),
        ("id,lower,upper,size\na,0,1,many\n", "line 2: lower, upper and size are whole numbers"),
        ("id,lower,upper,size\na,0\n", "line 2: lower, upper and size are whole numbers"),
        ("id,lower,upper,size,alignment\na,0,1,4,3\n", "line 2: an alignment is a power of two, not 3"),
    ],
)
def test_what_is_no_problem_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_problem(text)
