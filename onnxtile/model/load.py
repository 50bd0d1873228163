"""Loads a path, a ModelProto or an onnx_ir.Model as a graph that may be edited freely."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import warnings
import weakref
from abc import ABC
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf import json_format, text_format
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper, serialization

from onnxtile.model.preserved import copied_tensor, note_inline, note_outputs, note_training, without_second_props
from onnxtile.model.topology import all_graphs, all_nodes, is_external, main_graphs, stored_bytes, tensors_of
from onnxtile.model.validity import check, check_proto, is_small
from onnxtile.operators.table import CONTROL_FLOW
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, ModelWarning, UsageError, first_cause
from onnxtile.system.files import real, require_readable, straight
from onnxtile.system.interpreter import collector_paused
from onnxtile.system.posix import let_go, open_to_read
from onnxtile.system.protobuf_wire import GRAPH, INITIALIZER, NAME, RAW_DATA, Unusual, WireField, fields, head

# A model file read without its large constants, whose bytes stay in it until they are asked for.

_LARGE = 2**14
"""A constant of at least this many bytes stays in the file: it has more elements, of any type, than the checker is shown."""
_WORTH = 2**20
"""Bytes of a file that is not simply read whole."""
_MOST_FIELDS = 2**16
"""Fields of a model beside those of its graph: a file with more is no model, or one of so many functions that protobuf reads it sooner."""
_MOST_READ = 2**31 - 1
"""Bytes of the longest message that protobuf reads (https://protobuf.dev/programming-guides/proto-limits/)."""


class _Place(NamedTuple):
    """Where in the file the bytes of a constant are."""

    start: int
    stop: int


@dataclass(frozen=True)
class MappedModel:
    """A model without the bytes of its large constants, and where in `file` these are, by the names of the initializers."""

    proto: onnx.ModelProto
    file: MappedFile
    places: dict[str, _Place]

    def give_bytes(self, model: ir.Model) -> None:
        """Let the initializers of `model`, which was made of `proto`, read their bytes from the file."""
        for name, span in self.places.items():
            value = model.graph.initializers[name]
            empty = value.const_value
            assert empty is not None
            shape = ir.Shape(empty.shape.numpy(), frozen=True)
            tensor = ir.LazyTensor(
                partial(self.file.tensor, span, empty.dtype, shape),
                dtype=empty.dtype,
                shape=shape,
                name=name,
                doc_string=empty.doc_string,
                metadata_props=dict(empty.metadata_props),
            )
            note_inline(tensor, empty)
            value.const_value = tensor


class MappedFile:
    """A file whose bytes are read where they lie. It may be replaced or removed meanwhile, but not written over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_to_read(path)
        weakref.finalize(self, os.close, self._descriptor)
        self._state = self._now()
        self.data = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        self._last = _Place(0, 0)

    def tensor(self, span: _Place, dtype: ir.DataType, shape: ir.Shape) -> ir.TensorProtocol:
        """Return the constant at `span`. Raises ModelError where somebody has written to the file meanwhile."""
        if self._now() != self._state:
            raise ModelError(f"{self._path}: it was written over while its weights were in use", hint="load it again")
        self._let_go(self._last)
        self._last = span
        raw = np.frombuffer(self.data, np.uint8, span.stop - span.start, span.start)
        return ir.Tensor(raw.view(dtype.numpy()).reshape(shape.numpy()), dtype, shape=shape)

    def _let_go(self, span: _Place) -> None:
        """Take what was read at `span` out of memory; whoever still reads there has the system read it again."""
        if span.stop > span.start:
            let_go(self.data, span.start, span.stop)

    def _now(self) -> tuple[int, int]:
        state = os.fstat(self._descriptor)
        return state.st_size, state.st_mtime_ns


def read_mapped(path: Path) -> MappedModel | None:
    """Return the model in the file `path`; None where there is nothing to gain, or protobuf should read it whole and find words for it.

    Raises OSError.
    """
    if not path.is_file() or path.stat().st_size < _WORTH or format_of(path) != "protobuf":
        return None
    file = MappedFile(path)
    try:
        return _read_parts(file)
    except (Unusual, IndexError, UnicodeDecodeError, DecodeError):
        return None


def format_of(path: Path) -> str:
    """Return the name of the format of a model file, by its ending."""
    return serialization.registry.get_format_from_file_extension(path.suffix) or "protobuf"


def _read_parts(file: MappedFile) -> MappedModel | None:
    data, places = file.data, dict[str, _Place]()
    parts = list(islice(fields(data, 0, len(data)), _MOST_FIELDS + 1))
    if len(parts) > _MOST_FIELDS:
        return None
    graphs = [part for part in parts if part.number == GRAPH]
    if len(graphs) != 1:
        return None
    graph = b"".join(_without_large(data, graphs[0], places))
    rest = (data[part.start : part.stop] for part in parts if part.number != GRAPH)
    proto = onnx.ModelProto.FromString(b"".join((*rest, head(GRAPH, len(graph)), graph)))
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.name in places}
    if not places or not all(_holds(tensors[name], span) for name, span in places.items()):
        return None
    return MappedModel(proto, file, places)


def _without_large(data: mmap.mmap, graph: WireField, places: dict[str, _Place]) -> Iterator[bytes]:
    """Yield the content of `graph` without the bytes of its large initializers, whose places are noted in `places`."""
    kept = graph.content
    for part in fields(data, graph.content, graph.stop):
        if part.number != INITIALIZER or part.stop - part.content < _LARGE:
            continue
        inside = list(fields(data, part.content, part.stop))
        held = [field for field in inside if field.number == RAW_DATA]
        if len(held) != 1 or held[0].stop - held[0].content < _LARGE:
            continue
        names = [data[field.content : field.stop].decode() for field in inside if field.number == NAME]
        if len(names) != 1 or names[0] in places:
            raise Unusual("two names")
        places[names[0]] = _Place(held[0].content, held[0].stop)
        tensor = b"".join(data[field.start : field.stop] for field in inside if field.number != RAW_DATA)
        yield data[kept : part.start] + head(INITIALIZER, len(tensor)) + tensor
        kept = part.stop
    yield data[kept : graph.stop]


def _holds(tensor: onnx.TensorProto, span: _Place) -> bool:
    """Return whether the elements of `tensor` are at `span`, one after the other (those smaller than a byte share theirs)."""
    try:
        dtype = ir.DataType(tensor.data_type)
        size = dtype.numpy().itemsize
    except (TypeError, ValueError):
        return False
    is_elsewhere = tensor.data_location == onnx.TensorProto.EXTERNAL
    return not is_elsewhere and size == dtype.itemsize and math.prod(tensor.dims) * size == span.stop - span.start


# Sparse constants, written densely when a model is loaded: onnxruntime does so, too, and onnx_ir does not know them.

MOST_BYTES = 2**28
"""That the sparse constants of a model may take together when they are dense: few indices may stand among any number of zeros."""

_STANDARD = frozenset({"", "ai.onnx"})
_HOLDING = CONTROL_FLOW | {"Constant", "SequenceMap"}
"""Standard operators with attributes that may hold sparse tensors; to look at those of all others takes as long as to load them."""


def densely(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return `proto`, or a copy whose sparse initializers, and sparse values of Constant nodes, are dense; that is a ModelWarning.

    Raises ModelError for a sparse tensor that is not valid, of strings, or external, and where all take more than MOST_BYTES.
    """
    sparse = [tensor for owner in _places(proto) for tensor in _sparse(owner)]
    if not sparse:
        return proto
    if sum(map(_dense_bytes, sparse)) > MOST_BYTES:
        reason = f"the sparse constants take more than {MOST_BYTES / 2**20:.0f} MiB when they are dense"
        raise ModelError(reason, hint="store them densely")
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    for owner in _places(dense):
        tensors = [_dense(tensor) for tensor in _sparse(owner)]
        if isinstance(owner, onnx.GraphProto):
            owner.initializer.extend(tensors)
            owner.ClearField("sparse_initializer")
        elif tensors:
            owner.CopyFrom(onnx.helper.make_attribute("value", tensors[0], owner.doc_string))
    subject = "a sparse constant is" if len(sparse) == 1 else f"{len(sparse):,} sparse constants are"
    warnings.warn(f"{subject} written densely", ModelWarning, stacklevel=4)
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


def _sparse(owner: onnx.GraphProto | onnx.AttributeProto) -> Iterable[onnx.SparseTensorProto]:
    if isinstance(owner, onnx.GraphProto):
        return owner.sparse_initializer
    return [owner.sparse_tensor] if owner.HasField("sparse_tensor") else []


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


if TYPE_CHECKING:
    Source: TypeAlias = str | Path | onnx.ModelProto | ir.Model
else:  # a union has no help of its own

    class Source(ABC):  # noqa: B024 - it has no methods of its own
        """A model that a verb reads: the path of an ONNX file, an onnx.ModelProto or an onnx_ir.Model."""

    for _kind in (str, Path, onnx.ModelProto, ir.Model):
        Source.register(_kind)


def _not_a_model() -> tuple[type[Exception], ...]:
    """Return the errors of readers of another format; asked after one, since the formats of texts take long to load."""
    of_texts = (onnx.parser.ParseError, text_format.ParseError, json_format.ParseError)
    return DecodeError, IndexError, ValueError, *of_texts


@collector_paused()
def load(source: Source) -> ir.Model:
    """Return `source` as an onnx_ir model of its own: editing it changes neither the file nor the caller's object.

    Large weights stay in their files and are mapped when they are read. External ones that are small (see `is_small`) come into memory.
    Those of a ModelProto or a model are shared, not copied. Raises ModelError where the file is missing, is not ONNX, is truncated,
    breaks the ONNX specification, or where its external data is not there.
    """
    if isinstance(source, ir.Model):
        _require_names(source)
        check(source)
        model = source.clone()
        _own_tensors(model)
    elif isinstance(source, onnx.ModelProto):
        model, _ = _deserialise(source, "the ModelProto")
        _own_tensors(model)
    elif isinstance(source, str | os.PathLike):
        return _read(Path(source))
    else:
        raise UsageError(f"a {type(source).__name__} is no model", hint="give a path, a ModelProto or an onnx_ir.Model")
    for tensor in external_tensors(model):
        _require_data(tensor, "the model")
    _free_negative_sizes(model)
    return model


def digest(source: Source) -> str | None:
    """Return the SHA-256 of the model file in hexadecimal; None for a model that is not a file. Raises ModelError."""
    if not isinstance(source, str | Path):
        return None
    require_readable(Path(source), ModelError)
    try:
        with Path(source).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{source}: {error.strerror or error}") from None


def file_name(source: Source) -> str | None:
    """Return the name of the model file without its folder and ending; None for a model that is not a file."""
    return Path(source).stem if isinstance(source, str | Path) else None


class _Weights(ir.ExternalTensor):
    """A tensor in a file of which `load` has seen that it lies in the model's folder.

    onnx_ir would refuse a file that has a second hard link; here that is how one weights file serves several models.
    """

    def _check_path_containment(self) -> None:
        return


def _read(path: Path) -> ir.Model:
    require_readable(path, ModelError)
    try:
        mapped = read_mapped(path)
        proto = _read_whole(path) if mapped is None else mapped.proto
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except _not_a_model() as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{path}: not an ONNX model, or a truncated one ({reason})") from None
    model, tensors = _deserialise(proto, str(path), mapped, is_own=True)
    external = []
    for tensor in tensors:
        if type(tensor) is ir.serde.TensorProtoTensor:
            without_second_props(tensor)
        elif is_external(tensor):
            external.append(tensor)
    folder = path.parent.resolve()
    for tensor in external:
        _require_inside(tensor, folder, path)
        tensor.base_dir = folder
        _require_data(tensor, str(path))
    if external:
        _use_checked_weights(model)
        _use_checked_attributes(model)
    _free_negative_sizes(model)
    return model


def _read_whole(path: Path) -> onnx.ModelProto:
    if path.stat().st_size > _MOST_READ:
        hint = "keep the weights in external data"
        raise ModelError(
            f"{path}: not an ONNX model, or one in a form of which protobuf reads less than 2 GiB", hint=hint
        )
    with path.open("rb") as file:
        first = file.read(1)
    if first == b"\0":
        raise ModelError(f"{path}: not an ONNX model (it begins with a byte of zero)")
    with warnings.catch_warnings():  # that ONNX text is experimental
        warnings.simplefilter("ignore", UserWarning)
        return onnx.load(path, load_external_data=False)


def _free_negative_sizes(model: ir.Model) -> None:
    """Make dimensions of -1, as some exporters write what is free, free in ONNX's sense: nothing is said of them."""
    for graph in main_graphs(model):
        outputs = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *outputs):
            shape = value.shape
            if shape is not None and any(isinstance(dim, int) and dim < 0 for dim in shape):
                value.shape = ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in shape])


def _deserialise(
    proto: onnx.ModelProto, name: str, mapped: MappedModel | None = None, *, is_own: bool = False
) -> tuple[ir.Model, list[ir.TensorProtocol]]:
    """Return the model of `proto` and its constants. One that `is_own` is held by nobody else."""
    # Bytes of another format can parse as a message with nothing in it.
    if proto.ir_version < 1 or not proto.HasField("graph"):
        raise ModelError(f"{name}: not an ONNX model (it has no graph)")
    try:
        _require_no_map(proto.graph)
        proto = densely(proto)
        check_proto(proto)
        model = ir.from_proto(proto)
        note_training(proto, model)
        note_outputs(proto, model)
        if mapped is not None:
            mapped.give_bytes(model)
        if is_own and len(proto.graph.node) > _MANY_NODES:
            _part_initializers(model)
        _require_text(model)
        tensors = list(_tensors(model))
        for tensor in tensors:
            _require_bytes(tensor)
    except ModelError as error:
        raise ModelError(f"{name}: {error.message}", hint=error.hint) from None
    except (ArithmeticError, AttributeError, DecodeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"{name}: not a valid ONNX model ({first_cause(error)})") from None
    return model, tensors


_MANY_NODES = 2_000
"""Nodes of a graph whose message takes so much memory that it is not held for a few initializers in it."""
_MOST_PARTED = 2**25
"""Bytes of initializers, at most, that are copied to let go of a message."""


def _part_initializers(model: ir.Model) -> None:
    """Give the initializers of the main graph messages of their own: protobuf holds a whole message as long as any part of it."""
    constants = [(value, value.const_value) for value in model.graph.initializers.values()]
    held = [(value, tensor.raw) for value, tensor in constants if type(tensor) is ir.serde.TensorProtoTensor]
    if sum(tensor.ByteSize() for _, tensor in held) > _MOST_PARTED:
        return
    alone = onnx.GraphProto(initializer=(tensor for _, tensor in held))
    for (value, _), tensor in zip(held, alone.initializer, strict=True):
        value.const_value = ir.serde.TensorProtoTensor(tensor)


def _require_no_map(graph: onnx.GraphProto) -> None:
    """Raise ModelError where a declared value of `graph` is a map, or a sequence of maps: onnx_ir has no such type."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        kind = value.type
        while (wrapper := kind.WhichOneof("value")) in ("sequence_type", "optional_type"):
            kind = getattr(kind, wrapper).elem_type
        if wrapper == "map_type":
            hint = "export scikit-learn models without ZipMap: options={'zipmap': False}"
            raise ModelError(f"the value {value.name!r} holds maps, which onnxtile does not read", hint=hint)


def _require_text(model: ir.Model) -> None:
    """Raise ModelError where a text is not UTF-8: it comes out of the file as bytes, and could not be written again."""
    texts: list[object] = [model.producer_name, model.producer_version, model.domain, model.doc_string]
    texts += (*model.metadata_props, *model.metadata_props.values())
    described: list[ir.Graph | ir.Function | ir.Node | ir.Value] = []
    for graph in all_graphs(model):
        described += (graph, *graph.inputs, *graph.initializers.values())
    for function in model.functions.values():
        texts += (function.domain, function.overload, *function.attributes)
        described.append(function)
    for node in all_nodes(model):
        texts += (node.domain, node.op_type, node.overload)
        described.append(node)
        described += node.outputs
        if node.attributes.data:
            texts += node.attributes.data
            texts += [attribute.doc_string for attribute in node.attributes.data.values()]
    for holder in described:
        texts += (holder.name, holder.doc_string)
        if holder.metadata_props:
            texts += (*holder.metadata_props, *holder.metadata_props.values())
    texts += [value.type.denotation for value in described if type(value) is ir.Value and value.type is not None]
    if bytes in set(map(type, texts)):
        raise ModelError("not valid ONNX: a text is not UTF-8")


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Return the constants of all graphs and functions whose bytes lie in external files, in order."""
    return [tensor for tensor in _tensors(model) if is_external(tensor)]


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield every tensor of the model: initializers, and attributes of nodes (of Constant, above all)."""
    for graph in main_graphs(model):
        yield from (v.const_value for v in graph.initializers.values() if v.const_value is not None)
    for node in all_nodes(model):
        if node.attributes.data:
            yield from tensors_of(node)


def _require_bytes(tensor: ir.TensorProtocol) -> None:
    """Raise ModelError unless a tensor that was read has the elements that its shape asks for."""
    if type(tensor) is ir.serde.TensorProtoTensor and tensor.raw.HasField("raw_data"):
        present, wanted = len(tensor.raw.raw_data), stored_bytes(tensor)
    elif isinstance(tensor, ir.ExternalTensor | ir.LazyTensor):
        return
    elif isinstance(tensor, ir.StringTensor):
        present, wanted = len(tensor.raw), tensor.size
    else:
        present, wanted = tensor.numpy().size, tensor.size
    if present != wanted:
        raise ModelError(f"the tensor {tensor.name!r} of shape {list(tensor.shape)} is truncated")


def _require_inside(tensor: ir.ExternalTensor, folder: Path, model: Path) -> None:
    """Raise ModelError unless the file of `tensor` is inside the model's folder, as the ONNX specification asks."""
    if not real(folder / tensor.location).is_relative_to(folder):
        raise ModelError(
            f"{model}: the external data of {tensor.name!r} lies outside the model's folder: {tensor.location}"
        )


def _require_data(tensor: ir.ExternalTensor, model: str) -> None:
    """Raise ModelError unless the bytes of `tensor` are there."""
    file = Path(tensor.path)
    if not file.is_file():
        raise ModelError(
            f"{model}: the external data file {str(tensor.location)!r} of {tensor.name!r} is missing",
            hint=f"put it in {file.parent}",
        )
    start, length = tensor.offset or 0, tensor.length if tensor.length is not None else tensor.nbytes
    if start < 0 or length != tensor.nbytes:
        raise ModelError(
            f"{model}: {tensor.name!r} needs {tensor.nbytes} bytes of external data, and {length} at {start} are given"
        )
    if file.stat().st_size < start + length:
        raise ModelError(
            f"{model}: the external data file {str(tensor.location)!r} is truncated: {tensor.name!r} ends at byte {start + length}"
        )


def _use_checked_weights(model: ir.Model) -> None:
    """Map the external weights of `model` as files that were looked at; small ones, which may be shapes, come into memory.

    onnxruntime refuses a model whose shape operands lie in an external file.
    """
    for graph in main_graphs(model):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or not is_external(tensor):
                continue
            checked = _checked(tensor)
            value.const_value = _in_memory(checked) if is_small(tensor) else checked


def _use_checked_attributes(model: ir.Model) -> None:
    for node in all_nodes(model):
        for attribute in [candidate for candidate in node.attributes.values() if _is_external(candidate)]:
            node.attributes[attribute.name] = ir.AttrTensor(
                attribute.name, _checked(attribute.value), doc_string=attribute.doc_string
            )


def _is_external(attribute: ir.Attr) -> bool:
    return not attribute.is_ref() and is_external(attribute.value)


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    array = tensor.numpy().copy()
    tensor.release()
    shape = ir.Shape(tensor.shape.numpy())
    props = dict(tensor.metadata_props)
    return ir.Tensor(
        array, dtype=tensor.dtype, shape=shape, name=tensor.name, doc_string=tensor.doc_string, metadata_props=props
    )


def _checked(tensor: ir.ExternalTensor) -> _Weights:
    return _Weights(
        straight(tensor.location, Path(tensor.base_dir)),
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=ir.Shape(tensor.shape),
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
        base_dir=tensor.base_dir,
    )


def _own_tensors(model: ir.Model) -> None:
    """Give `model` tensors and types of its own, with the caller's bytes: renaming a value renames its tensor, too."""
    for graph in main_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _copied(value.const_value)
        outputs = (output for node in graph for output in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *outputs):
            if isinstance(value.type, ir.TensorType):
                value.type = ir.TensorType(value.type.dtype, denotation=value.type.denotation)
    for node in all_nodes(model):
        for attribute in [candidate for candidate in node.attributes.values() if not candidate.is_ref()]:
            if attribute.type == ir.AttributeType.TENSOR:
                copy = ir.AttrTensor(attribute.name, _copied(attribute.value), doc_string=attribute.doc_string)
                node.attributes[attribute.name] = copy
            elif attribute.type == ir.AttributeType.TENSORS:
                copies = [_copied(tensor) for tensor in attribute.value]
                node.attributes[attribute.name] = ir.AttrTensors(
                    attribute.name, copies, doc_string=attribute.doc_string
                )


def _copied(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return _checked(tensor) if is_external(tensor) else copied_tensor(tensor, tensor.name)


def _require_names(model: ir.Model) -> None:
    """Refuse what cannot be referred to: the specification gives every value a name, and so do all tools but hand-made models."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name is None:
                raise ModelError(f"an output of a {node.op_type} node has no name")
