"""Sparse constants are written densely, wherever they are, and what cannot be is refused in a line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxtile
from onnxtile.model.load import MOST_BYTES, densely, load
from onnxtile.system.errors import ModelError, ModelWarning
from onnxtile.system.runtime import Session

FEEDS = {"x": np.ones((2, 3), np.float32), "go": np.array(True)}


def sparse(name: str, *places: int | list[int], dims: tuple[int, ...] = (2, 3)) -> onnx.SparseTensorProto:
    values = numpy_helper.from_array(np.arange(5, 5 + len(places), dtype=np.float32), name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(np.asarray(places, np.int64), "places"), dims)


def model(constant: onnx.SparseTensorProto | None = None) -> onnx.ModelProto:
    """Sums with a sparse initializer, with sparse constants of a node and of a function, and with sparse initializers of bodies."""
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [2, 3])
    y, x, go = (helper.make_value_info(name, kind) for name in ("y", "x", "go"))
    go.type.tensor_type.CopyFrom(onnx.TypeProto.Tensor(elem_type=TensorProto.BOOL, shape=onnx.TensorShapeProto()))
    branches: dict[str, Any] = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Add", ["x", "s"], [name])],
            name,
            [],
            [helper.make_value_info(name, kind)],
            sparse_initializer=[sparse("s", place)],
        )
        for place, name in enumerate(("then", "else"))
    }
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=constant or sparse("c", [0, 2], [1, 1])),
        helper.make_node("Add", ["x", "c"], ["t"]),
        helper.make_node("Add", ["t", "w"], ["u"]),
        helper.make_node("If", ["go"], ["r"], **branches),
        helper.make_node("Shift", ["u"], ["v"], domain="own"),
        helper.make_node("Mul", ["v", "r"], ["y"]),
    ]
    inner = [
        helper.make_node("Constant", [], ["k"], sparse_value=sparse("k", 5)),
        helper.make_node("Add", ["a", "k"], ["b"]),
    ]
    shift = helper.make_function("own", "Shift", ["a"], ["b"], inner, [helper.make_opsetid("", 17)])
    graph = helper.make_graph(nodes, "g", [x, go], [y], sparse_initializer=[sparse("w", 2, 5)])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=[shift])


def test_a_model_with_sparse_constants_computes_what_they_say(tmp_path: Path) -> None:
    """Only the dense model is run: onnxruntime 1.32 crashes now and then when it loads the other."""
    before = model()
    onnx.save(before, tmp_path / "m.onnx")
    with pytest.warns(ModelWarning, match="5 sparse constants are written densely"):
        onnxtile.save(load(tmp_path / "m.onnx"), tmp_path / "dense.onnx")
    after = onnx.load(tmp_path / "dense.onnx")
    assert Session(after.SerializeToString()).run(FEEDS)["y"].tolist() == [[6, 1, 11], [1, 7, 12]]
    assert densely(after) is after
    with pytest.warns(ModelWarning):
        densely(before)
    assert before == model(), "the given model was changed"


def test_a_model_without_sparse_constants_is_not_copied() -> None:
    dense = densely(onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g () => () { }'))
    assert densely(dense) is dense


def external(tensor: onnx.SparseTensorProto) -> None:
    tensor.values.data_location = TensorProto.EXTERNAL


def text(tensor: onnx.SparseTensorProto) -> None:
    tensor.values.CopyFrom(numpy_helper.from_array(np.array(["a"], object), "c"))


def far(tensor: onnx.SparseTensorProto) -> None:
    tensor.indices.CopyFrom(numpy_helper.from_array(np.array([6]), "places"))


def large(tensor: onnx.SparseTensorProto) -> None:
    tensor.dims[:] = [MOST_BYTES // 4 + 1]


def endless(tensor: onnx.SparseTensorProto) -> None:
    tensor.dims[:] = [2**40, 2**40]


def typeless(tensor: onnx.SparseTensorProto) -> None:
    tensor.values.data_type = 99


@pytest.mark.parametrize("spoil", [external, text, far, large, endless, typeless])
def test_what_cannot_be_written_densely_is_refused(spoil: Callable[[onnx.SparseTensorProto], None]) -> None:
    constant = sparse("c", 0)
    spoil(constant)
    with pytest.raises(ModelError, match=r"sparse|valid"):
        load(model(constant))
