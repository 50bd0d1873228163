"""Calls of local functions are written out as onnx_ir's pass writes them, in time linear in the calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import InlinePass

from onnxtile.model.functions import inline_calls
from tests.bench.large_graphs import functions


def _branching() -> onnx.ModelProto:
    """Return a model whose function has an If, names that the main graph has too, and a node without a name."""
    return onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "f": 1]>
        main (float[4] x, bool c) => (float[4] y) {
            t = f.Either (x, c)
            t_2 = f.Either (t, c)
            y = f.Either (t_2, c)
        }
        <domain: "f", opset_import: ["": 17]>
        Either (a, b) => (t) {
            t_3 = Neg (a)
            t = If (b) <
                then_branch = then () => (float[4] r) { r = Tanh (t_3) },
                else_branch = other () => (float[4] r) { t_3_2 = Exp (a)  r = Abs (t_3_2) }
            >
        }
    """)


@pytest.mark.parametrize("made", [functions(150), _branching()], ids=["functions", "branching"])
def test_names_are_those_of_the_pass(made: onnx.ModelProto) -> None:
    ours, theirs = ir.from_proto(made), ir.from_proto(made)
    inline_calls(ours)
    InlinePass()(theirs)
    assert [node.name for node in ours.graph.all_nodes()] == [node.name for node in theirs.graph.all_nodes()]
    assert len({value.name for node in ours.graph.all_nodes() for value in node.outputs}) > len(made.graph.node)
    onnx.checker.check_model(ir.to_proto(ours))


def test_a_function_that_stays_keeps_its_names() -> None:
    model = ir.from_proto(functions(100))
    kept = model.functions["large", "Scaled", ""]
    names = [(node.name, [value.name for value in node.outputs]) for node in kept]
    inline_calls(model, lambda function: function is not kept)
    assert list(model.functions.values()) == [kept]
    assert [(node.name, [value.name for value in node.outputs]) for node in kept] == names


def test_twice_the_calls_take_twice_the_steps() -> None:
    small, middle, large = (_lines(inline_calls, ir.from_proto(functions(size))) for size in (500, 1000, 2000))
    assert large - middle < 1.4 * 2 * (middle - small)


def _lines(work: Callable[[ir.Model], None], model: ir.Model) -> int:
    """Return how many lines of Python `work` executes."""
    count = 0

    def counting(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return counting

    before = sys.gettrace()
    sys.settrace(counting)
    try:
        work(model)
    finally:
        sys.settrace(before)
    return count
