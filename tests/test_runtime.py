"""onnxruntime: what it refuses is one line, and tensors go in and out where they should."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper

from onnxtile.system.errors import ModelError
from onnxtile.system.runtime import Array, Binding, Session, boxed
from tests import build


def model(body: str, *, opset: int = 21) -> bytes:
    data: bytes = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {body}').SerializeToString()
    return data


ADD = model("g (float[N, 2] a, float[N, 2] b) => (float[N, 2] s, float[N, 2] d) { s = Add(a, b) d = Sub(a, b) }")


def test_inputs_and_outputs_are_named() -> None:
    session = Session(ADD)
    assert [(f.name, f.shape, f.type) for f in session.inputs] == [
        ("a", ("N", 2), "tensor(float)"),
        ("b", ("N", 2), "tensor(float)"),
    ]
    assert session.outputs == ["s", "d"]


def test_a_run_gives_what_is_asked_for() -> None:
    feeds = {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 2), np.float32)}
    assert set(Session(ADD).run(feeds)) == {"s", "d"}
    found = Session(ADD).run(feeds, ["d"])
    assert list(found) == ["d"]
    np.testing.assert_array_equal(found["d"], np.zeros((3, 2)))


def test_a_path_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(ADD)
    assert Session(tmp_path / "m.onnx").outputs == ["s", "d"]


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_what_is_no_model_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(ModelError, match="onnxruntime cannot load the model") as caught:
        Session(content)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "feeds",
    [
        {},
        {"a": np.ones((3, 2), np.float32)},
        {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 2), np.float64)},
        {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 3), np.float32)},
        {"a": np.ones((3, 2), np.float32), "b": np.ones((3, 2), np.float32), "c": np.ones(1, np.float32)},
    ],
    ids=["none", "one", "type", "shape", "unknown"],
)
def test_wrong_feeds_are_refused_in_one_line(feeds: dict[str, Array]) -> None:
    with pytest.raises(ModelError, match="onnxruntime cannot run the model") as caught:
        Session(ADD).run(feeds)
    assert "\n" not in str(caught.value)


def test_a_run_in_place_reads_and_writes_where_it_is_told() -> None:
    arena = np.zeros(16, np.float32)
    arena[:2], arena[2:4] = [1, 2], [10, 20]
    at = [Binding(arena.ctypes.data + 8 * i, (1, 2), onnx.TensorProto.FLOAT) for i in range(4)]
    Session(ADD).run_in_place({"a": at[0], "b": at[1]}, {"s": at[2], "d": at[3]})
    np.testing.assert_array_equal(arena[:8], [1, 2, 10, 20, 11, 22, -9, -18])


def test_a_run_in_place_with_an_unknown_name_is_refused() -> None:
    arena = np.zeros(16, np.float32)
    at = Binding(arena.ctypes.data, (1, 2), onnx.TensorProto.FLOAT)
    with pytest.raises(ModelError):
        Session(ADD).run_in_place({"nobody": at}, {"s": at})


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("int4", ml_dtypes.int4),
        ("uint4", ml_dtypes.uint4),
    ],
)
@pytest.mark.parametrize("count", [0, 1, 5, 6])
def test_element_types_that_numpy_lacks_go_in_and_out(kind: str, dtype: type, count: int) -> None:
    number = getattr(onnx.TensorProto, kind.upper())
    data = model(
        f"g ({kind}[N] x) => (float[N] f, {kind}[N] y) {{ f = Cast <to = 1> (x) y = Cast <to = {number}> (f) }}"
    )
    x: Array = np.array([0, 1, 7, 3, 2, 5][:count]).astype(dtype)
    if kind == "int4" and count > 2:
        x[2] = -8
    found = Session(data).run({"x": x})
    np.testing.assert_array_equal(found["f"], x.astype(np.float32))
    assert found["y"].dtype == x.dtype
    np.testing.assert_array_equal(found["y"].astype(np.float32), x.astype(np.float32))


@pytest.mark.parametrize("given", [[], ["a", "Größe"]])
def test_sequences_and_strings_go_in_beside_an_output_that_numpy_lacks(given: list[str]) -> None:
    data = model(
        """g (seq(float[2]) s, float[2] x, string[N] t, seq(string[N]) q) => (bfloat16[2] y, int64 n, int64[1] m, int64 k) {
             y = Cast <to = 16> (x) n = SequenceLength (s) m = Shape (t) k = SequenceLength (q)
           }"""
    )
    x, words = np.array([1, 2], np.float32), np.array(given, object)
    found = Session(data).run({"s": [x] * len(given), "x": x, "t": words, "q": [words] * len(given)})
    assert [np.asarray(found[name]).item() for name in "nmk"] == [len(given)] * 3
    np.testing.assert_array_equal(found["y"].astype(np.float32), x)


@pytest.mark.parametrize(("code", "dtype", "low"), [("INT2", ml_dtypes.int2, -2), ("UINT2", ml_dtypes.uint2, 0)])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 7])
def test_elements_of_two_bits_go_in_and_out(code: str, dtype: type, low: int, count: int) -> None:
    number = onnx.TensorProto.DataType.Value(code)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "one"], ["f"]),
        helper.make_node("QuantizeLinear", ["f", "one"], ["y"], output_dtype=number),
    ]
    infos = [
        helper.make_tensor_value_info(name, kind, ["N"]) for name, kind in (("x", number), ("f", 1), ("y", number))
    ]
    one = helper.make_tensor("one", onnx.TensorProto.FLOAT, [], [1.0])
    data = build.model(nodes, infos[:1], infos[1:], [one], opset=25, ir_version=11).SerializeToString()
    x: Array = (np.array([0, 3, 1, 2, 3, 0, 2][:count]) + low).astype(dtype)
    found = Session(data).run({"x": x})
    np.testing.assert_array_equal(found["f"], x.astype(np.float32))
    assert found["y"].dtype == x.dtype
    np.testing.assert_array_equal(found["y"].astype(np.float32), x.astype(np.float32))


def test_a_boxed_scalar_has_no_axes() -> None:
    assert boxed(np.array(2, np.float32)).shape() == []


def test_strings_go_in_and_out() -> None:
    session = Session(model("g (string[N] x) => (string[N] y) { y = Identity(x) }", opset=17))
    assert session.run({"x": np.array(["a", "ß"], object)})["y"].tolist() == ["a", "ß"]


REPORT = """import os
from onnxtile.system.runtime import Session
Session(bytes.fromhex({model!r}))
print(os.environ["ORT_DISABLE_TELEMETRY"])"""


@pytest.mark.parametrize("said", [None, "1"])
def test_onnxruntime_reports_to_nobody(tmp_path: Path, said: str | None) -> None:
    """Where it does, it keeps what it is to send in a file in the folder of temporary files."""
    own = {name: value for name, value in os.environ.items() if name not in {"CI", "ORT_DISABLE_TELEMETRY"}}
    environment = {**own, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)} | (
        {} if said is None else {"ORT_DISABLE_TELEMETRY": said}
    )
    script = REPORT.format(model=ADD.hex())
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_time_to_load_many_weights_grows_with_their_number() -> None:
    """A plan of one block for all weights is quadratic: 24,000 of them would take over 20 times as long as 6,000."""
    small, large = (_seconds_to_load(_with_weights(count)) for count in (6_000, 24_000))
    assert large < 10 * small


def _sum(count: int) -> tuple[Session, dict[str, object]]:
    """Return a session that adds up so many numbers, and its inputs, each of them 1."""
    names = [f"x{i}" for i in range(count)]
    *inputs, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in (*names, "y"))
    made = build.model([onnx.helper.make_node("Sum", names, ["y"])], inputs, [y], ir_version=8)
    return Session(made.SerializeToString()), {name: boxed(np.ones(1, np.float32)) for name in names}


def test_a_run_takes_many_values_of_onnxruntime() -> None:
    session, inputs = _sum(1_200)
    assert session.run_on(inputs, {"y": None})["y"].numpy() == 1_200


@pytest.mark.slow
def test_the_time_of_a_run_grows_with_the_inputs() -> None:
    """The names compared with each other are quadratic: 32,000 of them would take over 15 times as long as 8,000."""

    def seconds(count: int) -> float:
        session, inputs = _sum(count)
        start = time.process_time()
        session.run_on(inputs, {"y": None})
        return time.process_time() - start

    assert seconds(32_000) < 8 * seconds(8_000)


def _with_weights(count: int) -> bytes:
    weights = [onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), f"w{i}") for i in range(count)]
    names = ["x", *(f"h{i}" for i in range(count))]
    nodes = [onnx.helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]]) for i in range(count)]
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4]) for name in (names[0], names[-1]))
    return bytes(build.model(nodes, [x], [y], weights, ir_version=8).SerializeToString())


def _seconds_to_load(data: bytes) -> float:
    start = time.process_time()
    Session(data)
    return time.process_time() - start
