"""Alias sets of many tensors: merged with few comparisons, and with the result of comparing every pair."""

import sys
from types import FrameType
from typing import Any

import onnx
import onnx_ir as ir
import pytest

from onnxtile.check.audit import require
from onnxtile.kernels.kernel_graph import Share
from onnxtile.kernels.liveness import InSteps
from onnxtile.model.constants import Constants
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.sharing import Contents
from onnxtile.shapes.resolve import resolve
from tests.planning.conftest import Case


def stream(count: int) -> str:
    """Return a graph of a residual stream: each sum is written over the one before it."""
    rows = (f"t{n} = Transpose(a{n}) s{n} = Add(t{n}, a{n}) a{n + 1} = Sub(s{n}, a{n})" for n in range(count))
    return f"stream (float[4,4] x) => (float[4,4] y) {{ a0 = Sin(x) {' '.join(rows)} y = Relu(a{count}) }}"


def test_a_long_stream_takes_few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    before = InSteps.before

    def counting(self: InSteps, a: Any, b: Any) -> bool:
        nonlocal asked
        asked += 1
        return before(self, a, b)

    monkeypatch.setattr(InSteps, "before", counting)
    counts = []
    for count in (50, 200):
        asked = 0
        Case.of(stream(count)).plan()
        counts.append(asked)
    assert counts[1] < 5 * counts[0]


@pytest.mark.parametrize("order", ["model", "any"])
def test_the_work_of_a_long_stream_grows_linearly(order: str) -> None:
    def lines(count: int) -> int:
        """Return the lines of code that run in the files of the aliases."""
        found = 0

        def trace(frame: FrameType, event: str, _argument: Any) -> Any:
            nonlocal found
            if not frame.f_code.co_filename.endswith("/planning/sharing.py"):
                return None
            found += event == "line"
            return trace

        case = Case.of(stream(count))
        sys.settrace(trace)
        try:
            case.plan(order=order)
        finally:
            sys.settrace(None)
        return found

    assert lines(160) < 5 * lines(40)


def test_a_part_is_only_where_it_is_cut_from() -> None:
    """Both halves of `twice` are `x`. At the place of the other half, Split would copy a half while it reads `twice`."""
    x, twice, low, high = range(4)
    contents = Contents({x: 4, twice: 8, low: 4, high: 4})
    contents.add(x, [])
    contents.add(twice, [Share("join", twice, x, 0), Share("join", twice, x, -4)])
    contents.add(low, [Share("cut", low, twice, 0)])
    contents.add(high, [Share("cut", high, twice, 4)])
    assert contents.agree(twice, high, 4) and contents.agree(high, twice, -4)
    assert not contents.agree(twice, high, 0) and not contents.agree(high, twice, 0)
    assert contents.agree(twice, x, 0) and contents.agree(twice, x, 4)
    assert contents.agree(low, high, 0)


def test_a_copy_is_not_written_over_its_source_through_a_view_of_the_copy() -> None:
    """`v7` has the content of `v4`, which is read later; `v11` is written over a view of `v7`, and could be over a part of `v4`, too."""
    text = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[4,2] x0, float[1,8] x1) => (float[1,1] v3, float[8,1] v6, float[4,7] v10, float[1,7] v11)
    <int64[2] column = {8, 1}, int64[2] row = {1, 7}, int64[2] widths = {1, 7}, int64[1] zero = {0}, int64[1] one = {1}> {
        v2 = Relu(x0)
        v3, v4 = Split<axis = 1>(x1, widths)
        v5 = Concat<axis = 0>(v4, v4)
        v6 = Reshape(v2, column)
        v7 = Slice(v5, zero, one, zero)
        v8 = Slice(v4, zero, one, zero)
        v9 = Reshape(v7, row)
        v10 = Concat<axis = 0>(v7, v5, v9)
        v11 = Add(v8, v9)
    }"""
    model = ir.serde.deserialize_model(onnx.parser.parse_model(text))
    shapes, constants = resolve(model), Constants(model)
    choice = PlanSettings(alignment=4, io="inside", overwrite_inputs=True)
    require(model, plan_model(model, shapes, constants, choice), shapes, constants)
