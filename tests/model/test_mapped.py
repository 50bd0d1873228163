"""Models read without their large constants: the same models, and what is odd is left to protobuf."""

from __future__ import annotations

import gc
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxtile.model.load import load, read_mapped
from onnxtile.model.save import save, to_bytes
from onnxtile.system.errors import ModelError
from onnxtile.system.protobuf_wire import Unusual, fields, head
from tests.draws import draws

LARGE = np.arange(300_000, dtype=np.float32)


def model_of(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y], list(tensors), doc_string="what")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    helper.set_model_props(model, {"license": "MIT"})
    return model


def written(folder: Path, *tensors: onnx.TensorProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model_of(*tensors).SerializeToString())
    return path


def tensor_of(path: Path, name: str) -> ir.TensorProtocol:
    tensor = load(path).graph.initializers[name].const_value
    assert tensor is not None
    return tensor


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint16", "int64", "float64", "bool", "bfloat16"])
def test_the_elements_are_those_that_onnx_reads(tmp_path: Path, dtype: str) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    array = (LARGE % 120).reshape(300, 1000).astype(kind)
    path = written(
        tmp_path,
        numpy_helper.from_array(np.arange(3), "small"),
        numpy_helper.from_array(array, "large"),
        numpy_helper.from_array(LARGE, "other"),
    )
    mapped = read_mapped(path)
    assert mapped is not None
    assert set(mapped.places) == {"large", "other"}
    assert mapped.proto.ByteSize() < 1000
    tensor = tensor_of(path, "large")
    np.testing.assert_array_equal(tensor.numpy(), numpy_helper.to_array(onnx.load(path).graph.initializer[1]))
    assert tensor.tobytes() == array.tobytes()
    np.testing.assert_array_equal(tensor_of(path, "small").numpy(), np.arange(3))


def test_a_model_is_the_same_read_either_way(tmp_path: Path) -> None:
    named = numpy_helper.from_array(LARGE, "w")
    named.doc_string = "weights"
    path = written(tmp_path, named, numpy_helper.from_array(LARGE[:5], "v"))
    assert read_mapped(path) is not None and to_bytes(load(path)) == to_bytes(load(onnx.load(path)))
    save(load(path), tmp_path / "mapped.onnx")
    save(load(onnx.load(path)), tmp_path / "whole.onnx")
    assert (tmp_path / "mapped.onnx").read_bytes() == (tmp_path / "whole.onnx").read_bytes()


@pytest.mark.parametrize(
    "form", ["elements", "packed", "two names", "twice", "short", "long", "external", "no such type"]
)
def test_what_is_odd_is_read_whole(tmp_path: Path, form: str) -> None:
    tensor = numpy_helper.from_array(LARGE, "w")
    more = [tensor]
    if form == "elements":
        tensor.ClearField("raw_data")
        tensor.float_data.extend(LARGE)
    elif form == "packed":
        tensor.data_type, tensor.raw_data = TensorProto.INT4, bytes(150_000 * 8)
        tensor.dims[:] = [300_000 * 8]
    elif form in {"short", "long"}:
        tensor.raw_data = bytes(LARGE.nbytes + (4 if form == "long" else -4))
    elif form == "external":
        tensor.data_location = TensorProto.EXTERNAL
    elif form == "no such type":
        tensor.data_type = 99
    elif form == "two names":
        more.append(numpy_helper.from_array(LARGE, "w"))
    path = written(tmp_path, *more)
    if form == "twice":  # protobuf makes one of two graphs
        path.write_bytes(2 * path.read_bytes())
    assert read_mapped(path) is None


def test_what_is_broken_is_a_model_error(tmp_path: Path) -> None:
    path = written(tmp_path, numpy_helper.from_array(LARGE, "w"))
    content = path.read_bytes()
    for broken in (content[:-5], content[:600_000], content + b"\x0f", content + b"\x3a\xff", b"\xff" * 2**20):
        path.write_bytes(broken)
        assert read_mapped(path) is None
        with pytest.raises(ModelError):
            load(path)


def test_a_small_file_and_a_text_are_read_whole(tmp_path: Path) -> None:
    assert read_mapped(written(tmp_path, numpy_helper.from_array(LARGE[:1000], "w"))) is None
    text = tmp_path / "m.onnxtxt"
    text.write_text("g" * 2**21)
    assert read_mapped(text) is None


def test_the_file_may_be_replaced_or_removed(tmp_path: Path) -> None:
    path = written(tmp_path, numpy_helper.from_array(LARGE, "w"))
    tensor = tensor_of(path, "w")
    other = tmp_path / "other"
    other.write_bytes(b"")
    other.replace(path)
    np.testing.assert_array_equal(tensor.numpy(), LARGE)
    path.unlink()
    np.testing.assert_array_equal(tensor.numpy(), LARGE)


def test_a_file_that_was_written_over_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, numpy_helper.from_array(LARGE, "w"))
    tensor = tensor_of(path, "w")
    path.write_bytes(b"nothing is left")
    with pytest.raises(ModelError, match="written over"):
        tensor.numpy()


def test_a_model_that_is_gone_holds_no_file(tmp_path: Path) -> None:
    path = written(tmp_path, numpy_helper.from_array(LARGE, "w"))

    def held() -> int:
        return sum(link.resolve() == path for link in Path("/proc/self/fd").iterdir())

    gc.freeze()  # what other tests hold need not be walked, which takes seconds
    try:
        model = load(path)
        assert held() > 0
        del model
        gc.collect()
        assert held() == 0
    finally:
        gc.unfreeze()


@given(st.binary(max_size=40))
@draws(500)
def test_any_bytes_are_fields_or_unusual(data: bytes) -> None:
    try:
        found = list(fields(data, 0, len(data)))
    except (Unusual, IndexError):
        return
    assert b"".join(data[field.start : field.stop] for field in found) == data


@given(st.integers(1, 15), st.integers(0, 2**40))
def test_a_head_says_which_field_follows_and_how_long_it_is(number: int, length: int) -> None:
    start = head(number, length)
    assert list(fields(start, 0, len(start) + length)) == [(number, 0, len(start), len(start) + length)]
    with pytest.raises(Unusual, match="longer"):
        list(fields(head(number, length + 1), 0, len(start) + length))


def test_pages_that_were_read_do_not_stay_in_memory(tmp_path: Path) -> None:
    path = written(tmp_path, *(numpy_helper.from_array(np.full(2**22, at, np.float32), f"w{at}") for at in range(4)))
    model = load(path)

    def mapped() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))

    before, first = mapped(), None
    for at in range(4):
        held = model.graph.initializers[f"w{at}"].const_value
        assert held is not None
        array = held.numpy()
        first = array if first is None else first
        assert float(array.sum()) == at * 2**22
    assert mapped() - before < 1.5 * 2**24  # one of them, not all four
    assert first is not None and not first.any()  # who still reads there reads the same
