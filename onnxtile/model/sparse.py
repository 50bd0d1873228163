"""Sparse constants, written densely when a model is loaded: onnxruntime does so, too, and onnx_ir does not know them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxtile.errors import ModelError, ModelWarning

MOST_BYTES = 2**28
"""That the sparse constants of a model may take together when they are dense: few indices may stand among any number of zeros."""

_STANDARD = frozenset({"", "ai.onnx"})
_HOLDING = frozenset({"Constant", "If", "Loop", "Scan", "SequenceMap"})
"""Standard operators with attributes that may hold sparse tensors; to look at those of all others takes as long as to load them."""


def densely(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto`, or a copy whose sparse initializers, and sparse values of Constant nodes, are dense; that is a ModelWarning.

    Raises ModelError for a sparse tensor that is not valid, of strings, or external, and where all take more than MOST_BYTES.
    """
    found = [tensor for place in _places(proto) for tensor in _sparse(place)]
    if not found:
        return proto
    if sum(map(_dense_bytes, found)) > MOST_BYTES:
        reason = f"the sparse constants take more than {MOST_BYTES / 2**20:.0f} MiB when they are dense"
        raise ModelError(reason, hint="store them densely")
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    for place in _places(dense):
        tensors = [_dense(tensor) for tensor in _sparse(place)]
        if isinstance(place, onnx.GraphProto):
            place.initializer.extend(tensors)
            place.ClearField("sparse_initializer")
        elif tensors:
            place.CopyFrom(onnx.helper.make_attribute("value", tensors[0], place.doc_string))
    one = "a sparse constant is" if len(found) == 1 else f"{len(found):,} sparse constants are"
    warnings.warn(f"{one} written densely", ModelWarning, stacklevel=4)
    return dense


def _places(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.AttributeProto]:
    """Yield what may hold sparse tensors: each graph, and the attributes of Constant nodes."""
    yield proto.graph
    left: list[Iterable[onnx.NodeProto]] = [proto.graph.node, *(function.node for function in proto.functions)]
    while left:
        for node in left.pop():
            if node.op_type not in _HOLDING and node.domain in _STANDARD:
                continue
            for attribute in node.attribute:
                if node.op_type == "Constant":
                    yield attribute
                graphs = [attribute.g] if attribute.HasField("g") else attribute.graphs
                left += [graph.node for graph in graphs]
                yield from graphs


def _sparse(place: onnx.GraphProto | onnx.AttributeProto) -> Iterable[onnx.SparseTensorProto]:
    if isinstance(place, onnx.GraphProto):
        return place.sparse_initializer
    return [place.sparse_tensor] if place.HasField("sparse_tensor") else []


def _dense_bytes(sparse: onnx.SparseTensorProto) -> int:
    """Return the bytes of the dense tensor. Raises ModelError for what cannot be made one."""
    values = sparse.values
    if values.data_type == TensorProto.STRING or TensorProto.EXTERNAL in (
        values.data_location,
        sparse.indices.data_location,
    ):
        reason = f"the sparse constant {values.name!r} holds strings, or lies in another file"
        raise ModelError(reason, hint="store it densely")
    try:
        onnx.checker.check_sparse_tensor(sparse)
    except onnx.checker.ValidationError as error:
        raise ModelError(f"the model is not valid ONNX: {' '.join(str(error).split())}") from None
    return math.prod(sparse.dims) * onnx.helper.tensor_dtype_to_np_dtype(values.data_type).itemsize


def _dense(sparse: onnx.SparseTensorProto) -> TensorProto:
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    array = np.zeros(math.prod(sparse.dims), values.dtype)
    array[indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), tuple(sparse.dims))] = values
    tensor = numpy_helper.from_array(array.reshape(tuple(sparse.dims)), sparse.values.name)
    tensor.doc_string = sparse.values.doc_string
    tensor.metadata_props.extend(sparse.values.metadata_props)
    return tensor
