"""The bytes moved and their bounds, beside the fewest bytes that any plan of a small graph moves."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.constants import Constants
from onnxtile.planning.model_plan import PlanSettings
from onnxtile.planning.movement.plan import plan_with_movement
from onnxtile.planning.movement.uses import covered
from onnxtile.planning.result import MovementResult
from onnxtile.shapes.resolve import resolve
from tests.planning.conftest import sharing_by
from tests.planning.movement_optimum import SmallKernel, SmallMovement

UNIT = 64
"""The bytes of a unit, 16 floats: the alignment."""


@st.composite
def graphs(draw: st.DrawFn) -> SmallMovement:
    """Graphs of products with a constant, and of Concat; the capacity is at least that of the largest kernel."""
    units = {name: draw(st.integers(1, 3)) for name in ("x", "z")[: draw(st.integers(1, 2))]}
    inputs, kernels = frozenset(units), []
    for number in range(draw(st.integers(3, 6))):
        # Often the tensor made last, and one made long ago.
        last = [f"t{number - 1}"] if number and draw(st.integers(0, 3)) else []
        far = draw(st.lists(st.sampled_from(sorted(units)), min_size=1 - len(last), max_size=1))
        reads = list(dict.fromkeys((*last, *far)))
        name = f"t{number}"
        sizes = sum(units[read] for read in reads)
        units[name] = draw(st.integers(1, 3)) if len(reads) == 1 else sizes
        kernels.append(SmallKernel(tuple(reads), name))
    read = {name for kernel in kernels for name in kernel.reads}
    made = [kernel.result for kernel in kernels]
    outputs = frozenset(name for name in made if name not in read or draw(st.integers(0, 5)) == 0)
    needs = [sum(units[name] for name in (*kernel.reads, kernel.result)) for kernel in kernels]
    capacity = max(needs) + draw(st.integers(0, 2))
    return SmallMovement(tuple(kernels), units, inputs & read, outputs, capacity)


def model_of(graph: SmallMovement) -> ir.Model:
    """Return a model with the kernels of `graph`, named as their results."""
    nodes, constants = [], []
    for kernel in graph.kernels:
        operands = list(kernel.reads)
        if len(operands) == 1:
            operands.append(f"w_{kernel.result}")
            array = np.zeros([16 * graph.units[name] for name in (kernel.reads[0], kernel.result)], np.float32)
            constants.append(numpy_helper.from_array(array, operands[1]))
            nodes.append(helper.make_node("MatMul", operands, [kernel.result], kernel.result))
        else:
            nodes.append(helper.make_node("Concat", operands, [kernel.result], kernel.result, axis=0))
    inputs, outputs = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16 * graph.units[name]]) for name in sorted(names)]
        for names in (graph.inputs, graph.outputs)
    ]
    made = helper.make_graph(nodes, "small", inputs, outputs, constants)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return ir.from_proto(model)


def moved(graph: SmallMovement) -> tuple[MovementResult, list[int]]:
    """Return the movement of a plan without aliases, and the numbers of the kernels in its order."""
    model = model_of(graph)
    capacity = {"sram": UNIT * graph.capacity, "dram": 1 << 20}
    wanted = PlanSettings(order="auto", capacity=capacity)
    with sharing_by(()):
        result = plan_with_movement(model, resolve(model), Constants(model), wanted).result
    assert result.movement is not None
    numbers = {kernel.result: number for number, kernel in enumerate(graph.kernels)}
    return result.movement, [numbers[name] for name in result.schedule if name in numbers]


@settings(max_examples=15, deadline=None)
@given(graphs())
def test_the_bounds_are_below_the_optimum_they_speak_of(graph: SmallMovement) -> None:
    found, order = moved(graph)
    in_order, in_parts, any_order = (
        UNIT * graph.least(wanted, in_parts=parts) for wanted, parts in ((order, False), (order, True), (None, False))
    )
    assert any_order <= in_order <= found.bytes
    assert found.lower_bound <= in_order
    assert found.bound != "search" or found.lower_bound == in_order
    assert found.parts_bound <= in_parts <= in_order
    assert found.any_order_bound <= min(any_order, found.parts_bound)


@pytest.mark.slow
def test_how_far_from_the_optimum_of_any_order() -> None:
    """Of the graphs of a fixed seed, nine of ten move as few bytes as the best of all orders."""
    above: Counter[bool] = Counter()

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(graphs())
    def count(graph: SmallMovement) -> None:
        found, _ = moved(graph)
        above[found.bytes > UNIT * graph.least(None)] += 1

    count()
    assert above[True] <= above.total() // 10


def test_a_part_that_stays_moves_fewer_bytes_than_a_whole_tensor() -> None:
    """With room for one unit of two, a part of `x` stays: the bound for parts is below that of whole tensors."""
    kernels: tuple[SmallKernel, ...]
    kernels = (SmallKernel(("x",), "a"), SmallKernel(("a",), "b"), SmallKernel(("x", "b"), "y"))
    graph = SmallMovement(kernels, {"x": 2, "a": 2, "b": 2, "y": 4}, frozenset("x"), frozenset("y"), 8)
    assert moved(graph)[0].bytes == UNIT * graph.least(None)
    kernels = (
        SmallKernel(("x",), "a"),
        SmallKernel(("a",), "b"),
        SmallKernel(("b",), "c"),
        SmallKernel(("x", "c"), "y"),
    )
    graph = SmallMovement(kernels, {"x": 2, "a": 3, "b": 3, "c": 1, "y": 3}, frozenset("x"), frozenset("y"), 7)
    found, order = moved(graph)
    assert (found.lower_bound, found.parts_bound) == (UNIT * 7, UNIT * 6)
    assert (graph.least(order), graph.least(order, in_parts=True)) == (7, 6)


@pytest.mark.parametrize(
    ("boxes", "elements"),
    [
        ([((0, 2), (0, 3))], 6),
        ([((0, 2), (0, 3)), ((1, 3), (0, 3))], 9),
        ([((0, 2), (0, 2)), ((1, 3), (1, 3))], 7),
        ([((0, 1),), ((3, 5),)], 3),
        ([((0, 0), (0, 3))], 0),
    ],
)
def test_elements_in_boxes_count_once(boxes: list[tuple[tuple[int, int], ...]], elements: int) -> None:
    assert covered(boxes) == elements
