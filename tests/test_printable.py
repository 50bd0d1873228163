"""Text that is printed: nothing in it moves a cursor, and no line is without end."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onnxtile.system.errors import MOST, capped, caret, error_line, escaped
from onnxtile.system.text import as_csv, as_json, compact, text_of


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain/名/é", "plain/名/é"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("\u202eback\udcff", "\\u202eback\\udcff"),
    ],
)
def test_what_a_terminal_obeys_is_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(st.text(), st.none() | st.text(max_size=600))
def test_an_error_is_one_line_that_ends(reason: str, hint: str | None) -> None:
    line = error_line(reason * 40, hint)
    assert len(line) <= MOST and line.isprintable()


def test_a_long_reason_keeps_its_start_its_end_and_its_hint() -> None:
    line = error_line("no file " + "x" * 9000 + ": File name too long", "name another")
    assert line.startswith("no file xxx") and line.endswith("xxx: File name too long (name another)")
    assert error_line("short", "h" * 9000).startswith("short (hhh") and error_line("short", None) == "short"
    assert capped("x" * 20, 10) == "xxxx...xxx"


def test_a_caret_stands_below_its_word_in_a_line_of_any_length() -> None:
    query = "MatMul->Add" + "\x1b[31m" + " " * 900 + "Bad" + " " * 900
    line, below = caret(query, (query.index("Bad"), query.index("Bad") + 3)).split("\n")
    assert len(line) < MOST and line.isprintable()
    assert line[below.index("^") : below.rindex("^") + 1] == "Bad"


@given(st.text(alphabet="=+-@'\t\r\n,\"ab;") | st.text(alphabet="\\xuU0159bc\x9b\x1b\u202e\udcff\U000e0001'="))
@example("\\x1b \\x5c \x1b \\U00110000 \\")
def test_a_name_in_a_csv_is_no_formula_and_comes_back(name: str) -> None:
    import csv
    import io

    content = as_csv([[name, -1, 2.5, None, "end"]]).decode()
    ((cell, *rest),) = csv.reader(io.StringIO(content, newline=""))
    assert text_of(cell) == name
    assert cell.isprintable()
    assert cell[:1] not in {"=", "+", "-", "@", "\t", "\r"}
    assert rest == ["-1", "2.5", "", "end"]  # a number stays one


@pytest.mark.parametrize("write", [as_json, compact])
@given(name=st.text(alphabet=st.characters(codec=None, categories=["Cc", "Cf", "Cs", "Lu", "Zl"])))
def test_json_holds_nothing_that_a_terminal_obeys_and_says_the_same(write: object, name: str) -> None:
    import json

    assert callable(write)
    text = write({"name": name, "more": [{"name": name}]})
    assert json.loads(text) == {"name": name, "more": [{"name": name}]}
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text if char != "\n")
    text.encode()
