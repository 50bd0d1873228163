"""Live ranges of plain graphs: held against counting them step by step."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onnxtile.kernels.kernel_graph import (
    InSteps,
    KernelGraph,
    LiveChange,
    LivePart,
    LiveSums,
    live_parts,
    live_ranges,
    live_sums,
)
from tests.draws import draws
from tests.kernels.plain import PlainGraph, kernel_graphs


def is_live(graph: KernelGraph, tensor: int, byte: int, step: int) -> bool:
    """Return whether the byte is there in the step, and is read in it or later, or outlives the run."""
    first = 0 if tensor in graph.given else graph.makers[tensor]
    reads = (read for kernel in graph.kernels[step:] for read in kernel.reads if read.tensor == tensor)
    later = any(read.spans is None or any(low <= byte < high for low, high in read.spans) for read in reads)
    return step >= first and (later or tensor in graph.kept or step == first)


@draws(80)
@given(kernel_graphs())
def test_a_tensor_lives_from_its_kernel_to_its_last_reader(graph: KernelGraph) -> None:
    found = live_ranges(graph, graph.own_order)
    assert found.keys() == {*graph.given, *(tensor for kernel in graph.kernels for tensor in kernel.makes)}
    for tensor, (first, end) in found.items():
        size = graph.tensors[tensor].bytes or 0
        for step in range(len(graph.kernels)):
            lives = any(is_live(graph, tensor, byte, step) for byte in range(size))
            # A reader of none of its bytes is one, too.
            read = any(tensor == read.tensor for kernel in graph.kernels[step:] for read in kernel.reads)
            assert (first <= step < end) == (lives or (read and step >= first))


@draws(80)
@given(kernel_graphs())
def test_bytes_that_die_early_are_those_that_no_kernel_reads_later(graph: KernelGraph) -> None:
    ranges = live_ranges(graph, graph.own_order)
    for tensor, parts in live_parts(graph, graph.own_order, ranges).items():
        assert tensor not in graph.kept and len(parts) > 1
        for byte in range(graph.tensors[tensor].bytes or 0):
            steps = {step for part in parts if part.start <= byte < part.end for step in range(part.lower, part.upper)}
            assert steps == {step for step in range(len(graph.kernels)) if is_live(graph, tensor, byte, step)}


def test_two_halves_die_one_after_the_other() -> None:
    made = PlainGraph()
    x = made.tensor(8)
    a = made.compute([x], 8, over=False)
    made.cut(a, [0], [4])
    made.cut(a, [4], [4])
    graph = made.graph(1, inside=False)
    ranges = live_ranges(graph, graph.own_order)
    assert ranges[a] == (0, 3)
    assert live_parts(graph, graph.own_order, ranges) == {a: (LivePart(0, 4, 0, 2), LivePart(4, 8, 0, 3))}


@draws(40)
@given(kernel_graphs())
def test_precedence_is_that_of_live_ranges(graph: KernelGraph) -> None:
    ranges = live_ranges(graph, graph.own_order)
    order = InSteps(graph, graph.own_order, ranges)
    for one, (first, end) in ranges.items():
        for other, (start, _) in ranges.items():
            assert order.before(one, other) == (end <= start)
            assert order.made_before(one, other) == (first < start)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 6), st.integers(1, 3)), max_size=8))
def test_live_bytes_are_summed_in_both_ways(rows: list[tuple[int, int, int]]) -> None:
    changes = [LiveChange(size, lower, lower + length) for size, lower, length in rows]
    sums = LiveSums(9)
    sums.add(changes)
    size, lower, upper = np.array(changes, np.int64).reshape(-1, 3).T
    expected = [sum(one.bytes for one in changes if one.lower <= step < one.upper) for step in range(9)]
    assert live_sums(lower, upper, size, 9).tolist() == sums.in_steps[:9].tolist() == expected
    sums.add(changes[:1], -1)
    sums.add(changes[:1])
    assert sums.in_steps[:9].tolist() == expected
