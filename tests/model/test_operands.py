"""Inputs that a graph cannot take at random are drawn inside what their consumers allow: every such model runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxtile import api
from onnxtile.model.load import load
from onnxtile.verification.trials import run_original

Text = Callable[..., onnx.ModelProto]

BODY = "body = b (int64 i, bool c, float[3] v) => (bool d, float[3] w) { d = Identity(c)  w = Add(v, v) }"
GRAPHS = {
    "Reshape": "(float[2,6] x, int64[3] s) => (float y) { y = Reshape(x, s) }",
    "Expand": "(float[2,6] x, int64[3] s) => (float y) { y = Expand(x, s) }",
    "Tile": "(float[2,6] x, int64[2] s) => (float y) { y = Tile(x, s) }",
    "ConstantOfShape": "(int64[3] s) => (float y) { y = ConstantOfShape(s) }",
    "Pad": "(float[2,6] x, int64[4] s) => (float y) { y = Pad(x, s) }",
    "Slice": "(float[2,6] x, int64[2] s, int64[2] e, int64[2] a, int64[2] t) => (float y) { y = Slice(x, s, e, a, t) }",
    "Squeeze": "(float[1,1,6] x, int64[2] a) => (float y) { y = Squeeze(x, a) }",
    "Unsqueeze": "(float[6] x, int64[2] a) => (float y) { y = Unsqueeze(x, a) }",
    "ReduceSum": "(float[6,2] x, int64[2] a) => (float y) { y = ReduceSum(x, a) }",
    "Split": "(float[7] x, int64[3] s) => (float y, float z, float w) { y, z, w = Split(x, s) }",
    "TopK": "(float[7] x, int64[1] k) => (float y, int64 z) { y, z = TopK(x, k) }",
    "OneHot": "(int64[7] i, int64[1] d, float[2] v) => (float y) { y = OneHot(i, d, v) }",
    "Range": "(int64 s, int64 e, int64 d) => (int64 y) { y = Range(s, e, d) }",
    "Resize": '(float[1,1,4,4] x, float[4] s) => (float y) { y = Resize <mode = "nearest"> (x, , s) }',
    "Resize sizes": '(float[1,1,4,4] x, int64[4] s) => (float y) { y = Resize <mode = "nearest"> (x, , , s) }',
    "CumSum": "(float[4] x, int64 a) => (float y) { y = CumSum(x, a) }",
    "STFT": "(float[1,16,1] x, int64 s, float[4] w) => (float y) { y = STFT(x, s, w) }",
    "STFT of a length": "(float[1,16,1] x, int64 s, int64 n) => (float y) { y = STFT(x, s, , n) }",
    "SplitToSequence": "(float[7] x, int64[3] s) => (int64 y) { q = SplitToSequence(x, s)  y = SequenceLength(q) }",
    "ConvInteger": "(uint8[1,1,4,4] x, uint8[1,1,2,2] w, uint8 a, uint8 b) => (int32 y) { y = ConvInteger(x, w, a, b) }",
    "Gather": "(float[5,3] t, int64[2,2] i) => (float y) { y = Gather(t, i) }",
    "GatherND": "(float[5,3] t, int64[4,2] i) => (float y) { y = GatherND(t, i) }",
    "ScatterElements": "(float[5] t, int64[2] i, float[2] u) => (float y) { y = ScatterElements(t, i, u) }",
    "ReverseSequence": "(float[5,2] x, int64[2] l) => (float y) { y = ReverseSequence(x, l) }",
    "GRU": "(float[5,2,3] x, float[1,12,3] w, float[1,12,4] r, int32[2] l) => (float y) { y = GRU <hidden_size = 4> (x, w, r, , l) }",
    "Loop": f"(int64 n, bool c, float[3] v) => (float[3] y) {{ y = Loop (n, c, v) <{BODY}> }}",
    "through a Cast": "(float[2,6] x, int32[3] s) => (float y) { l = Cast <to = 7> (s)  y = Reshape(x, l) }",
    "in a body": "(bool c, float[5] t, int64[3] i) => (float[3] y) { y = If (c) <then_branch = a () => (float[3] p)"
    " { p = Gather(t, i) }, else_branch = e () => (float[3] q) { q = Gather(t, i) }> }",
}  # fmt: skip


@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_it_runs_on_many_seeds(text: Text, graph: str) -> None:
    trials, _ = run_original(load(text(f"g {graph}")), runs=8)
    assert len(trials) == 8


ATTENTION = "y, k, v = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2> (x, , , pk, pv, l, t)"
OPERANDS = "float[1,5,48] x, float[1,2,3,8] pk, float[1,2,3,8] pv"


@pytest.mark.parametrize(
    "graph",
    [
        f"({OPERANDS}, int32[1] l, int32 t) => (float y, float k, float v) {{ {ATTENTION} }}",
        f"({OPERANDS}, int64[1,8] m, int32 t) => (float y, float k, float v) {{ a = Constant <value_ints = [1]> ()"
        "  s = ReduceSum <keepdims = 0> (m, a)  d = Sub(s, a)"
        f"  l = Cast <to = 6> (d)  {ATTENTION} }}",
    ],
    ids=["lengths", "mask"],
)
def test_an_attention_with_a_cache_is_told_of_all_tokens(text: Text, graph: str) -> None:
    """Random lengths or masks of fewer tokens than the queries are refused by onnxruntime."""
    proto = text(f"g {graph}")
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    trials, _ = run_original(load(proto), runs=8)
    assert len(trials) == 8


def test_a_grid_is_as_many_images_as_transformations(text: Text) -> None:
    model = load(text("g (float[3,2,3] t, int64[4] s) => (float y) { y = AffineGrid(t, s) }", opset=20))
    trials, _ = run_original(model)
    assert trials[0].results["y"].shape == (3, 2, 2, 2)


FUNCTION = """
<opset_import: ["": 17], domain: "local"> Look (t, i) => (y) { y = Gather(t, i) }
"""


def test_indices_of_a_function_are_below_the_axis_of_its_caller(text: Text) -> None:
    model = text("g (float[500] t, int64[90] i) => (float y) { y = local.Look(t, i) }", functions=FUNCTION)
    trials, _ = run_original(load(model), runs=4)
    drawn = np.concatenate([trial.feeds["i"] for trial in trials])
    assert drawn.min() >= 0
    assert 400 < drawn.max() < 500


def test_a_number_that_is_compared_is_one_of_those_known(text: Text, silero: Callable[[str], Path]) -> None:
    graph = (
        "g (int64 rate, float[3] x) => (float[3] y) <int64 r = {16000}> { c = Equal(rate, r)  y = If (c)"
        " <then_branch = a () => (float[3] p) { p = Neg(x) }, else_branch = e () => (float[3] q) { q = Abs(x) }> }"
    )
    trials, _ = run_original(load(text(graph)))
    assert {int(trial.feeds["rate"]) for trial in trials} == {16000}
    trials, _ = run_original(load(silero("silero_vad")))
    assert {int(trial.feeds["sr"]) for trial in trials} == {16000}
    assert api.verify(silero("silero_vad"), silero("silero_vad")).equal


@pytest.mark.parametrize("form", ["value = int64 {16000}", "value_int = 16000"])
def test_a_number_that_a_node_makes_is_known(text: Text, form: str) -> None:
    model = text(f"g (int64 rate) => (bool y) {{ r = Constant<{form}>()  y = Equal(rate, r) }}")
    assert {int(trial.feeds["rate"]) for trial in run_original(load(model))[0]} == {16000}


def test_a_mask_hides_not_everything(text: Text) -> None:
    model = load(text("g (int64[4,5] m, bool[4,5] b) => (int64[4,5] y) { y = Where(b, m, m) }"))
    for trial in run_original(model, runs=8)[0]:
        assert trial.feeds["m"].any(axis=-1).all()
        assert trial.feeds["b"].any(axis=-1).all()
        assert not trial.feeds["b"].all(axis=-1).any()
