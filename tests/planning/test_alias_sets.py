"""Alias sets of many tensors: merged with few comparisons, and with the result of comparing every pair."""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from types import FrameType
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.check.audit import require
from onnxtile.check.sharing import SharedStates, links
from onnxtile.kernels.aliases import overwrites
from onnxtile.kernels.kernel_graph import InSteps, KernelGraph, Share, live_ranges
from onnxtile.model.constants import Constants
from onnxtile.planning.layout import Layout, layouts
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.order_search import OrderSearch
from onnxtile.planning.orders import find_order
from onnxtile.planning.sharing import AliasSets, Contents
from onnxtile.shapes.resolve import resolve
from tests.bench.large_graphs import wide
from tests.counted import calls
from tests.draws import draws
from tests.kernels.plain import Memory, kernel_graphs
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


# Nodes with very many operands: the aliases of one take work in proportion to their number, for the planner and for the check.


def _found(case: Case, node: ir.Node) -> Iterator[object]:
    return overwrites(node, case.facts)


def _checked(case: Case, node: ir.Node) -> Iterator[object]:
    same = case.checked.graph.nodes[list(case.model.graph).index(node)]
    return links(same, SharedStates())


def _listed(ways: Callable[[Case, ir.Node], Iterator[object]], case: Case, node: ir.Node) -> list[object]:
    return list(ways(case, node))


@pytest.mark.parametrize("ways", [_found, _checked], ids=["planner", "check"])
def test_aliases_of_a_node_take_a_few_calls_for_each_operand(ways: Callable[[Case, ir.Node], Iterator[object]]) -> None:
    totals = []
    for size in (100, 200):
        case = Case.of(wide(3 * size))
        joined = next(node for node in case.model.graph if node.op_type == "Sum")
        assert len(joined.inputs) == len(list(ways(case, joined))) >= size - 1
        totals.append(calls(partial(_listed, ways, case, joined)))
    assert totals[1] < 2.2 * totals[0]


# Tensors that share bytes, on plain graphs: what each kernel reads is there, and nothing that is read later is overwritten.


ALL_RULES = frozenset({"view", "in place", "cut", "join"})
RULES = [frozenset(some) for count in range(5) for some in combinations(sorted(ALL_RULES), count)]


def laid_out(graph: KernelGraph, order: str, alignment: int, rules: frozenset[str]) -> list[Layout]:
    return list(layouts(OrderSearch(graph.sharing_by(rules), alignment), find_order(order), 1))


def places(layout: Layout) -> dict[int, tuple[int, int]]:
    """Return the owner of the buffer of each tensor, and its start there."""
    of = layout.sharing.alias_sets.of
    return {tensor: (alias_set.owner, alias_set.start(tensor)) for tensor, alias_set in of.items()}


@pytest.mark.parametrize("order", ["model", "min-peak", "any"])
@draws(40, 160)
@given(graph=kernel_graphs(), alignment=st.sampled_from([4, 16]), rules=st.sampled_from(RULES))
def test_no_kernel_reads_what_another_has_overwritten(
    graph: KernelGraph, order: str, alignment: int, rules: frozenset[str]
) -> None:
    for layout in laid_out(graph, order, alignment, rules):
        Memory(layout.graph, places(layout)).run(layout.schedule)


@draws(30, 120)
@given(graph=kernel_graphs(), alignment=st.sampled_from([4, 16]))
def test_sharing_never_raises_the_peak(graph: KernelGraph, alignment: int) -> None:
    few = laid_out(graph, "model", alignment, frozenset())[0]
    most = laid_out(graph, "model", alignment, ALL_RULES)[0]
    assert most.problem.peak[0] <= few.problem.peak[0]
    assert few.live_ranges == live_ranges(graph, graph.own_order)


@draws(30, 120)
@given(graph=kernel_graphs(), order=st.sampled_from(["model", "any"]))
def test_few_questions_give_the_answer_of_all(graph: KernelGraph, order: str) -> None:
    few = laid_out(graph, order, 4, ALL_RULES)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AliasSets, "_front_behind", lambda *_: None)
        every = laid_out(graph, order, 4, ALL_RULES)[0]
    assert (places(few), few.sharing.shares) == (places(every), every.sharing.shares)
