"""The choice of tensors that leave the fast memory: against trying every choice, and against the lower bound."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxtile.declare.plan_document import TransferTime
from onnxtile.model.constants import Constants
from onnxtile.planning.model_plan import PlanSettings
from onnxtile.planning.movement import choice
from onnxtile.planning.movement.choice import (
    Eviction,
    Gap,
    MovementProblem,
    choose_evictions,
    least_bytes,
    proved_evictions,
)
from onnxtile.planning.movement.plan import ByteAccess, Speeds, TimedStep, plan_with_movement, transfer_time
from onnxtile.planning.movement.uses import covered
from onnxtile.planning.result import MovementResult
from onnxtile.shapes.resolve import resolve
from tests import build
from tests.draws import draws
from tests.planning.conftest import sharing_by
from tests.planning.movement_optimum import SmallKernel, SmallMovement


@st.composite
def movements(draw: st.DrawFn, most: int) -> MovementProblem:
    """Problems of up to 10 steps; tensors with a store, which several gaps may share, are copied out first."""
    steps = draw(st.integers(2, 10))
    stores = tuple(draw(st.lists(st.integers(1, 9), min_size=3, max_size=3)))
    gaps = []
    for _ in range(draw(st.integers(0, most))):
        first = draw(st.integers(0, steps - 1))
        store = draw(st.sampled_from([None, 0, 1, 2]))
        size = draw(st.integers(1, 9)) if store is None else stores[store]
        gaps.append(Gap(first, draw(st.integers(first, steps - 1)), size, size, store))
    free = draw(st.lists(st.integers(0, 16), min_size=steps, max_size=steps))
    return MovementProblem(tuple(free), tuple(gaps), stores)


def fits(problem: MovementProblem, evicted: frozenset[int]) -> bool:
    held = problem.held(set(range(len(problem.gaps))) - evicted)
    return all(used <= free for used, free in zip(held, problem.free, strict=True))


@draws(75, 300)
@given(movements(8))
def test_no_choice_copies_fewer_bytes(problem: MovementProblem) -> None:
    numbers = range(len(problem.gaps))
    choices = (frozenset(chosen) for count in range(len(numbers) + 1) for chosen in combinations(numbers, count))
    least = min(problem.cost(chosen) for chosen in choices if fits(problem, chosen))
    found = choose_evictions(problem)
    assert found.exact
    assert fits(problem, found.evicted)
    assert found.cost == problem.cost(found.evicted) == least
    bound = least_bytes(problem)
    assert bound is not None and bound <= least
    everything = frozenset(numbers)
    proved = proved_evictions(problem, Eviction(everything, problem.cost(everything), exact=False))
    assert (proved.cost, proved.exact, fits(problem, proved.evicted)) == (least, True, True)


@draws(10)
@given(movements(80))
def test_a_choice_of_many_tensors_fits_and_is_not_below_the_bound(problem: MovementProblem) -> None:
    found = choose_evictions(problem)
    assert fits(problem, found.evicted)
    bound = least_bytes(problem)
    assert bound is not None and bound <= found.cost


def test_a_search_without_an_end_in_sight_tries_only_so_many_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of forty tensors twenty must leave: the least sets of one step are more than can be tried."""
    tried = 0
    after = choice._EvictionWalk._after

    def counted(*arguments: Any) -> Any:
        nonlocal tried
        tried += 1
        return after(*arguments)

    monkeypatch.setattr(choice, "_SETS", 500)
    monkeypatch.setattr(choice._EvictionWalk, "_after", counted)
    gaps = tuple(Gap(0, 2 + number % 3, 7 + number % 5, 9 - number % 4) for number in range(40))
    problem = MovementProblem((180, 170, 160, 90, 40), gaps)
    everything = Eviction(frozenset(range(40)), problem.cost(range(40)), exact=False)
    found = proved_evictions(problem, everything)
    assert fits(problem, found.evicted) and not found.exact and found.cost < everything.cost
    assert 500 < tried <= 500 + 4 * 5 * 4_000


def test_the_tensor_that_is_used_last_leaves() -> None:
    """Belady's rule, for tensors of one size that are not written back."""
    problem = MovementProblem((2, 2, 1, 2, 2), (Gap(0, 2, 1, 1), Gap(1, 4, 1, 1), Gap(3, 4, 1, 1)))
    assert choose_evictions(problem).evicted == {1} or choose_evictions(problem).evicted == {0}
    problem = MovementProblem((2, 2, 1, 1, 1), (Gap(0, 2, 1, 1), Gap(1, 4, 1, 1), Gap(3, 4, 1, 1)))
    assert choose_evictions(problem).evicted == {1}


def test_a_tensor_in_the_slow_memory_is_not_written_again() -> None:
    """Of two tensors of one size, the one that has a copy there leaves; and one copy is enough for two gaps."""
    problem = MovementProblem((10, 0, 10), (Gap(0, 2, 5, 5, 0), Gap(0, 2, 5, 5)), (5,))
    assert choose_evictions(MovementProblem((10, 5, 10), problem.gaps, (5,))).evicted == {1}
    both = MovementProblem((0, 9, 0), (Gap(0, 0, 5, 5, 0), Gap(2, 2, 5, 5, 0)), (5,))
    assert choose_evictions(both).cost == 15


def at(start: int, end: int, *, write: bool) -> ByteAccess:
    return ByteAccess("fast", start, end, write)


def test_a_copy_runs_beside_a_kernel_that_touches_other_bytes() -> None:
    kernel = TimedStep(None, 4, (at(0, 8, write=True),))
    apart = TimedStep(6, 0, (at(8, 14, write=True),))
    over = TimedStep(6, 0, (at(4, 10, write=True),))
    speeds = Speeds(bandwidth=2, macs_per_second=1)
    assert transfer_time([kernel, apart], speeds) == TransferTime(2, 3.0, 1, 4.0, 7.0, 4.0, (0.0, 0.0), (4.0, 3.0))
    assert transfer_time([kernel, over], speeds) == TransferTime(2, 3.0, 1, 4.0, 7.0, 7.0, (0.0, 4.0), (4.0, 7.0))
    reader = TimedStep(None, 1, (at(8, 14, write=False),))
    assert transfer_time([kernel, apart, reader], speeds).with_overlap == 5.0
    assert transfer_time([apart, reader, kernel], speeds).with_overlap == 8.0


@pytest.mark.parametrize("speeds", [Speeds(2), Speeds(2, 8)])
def test_only_times_that_follow_from_what_is_given(speeds: Speeds) -> None:
    found = transfer_time([TimedStep(6, 0, ()), TimedStep(None, 8, ())], speeds, knows_macs=False)
    assert (found.copying, found.computing, found.without_overlap, found.with_overlap) == (3.0, None, None, None)


# The bytes moved and their bounds, beside the fewest bytes that any plan of a small graph moves.


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
    model = build.model(nodes, inputs, outputs, constants, opset=20)
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


@draws(15)
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

    @draws(100, database=None)
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
