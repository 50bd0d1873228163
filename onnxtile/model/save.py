"""From a graph to a file that appears whole or not at all, with its weights where they were if they did not change."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import onnx_ir as ir

from onnxtile.errors import ModelError, UsageError
from onnxtile.model.load import external_tensors

MIN_IR_VERSION = 10
"""The first with metadata on nodes, functions and values."""

_PROTOBUF_BYTES = 2**31 - 1
_EXTERNAL_FROM = 1024


def raise_ir_version(model: ir.Model) -> None:
    """Let `model` (in place) carry metadata: IR version 10 at least.

    Before IR version 4 every initializer had to be listed as an input; from then on such an input is one that the user may
    override, so the listing is dropped.
    """
    if model.ir_version < 4:
        inputs = [value for value in model.graph.inputs if not value.is_initializer()]
        model.graph.inputs[:] = inputs
    model.ir_version = max(model.ir_version, MIN_IR_VERSION)


def to_bytes(model: ir.Model) -> bytes:
    """Return `model` as the bytes of an ONNX file; external weights stay references. Raises ModelError above 2 GiB."""
    proto = ir.to_proto(model)
    if proto.ByteSize() > _PROTOBUF_BYTES:
        raise ModelError(
            "the model's constants take more than 2 GiB in one file", hint="give -o OUT, which may use external data"
        )
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


def external_folder(model: ir.Model) -> Path | None:
    """Return the folder that the external data of `model` is relative to; None where it has none."""
    tensors = external_tensors(model)
    return Path(tensors[0].base_dir) if tensors else None


def save(model: ir.Model, path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Write `model` to `path`.

    External weights stay where they are when `path` is in the same folder; elsewhere they are hard-linked, or copied where that
    cannot be. Raises UsageError where `path` is the `source` and `force` is off, or its folder does not exist.
    """
    require_writable(path, source=source, force=force)
    _carry_external(model, path)
    if _inline_bytes(model) > _PROTOBUF_BYTES - 2**26:
        _externalise(model, path)
    write_whole(path, to_bytes(model))


def require_writable(path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Raise UsageError, before any work is done, where `path` cannot or must not be written."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file")
    if not force and source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{path} would be overwritten", hint="name another file with -o, or say --force")


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that the file is the old one or the whole new one at any time."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _inline_bytes(model: ir.Model) -> int:
    values = (v.const_value for graph in model.graphs() for v in graph.initializers.values())
    return sum(t.nbytes for t in values if t is not None and not isinstance(t, ir.ExternalTensor))


def _carry_external(model: ir.Model, path: Path) -> None:
    """Make the external data of `model` reachable from the folder of `path`."""
    folder = path.parent.resolve()
    for source in sorted({(Path(t.base_dir), os.fspath(t.location)) for t in external_tensors(model)}):
        base, location = source
        if base.resolve() == folder:
            continue
        target = folder / location
        if target.exists() and target.samefile(base / location):
            continue
        if target.exists():
            raise UsageError(
                f"{target} exists and is not the weights file of the model", hint="write into another folder"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(base / location, target)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:
        _copy_with_holes(source, target)


def _copy_with_holes(source: Path, target: Path) -> None:
    """Copy a file whose unwritten stretches (holes) take no room, so that they take none in the copy either."""
    with source.open("rb") as old, target.open("wb") as new:
        size = os.fstat(old.fileno()).st_size
        new.truncate(size)
        position = 0
        while position < size:
            try:
                start = os.lseek(old.fileno(), position, os.SEEK_DATA)
            except OSError:
                break  # nothing but a hole is left
            position = os.lseek(old.fileno(), start, os.SEEK_HOLE)
            old.seek(start)
            new.seek(start)
            _copy_bytes(old.fileno(), new.fileno(), start, position)
    shutil.copymode(source, target)


def _copy_bytes(source: int, target: int, start: int, stop: int) -> None:
    while start < stop:
        start += os.pwrite(target, os.pread(source, min(stop - start, 2**24), start), start)


def _externalise(model: ir.Model, path: Path) -> None:
    """Move the large in-memory constants of `model` to one file beside `path`."""
    values = [
        v for graph in model.graphs() for v in graph.initializers.values()
        if v.const_value is not None and not isinstance(v.const_value, ir.ExternalTensor) and v.const_value.nbytes > _EXTERNAL_FROM
    ]  # fmt: skip
    tensors = [v.const_value for v in values if v.const_value is not None]
    moved = ir.external_data.convert_tensors_to_external(tensors, path.parent.resolve(), f"{path.name}.data")
    for value, tensor in zip(values, moved, strict=True):
        value.const_value = tensor
