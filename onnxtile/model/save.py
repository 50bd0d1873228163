"""Saves a model: the file appears whole or not at all, and unchanged weights stay where they are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from onnxtile.errors import UsageError
from onnxtile.model import stream
from onnxtile.model.beside import data_of, left_over, remove_unread, written_beside
from onnxtile.model.load import external_tensors
from onnxtile.model.passed_through import add_outputs
from onnxtile.model.stream import Draft, ModelTooLarge, write_data, write_model
from onnxtile.model.training import unlist_constants
from onnxtile.model.walk import main_graphs
from onnxtile.model.weights import carry, is_file_of
from onnxtile.model.whole import alone_in, require_writable, write_whole_with

MIN_IR_VERSION = 10
"""The first with metadata on nodes, functions and values."""
MAX_IR_VERSION = 13
"""The last that onnxruntime loads."""


def raise_ir_version(model: ir.Model) -> None:
    """Let `model` (in place) carry metadata: IR version 10 at least, 13 at most, which is the last that onnxruntime loads.

    Before IR version 4 every initializer had to be listed as an input; from then on such an input is one that the user may
    override, so the listing is dropped; what writes the model says so.
    """
    if model.ir_version < 4:
        unlist_constants(model)
    model.ir_version = min(max(model.ir_version, MIN_IR_VERSION), MAX_IR_VERSION)


def to_bytes(model: ir.Model) -> bytes:
    """Return `model` as the bytes of an ONNX file; external weights stay references. Raises ModelTooLarge above 2 GiB."""
    if inline_bytes(model) > stream.MOST_BYTES:
        raise ModelTooLarge
    proto = ir.to_proto(model)
    add_outputs(model, proto)
    return proto_bytes(proto)


def proto_bytes(proto: onnx.ModelProto) -> bytes:
    """Return `proto` as the bytes of an ONNX file. Raises ModelTooLarge above 2 GiB."""
    try:
        data: bytes = proto.SerializeToString(deterministic=True)
    except EncodeError:
        raise ModelTooLarge from None
    return data


def external_folder(model: ir.Model) -> Path | None:
    """Return the folder that the external data of `model` is relative to; None where it has none."""
    tensors = external_tensors(model)
    return Path(tensors[0].base_dir) if tensors else None


def save(draft: ir.Model | Draft, path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Write a model, which stays as it is, to `path`. On an error every file is as it was before.

    External weights stay where they are when `path` is in the same folder; elsewhere they are cloned, or copied with holes kept
    where that cannot be. Constants in memory that do not fit into one file (2 GiB) go to `path`.data beside it, where that is taken with a
    digest behind its name; the data of the model that was at `path` are removed once it is replaced, unless another model in the folder
    names them. Raises UsageError where `path` is the `source` and `force` is off, or is a weights file of either, where its folder does
    not exist, or it cannot be written.
    """
    require_writable(path, source=source, force=force)
    model = draft.model if isinstance(draft, Draft) else draft
    external = external_tensors(model)
    places = {Path(tensor.path) for tensor in external} | {path.parent / tensor.location for tensor in external}
    if any(is_file_of(path, place) for place in places):
        raise UsageError(f"{path} is a weights file of the model", hint="name another file with -o")
    if not external and not inline_bytes(model) > stream.MOST_BYTES:
        try:
            write_whole_with(path, partial(write_model, draft))
        except ModelTooLarge:
            pass
        else:
            return
    if path.exists() and not path.is_file():  # a device or a pipe cannot have a data file beside it
        write_whole_with(path, partial(write_model, draft))
        return
    with alone_in(path.parent.resolve()):
        _save_with_weights(draft, external, path)


def _save_with_weights(draft: ir.Model | Draft, external: list[ir.ExternalTensor], path: Path) -> None:
    before, made = _identity(path), list[Path]()

    def fill(file: Path) -> None:
        with file.open("wb") as data:
            write_data(draft, data)

    try:
        made.extend(carry(external, path.parent.resolve()))
        try:
            write_whole_with(path, partial(write_model, draft))
        except ModelTooLarge:
            old = data_of(path)
            beside = written_beside(path, fill, made)
            write_whole_with(path, partial(write_model, draft, beside=beside))
            remove_unread(old | left_over(path), path)
    except BaseException:
        if _identity(path) == before:  # else the new model is there, and reads them
            for file in made:
                file.unlink(missing_ok=True)
        raise


def _identity(path: Path) -> tuple[int, int] | None:
    """Return inode and time of the file at `path`, which identify it; None where no file exists."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_ino, state.st_mtime_ns


def inline_bytes(model: ir.Model) -> int:
    """Return the bytes of the initializers that do not lie in external files."""
    constants = (value.const_value for graph in main_graphs(model) for value in graph.initializers.values())
    inline = (tensor for tensor in constants if tensor is not None and not isinstance(tensor, ir.ExternalTensor))
    return sum(int(tensor.nbytes) for tensor in inline)
