"""Results of regions that are handed over in pieces: their costs are those of the operations written, and the model stays the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxtile
from onnxtile.fitting.live_bytes import live_bytes
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget, PathSearch, PiecesSearch, RegionCuts, search
from onnxtile.fitting.strips import Cut, FitSchedule, PiecesOfTensors, Prices, RegionCost, overlapped, row_pieces
from onnxtile.system.progress import silent
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject
from onnxtile.verbs.flows.fit_drafts import FitSubject, written
from onnxtile.verification.rounding import judge
from tests.fitting.networks import copied_bytes, inverted_residuals, model


def wide_chain(rows: int = 32) -> onnx.ModelProto:
    """Return two windowed convolutions of many channels between strided ones: their operand and result are as large as all else."""
    return model(
        f"""
g (float[1,2,{2 * rows},16] x) => (float[1,4,1,1] y) {{
    [stem] a = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(x, w0)
    [relu] b = Relu(a)
    [narrow] c = Conv(b, w1)
    [wide] d = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(c, w2)
    [skip] e = Add(b, d)
    [last] f = Conv<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>(e, w3)
    [pool] y = GlobalAveragePool(f)
}}""",
        w0=(16, 2, 3, 3),
        w1=(4, 16, 1, 1),
        w2=(16, 4, 3, 3),
        w3=(4, 16, 3, 3),
    )


def low_chain() -> onnx.ModelProto:
    """Return convolutions of so few rows that the rows kept by all of them are more than a whole tensor."""
    names = ["x", *(f"a{n}" for n in range(1, 9))]
    layers = "\n".join(
        f"[conv{n}] {after} = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>({before}, {'first' if not n else 'w'})"
        for n, (before, after) in enumerate(pairwise(names))
    )
    layers += f"[last] z = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>({names[-1]}, w)"
    return model(
        f"g (float[1,1,8,16] x) => (float[1,8,1,1] y) {{ {layers} [pool] y = GlobalAveragePool(z) }}",
        first=(8, 1, 3, 3),
        w=(8, 8, 3, 3),
    )


def subject_of(made: onnx.ModelProto) -> FitSubject:
    return read_subject(FitOptions(made, smallest=True))


def schedule(regions: Regions, stops: tuple[int, ...], cuts: tuple[Cut, ...], *, in_pieces: bool = True) -> FitSchedule:
    """Return regions that end at `stops`, cut so, of which all results that can be are handed over in pieces."""
    search_of = PiecesSearch(RegionCuts(regions, 1 << 40, recomputes=True), Prices())
    found: list[RegionCost] = []
    handed: PiecesOfTensors = ()
    start = 0
    for stop, cut in zip(stops, cuts, strict=True):
        parted = search_of.choices(start, stop)[-1] if in_pieces else frozenset[int]()
        one = regions.cost(start, stop, replace(cut, given=handed, parted=parted))
        assert one is not None
        handed = search_of.left(one)
        found.append(one)
        start = stop
    return FitSchedule((*found, *regions.whole[start:]))


def counted(regions: Regions, one: RegionCost) -> tuple[int, int, int, int]:
    """Return the peak, nodes, copied bytes and multiply-accumulates of all operations of a region, without tensors beside it."""
    region, trace = regions.cut(one), regions.trace(one)
    last = regions.network.last_reads
    pieces = {tensor: [p for p in trace.pieces[tensor]] for tensor, _ in one.cut.given}
    read = {patch for op in trace.ops for patch in op.reads}
    lasting = [p for tensor, patches in pieces.items() if last[tensor] >= one.stop for p in patches]
    made = [p for tensor, patches in trace.pieces.items() if tensor not in pieces for p in patches]
    start = [p for patches in pieces.values() for p in patches if p in read or p in lasting]
    dying = {
        tensor
        for kernel in regions.network.kernels[one.start : one.stop]
        for tensor in kernel.reads
        if last[tensor] < one.stop and tensor not in pieces
    }
    live = live_bytes(trace, region.kernels, region.tensors, dying, start, [*lasting, *made])
    return live.peak, len(trace.ops), copied_bytes(trace, live), trace.macs


@pytest.mark.parametrize("first", [1, 2, 4, 5, 8, 16])
@pytest.mark.parametrize("second", [1, 2, 3, 7, 16])
@pytest.mark.parametrize(("chunks", "again"), [((), False), (((6, 4),), False), ((), True)])
def test_costs_of_pieces_counted_by_kinds_of_strips_are_those_of_all_strips(
    first: int, second: int, chunks: tuple[tuple[int, int], ...], again: bool
) -> None:
    regions = subject_of(inverted_residuals(65)).regions
    recomputed = regions.wide(6, 12) if again else frozenset[int]()
    cuts = (Cut(first), Cut(second, chunks=chunks, recomputed=recomputed))
    found = schedule(regions, (6, 12), cuts)
    before, after = found.regions[:2]
    assert before.cut.parted and after.cut.given
    for one in (before, after):
        assert (one.peak, one.nodes, one.copied, one.macs) == counted(regions, one)


@given(
    rows=st.integers(9, 40),
    steps=st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(1, 12)),
    stops=st.sampled_from([(2, 5, 6), (2, 4, 6), (3, 5, 6), (1, 3, 6)]),
)
@settings(deadline=None, max_examples=25)
def test_any_strips_of_any_pieces_compute_the_same_at_the_counted_peak(
    rows: int, steps: tuple[int, int, int], stops: tuple[int, int, int]
) -> None:
    subject = subject_of(wide_chain(rows))
    found = schedule(subject.regions, stops, tuple(Cut(step) for step in steps))
    cut = written(subject, found)
    assert judge(subject.original, cut.model, silent).equal
    assert cut.peak == found.peak
    for one in found.regions[:3]:
        assert (one.nodes, one.copied, one.macs) == counted(subject.regions, one)[1:]


def test_operands_in_pieces_die_while_the_results_are_made() -> None:
    subject = subject_of(wide_chain())
    cuts = (Cut(4), Cut(2))
    joined, parted = (schedule(subject.regions, (2, 5), cuts, in_pieces=one) for one in (False, True))
    assert parted.peak < joined.peak
    assert parted.macs == joined.macs and parted.regions[0].copied < joined.regions[0].copied


def test_the_search_hands_over_pieces_where_whole_tensors_do_not_fit() -> None:
    regions = subject_of(low_chain()).regions
    target = FitTarget(None, 0.0)
    least = search(regions, target)
    assert any(one.cut.parted for one in least.regions)
    assert PathSearch(RegionCuts(regions, least.peak, recomputes=False), Prices(1e6)).schedule() is None
    found = search(regions, replace(target, capacity=least.peak))
    assert found.peak <= least.peak and found.macs <= regions.network.macs


def test_where_whole_tensors_fit_none_is_handed_over_in_pieces() -> None:
    regions = subject_of(wide_chain()).regions
    peak = schedule(regions, (5,), (Cut(4),), in_pieces=False).peak
    assert not any(one.cut.parted for one in search(regions, FitTarget(peak, 0.0)).regions)


def test_a_region_says_how_it_hands_over_its_result() -> None:
    fitted = onnxtile.fit(low_chain(), smallest=True, max_extra_macs="0%", exact=True)
    handed = [step.hand_over for step in fitted.steps if step.strips > 1]
    assert "pieces" in handed
    assert "handed over in pieces" in next(step.text for step in fitted.steps if step.hand_over == "pieces")
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    whole = onnxtile.fit(inverted_residuals(), capacity="14KiB", exact=True)
    assert {step.hand_over for step in whole.steps} == {"join"}


def test_pieces_that_hold_rows_are_found_by_their_ends() -> None:
    pieces = row_pieces((3, 5, 9))
    assert pieces == [(0, 3), (3, 5), (5, 9)]
    for first in range(9):
        for stop in range(first + 1, 10):
            held = [n for n, (start, end) in enumerate(pieces) if start < stop and first < end]
            assert list(overlapped(pieces, (first, stop))) == held
    assert list(overlapped(pieces, None)) == []
