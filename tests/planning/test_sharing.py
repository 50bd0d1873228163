"""Tensors that share bytes, on plain graphs: what each kernel reads is there, and nothing that is read later is overwritten."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxtile.kernels.kernel_graph import KernelGraph
from onnxtile.kernels.liveness import live_ranges
from onnxtile.planning.layout import Layout, layouts
from onnxtile.planning.ordering.order_search import OrderSearch
from onnxtile.planning.schedule import find_order
from onnxtile.planning.sharing import AliasSets
from tests.kernels.plain import Memory, kernel_graphs

ALL_RULES = frozenset({"view", "in place", "cut", "join"})
RULES = [frozenset(some) for count in range(5) for some in combinations(sorted(ALL_RULES), count)]


def laid_out(graph: KernelGraph, order: str, alignment: int, rules: frozenset[str]) -> list[Layout]:
    return list(layouts(OrderSearch(graph.sharing_by(rules), alignment), find_order(order), 1))


def places(layout: Layout) -> dict[int, tuple[int, int]]:
    """Return the owner of the buffer of each tensor, and its start there."""
    of = layout.sharing.alias_sets.of
    return {tensor: (alias_set.owner, alias_set.start(tensor)) for tensor, alias_set in of.items()}


@pytest.mark.parametrize("order", ["model", "min-peak", "any"])
@settings(deadline=None, max_examples=150)
@given(graph=kernel_graphs(), alignment=st.sampled_from([4, 16]), rules=st.sampled_from(RULES))
def test_no_kernel_reads_what_another_has_overwritten(
    graph: KernelGraph, order: str, alignment: int, rules: frozenset[str]
) -> None:
    for layout in laid_out(graph, order, alignment, rules):
        Memory(layout.graph, places(layout)).run(layout.schedule)


@settings(deadline=None, max_examples=60)
@given(graph=kernel_graphs(), alignment=st.sampled_from([4, 16]))
def test_sharing_never_raises_the_peak(graph: KernelGraph, alignment: int) -> None:
    few = laid_out(graph, "model", alignment, frozenset())[0]
    most = laid_out(graph, "model", alignment, ALL_RULES)[0]
    assert most.problem.peak[0] <= few.problem.peak[0]
    assert few.live_ranges == live_ranges(graph, graph.own_order)


@settings(deadline=None, max_examples=60)
@given(graph=kernel_graphs(), order=st.sampled_from(["model", "any"]))
def test_few_questions_give_the_answer_of_all(graph: KernelGraph, order: str) -> None:
    few = laid_out(graph, order, 4, ALL_RULES)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AliasSets, "_front_behind", lambda *_: None)
        every = laid_out(graph, order, 4, ALL_RULES)[0]
    assert (places(few), few.sharing.shares) == (places(every), every.sharing.shares)
