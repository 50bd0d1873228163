"""Constants in the lists of a plan: also those that no step reads, and those that share a name."""

from __future__ import annotations

from dataclasses import replace

import onnx
import pytest

from onnxtile.check.audit import check, require
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import CheckFailed
from onnxtile.verbs.flows.plan import plan

UNREAD = """<ir_version: 10, opset_import: ["": 17]>
  g (float[3] x, bool c) => (float[3] y) <float[2] w = {1, 2}, float h = {0.5}> {
    k = Constant <value_float = 2.0> ()
    t = Mul(h, k)
    s = Mul(x, t)
    y = If (c) <then_branch = t () => (float[3] a) <float u = {1}> { v = Constant <value_float = 1.0> ()  a = Neg(s) },
                else_branch = e () => (float[3] b) { b = Abs(s) }>
  }"""


def test_a_constant_that_no_step_reads_is_outside_with_the_reason() -> None:
    found = plan(onnx.parser.parse_model(UNREAD)).plan
    reason = "a constant that no step reads"
    assert {row.name for row in found.outside if row.reason == reason} == {"w", "h", "k", "u", "v"}
    assert [row.name for row in found.constants] == ["t"]


def test_the_check_misses_one_that_is_not_listed() -> None:
    model = load(onnx.parser.parse_model(UNREAD))
    shapes, constants = resolve(model), Constants(model)
    found = plan(model, verify=False).plan
    assert not check(model, found, shapes, constants).failures
    less = replace(found, outside=tuple(row for row in found.outside if row.name != "u"))
    with pytest.raises(CheckFailed, match="'u' is not listed as outside"):
        require(model, less, shapes, constants)


NAMESAKES = """<ir_version: 10, opset_import: ["": 17, "local": 1]>
  g (float[3] x) => (float[1] y) <int64[1] k = {1}, float[2] w = {1, 2}> {
    e = Constant <value_ints = [2]> ()  s = Slice(x, k, e)  y = local.half (s) }
  <domain: "local", opset_import: ["": 17]> half (a) => (b) {
    z = Constant <value_float = 3.0> ()  d = Mul(a, z)  k = Constant <value_floats = [0.5, 0.5]> ()
    c = Mul(d, k)  b = ReduceMax <axes = [0]> (c) }"""


def test_constants_of_one_name_are_aligned_each_to_its_element() -> None:
    """A function has names of its own: here 8 bytes of int64 and 8 bytes of float32 are both called k."""

    model = load(onnx.parser.parse_model(NAMESAKES))
    found = plan(model, alignment=1).plan
    rows = [row for row in found.constants if row.name == "k"]
    assert {row.dtype for row in rows} == {"INT64", "FLOAT"}
    shapes, constants = resolve(model), Constants(model)
    wrong = tuple(
        replace(row, offset=4 + (row.offset or 0)) if row.dtype == "INT64" else row for row in found.constants
    )
    assert any(
        "not aligned to 8" in str(one)
        for one in check(model, replace(found, constants=wrong), shapes, constants).failures
    )
