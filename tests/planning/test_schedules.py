"""Orders of real and small graphs: what they cost, and that plans in them are sound."""

import pytest

from onnxtile.kernels.kernel_graph import Schedule
from onnxtile.planning.orders import in_streams, orders
from onnxtile.system.errors import UsageError
from tests.build import Find
from tests.planning.conftest import Case, aliases, rows
from tests.planning.test_arena_run import SOUND

BRANCHES = """
branches (float[4,4] x) => (float[16,4] y) {
  a = Relu(x)
  wide = Concat<axis = 0>(a, a, a, a)
  other = Concat<axis = 1>(a, a, a, a)
  narrow = MatMul(a, a)
  first = MatMul(wide, narrow)
  second = MatMul(narrow, other)
  third = Transpose(second)
  y = Add(first, third)
}
"""

PARALLEL = """
parallel (float[4,4] x) => (float[4,4] y) {
  a = Relu(x)
  b = Exp(a)
  c = Neg(a)
  y = Add(b, c)
}
"""


@pytest.mark.parametrize("order", orders())
@pytest.mark.parametrize("text", SOUND.values(), ids=SOUND)
def test_every_order_gives_the_same_bits(text: str, order: str) -> None:
    case = Case.of(text)
    result = case.plan(order=order)
    assert sorted(result.schedule) == sorted(case.graph().ids(case.graph().own_order))
    assert case.run(result).equal


@pytest.mark.parametrize("text", [BRANCHES, *SOUND.values()], ids=["branches", *SOUND])
def test_the_least_peak_is_never_above_that_of_the_models_own_order(text: str) -> None:
    case = Case.of(text)
    for streams in (1, 2):
        assert case.plan(order="min-peak", streams=streams).peak <= case.plan(streams=streams).peak


@pytest.mark.parametrize(
    ("name", "own", "least"), [("shufflenet", 3_110_912, 2_885_120), ("squeezenet", 3_928_576, 3_928_576)]
)
def test_the_least_peak_of_real_models(name: str, own: int, least: int, light: Find) -> None:
    case = Case.of(light(name))
    assert case.plan(planner="best").arena_size == own
    result = case.plan(planner="best", order="min-peak")
    assert (result.arena_size, result.optimal) == (least, True)
    assert case.run(result, runs=1).equal


@pytest.mark.parametrize("streams", [1, 2, 3, 8])
def test_nodes_of_one_step_do_not_depend_on_each_other(streams: int, light: Find) -> None:
    graph = Case.of(light("inception_v1")).graph()
    schedule = in_streams(graph.after, graph.own_order, streams)
    steps = schedule.steps
    assert sorted(schedule.order) == list(range(len(graph.kernels)))
    assert all(steps[before] < step for kernel, step in steps.items() for before in graph.after[kernel])
    together = [sum(step == other for other in steps.values()) for step in range(schedule.end)]
    assert max(together) <= streams
    assert (streams == 1) == (schedule.end == len(schedule.order))


def test_one_stream_is_the_order_itself() -> None:
    own = Schedule((0, 1, 2))
    assert in_streams([(), (0,), (0,)], own, 1) == own
    assert in_streams([(), (0,), (0,)], own, 2) == Schedule((0, 1, 2), (0, 1, 1))


def test_lives_count_the_steps_of_streams() -> None:
    result = Case.of(PARALLEL).plan(streams=2)
    assert (result.schedule, result.steps) == (("a", "b", "c", "y"), (0, 1, 1, 2))
    assert {name: (b.first, b.last) for name, b in rows(result).items() if b.alias is None}["a"] == (0, 1)
    assert rows(result)["y"].last == 2


def test_what_another_node_of_the_step_reads_is_not_written_over() -> None:
    case = Case.of(PARALLEL)
    assert "a" in aliases(case.plan()).values()
    assert {rows(case.plan(streams=2))[name].offset for name in "abc"} == {0, 64, 128}


def test_streams_of_a_real_model_run(light: Find) -> None:
    case = Case.of(light("inception_v1"))
    result = case.plan(streams=4)
    assert max(result.steps) < len(result.steps) - 1
    assert result.peak >= case.plan().peak
    assert case.run(result, runs=2).equal


def test_no_streams_and_unknown_orders_are_refused() -> None:
    case = Case.of(PARALLEL)
    with pytest.raises(UsageError, match="at least 1, not 0"):
        case.plan(streams=0)
    with pytest.raises(UsageError, match="unknown order 'min-peek'") as raised:
        case.plan(order="min-peek")
    assert raised.value.hint == "did you mean 'min-peak'?"


def test_the_same_order_every_time(light: Find) -> None:
    first, second = (Case.of(light("shufflenet")).plan(order="min-peak") for _ in range(2))
    assert first == second
