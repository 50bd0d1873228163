"""Loop and Scan of a program in C: turns, conditions, rows and carried values are those of onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import onnxtile
from onnxtile.firmware.calls import SpaceOffset, TableCall, TableEntry, depth, stream_of, units_of
from onnxtile.firmware.program import RepeatedCalls
from onnxtile.model.feeds import Wanted
from onnxtile.system.runtime import Array

pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")

from onnxtile.firmware.build import Firmware, build
from tests.build import side_by_side
from tests.firmware.test_program import needs_cc, opened_of

HEAD = '<ir_version: 10, opset_import: ["": 17]>\n'


def made(source: str | onnx.ModelProto, inputs: dict[str, Array] | None = None) -> Firmware:
    planned = onnxtile.plan(onnx.parser.parse_model(HEAD + source) if isinstance(source, str) else source, verify=False)
    return build(opened_of(planned), planned.plan, wanted=Wanted(inputs))


COUNTED = """g (float[4] x, bool b, int64 m) => (float[4] y) {
    y = Loop(m, b, x) <body = t (int64 i, bool c, float[4] a) => (bool d, float[4] n) {
        d = Identity(c)
        f = Cast <to = 1> (i)
        k = Exp(a)
        l = Sub(k, a)
        n = Add(l, f)
    }>
}"""


@needs_cc
@pytest.mark.parametrize(("turns", "begins"), [(0, True), (3, True), (3, False)])
def test_a_loop_runs_as_often_as_its_inputs_say(turns: int, begins: bool) -> None:
    inputs = {"x": np.linspace(-1, 0, 4, dtype=np.float32), "b": np.asarray(begins), "m": np.asarray(turns)}
    assert made(COUNTED, inputs).proof.equal


NESTED = "turns in turns"
CASES = {
    "values that change places": """g (float[4] x, float[4] z) => (float[4] y, float[4] w) <int64 m = {3}> {
        y, w = Loop(m, , x, z) <body = t (int64 i, bool c, float[4] a, float[4] e) => (bool d, float[4] n, float[4] o) {
            d = Identity(c) n = Neg(e) o = Tanh(a)
        }>
    }""",
    "a value that the body does not read": """g (float[4] x, float[4] z) => (float[4] y) <int64 m = {3}> {
        y = Loop(m, , x) <body = t (int64 i, bool c, float[4] a) => (bool d, float[4] n) { d = Identity(c) n = Neg(z) }>
    }""",
    "results of all turns": """g (float[4] x) => (float[4] y, float[5, 4] w) <int64 m = {5}, bool t = {1}> {
        y, w = Loop(m, t, x) <body = t (int64 i, bool c, float[4] a) => (bool d, float[4] n, float[4] o) {
            d = Identity(c) n = Neg(a) o = Exp(a)
        }>
    }""",
    "until a number is small": """g (float[1] x) => (float[1] y) <float h = {0.5}, float q = {0.01}, int64[0] s = {}> {
        y = Loop(, , x) <body = t (int64 i, bool c, float[1] a) => (bool d, float[1] n) {
            k = Abs(a) n = Mul(k, h) e = Greater(n, q) d = Reshape(e, s)
        }>
    }""",
    "rows": """g (float[3] s, float[6, 3] x) => (float[3] y, float[6, 3] w) {
        y, w = Scan <num_scan_inputs = 1, body = t (float[3] a, float[3] r) => (float[3] n, float[3] o) {
            p = Add(a, r) n = Tanh(p) o = Neg(p)
        }> (s, x)
    }""",
    "rows of another axis from the last on": """g (float[3] s, float[3, 6] x) => (float[3] y, float[3, 6] w) {
        y, w = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1], scan_input_directions = [1],
            scan_output_directions = [1], body = t (float[3] a, float[3] r) => (float[3] n, float[3] o) {
            p = Add(a, r) n = Tanh(p) o = Neg(p)
        }> (s, x)
    }""",
    NESTED: """g (float[3] s, float[6, 3] x) => (float[3] y, float[6, 3] w) <int64 m = {2}> {
        y, w = Scan <num_scan_inputs = 1, body = t (float[3] a, float[3] r) => (float[3] n, float[3] o) {
            p = Add(a, r)
            n = Loop(m, , p) <body = u (int64 i, bool c, float[3] e) => (bool d, float[3] v) {
                d = Identity(c) z = Add(e, r) v = Tanh(z)
            }>
            o = Neg(p)
        }> (s, x)
    }""",
}


@needs_cc
@pytest.mark.parametrize(("depth", "cases"), [(1, [case for case in CASES if case != NESTED]), (2, [NESTED])])
def test_turns_give_what_onnxruntime_gives(depth: int, cases: list[str]) -> None:
    firmware = made(side_by_side(onnx.parser.parse_model(HEAD + CASES[case]) for case in cases))
    assert firmware.proof.equal and firmware.source.repeats == depth
    assert firmware.source.workspace < 128


CLOSED = """<ir_version: 10, opset_import: ["": 20, "own": 1]>
g (float[6, 4] x, bool c) => (float[6, 4] y) { m = Neg(x) k = own.f(m, c) y = Exp(k) }
<domain: "own", opset_import: ["": 19]> f (a, c) => (b) {
    h = Tanh(a)
    r = If(c) <
        then_branch = t () => (float[6, 4] u) { e = Exp(h) u = Neg(e) }, else_branch = e () => (float[6, 4] v) { v = Sigmoid(h) }
    >
    n = Constant <value_int = 3> ()
    b = Loop(n, , r) <body = t (int64 i, bool s, float[6, 4] q) => (bool d, float[6, 4] w) { d = Identity(s) w = Tanh(q) }>
}"""


@needs_cc
def test_control_flow_in_a_function_that_stays_closed_runs() -> None:
    planned = onnxtile.plan(onnx.parser.parse_model(CLOSED), verify=False)
    assert planned.plan.schedule == ("m", "k", "y")
    made = build(opened_of(planned), planned.plan)
    assert made.proof.equal and made.source.repeats == 1


def test_a_program_without_turns_has_no_code_for_them() -> None:
    source = made("g (float[4] x) => (float[4] y) { y = Neg(x) }").source
    assert source.repeats == 0 and "_repeat" not in source.code


def test_bytes_of_turns_and_their_depth() -> None:
    row = TableCall(0, (SpaceOffset(0, 0), SpaceOffset(1, 64)))
    inner: TableEntry = RepeatedCalls(None, SpaceOffset(0, 32), None, (row,))
    outer: TableEntry = RepeatedCalls(SpaceOffset(0, 48), SpaceOffset(0, 32), SpaceOffset(1, 0), (inner,))
    assert depth([row]) == 0 and depth([outer]) == 2
    assert units_of([outer], 2) == [16, 64]
    # 5, three places (an operand plus 1, or 0), the bytes that follow, the calls and 0. The calls: twice the turns, how many, and each.
    block = [2, 1, 0, 0, 1 * 2 + 1]
    within = [5, 0, 2 * 2 + 1, 0, len(block) + 1, *block, 0]
    assert list(stream_of([outer], [16, 64]).data) == [5, 7, 5, 2, len(within) + 1, *within, 0, 0]
