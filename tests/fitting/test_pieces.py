"""Regions in pieces and in chunks of channels, with joins and bodies: costs are those of what is written, and the model stays the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

import onnxtile
from onnxtile.fitting import regions as regions_module
from onnxtile.fitting.live_bytes import CutCost, CutRows, Overload, cut_cost, live_bytes
from onnxtile.fitting.read_network import read_network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget, PathSearch, PiecesSearch, RegionCuts
from onnxtile.fitting.strips import (
    ChunkedKernels,
    Cut,
    FitSchedule,
    PiecesOfTensors,
    Prices,
    RegionCost,
    overlapped,
    row_pieces,
)
from onnxtile.kernels import aliases
from onnxtile.model.constants import Constants
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.long_work import silent
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import read_subject
from onnxtile.verbs.flows.fit_drafts import FitSubject, WrittenSchedule
from onnxtile.verification.rounding import judge
from tests.draws import draws
from tests.fitting.networks import copied_bytes, inverted_residuals, model, search, written_peak

# Results of regions that are handed over in pieces: their costs are those of the operations written, and the model
# stays the same.


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
    return read_subject(FitOptions(made, capacity="smallest"))


def test_strips_are_counted_once_whatever_is_handed_over_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Cut] = []

    def noted(
        kernels: ChunkedKernels, rows: CutRows, results: Sequence[int], cut: Cut, *others: Any
    ) -> CutCost | Overload:
        counted.append(cut)
        return cut_cost(kernels, rows, results, cut, *others)

    monkeypatch.setattr(regions_module, "cut_cost", noted)
    subject = subject_of(wide_chain())
    known, fresh = (Regions(subject.regions.network) for _ in range(2))
    stop = next(kernel for kernel, about in enumerate(known.network.kernels, start=1) if about.name == "wide")
    whole = Cut(step=8)
    parted = replace(whole, parted=frozenset(known.results(0, stop)))
    joined, pieces = (known.cost(0, stop, cut) for cut in (whole, parted))
    assert len(counted) == 1
    assert joined is not None and pieces is not None
    assert pieces.copied < joined.copied
    assert pieces == fresh.cost(0, stop, parted)
    assert len(counted) == 2


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


@pytest.mark.parametrize("first", [1, 4, 5, 16])
@pytest.mark.parametrize("second", [1, 3, 16])
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
@draws(12, 50)
def test_any_strips_of_any_pieces_compute_the_same_at_the_counted_peak(
    rows: int, steps: tuple[int, int, int], stops: tuple[int, int, int]
) -> None:
    subject = subject_of(wide_chain(rows))
    found = schedule(subject.regions, stops, tuple(Cut(step) for step in steps))
    cut = WrittenSchedule(subject, found)
    assert judge(subject.original, cut.written.model, silent).equal
    # The plan lets rows of a few planes die before their tensor does; the count has whole tensors.
    assert written_peak(cut) <= found.peak
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aliases, "MOST_RUNS", 1)
        assert written_peak(WrittenSchedule(subject, found)) == found.peak
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
    fitted = onnxtile.fit(low_chain(), capacity=7000, budget="0%", tolerance="exact")
    handed = [step.hand_over for step in fitted.steps if step.strips > 1]
    assert "pieces" in handed
    assert "handed over in pieces" in next(step.text for step in fitted.steps if step.hand_over == "pieces")
    assert fitted.arena_verdict is not None and fitted.arena_verdict.equal
    whole = onnxtile.fit(inverted_residuals(17), capacity=10_500, tolerance="exact", verify=False)
    assert {step.hand_over for step in whole.steps} == {"join"}


def test_pieces_that_hold_rows_are_found_by_their_ends() -> None:
    pieces = row_pieces((3, 5, 9))
    assert pieces == [(0, 3), (3, 5), (5, 9)]
    for first in range(9):
        for stop in range(first + 1, 10):
            held = [n for n, (start, end) in enumerate(pieces) if start < stop and first < end]
            assert list(overlapped(pieces, (first, stop))) == held
    assert list(overlapped(pieces, None)) == []


# Hidden channels in chunks: partial sums and joins give what the whole gives, with no product twice.


HIDDEN: dict[str, tuple[str, str, dict[str, tuple[int, ...]]]] = {
    "expand and reduce": (
        "float[1,4,6,6]",
        "[e] h = Conv(x, w0, b0) [r] i = Relu(h) [d] j = Conv<group=48, pads=[1,1,1,1]>(i, w1, b0) [p] y = Conv(j, w2, b2)",
        {"w0": (48, 4, 1, 1), "b0": (48,), "w1": (48, 1, 3, 3), "w2": (4, 48, 1, 1), "b2": (4,)},
    ),
    "two readers of one tensor": (
        "float[1,4,6,6]",
        "[e] h = Conv(x, w0) [s] i = Sigmoid(h) [m] j = Mul(h, i) [p] y = Conv(j, w2)",
        {"w0": (48, 4, 1, 1), "w2": (4, 48, 1, 1)},
    ),
    "products of matrices": (
        "float[7,8]",
        "[e] h = MatMul(x, w0) [a] i = Add(h, b0) [r] j = Relu(i) [p] k = MatMul(j, w2) [b] y = Add(k, b2)",
        {"w0": (8, 64), "b0": (64,), "w2": (64, 8), "b2": (8,)},
    ),
    "Gemm, turned": (
        "float[7,8]",
        "[e] h = Gemm<transB=1>(x, w0, b0) [r] j = Relu(h) [p] y = Gemm<transB=1, beta=0.5>(j, w2, b2)",
        {"w0": (64, 8), "b0": (64,), "w2": (8, 64), "b2": (8,)},
    ),
    "products whose columns are hidden": (
        "float[1,3,6,8]",
        "[e] h = MatMul(x, w0) [a] i = Add(h, b0) [r] j = Relu(i) [p] y = MatMul(j, w2)",
        {"w0": (8, 64), "b0": (64,), "w2": (64, 8)},
    ),
    "joined behind a pooling": (
        "float[1,4,6,6]",
        "[e] h = Conv(x, w0, b0) [r] i = Relu(h) [g] y = GlobalAveragePool(i)",
        {"w0": (48, 4, 1, 1), "b0": (48,)},
    ),
}


def hidden(name: str) -> onnx.ModelProto:
    """Return the model of a case."""
    given, text, weights = HIDDEN[name]
    rank = given.count(",") + 1
    result = ",".join("abcd"[:rank])
    return model(f"g ({given} x) => (float[{result}] y) {{ {text} }}", **weights)


@pytest.mark.parametrize(("name", "share"), zip(HIDDEN, (2, 2, 3, 3, 2, 2), strict=True))
def test_hidden_channels_in_chunks(name: str, share: int) -> None:
    """The outputs are compared by fit itself; the arena is at most half, and no product is computed twice."""
    whole = onnxtile.plan(hidden(name), verify=False).plan.arena_size
    fitted = onnxtile.fit(hidden(name), capacity=whole // share, budget="0%")
    assert any(step.chunks > 1 for step in fitted.steps)
    assert fitted.after.arena * 2 <= fitted.before.arena
    assert fitted.after.macs <= fitted.before.macs
    assert fitted.verdict is not None and fitted.verdict.equal


def test_exact_adds_nothing_up_in_another_order() -> None:
    fitted = onnxtile.fit(hidden("expand and reduce"), capacity="smallest", tolerance="exact")
    assert all(step.chunks == 1 for step in fitted.steps)


def test_a_hidden_result_that_nobody_reads_is_computed_in_chunks_too() -> None:
    text = "[e] h = Conv(x, w0) [d] dead = Sigmoid(h) [r] i = Relu(h) [p] y = Conv(i, w2)"
    source = model(f"g (float[1,4,6,6] x) => (float[a,b,c,d] y) {{ {text} }}", w0=(48, 4, 1, 1), w2=(4, 48, 1, 1))
    fitted = onnxtile.fit(source, capacity="smallest")
    assert fitted.after.arena < fitted.before.arena
    assert fitted.verdict is not None and fitted.verdict.equal


# Splits, slices and joins of consecutive bytes take none of their own, and flattened pixels stay the rows.


def network(text: str, **numbers: list[int]) -> Regions:
    """Return the regions of a small network with constants of whole numbers, checked to have the peak that the plan has."""
    made = model(text, **numbers)
    read = load(made)
    about = Regions(read_network(read, resolve(read), Constants(read)))
    planned = onnxtile.plan(made, order="model", verify=False).plan
    assert max(one.peak for one in about.whole) == planned.peak
    return about


HEAD = "[a] a = Exp(x)\n"


@pytest.mark.parametrize(
    ("cut", "peak"),
    [
        ("[cut] b, c = Split<axis=1>(a, sizes)\n [d] d = Relu(c)\n", 32 * 256),
        ("[cut] b, c = Split<axis=1>(a, sizes)\n [d] d = Relu(c)\n [e] e = Neg(a)\n [f] f = ReduceMax(e)\n", 32 * 256),
        ("[cut] b, c = Split<axis=2>(a, halves)\n [d] d = Relu(c)\n", 64 * 256),
    ],
)
def test_parts_of_consecutive_bytes_are_those_of_their_operand(cut: str, peak: int) -> None:
    text = "g (float[1,32,8,8] x) => (float b2, float d2) {\n" + HEAD + cut
    text += "[b2] b2 = ReduceMax(b)\n [d2] d2 = ReduceMin(d)\n" + ("[g] g = Add(f, b2)\n" if "[f]" in cut else "") + "}"
    about = network(text.replace("=> (", "=> (float g, ") if "[f]" in cut else text, sizes=[8, 24], halves=[4, 4])
    place = next(n for n, kernel in enumerate(about.network.kernels) if kernel.name == "cut")
    assert about.whole[place].peak == peak


def test_a_slice_of_an_operand_that_ends_lets_the_rest_end() -> None:
    text = """
g (float[1,32,8,8] x) => (float y) {
    [a] a = Exp(x)
    [cut] b = Slice(a, first, last, axis)
    [c] c = Relu(b)
    [y] y = ReduceMax(c)
}"""
    about = network(text, first=[8], last=[32], axis=[1])
    assert [one.peak for one in about.whole[:3]] == [32 * 256, 32 * 256, 24 * 256]


def test_pixels_that_are_flattened_stay_the_rows() -> None:
    text = """
g (float[1,4,8,8] x) => (float[1,16,96] y) {
    [a] a = Conv(x, w)
    [b] b = MaxPool<kernel_shape=[2,2], strides=[2,2]>(a)
    [c] c = Reshape(a, s1)
    [d] d = Reshape(b, s2)
    [e] e = Concat<axis=2>(c, d, d)
    [f] f, h = Split<axis=1>(e, sizes)
    [i] i = Sigmoid(f)
    [y] y = Concat<axis=1>(i, h)
}"""
    made = model(text, w=(16, 4, 1, 1), s1=[1, 16, 64], s2=[1, 16, 16], sizes=[4, 12])
    onnx.checker.check_model(made, full_check=True)
    read = load(made)
    found = read_network(read, resolve(read), Constants(read))
    assert all(one.axis == 2 for one in found.tensors if len(one.dims) == 3)
    assert [kernel.name for kernel in found.kernels if kernel.links is None] == ["e"]


def test_a_slice_to_the_largest_whole_number_is_cut_into_strips() -> None:
    text = """
g (float[1,4,32,32] x) => (float[1,4,32,32] y) {
    [wide] a = Conv(x, w0)
    [cut] b = Slice(a, first, last, axis)
    [y] y = Conv(b, w1)
}"""
    made = model(text, w0=(32, 4, 1, 1), w1=(4, 24, 1, 1), first=[8], last=[np.iinfo(np.int64).max], axis=[1])
    fitted = onnxtile.fit(made, capacity="80KiB", tolerance="exact")
    assert fitted.before.arena >= 128 * 1024
    assert fitted.after.arena <= 80 * 1024


# Regions that hold a node with bodies: these read values of the region.


NETWORK = """<ir_version: 10, opset_import: ["": 17]>
  g (float[1, 4, 16, 16] x, bool c) => (float[1, 4, 16, 16] y) <float[16, 4, 1, 1] w = {1}, float[4, 16, 1, 1] v = {1}> {
    a = Conv(x, w)  b = Relu(a)  d = Conv(b, v)  e = Sigmoid(d)
    f = If (c) <then_branch = t () => (float[1, 4, 16, 16] p) { q = Abs(e)  p = Add(q, d) },
                else_branch = n () => (float[1, 4, 16, 16] r) { r = Neg(d) }>
    h = Conv(f, w)  i = Relu(h)  y = Conv(i, v)
  }"""


def _network() -> onnx.ModelProto:
    model = onnx.parser.parse_model(NETWORK)
    generator = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        array = generator.standard_normal(tuple(tensor.dims)).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def test_bodies_read_the_values_of_their_region() -> None:
    model = _network()
    arena = onnxtile.plan(model, verify=False).plan.arena_size
    fitted = onnxtile.fit(model, capacity=int(arena * 0.9))
    assert fitted.verdict is not None and fitted.verdict.equal
    assert fitted.fits
