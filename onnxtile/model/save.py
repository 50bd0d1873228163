"""Saves a model: the file appears whole or not at all, and unchanged weights stay where they are."""

from __future__ import annotations

import filecmp
import hashlib
import mmap
import re
from collections.abc import Callable
from functools import partial
from itertools import chain, count
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError
from onnx import serialization

from onnxtile.model import stream
from onnxtile.model.load import external_tensors
from onnxtile.model.preserved import add_outputs, unlist_constants
from onnxtile.model.stream import Draft, ModelTooLarge, write_data, write_model
from onnxtile.model.topology import main_graphs
from onnxtile.system.errors import UsageError
from onnxtile.system.files import (
    alone_in,
    carry,
    is_file_of,
    named_weights,
    refusals,
    require_writable,
    temporary_file,
    umask,
    write_whole_with,
)

# Constants that do not fit into the file of their model, in a file of data beside it.
#
# A file of data is never written over, and its name is not given to other data: a new model gets new data under a name of their own, and
# the data of the model that it replaced are removed at the end. So the model that is there always has the data that it was written with,
# wherever the writing is cut short.


def written_beside(path: Path, write: Callable[[Path], object], new_files: list[Path]) -> str:
    """Return the name of a file of data beside `path`, filled by `write`; note the file in `new_files` if it is new.

    The name is that of `path` with .data; where the model at `path` has other data, a digest of the new data follows. Raises UsageError
    where the system refuses.
    """
    folder = path.parent.resolve()
    with refusals(folder / f"{path.name}.data"), temporary_file(folder) as temporary:
        write(temporary)
        temporary.chmod(0o666 & ~umask())
        name = _name(path, folder, temporary)
        if not (folder / name).exists():
            new_files.append(folder / name)
            temporary.rename(folder / name)
    return name


def data_of(path: Path) -> frozenset[Path]:
    """Return the files of data that the model file `path` names and that bear its name: those that onnxtile wrote beside it."""
    return frozenset(
        file
        for file in named_weights(path)
        if file.parent == path.parent and _data_names(path, "?").fullmatch(file.name)
    )


def left_over(path: Path) -> frozenset[Path]:
    """Return the files beside `path` that have the name of its data with a digest: of a writer that was killed, perhaps."""
    return frozenset(file for file in path.parent.iterdir() if _data_names(path, "").fullmatch(file.name))


def _data_names(path: Path, digest: str) -> re.Pattern[str]:
    """Return the pattern of names of data files of `path`; `digest` is its quantifier for the digest, as in a regular expression."""
    return re.compile(rf"{re.escape(path.name)}\.data(\.[0-9a-f]{{16}}(\.\d+)?){digest}")


def remove_unread(files: frozenset[Path], path: Path) -> None:
    """Remove those of `files` that neither the model at `path` nor another model file of its folder names."""
    for file in files - named_weights(path):
        if not _is_named_beside(file, path):
            file.unlink(missing_ok=True)


def _is_named_beside(file: Path, path: Path) -> bool:
    """Return whether a model file beside `path`, or a copy of one, may name `file`, in any format."""
    name = re.compile(re.escape(file.name.encode()) + rb"(?!\.[0-9a-f]{16})")
    others = (other for other in file.parent.iterdir() if other.name != path.name and _is_model(other))
    return any(_has(other, name) for other in others if not _data_names(path, "?").fullmatch(other.name))


def _is_model(file: Path) -> bool:
    """Return whether `file` is a model by its name, as m.onnx and m.onnx.bak are."""
    is_known = serialization.registry.get_format_from_file_extension(file.suffix) is not None
    return (is_known or ".onnx" in file.name) and file.is_file() and file.stat().st_size > 0


def _has(file: Path, text: re.Pattern[bytes]) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return text.search(data) is not None


def _name(path: Path, folder: Path, data: Path) -> str:
    """Return the name for the file `data` beside `path`."""
    plain = f"{path.name}.data"
    if _fits(folder / plain, data) and (not data_of(path) or (folder / plain).exists()):
        return plain
    with data.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    names = (f"{plain}.{digest}{suffix}" for suffix in chain([""], (f".{number}" for number in count(1))))
    return next(name for name in names if _fits(folder / name, data))


def _fits(target: Path, source: Path) -> bool:
    """Return whether the bytes of `source` may be had at `target`: nothing is there, or a file of these same bytes."""
    if not target.exists():
        return not target.is_symlink()
    return target.is_file() and not target.is_symlink() and filecmp.cmp(source, target, shallow=False)


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
    where that cannot be. Constants in memory that do not fit into one file (2 GiB) go to `path`.data beside it. Where that name is taken, a
    digest follows it. The data of the model that was at `path` are removed once it is replaced, unless another model in the folder names
    them. Raises UsageError where `path` is the `source` and `force` is off, or is a weights file of either. It does so, too, where its
    folder does not exist, or it cannot be written.
    """
    require_writable(path, source=source, force=force)
    model = draft.model if isinstance(draft, Draft) else draft
    external = external_tensors(model)
    places = {Path(tensor.path) for tensor in external} | {path.parent / tensor.location for tensor in external}
    if any(is_file_of(path, file) for file in places):
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
    before, new_files = _identity(path), list[Path]()

    def fill(file: Path) -> None:
        with file.open("wb") as data:
            write_data(draft, data)

    try:
        new_files.extend(carry(external, path.parent.resolve()))
        try:
            write_whole_with(path, partial(write_model, draft))
        except ModelTooLarge:
            old = data_of(path)
            beside = written_beside(path, fill, new_files)
            write_whole_with(path, partial(write_model, draft, beside=beside))
            remove_unread(old | left_over(path), path)
    except BaseException:
        if _identity(path) == before:  # else the new model is there, and reads them
            for file in new_files:
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
