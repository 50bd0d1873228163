"""fit --wrap: each region is a local function, whose body is planned."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import onnxtile
from onnxtile.fitting.write import wrap
from tests.fitting.networks import inverted_residuals
from tests.fitting.test_quantised import quantised


@pytest.mark.parametrize(("made", "capacity"), [(inverted_residuals, "10KiB"), (quantised, "11.5KiB")])
def test_the_arena_of_regions_in_functions_is_what_plan_says(
    made: Callable[[], onnx.ModelProto], capacity: str, tmp_path: Path
) -> None:
    fitted = onnxtile.fit(made(), capacity=capacity, wrap=True)
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    assert fitted.after.arena < fitted.before.arena
    fitted.save(tmp_path / "out.onnx")
    assert onnxtile.plan(tmp_path / "out.onnx").plan.arena_size == fitted.after.arena
    assert onnxtile.verify(made(), tmp_path / "out.onnx").equal


def test_there_is_one_function_for_each_region_and_its_sizes_are_inside(tmp_path: Path) -> None:
    fitted = onnxtile.fit(inverted_residuals(), capacity=10240, wrap=True, exact=True)
    fitted.save(tmp_path / "out.onnx")
    written = onnx.load(tmp_path / "out.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert [function.name for function in written.functions] == [f"Region{i}" for i in range(len(fitted.steps))]
    assert [node.op_type for node in written.graph.node if node.domain] == [one.name for one in written.functions]
    inside = [node for function in written.functions for node in function.node]
    sizes = {name for node in inside if node.op_type == "Slice" for name in node.input[1:]}
    assert sizes and sizes <= {name for node in inside if node.op_type == "Constant" for name in node.output}
    assert fitted.after.nodes == len(
        [n for n in (*inside, *written.graph.node) if not n.domain and n.op_type != "Constant"]
    )


def test_bodies_read_the_values_of_their_function() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17]>
        g (float[4] x, float[4] s, bool c) => (float[4] y, float[4] z) {
            a = Abs(x)  b = Exp(a)
            f = If (c) <then_branch = t () => (float[4] p) { q = Add(a, s)  p = Mul(q, x) },
                        else_branch = n () => (float[4] r) { r = Neg(b) }>
            y = Add(f, b)  z = Neg(b)
        }"""
    )
    wrapped = ir.from_proto(model)
    wrap(wrapped, [list(wrapped.graph)[:4]])
    (function,) = wrapped.functions.values()
    assert [value.name for value in function.inputs] == ["x", "c", "s"]
    assert [value.name for value in function.outputs] == ["b", "y"]
    assert onnxtile.verify(model, ir.to_proto(wrapped)).equal
