"""Nodes with very many operands: the aliases of one take work in proportion to their number, for the planner and for the check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import onnx_ir as ir
import pytest

from onnxtile.check.sharing import SharedStates, links
from onnxtile.kernels.aliases import overwrites
from tests.bench.large_graphs import wide
from tests.counted import calls
from tests.planning.conftest import Case


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
