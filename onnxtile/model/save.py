"""From a graph to a file that appears whole or not at all, with its weights where they were if they did not change."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import onnx_ir as ir
from google.protobuf.message import EncodeError

from onnxtile.errors import ModelError, UsageError
from onnxtile.model.load import external_tensors
from onnxtile.model.stream import write_model
from onnxtile.model.weights import carry, free_name

MIN_IR_VERSION = 10
"""The first with metadata on nodes, functions and values."""
MAX_IR_VERSION = 13
"""The last that onnxruntime loads."""

_PROTOBUF_BYTES = 2**31 - 1
_GRAPH_BYTES = 2**26
"""Room that is left for everything but constants in a file of at most 2 GiB."""
_EXTERNAL_FROM = 1024
_BUFFER = 2**20
_UMASK = Lock()
"""It is asked for by setting it: two threads at once would leave it at 0."""


def raise_ir_version(model: ir.Model) -> None:
    """Let `model` (in place) carry metadata: IR version 10 at least, 13 at most, which is the last that onnxruntime loads.

    Before IR version 4 every initializer had to be listed as an input; from then on such an input is one that the user may
    override, so the listing is dropped.
    """
    if model.ir_version < 4:
        inputs = [value for value in model.graph.inputs if not value.is_initializer()]
        model.graph.inputs[:] = inputs
    model.ir_version = min(max(model.ir_version, MIN_IR_VERSION), MAX_IR_VERSION)


def to_bytes(model: ir.Model) -> bytes:
    """Return `model` as the bytes of an ONNX file; external weights stay references. Raises ModelError above 2 GiB."""
    if _inline_bytes(model) > _PROTOBUF_BYTES:
        raise _too_large()
    try:
        data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    except EncodeError:
        raise _too_large() from None
    return data


def external_folder(model: ir.Model) -> Path | None:
    """Return the folder that the external data of `model` is relative to; None where it has none."""
    tensors = external_tensors(model)
    return Path(tensors[0].base_dir) if tensors else None


def save(model: ir.Model, path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Write `model`, which stays as it is, to `path`. On an error every file is as it was before.

    External weights stay where they are when `path` is in the same folder; elsewhere they are cloned, or copied with holes kept
    where that cannot be. Constants in memory that do not fit into one file (2 GiB) go to `path`.data beside it. Raises UsageError where
    `path` is the `source` and `force` is off, its folder does not exist, or it cannot be written.
    """
    require_writable(path, source=source, force=force)
    external = external_tensors(model)
    if path.exists() and any(path.samefile(tensor.path) for tensor in external):
        raise UsageError(f"{path} is a weights file of the model", hint="name another file with -o")
    made: list[Path] = []
    try:
        made.extend(carry(external, path.parent.resolve()))
        if _inline_bytes(model) > _PROTOBUF_BYTES - _GRAPH_BYTES:
            model = _externalised(model, path, made)
        write_whole_with(path, partial(write_model, model))
    except BaseException:
        for file in made:
            file.unlink(missing_ok=True)
        raise


def require_writable(path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Raise UsageError, before any work is done, where `path` cannot or must not be written."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file")
    if not force and source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{path} would be overwritten", hint="name another file with -o, or say --force")


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that the file is the old one or the whole new one at any time.

    A device or a pipe is written to, not replaced. Raises UsageError where the system refuses.
    """
    write_whole_with(path, lambda file: file.write(data))


def write_whole_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill the file `path` piece by piece, so that it is the old one or the whole new one at any time.

    A device or a pipe is written to, not replaced. Raises UsageError where the system refuses.
    """
    with _refusals(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                write(file)
        else:
            _replace(path, write)


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".onnxtile.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=_BUFFER) as file:
            write(file)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    with _UMASK:
        mask = os.umask(0)
        os.umask(mask)
    return mask


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn what the system says (no permission, no space left) into one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error


def _too_large() -> ModelError:
    return ModelError(
        "the model's constants take more than 2 GiB in one file", hint="give -o OUT, which may use external data"
    )


def _inline_values(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and not isinstance(value.const_value, ir.ExternalTensor):
                yield value, value.const_value


def _inline_bytes(model: ir.Model) -> int:
    return sum(tensor.nbytes for _, tensor in _inline_values(model))


def _externalised(model: ir.Model, path: Path, made: list[Path]) -> ir.Model:
    """Return a copy of `model` whose large in-memory constants are in one file beside `path`; note that file in `made`."""
    folder = path.parent.resolve()
    model = model.clone()
    name = free_name(folder, f"{path.name}.data", external_tensors(model))
    values = [
        (value, tensor)
        for value, tensor in _inline_values(model)
        if tensor.nbytes > _EXTERNAL_FROM and tensor.dtype != ir.DataType.STRING
    ]
    if not (folder / name).exists():
        made.append(folder / name)
    with _refusals(folder / name):
        moved = ir.external_data.convert_tensors_to_external([tensor for _, tensor in values], folder, name)
    for (value, _), tensor in zip(values, moved, strict=True):
        value.const_value = tensor
    return model
