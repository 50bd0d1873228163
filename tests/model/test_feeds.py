"""Sample inputs: of the right type and shape, and inside what their consumers allow."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

import onnxtile
from onnxtile import api
from onnxtile.model.feeds import draw, given_shapes, read_inputs, sample_feeds
from onnxtile.model.load import load
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import ModelError, OverLimit, UsageError
from onnxtile.system.runtime import Array
from onnxtile.verification.trials import run_original
from tests import build
from tests.build import Text


def feeds(model: ir.Model, seed: int = 0) -> dict[str, Array]:
    return sample_feeds(model, resolve(model).sizes, seed=seed)


def test_the_same_seed_gives_the_same_and_another_gives_other(text: Text) -> None:
    model = load(text("g (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }"))
    np.testing.assert_array_equal(feeds(model)["x"], feeds(model)["x"])
    assert not np.array_equal(feeds(model)["x"], feeds(model, 1)["x"])


def test_a_shape_of_more_bytes_than_can_be_counted_is_too_much(text: Text) -> None:
    model = load(text(f"g (float[{2**62}, 3] x) => (float[{2**62}, 3] y) {{ y = Relu(x) }}"))
    with pytest.raises(OverLimit, match="memory"):
        feeds(model)


@pytest.mark.parametrize("kind", sorted(set(TensorProto.DataType.keys()) - {"UNDEFINED", "INT2", "UINT2"}))
def test_every_element_type_is_drawn(kind: str) -> None:
    if kind not in ir.DataType.__members__:
        pytest.skip("not known to onnx_ir")
    value = ir.Value(name="x", shape=ir.Shape([50]), type=ir.TensorType(ir.DataType[kind]))
    array = draw(np.random.default_rng(0), value, lambda _: (50,))
    assert array.shape == (50,)
    if kind != "STRING":
        assert ir.DataType.from_numpy(array.dtype) == ir.DataType[kind]
    if kind in {"INT32", "INT64", "UINT8", "INT4"}:
        assert array.astype(np.int64).min() >= 0


@pytest.mark.parametrize(
    "body",
    [
        "y = Gather(t, i)",
        "j = Unsqueeze(i, a) g = Gather(t, j) y = Squeeze(g, a)",
        "j = Cast <to = 6> (i) y = Gather(t, j)",
        "j = Identity(i) k = Identity(j) y = Gather(t, k)",
    ],
)
def test_indices_reach_the_whole_axis_and_no_further(text: Text, body: str) -> None:
    model = load(
        text(
            f"g (int64[500] i) => (float[A, B] y) <float[7, 1] t = {{0, 1, 2, 3, 4, 5, 6}}, int64[1] a = {{0}}> {{ {body} }}"
        )
    )
    assert set(feeds(model)["i"].tolist()) == set(range(7))


def test_an_array_of_more_dimensions_than_numpy_has_is_refused(text: Text) -> None:
    dims = ", ".join(["1"] * 66)
    with pytest.raises(ModelError, match=r"the tensor 'x' has 66 dimensions, .* at most 64"):
        feeds(load(text(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu(x) }}")))


def test_the_shortest_axis_decides(text: Text) -> None:
    model = load(
        text(
            "g (int64[500] i) => (float[A] y) <float[7] t = {0, 1, 2, 3, 4, 5, 6}, float[3] u = {0, 1, 2}>"
            " { a = Gather(t, i) b = Gather(u, i) y = Add(a, b) }"
        )
    )
    assert feeds(model)["i"].max() == 2


def test_other_integers_are_0_or_1(text: Text) -> None:
    model = load(text("g (int64[100] i, bool[100] b) => (int64[100] y) { y = Where(b, i, i) }"))
    assert set(feeds(model)["i"].tolist()) == {0, 1}
    assert set(feeds(model)["b"].tolist()) == {False, True}


@pytest.mark.parametrize("node", ["Div", "Mod"])
def test_a_divisor_of_integers_is_not_zero(text: Text, node: str) -> None:
    model = load(text(f"g (int32[40] i, int32[40] d) => (int32[40] y) {{ y = {node}(i, d) }}"))
    assert set(feeds(model)["d"].tolist()) == {1, 2}
    assert set(feeds(model)["i"].tolist()) == {0, 1}


@pytest.mark.parametrize(
    "node", ["Identity (d)", "Reshape (d, s)", "Cast <to = 7> (d)", "Cast <to = 6> (d)", "CastLike (d, i)"]
)
@pytest.mark.parametrize("dtype", ["int64", "int32", "float"])
def test_a_divisor_behind_a_node_that_moves_it_is_not_zero(text: Text, node: str, dtype: str) -> None:
    model = load(
        text(
            f"g (int64[40] i, {dtype}[40] d) => (int64[40] y) <int64[1] s = {{40}}>"
            f" {{ e = {node} f = Cast <to = 7> (e) y = Div(i, f) }}"
        )
    )
    assert (feeds(model)["d"] >= 1).all()


def test_a_divisor_of_floats_is_any_number(text: Text) -> None:
    model = load(text("g (float[40] i, float[40] d) => (float[40] y) { e = Identity(d) y = Div(i, e) }"))
    assert feeds(model)["d"].min() < 1


def test_defaults_are_not_fed(text: Text) -> None:
    model = load(text("g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }", opset=7))
    assert list(feeds(model)) == ["x"]


def test_an_input_without_a_shape_is_an_error_that_says_what_to_do(small: onnx.ModelProto) -> None:
    with pytest.raises(ModelError, match="'x'") as caught:
        feeds(load(small))
    assert caught.value.hint == "give them, for example --dim N=1"


def test_sequences_get_two_tensors() -> None:
    x = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [2])
    model = load(build.model([helper.make_node("SequenceLength", ["x"], ["y"])], [x], {"y": (TensorProto.INT64, [])}))
    sample = sample_feeds(model, lambda _: (2,))["x"]
    assert [(one.shape, one.dtype) for one in sample] == [((2,), np.float32)] * 2


def with_input(kind: onnx.TypeProto, op: str, result: int) -> onnx.ModelProto:
    x, y = helper.make_value_info("x", kind), helper.make_tensor_value_info("y", result, [])
    return build.model([helper.make_node(op, ["x"], ["y"])], [x], [y], opset=18)


PAIR = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
PAIRS = helper.make_sequence_type_proto(PAIR)


@pytest.mark.parametrize("kind", [PAIR, PAIRS])
def test_an_optional_value_has_the_content_that_its_type_says(kind: onnx.TypeProto) -> None:
    model = load(with_input(helper.make_optional_type_proto(kind), "OptionalHasElement", TensorProto.BOOL))
    sample = feeds(model)["x"]
    assert [one.shape for one in (sample if isinstance(sample, list) else [sample])] == [(2,)] * (1 + (kind is PAIRS))


@pytest.mark.parametrize(
    ("kind", "op", "result"),
    [
        (PAIRS, "SequenceLength", TensorProto.INT64),
        (helper.make_optional_type_proto(PAIR), "OptionalHasElement", TensorProto.BOOL),
    ],
)
def test_models_with_inputs_that_are_no_tensors_are_planned_and_verified(
    kind: onnx.TypeProto, op: str, result: int
) -> None:
    model = with_input(kind, op, result)
    run = onnxtile.plan(model).verdict
    assert run is not None and run.equal
    assert onnxtile.fuse(model).fused == 0
    verdict = onnxtile.verify(model, model, edge=True)
    assert verdict.equal
    assert "empty" in verdict.inputs


def test_an_edge_that_the_model_refuses_is_skipped() -> None:
    model = with_input(helper.make_optional_type_proto(PAIR), "OptionalGetElement", TensorProto.FLOAT)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]))
    assert "empty" in onnxtile.verify(model, model, edge=True).skipped


def test_an_input_without_a_random_content_is_an_error() -> None:
    kind = onnx.TypeProto()
    kind.sparse_tensor_type.CopyFrom(onnx.TypeProto.SparseTensor(elem_type=TensorProto.FLOAT))
    value = ir.Value(name="x", shape=ir.Shape([2]), type=ir.serde.deserialize_type_proto_for_type(kind))
    with pytest.raises(ModelError, match="sparse"):
        draw(np.random.default_rng(0), value, lambda _: (2,))


def test_a_sequence_of_known_sizes_leaves_the_sizes_behind_it_known() -> None:
    x, i = helper.make_value_info("x", PAIRS), helper.make_tensor_value_info("i", TensorProto.INT64, [])
    model = load(build.model([helper.make_node("SequenceAt", ["x", "i"], ["y"])], [x, i], {"y": ["?"]}, opset=18))
    assert resolve(model).sizes(model.graph.outputs[0]) == (2,)


def test_floats_are_of_the_type_they_should_be() -> None:
    value = ir.Value(name="x", shape=ir.Shape([2]), type=ir.TensorType(ir.DataType.BFLOAT16))
    assert draw(np.random.default_rng(0), value, lambda _: (2,)).dtype == ml_dtypes.bfloat16


# Inputs that a graph cannot take at random are drawn inside what their consumers allow: every such model runs.


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


# Inputs from an .npz file: taken as the model wants them, or refused with a line that says what is wrong.


GRAPH = "g (float[N, 3] x, int64[N] i) => (float[N, 3] y) { h = Relu(x) y = Identity(h) }"


@pytest.fixture(name="given")
def _given(tmp_path: Path) -> Callable[..., Path]:
    def write(**arrays: Any) -> Path:
        path = tmp_path / "x.npz"
        np.savez(path, **arrays)
        return path

    return write


def test_arrays_come_by_input_name(text: Text, given: Callable[..., Path]) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    feeds = read_inputs(given(i=np.arange(2), x=x), load(text(GRAPH)))
    assert list(feeds) == ["x", "i"]
    np.testing.assert_array_equal(feeds["x"], x)
    assert given_shapes(feeds) == {"x": (2, 3), "i": (2,)}


X = np.zeros((2, 3), np.float32)
I = np.zeros(2, np.int64)  # noqa: E741 - the input's name


@pytest.mark.parametrize(
    ("arrays", "message", "hint"),
    [
        ({"x": X}, "no array 'i'", "it has x"),
        ({"x": X, "ids": I, "i": I}, "no input 'ids'", "x, i"),
        ({"X1": X, "x": X, "i": I}, "no input 'X1'", "did you mean 'x'?"),
        ({"mask": X, "x": X, "i": I}, "no input 'mask'", "its inputs are"),
        ({"x": X.astype(np.float64), "i": I}, "'x' takes float, and float64", ""),
        ({"x": X, "i": I.astype(np.int32)}, "'i' takes int64, and int32", ""),
        ({"x": X[:, :2], "i": I}, r"'x' takes \[N, 3\], and \[2, 2\]", "--shape x=2x2"),
        ({"x": X[0], "i": I}, r"'x' takes \[N, 3\], and \[3\]", ""),
        ({"x": X, "i": np.zeros(3, np.int64)}, r"'N' is 2 in the input 'x'", ""),
        ({"x": X, "i": np.asarray([{}, 1], object)}, "'i' is pickled", "astype"),
    ],
)
def test_what_does_not_fit_is_refused(
    text: Text, given: Callable[..., Path], arrays: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_inputs(given(**arrays), load(text(GRAPH)))
    assert hint in (caught.value.hint or "")


def _npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, X)


def _cut(path: Path) -> None:
    np.savez(path, x=np.zeros(1000, np.float32))
    path.write_bytes(path.read_bytes()[:500])


def _flipped(path: Path) -> None:
    np.savez(path, x=X, i=I)
    data = bytearray(path.read_bytes())
    data[200] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("make", [lambda p: p.write_bytes(b"no zip"), _npy, _cut, _flipped, lambda _: None, Path.mkdir])
def test_what_is_no_npz_is_refused(text: Text, tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "x.npz"
    make(path)
    with pytest.raises(UsageError, match=r"x\.npz"):
        read_inputs(path, load(text(GRAPH)))


def _bomb(path: Path, name: str, array: np.ndarray[Any, Any], times: int) -> None:
    """Write an .npz of an array `times` as long as `array`, whose bytes are all zero."""
    header = io.BytesIO()
    described = {"descr": array.dtype.str, "fortran_order": False, "shape": (len(array) * times, *array.shape[1:])}
    np.lib.format.write_array_header_1_0(header, described)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as member:
        member.write(header.getvalue())
        for _ in range(times):
            member.write(array.tobytes())


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("other", np.zeros((10**6, 3), np.float32), "no array 'x'"),
        ("x", np.zeros((10**6, 3), np.float64), "'x' takes float, and float64"),
        ("x", np.zeros((10**6, 4), np.float32), r"'x' takes \[N, 3\], and \[3000000, 4\]"),
    ],
)
def test_what_does_not_fit_is_not_decompressed(
    text: Text, tmp_path: Path, name: str, array: np.ndarray[Any, Any], message: str
) -> None:
    _bomb(tmp_path / "x.npz", name, array, 3)
    model = load(text("g (float[N, 3] x) => (float[N, 3] y) { y = Relu(x) }"))
    tracemalloc.start()
    with pytest.raises(UsageError, match=message):
        read_inputs(tmp_path / "x.npz", model)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


def test_a_header_that_promises_more_than_there_is_is_refused(text: Text, given: Callable[..., Path]) -> None:
    path = given(x=X, i=I)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["x.npy"] = members["x.npy"].replace(b"(2, 3), }        ", b"(2000000000, 3) }")
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with pytest.raises(UsageError, match="'x' is truncated"):
        read_inputs(path, load(text(GRAPH)))


def test_element_types_that_numpy_lacks(text: Text, given: Callable[..., Path]) -> None:
    model = load(text("g (bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }"))
    feeds = read_inputs(given(x=np.asarray([1, -2], ml_dtypes.bfloat16)), model)
    np.testing.assert_array_equal(feeds["x"], np.asarray([1, -2], ml_dtypes.bfloat16))
    with pytest.raises(UsageError, match="takes bfloat16"):
        read_inputs(given(x=np.zeros(2, np.float16)), model)


def test_strings_are_text(text: Text, given: Callable[..., Path]) -> None:
    model = load(text("g (string[2] s) => (string[2] y) { y = Identity(s) }"))
    feeds = read_inputs(given(s=np.asarray(["ä", "bc"])), model)
    assert feeds["s"].tolist() == ["ä", "bc"]  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="takes string"):
        read_inputs(given(s=np.asarray([1, 2])), model)


def test_sequences_come_element_by_element(text: Text, given: Callable[..., Path]) -> None:
    model = load(text("g (seq(float[2]) s) => (int64 n) { n = SequenceLength(s) }"))
    arrays = {f"s[{i}]": np.full(2, i, np.float32) for i in range(11)}
    feeds = read_inputs(given(**arrays), model)
    assert [float(array[0]) for array in feeds["s"]] == list(range(11))
    with pytest.raises(UsageError, match="takes float"):
        read_inputs(given(**{"s[0]": I}), model)


def test_another_byte_order_is_the_same_type(text: Text, given: Callable[..., Path]) -> None:
    feeds = read_inputs(given(x=X.astype(">f4"), i=I), load(text(GRAPH)))
    assert feeds["x"].dtype == np.float32  # type: ignore[union-attr]
