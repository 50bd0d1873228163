"""Inputs from an .npz file: taken as the model wants them, or refused with a line that says what is wrong."""

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
import pytest

from onnxtile.model.feeds import given_shapes, read_inputs
from onnxtile.model.load import load
from onnxtile.system.errors import UsageError

Text = Callable[..., onnx.ModelProto]
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
        ("x", np.zeros((10**6, 4), np.float32), r"'x' takes \[N, 3\], and \[20000000, 4\]"),
    ],
)
def test_what_does_not_fit_is_not_decompressed(
    text: Text, tmp_path: Path, name: str, array: np.ndarray[Any, Any], message: str
) -> None:
    _bomb(tmp_path / "x.npz", name, array, 20)
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
