"""Errors, printed text, paths, JSON and values that users write."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onnxtile import api
from onnxtile.declare.values import Unreadable, read_shapes
from onnxtile.fusion.pattern import from_file as pattern_file
from onnxtile.model.feeds import read_inputs
from onnxtile.model.load import digest, load
from onnxtile.pipeline.file import from_file as pipeline_file
from onnxtile.report.format import read_plan
from onnxtile.system.errors import (
    MOST,
    CheckFailed,
    Infeasible,
    Mismatch,
    ModelError,
    OnnxtileError,
    PatternError,
    QueryError,
    UsageError,
    capped,
    caret,
    error_line,
    escaped,
    first_cause,
)
from onnxtile.system.files import real, require_readable, require_writable
from onnxtile.system.text import as_csv, as_json, bytes_of, compact, text_of, whole
from onnxtile.tiling.limits import find as limits_file

# Errors: one line for the user, a hint, an exit code.


@pytest.mark.parametrize("kind", [OnnxtileError, ModelError, UsageError, PatternError])
def test_bad_input_ends_with_2(kind: type[OnnxtileError]) -> None:
    error = kind("no", hint="do this")
    assert (error.message, error.hint, error.exit_code) == ("no", "do this", 2)
    assert str(error) == "no (do this)"


@pytest.mark.parametrize("kind", [CheckFailed, Infeasible, Mismatch])
def test_a_check_that_says_no_ends_with_1(kind: type[OnnxtileError]) -> None:
    assert kind("no").exit_code == 1
    assert kind("no").hint is None


def _wrapped(error: Exception) -> Exception:
    """Return `error` as onnx_ir wraps it: in one error for each function on the way."""
    for name in ("serialize_graph_into", "serialize_model"):
        outer = RuntimeError(f"Error calling {name} with: len(nodes)=441127")
        outer.__cause__ = error
        error = outer
    return error


def test_the_words_of_an_error_are_those_of_its_first_cause() -> None:
    assert first_cause(_wrapped(ValueError("no\nsuch type"))) == "no such type"


def test_a_lack_of_memory_stays_one_where_it_was_wrapped() -> None:
    with pytest.raises(MemoryError):
        first_cause(_wrapped(MemoryError()))


def test_a_query_error_shows_the_place() -> None:
    error = QueryError("unknown type", "MatMul->Ad", (8, 10))
    assert str(error) == "unknown type\nline 1: MatMul->Ad\n                ^^"
    assert (error.reason, error.span, error.exit_code) == ("unknown type", (8, 10), 2)


@pytest.mark.parametrize(
    ("text", "span", "shown"),
    [
        ("", (0, 0), "line 1: \n        ^"),
        ("ab", (2, 2), "line 1: ab\n          ^"),
        ("ab\ncd", (3, 4), "line 2: cd\n        ^"),
        ("ab\ncd", (1, 5), "line 1: ab\n         ^"),
        ("ab\n", (3, 3), "line 2: \n        ^"),
    ],
)
def test_the_caret_is_below_the_span(text: str, span: tuple[int, int], shown: str) -> None:
    assert caret(text, span) == shown


# Text that is printed: nothing in it moves a cursor, and no line is without end.


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
    name = name.encode("utf-16", "surrogatepass").decode(
        "utf-16", "surrogatepass"
    )  # JSON joins halves that stand side by side
    assert json.loads(text) == {"name": name, "more": [{"name": name}]}
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text if char != "\n")
    text.encode()


# Paths that name no file that can be read: refused before they are opened.


def _folder(path: Path) -> None:
    path.mkdir()


def _loop(path: Path) -> None:
    path.symlink_to(path.with_name("other"))
    path.with_name("other").symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


BAD = {
    "folder": (_folder, "Is a directory"),
    "pipe": (os.mkfifo, "not a regular file"),
    "device": (_device, "not a regular file"),
    "loop": (_loop, "symbolic links"),
    "missing": (lambda _: None, "no such file"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "load": load,
    "digest": digest,
    "inputs": lambda path: read_inputs(path, load("models/transformer.onnx")),
    "problem": api.plan_problem,
    "plan": read_plan,
    "pipeline": pipeline_file,
    "pattern": pattern_file,
    "limits": limits_file,
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, bad: str, reader: str) -> None:
    make, message = BAD[bad]
    path = tmp_path / "x"
    make(path)
    with pytest.raises(OnnxtileError, match=message) as caught:
        READERS[reader](path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_what_no_file_can_be_called(tmp_path: Path, reader: str, name: str) -> None:
    with pytest.raises(OnnxtileError, match=r"is not a valid path|too long"):
        READERS[reader](tmp_path / name)


def test_a_link_to_a_file_is_taken(tmp_path: Path, transformer: Path) -> None:
    link = tmp_path / "m.onnx"
    link.symlink_to(transformer)
    require_readable(link, ModelError)
    assert real(link) == real(transformer)


@pytest.mark.parametrize("name", ["loop", "a\0b", "x" * 300])
def test_nothing_is_written_to_what_can_be_no_file(tmp_path: Path, name: str) -> None:
    _loop(tmp_path / "loop")
    with pytest.raises(UsageError, match=r"symbolic links|is not a valid path|too long"):
        require_writable(tmp_path / name)


def test_external_data_in_a_circle_of_links_is_missing(tmp_path: Path, transformer: Path) -> None:
    import onnx

    model = onnx.load(transformer)
    tensor = onnx.numpy_helper.from_array(np.zeros(64, np.float32), "extra")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="loop")
    model.graph.initializer.append(tensor)
    onnx.save(model, tmp_path / "m.onnx")
    _loop(tmp_path / "loop")
    with pytest.raises(ModelError, match="'loop' of 'extra' is missing"):
        load(tmp_path / "m.onnx")


# JSON with a line for each part.


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_it_says_the_same_as_json(content: dict[str, object]) -> None:
    assert json.loads(as_json(content)) == content


def test_a_line_for_each_part() -> None:
    content = {
        "size": 3,
        "dims": {"batch": 1},
        "rows": [{"a": 1}, {"b": "ä"}],
        "arenas": {"sram": {"size": 1}},
        "none": [],
    }
    assert as_json(content) == (
        '{\n "size": 3,\n "dims": {"batch": 1},\n "rows": [\n  {"a": 1},\n  {"b": "ä"}\n ],\n'
        ' "arenas": {\n  "sram": {"size": 1}\n },\n "none": []\n}\n'
    )


def test_numbers_that_json_lacks_are_texts() -> None:
    content = {"scale": [1.5, math.nan], "rows": [{"low": -math.inf}, {"high": math.inf}]}
    told = {"scale": [1.5, "nan"], "rows": [{"low": "-inf"}, {"high": "inf"}]}
    assert json.loads(as_json(content), parse_constant=pytest.fail) == told
    assert json.loads(compact(content), parse_constant=pytest.fail) == told


def test_nothing() -> None:
    assert as_json({}) == "{}\n"


# Values that users write: each kind is read in one place for the command line, pipelines and Python.


@pytest.mark.parametrize(("said", "meant"), [("1x3x224x224", (1, 3, 224, 224)), ("7", (7,)), ([1, 3], (1, 3))])
def test_a_shape_is_read(said: object, meant: tuple[int, ...]) -> None:
    assert read_shapes({"x": said}) == {"x": meant}


@pytest.mark.parametrize(
    "said", ["", "x", "1x", "x1", "1,2", "-1x2", "1 x 2", "1x2\n", "٣", "0x2", f"{2**63}x2", 3, [0], [True]]
)
def test_a_text_that_is_not_a_shape_is_refused(said: object) -> None:
    with pytest.raises(Unreadable) as error:
        read_shapes({"x": said})
    assert error.value.key == "x"


# Sizes in bytes, as people write them.


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("256KiB", 2**18),
        ("256 kib", 2**18),
        ("1MB", 10**6),
        ("8GiB", 2**33),
        ("0b", 0),
        (" 7 ", 7),
        ("1.25MiB", 1310720),
        ("1.5MB", 1500000),
        ("0.5KiB", 512),
        ("1.0", 1),
        ("0.001kB", 1),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert bytes_of(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lots",
        "1.5",
        "1.0001KiB",
        ".5KiB",
        "1.KiB",
        "1.5.5MB",
        "1,5MB",
        "-1",
        "KiB",
        "12 parsecs",
        "1e3",
        "9" * 31,
        "9" * 5000 + "KiB",
        "1." + "0" * 30 + "MB",
        "٣KiB",
    ],
)
def test_no_sizes(text: str) -> None:
    assert bytes_of(text) is None


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), ("9" * 30, 10**30 - 1)])
def test_whole_numbers(text: str, number: int) -> None:
    assert whole(text) == number


@pytest.mark.parametrize("text", ["", "-1", "+1", "1.0", " 1", "²", "٣", "9" * 31, "9" * 5000])
def test_no_whole_numbers(text: str) -> None:
    assert whole(text) is None
