"""A model file read without its large constants, whose bytes stay in it until they are asked for."""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from onnx import serialization

from onnxtile.errors import ModelError
from onnxtile.model.copied_tensor import note_inline
from onnxtile.model.wire import GRAPH, INITIALIZER, NAME, RAW_DATA, Unusual, WireField, fields, head
from onnxtile.posix import let_go, open_to_read

_LARGE = 2**14
"""Bytes from which on a constant stays in the file: that is more elements, of any type, than what the checker is shown has."""
_WORTH = 2**20
"""Bytes of a file that is not simply read whole."""


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
        for name, place in self.places.items():
            value = model.graph.initializers[name]
            empty = value.const_value
            assert empty is not None
            shape = ir.Shape(empty.shape.numpy(), frozen=True)
            tensor = ir.LazyTensor(
                partial(self.file.tensor, place, empty.dtype, shape),
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

    def tensor(self, place: _Place, dtype: ir.DataType, shape: ir.Shape) -> ir.TensorProtocol:
        """Return the constant at `place`. Raises ModelError where somebody has written to the file meanwhile."""
        if self._now() != self._state:
            raise ModelError(f"{self._path}: it was written over while its weights were in use", hint="load it again")
        self._let_go(self._last)
        self._last = place
        raw = np.frombuffer(self.data, np.uint8, place.stop - place.start, place.start)
        return ir.Tensor(raw.view(dtype.numpy()).reshape(shape.numpy()), dtype, shape=shape)

    def _let_go(self, place: _Place) -> None:
        """Take what was read at `place` out of memory; whoever still reads there has the system read it again."""
        if place.stop > place.start:
            let_go(self.data, place.start, place.stop)

    def _now(self) -> tuple[int, int]:
        state = os.fstat(self._descriptor)
        return state.st_size, state.st_mtime_ns


def read_mapped(path: Path) -> MappedModel | None:
    """Return the model in the file `path`; None where there is nothing to gain, or protobuf should read it whole and find words for it.

    Raises OSError.
    """
    if not path.is_file() or path.stat().st_size < _WORTH or _format_of(path) != "protobuf":
        return None
    file = MappedFile(path)
    try:
        return _read(file)
    except (Unusual, IndexError, UnicodeDecodeError, DecodeError):
        return None


def _format_of(path: Path) -> str:
    return serialization.registry.get_format_from_file_extension(path.suffix) or "protobuf"


def _read(file: MappedFile) -> MappedModel | None:
    data, places = file.data, dict[str, _Place]()
    parts = list(fields(data, 0, len(data)))
    graphs = [part for part in parts if part.number == GRAPH]
    if len(graphs) != 1:
        return None
    graph = b"".join(_without_large(data, graphs[0], places))
    rest = (data[part.start : part.stop] for part in parts if part.number != GRAPH)
    proto = onnx.ModelProto.FromString(b"".join((*rest, head(GRAPH, len(graph)), graph)))
    found = {tensor.name: tensor for tensor in proto.graph.initializer if tensor.name in places}
    if not places or not all(_holds(found[name], place) for name, place in places.items()):
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


def _holds(tensor: onnx.TensorProto, place: _Place) -> bool:
    """Return whether the elements of `tensor` are at `place`, one after the other (those smaller than a byte share theirs)."""
    try:
        dtype = ir.DataType(tensor.data_type)
        size = dtype.numpy().itemsize
    except (TypeError, ValueError):
        return False
    is_elsewhere = tensor.data_location == onnx.TensorProto.EXTERNAL
    return not is_elsewhere and size == dtype.itemsize and math.prod(tensor.dims) * size == place.stop - place.start
