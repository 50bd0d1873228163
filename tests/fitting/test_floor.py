"""The floor of fit: bytes that no schedule goes below, known without a search."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import onnxtile
from onnxtile.fitting.floor import floor_of, waiting_floor
from onnxtile.fitting.network import FitKernel, FitTensor, Network
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.search import FitTarget
from onnxtile.operators.reads import AxisLink, SlidingAxis
from onnxtile.system.errors import Infeasible
from onnxtile.verbs.fit import FitOptions
from onnxtile.verbs.flows.fit import RegionForms, _forms, last_forms, read_subject, unblocked_subject
from tests.draws import draws
from tests.fitting.networks import model, search
from tests.fitting.random_nets import nets


def network(*, is_cut: bool) -> Network:
    """Return three kernels on rows of 64 bytes; the one in the middle may not be cut into rows."""
    tensors = [FitTensor(name, (8, 64), 1, 0, is_outside=name == "x", is_kept=name == "c") for name in "xabc"]
    rows = (AxisLink(0),)
    links = (rows, rows if is_cut else None, rows)
    return Network(tensors, [FitKernel(f"k{n}", (n,), (n + 1,), link) for n, link in enumerate(links)])


def test_a_kernel_that_is_not_cut_has_its_operands_and_results_whole() -> None:
    floor = floor_of(Regions(network(is_cut=False)))
    assert (floor.bytes, floor.kernel) == (2 * 8 * 64, 1)
    assert [(piece.tensor, piece.bytes, piece.is_whole) for piece in floor.pieces] == [(1, 512, True), (2, 512, True)]


def test_where_all_kernels_are_cut_one_row_of_each_operand_is_left_beside_the_output() -> None:
    floor = floor_of(Regions(network(is_cut=True)))
    # While the last row of c is made of one of b, the other rows of c wait for their end.
    assert (floor.bytes, floor.kernel) == ((1 + 8) * 64, 2)
    assert sum(piece.bytes for piece in floor.pieces) == floor.bytes


def test_where_results_are_written_over_operands_the_outputs_are_left() -> None:
    over = frozenset({0})
    kernels = [replace(kernel, overwrites=over) for kernel in network(is_cut=True).kernels]
    floor = floor_of(Regions(Network(network(is_cut=True).tensors, kernels)))
    assert (floor.bytes, floor.kernel) == (8 * 64, None)
    assert [piece.tensor for piece in floor.pieces] == [3]


def test_floats_are_not_written_over_the_integers_that_they_are_made_of() -> None:
    made = model(
        """g (float[1,2,32,16] x) => (float[1,4,n,m] y) {
            a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z) v = DequantizeLinear(w, s, z)
            c = Conv(b, v) d = QuantizeLinear(c, s, z) y = DequantizeLinear(d, s, z) }""",
        w=np.ones((4, 2, 1, 1), np.int8),
        s=np.float32(1 / 16),
        z=np.int8(0),
    )
    with pytest.raises(Infeasible, match=r"takes less than 8,256 bytes; while y runs, y \(8,192 bytes\), a .* of d"):
        onnxtile.fit(made, capacity=8192)


def test_kernels_without_rows_are_left_out() -> None:
    made = model(
        "g (float[4,8] x, float[0,8] n) => (float[4,8] y, float[0,8] z) { y = Relu(x) m = Neg(n) z = Relu(m) }"
    )
    with pytest.raises(Infeasible, match="takes less than 128 bytes"):
        onnxtile.fit(made, capacity=64)


@pytest.mark.parametrize("capacity", ["1408", "smallest"])
def test_tensors_without_rows_are_not_cut(capacity: str) -> None:
    made = model(
        """g (float[4,96] x, float[0,96] n) => (float[4,80] y, float[0,80] z) {
            a = Concat<axis=0>(x, n) b = MatMul(a, w) y = Relu(b) c = MatMul(n, w) z = Relu(c) }""",
        w=(96, 80),
    )
    assert onnxtile.fit(made, capacity=capacity, budget="30%").fits


def test_rows_that_windows_read_again_are_kept_unless_the_budget_lets_them_be_computed_again() -> None:
    """Each of two convolutions of three rows keeps two of 1,024 bytes, of products of 100 for each row."""
    tensors = [FitTensor(name, (16, 1024), 1, 0, is_outside=name in "xd") for name in "xabcd"]
    slide = (AxisLink(0, SlidingAxis(kernel=3, before=1, after=1, size=16, out=16)),)
    plain = (AxisLink(0),)
    kernels = [FitKernel(f"k{n}", (n,), (n + 1,), (plain, slide, slide, plain)[n], 1600) for n in range(4)]
    about = Regions(Network(tensors, kernels))
    assert floor_of(about).bytes == (3 + 2 + 1) * 1024
    assert 4 * 1024 <= floor_of(about, 0.05).bytes < 5 * 1024
    for budget in (0.0, 0.05, 1.0):
        assert floor_of(about, budget).bytes <= search(about, FitTarget(None, budget)).peak


def test_the_operand_of_a_gate_lives_until_its_mean_is_known_unless_it_is_made_twice() -> None:
    gate = """
g (float[1,3,64,64] x) => (float[1,2,32,32] y) {
    [stem] a = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x, w0)
    [mean] p = GlobalAveragePool(a)
    [squeeze] q = Conv(p, w1)
    [gate] s = Sigmoid(q)
    [scale] m = Mul(a, s)
    [project] y = Conv(m, w2)
}"""
    made = model(gate, w0=(16, 3, 3, 3), w1=(16, 16, 1, 1), w2=(2, 16, 1, 1))
    with pytest.raises(Infeasible) as error:
        onnxtile.fit(made, capacity=30_000, budget="0%")
    text = str(error.value)
    assert "no way to cut the model takes less than 65,792 bytes" in text
    assert "scale waits for all rows of a; to make it twice takes" in text
    assert onnxtile.fit(made, capacity=30_000, budget="100%").fits


@draws(6)
@given(nets(), st.sampled_from([0.0, 0.05, 0.5]))
def test_no_schedule_is_below_the_floor(made: onnx.ModelProto, budget: float) -> None:
    """The floor of a model is that of all its forms, also of those in which tensors are made twice."""
    about = unblocked_subject(read_subject(FitOptions(made, capacity=1, budget=f"{100 * budget}%", verify=False)))
    floor = floor_of(about.regions, max(about.extra_left, 0.0), remakes=True)
    assert sum(piece.bytes for piece in floor.pieces) in {0, floor.bytes}
    for form in chain(_forms(about), last_forms(about)):
        wanted = FitTarget(None, max(form.extra_left, 0.0))
        waiting = waiting_floor(form.regions, wanted.extra_macs)
        assert sum(piece.bytes for piece in waiting.pieces) in {0, waiting.bytes}
        assert 0 < max(floor.bytes, waiting.bytes) <= search(form.regions, wanted).peak


ATTENTION = """
    {x}n = LayerNormalization<axis=-1>({x}, one)
    {x}q = MatMul({x}n, wq) {x}k = MatMul({x}n, wk) {x}v = MatMul({x}n, wv)
    {x}qs = Reshape({x}q, heads) {x}ks = Reshape({x}k, heads) {x}vs = Reshape({x}v, heads)
    {x}qh = Transpose<perm=[0,2,1,3]>({x}qs) {x}kh = Transpose<perm=[0,2,3,1]>({x}ks)
    {x}vh = Transpose<perm=[0,2,1,3]>({x}vs)
    [{x}scores] {x}s = MatMul({x}qh, {x}kh) {x}p = Softmax<axis=-1>({x}s)
    [{x}mix] {x}a = MatMul({x}p, {x}vh) {x}at = Transpose<perm=[0,2,1,3]>({x}a)
    {x}am = Reshape({x}at, tokens) {x}o = MatMul({x}am, wo) {y} = Add({x}, {x}o)
"""


def attention(tokens: int, heads: int, width: int, layers: int, *, takes_first: bool = False) -> onnx.ModelProto:
    """Return layers of attention with a residual, on tokens that a product makes; with `takes_first`, only one token leaves."""
    names = [f"x{number}" for number in range(layers + 1)]
    text = "".join(ATTENTION.format(x=x, y=y) for x, y in pairwise(names))
    end = f"{names[-1]}e = Gather<axis=1>({names[-1]}, zero) y = MatMul({names[-1]}e, we)"
    end = end if takes_first else f"y = MatMul({names[-1]}, we)"
    dims = f"float[1,{tokens},4] x) => (float[1,{1 if takes_first else tokens},2] y"
    made = model(
        f"g ({dims}) {{ x0 = MatMul(x, w) {text} {end} }}",
        w=(4, width),
        one=(width,),
        we=(width, 2),
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (width, width)),
    )
    sizes = {"heads": [1, tokens, heads, width // heads], "tokens": [1, tokens, width], "zero": [0]}
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(n, np.int64), name) for name, n in sizes.items()
    )
    return made


def test_the_last_head_has_its_keys_and_values_beside_the_tokens_and_the_results_of_other_heads() -> None:
    made = attention(tokens=64, heads=3, width=48, layers=2)
    head = 64 * 16 * 4
    with pytest.raises(Infeasible) as error:
        onnxtile.fit(made, capacity=7 * head - 1)
    text = str(error.value)
    assert f"no way to cut the model takes less than {7 * head:,} bytes" in text
    assert "waits for all of" in text


@draws(6)
@given(
    st.sampled_from([6, 16]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from([0, 50]),
)
def test_no_pieces_of_tokens_are_below_the_floor(
    tokens: int, heads: int, layers: int, takes_first: bool, budget: int
) -> None:
    made = attention(tokens, heads, 6 * heads, layers, takes_first=takes_first)
    options = FitOptions(made, capacity=1, budget=f"{budget}%", verify=False)
    about = read_subject(options)
    floors = [about.token_trials.floor()[0].bytes, RegionForms(about).floor_above(1)[0].bytes]
    least = onnxtile.fit(made, capacity="smallest", budget=f"{budget}%", verify=False).after.arena
    assert 0 < min(floors) <= least


def test_below_the_floor_the_kernel_and_the_missing_rule_are_named_without_a_search() -> None:
    made = model(
        """
g (float[1,4,32,32] x) => (float[1,4,16,16] y) {
    [wide] a = Relu(x)
    [sums] b = CumSum(a, axis)
    [soft] c = Sigmoid(b)
    [pool] y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)
}"""
    )
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2), "axis"))
    with pytest.raises(Infeasible) as error:
        onnxtile.fit(made, capacity=30_000)
    text = str(error.value)
    assert "no way to cut the model takes less than 32,768 bytes; while sums runs" in text
    assert "a (16,384 bytes), b (16,384 bytes) live; sums: " in text
