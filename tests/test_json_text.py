"""JSON with a line for each part."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.system.text import as_json, compact

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
