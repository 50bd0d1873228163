"""fit --io INPUT=rows: an input comes row by row. Each row is read once, in order, into the arena, which never has all of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import onnxtile
from onnxtile.model import keys
from onnxtile.model.load import load
from onnxtile.system.errors import Infeasible, UsageError
from onnxtile.verbs.flows.results import FittedModel
from tests.fitting.networks import inverted_residuals, model
from tests.fitting.test_inputs import image
from tests.fitting.test_quantised import quantised

IMAGES = {
    "one channel": image(1),
    "three channels": image(3),
    "wide": image(3, 20, 64),
    "quantised": quantised(),
    "residuals": inverted_residuals(17),
}


@cache
def fitted_rows(name: str, capacity: str | int, **options: Any) -> FittedModel:
    """Return an image's model with its input row by row, of which several tests read something."""
    return onnxtile.fit(IMAGES[name], capacity=capacity, **{"io": "x=rows", **options})


def rows_read(fitted: FittedModel) -> list[tuple[int, int]]:
    """Return the rows of the input that are read, each by its first and the one after its last, as they stand in the model."""
    found = []
    graph = ir.to_proto(fitted.model).graph
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        if "x" in node.input:
            assert node.op_type == "Slice"
            found.append((int(constants[node.input[1]][0]), int(constants[node.input[2]][0])))
    return found


@pytest.mark.parametrize(
    ("name", "budget", "capacity"),
    [
        ("one channel", "0%", 1500),
        ("three channels", "0%", "smallest"),
        ("wide", "0%", "smallest"),
        ("quantised", "0%", "smallest"),
        ("residuals", "30%", 4000),
    ],
)
def test_each_row_is_read_once_in_order(name: str, budget: str, capacity: str | int, tmp_path: Path) -> None:
    fitted = fitted_rows(name, capacity, budget=budget)
    assert fitted.verdict is not None and fitted.verdict.equal
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    reads = rows_read(fitted)
    (streamed,) = fitted.streamed
    assert [(first, first + count) for first, count in streamed.stream.reads] == reads
    assert all(before[1] == after[0] for before, after in pairwise(reads))
    assert reads[0][0] == 0
    size = streamed.stream.rows * streamed.stream.row_bytes
    assert len(reads) > 1
    assert streamed.most_bytes < size
    assert fitted.after.arena < size
    fitted.save(tmp_path / "out.onnx")
    planned = onnxtile.plan(tmp_path / "out.onnx")
    assert planned.plan.streamed == (streamed.stream,)
    assert planned.plan.arena_size == fitted.after.arena
    assert onnxtile.check_plan(tmp_path / "out.onnx", planned.plan).sound


@pytest.mark.parametrize(
    ("name", "capacity"),
    [("one channel", "smallest"), ("three channels", "smallest"), ("wide", "smallest"), ("residuals", 6_800)],
)
def test_the_bytes_of_the_search_are_those_of_the_plan(name: str, capacity: str | int) -> None:
    fitted = fitted_rows(name, capacity, tolerance="exact")
    in_order = onnxtile.plan(fitted.model, order="model", verify=False).plan
    assert in_order.peak <= max(step.peak for step in fitted.steps)


def test_an_input_inside_the_arena_comes_row_by_row_all_the_same() -> None:
    fitted = fitted_rows("three channels", "smallest", budget="0%", io=("inside", "x=rows"))
    assert fitted.after.arena == fitted_rows("three channels", "smallest", budget="0%").after.arena
    assert all(buffer.kind != "input" for buffer in fitted.planned.plan.buffers)


def test_what_fits_with_all_rows_reads_them_at_once() -> None:
    fitted = onnxtile.fit(image(1), capacity="1MiB", io="x=rows")
    assert fitted.streamed[0].stream.reads == ((0, 24),)
    assert fitted.streamed[0].most_bytes == 24 * 20 * 4


def test_an_input_that_is_read_twice_by_rows_is_kept() -> None:
    source = model(
        """
g (float[1,3,12,20] x) => (float[1,3,12,20] y) {
    [first] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
    [relu] b = Relu(a)
    [second] c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(b, w1)
    [add] y = Add(c, x)
}""",
        w0=(8, 3, 3, 3),
        w1=(3, 8, 3, 3),
    )
    fitted = onnxtile.fit(source, capacity=12 * 20 * 3 * 4 * 2 - 1, io=("outside", "x=rows"))
    assert len(rows_read(fitted)) > 4
    assert fitted.verdict is not None and fitted.verdict.equal


def hand_made(bounds: list[tuple[int, int]]) -> onnx.ModelProto:
    """Return a model that adds up parts of equal length of an input that is marked as one that comes row by row."""
    nodes, parts = [], []
    for number, (start, stop) in enumerate(bounds):
        operands = [f"{kind}{number}" for kind in ("starts", "ends")]
        parts += [helper.make_tensor(name, 7, [1], [at]) for name, at in zip(operands, (start, stop), strict=True)]
        nodes.append(helper.make_node("Slice", ["x", *operands, "axes"], [f"r{number}"], name=f"read{number}"))
    nodes.append(helper.make_node("Sum", [f"r{number}" for number in range(len(bounds))], ["y"], name="sum"))
    rows = bounds[0][1] - bounds[0][0]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", 1, [8, 16])],
        [helper.make_tensor_value_info("y", 1, [rows, 16])],
        [*parts, helper.make_tensor("axes", 7, [1], [0])],
    )
    graph.input[0].metadata_props.add(key=keys.STREAM, value="0")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_a_mark_of_the_user_makes_an_input_come_row_by_row() -> None:
    planned = onnxtile.plan(hand_made([(0, 2), (2, 4), (6, 8)]), order="min-peak")
    (stream,) = planned.plan.streamed
    assert (stream.axis, stream.rows, stream.row_bytes) == (0, 8, 64)
    assert stream.reads == ((0, 2), (2, 2), (6, 2))
    # Rows whose bytes lie one after the other have bytes of their own, too: the caller has them in no memory.
    assert {"r0", "r1", "r2"} <= {buffer.name for buffer in planned.plan.buffers}
    assert [node for node in planned.plan.schedule if node.startswith("read")] == ["read0", "read1", "read2"]


@pytest.mark.parametrize(
    ("bounds", "reason"),
    [
        ([(2, 4), (0, 2)], "'read1' reads row 0, which was read before"),
        ([(0, 2), (1, 3)], "'read1' reads row 1, which was read before"),
    ],
)
def test_rows_out_of_order_are_refused(bounds: list[tuple[int, int]], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        onnxtile.plan(hand_made(bounds))


def test_the_check_refuses_a_plan_that_says_other_rows() -> None:
    source = hand_made([(0, 2), (2, 4)])
    plan = onnxtile.plan(source).plan
    (stream,) = plan.streamed
    for edited in ((), (replace(stream, reads=((0, 2), (2, 3))),), (replace(stream, row_bytes=32),)):
        audit = onnxtile.check_plan(source, replace(plan, streamed=edited))
        assert [failure.reason for failure in audit.failures] == ["the rows of 'x' are not read as the plan says"]


def test_the_check_refuses_an_order_in_which_a_later_row_comes_first(tmp_path: Path) -> None:
    source, file = hand_made([(0, 2), (2, 4)]), tmp_path / "plan.json"
    onnxtile.plan(source, verify=False, order="model").write(file)
    turned = json.loads(file.read_text())
    turned["schedule"][:2] = ["read1", "read0"]
    file.write_text(json.dumps(turned))
    audit = onnxtile.check_plan(source, file)
    assert any("not in the order of its rows" in failure.reason for failure in audit.failures)


def test_no_order_of_all_is_planned() -> None:
    with pytest.raises(UsageError, match="'x' comes row by row, and in some orders a later row comes first"):
        onnxtile.plan(hand_made([(0, 2), (2, 4)]), order="any")


def test_two_memories_are_refused() -> None:
    with pytest.raises(UsageError, match="io is for one memory"):
        onnxtile.fit(image(1), capacity={"sram": 4096, "dram": 65536}, io="x=rows")
    with pytest.raises(UsageError, match="an input that comes row by row is planned for one memory"):
        onnxtile.plan(
            hand_made([(0, 2), (2, 4)]), movement="activations", capacity={"sram": 4096, "dram": 65536}, verify=False
        )


def test_what_cannot_come_row_by_row_is_refused_in_a_line() -> None:
    with pytest.raises(UsageError, match="unknown input 'w0'"):
        onnxtile.fit(image(1), capacity="smallest", io="w0=rows")
    with pytest.raises(UsageError, match="into functions"):
        onnxtile.fit(image(1), capacity="smallest", io="x=rows", functions="wrap")
    flat = model("g (float[16] x) => (float[16] y) { y = Relu(x) }")
    with pytest.raises(Infeasible, match="'x' cannot come row by row: it has one row"):
        onnxtile.fit(flat, capacity="smallest", io="x=rows")


def test_the_input_of_the_model_stays_as_it_was() -> None:
    fitted = fitted_rows("three channels", "smallest", budget="0%")
    before, after = load(image(3)).graph.inputs[0], fitted.model.graph.inputs[0]
    assert (before.name, before.shape, before.dtype) == (after.name, after.shape, after.dtype)
    assert after.metadata_props[keys.STREAM] == "2"
    assert after.shape is not None and tuple(after.shape) == (1, 3, 24, 20)
    assert onnxtile.verify(image(3), fitted.model).equal
