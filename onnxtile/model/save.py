"""Saves a model: the file appears whole or not at all, and unchanged weights stay where they are."""

from __future__ import annotations

import filecmp
import hashlib
import mmap
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from functools import partial
from io import BytesIO
from itertools import chain, count
from os import SEEK_CUR
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError
from onnx import serialization

from onnxtile.model.load import external_tensors
from onnxtile.model.preserved import (
    add_body_outputs,
    add_graph_outputs,
    add_outputs,
    add_training,
    is_stated_inline,
    unlist_constants,
    warn_of_unlisted,
    without_outputs,
)
from onnxtile.model.topology import drop_empty_notes, is_external, main_graphs
from onnxtile.model.validity import check, check_proto, is_small
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError
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
from onnxtile.system.interpreter import collector_paused
from onnxtile.system.protobuf_wire import GRAPH, INITIALIZER, RAW_DATA, head

# A model written piece by piece, so that no second copy of its weights or its nodes is ever in memory.
#
# The lengths of large constants are known before their bytes are, so the file is written in its order. A repeated field of a message may
# stand in several pieces (https://protobuf.dev/programming-guides/encoding/#last-one-wins).


MOST_BYTES = 2**31 - 1
"""Of one file: what protobuf reads (https://protobuf.dev/programming-guides/proto-limits/)."""
_CHUNK = 256
"""Nodes whose messages are in memory at a time."""
_SPOOLED = 2**22
"""Bytes of the messages of all nodes, at most, that are held in memory until the length of the graph is known."""
_ZEROS = bytes(2**16)
"""The least run of zeros that becomes a hole: some blocks of any file system."""


class ModelTooLarge(ModelError):
    """A model does not fit into one file."""

    def __init__(self) -> None:
        super().__init__("the model takes more than 2 GiB in one file", hint="give -o OUT, which may use external data")


@dataclass(frozen=True)
class Draft:
    """A model to be written. `content` are the bytes of its file, where these are known."""

    model: ir.Model
    content: bytes | None = field(default=None, repr=False)


class _StreamEntry(NamedTuple):
    """An initializer: its bytes up to its content, how many bytes that is in this file, and the tensor that has it."""

    start: bytes
    size: int
    tensor: ir.TensorProtocol


@collector_paused()
def write_model(source: ir.Model | Draft, file: BinaryIO, *, beside: str = "") -> None:
    """Write a model to `file`; external weights stay references.

    Large constants of the main graph are asked for one after another, in their order, and let go once they are written. With `beside`
    they are references to the file of that name, which `write_data` writes. Raises ModelTooLarge, before anything is written, where `file`
    would take more than 2 GiB.
    """
    draft = source if isinstance(source, Draft) else Draft(source)
    warn_of_unlisted(draft.model)
    if draft.content is None or beside:
        _write(draft, file, beside)
    else:
        file.write(draft.content)


def _write(draft: Draft, file: BinaryIO, beside: str = "") -> None:
    (rest, graph), entries, listed = _around(draft.model), list(_entries(draft.model, beside)), list(draft.model.graph)
    total = len(graph) + sum(len(entry.start) + entry.size for entry in entries)
    if total > MOST_BYTES:
        raise ModelTooLarge
    with tempfile.SpooledTemporaryFile(_SPOOLED) as nodes, tempfile.SpooledTemporaryFile(_SPOOLED) as facts:
        for start in range(0, len(listed), _CHUNK):
            _write_nodes(listed[start : start + _CHUNK], draft.model.ir_version, nodes, facts)
        total += nodes.tell() + facts.tell()
        if total + len(rest) > MOST_BYTES:
            raise ModelTooLarge
        file.write(rest)
        file.write(head(GRAPH, total))
        for part in (nodes, facts):
            part.seek(0)
            shutil.copyfileobj(part, file)
    file.write(graph)
    for before, size, tensor in entries:
        file.write(before)
        if size:
            file.write(tensor.tobytes())


MOST_IN_MEMORY = 2**25
"""Bytes of weights of a model whose file is held in memory."""


@collector_paused()
def written(model: ir.Model) -> Draft:
    """Return `model` as a draft that knows the bytes of its file, where its weights are few: these are checked, run and saved."""
    if inline_bytes(model) > MOST_IN_MEMORY:
        return Draft(model)
    file = BytesIO()
    _write(Draft(model), file)
    return Draft(model, content=file.getvalue())


def check_written(draft: Draft) -> None:
    """Check a draft as `check` does its model; where the bytes of its file are known, check these."""
    if draft.content is None:
        check(draft.model)
    else:
        check_proto(onnx.ModelProto.FromString(draft.content))


@collector_paused()
def write_data(source: ir.Model | Draft, file: BinaryIO) -> None:
    """Write the bytes of the large constants of a model's main graph, one after another, where `write_model` refers to them.

    Long runs of zeros become holes of the file, as they are in the sparse file of weights that are not known yet.
    """
    for _, tensor in large_constants(source):
        _write_with_holes(tensor.tobytes(), file)
    file.truncate()


def large_constants(source: ir.Model | Draft) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the constants of a model's main graph that `write_model` refers to, where it may, and does not write."""
    model = source.model if isinstance(source, Draft) else source
    return ((value, tensor) for value, tensor in _held(model) if _large_bytes(tensor))


def _write_with_holes(data: bytes, file: BinaryIO) -> None:
    """Write `data`, and pass over pieces of it that are zeros alone."""
    view = memoryview(data)
    for start in range(0, len(data), len(_ZEROS)):
        if data.startswith(_ZEROS[: len(data) - start], start):
            file.seek(min(len(_ZEROS), len(data) - start), SEEK_CUR)
        else:
            file.write(view[start : start + len(_ZEROS)])


def _held(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the initializers of the main graph."""
    values = model.graph.initializers.values()
    return ((value, value.const_value) for value in values if value.const_value is not None)


def _write_nodes(nodes: Sequence[ir.Node], ir_version: int, file: IO[bytes], facts: IO[bytes]) -> None:
    """Write nodes to `file`, and what is said of their outputs to `facts`."""
    proto = onnx.GraphProto()
    view = ir.GraphView([], [], nodes=nodes)
    ir.serde.serialize_graph_into(proto, view, model_ir_version=ir_version)  # type: ignore[arg-type]
    drop_empty_notes(value for node in nodes for value in node.outputs)
    add_body_outputs(nodes, proto.node)
    file.write(onnx.GraphProto(node=proto.node).SerializeToString(deterministic=True))
    proto.ClearField("node")
    facts.write(proto.SerializeToString(deterministic=True))


def _entries(model: ir.Model, beside: str) -> Iterator[_StreamEntry]:
    """Yield the initializers of the file in their order."""
    offset = 0
    for value, tensor in _held(model):
        size = _large_bytes(tensor)
        entry, facts = _plain_entry(value, tensor) if size and _is_plain(value) else _full_entry(value, tensor, size)
        if size:
            entry.ClearField("external_data")
            entry.ClearField("data_location")
        if size and not beside and is_stated_inline(tensor):
            entry.data_location = onnx.TensorProto.DEFAULT
        if size and beside:
            entry.data_location = onnx.TensorProto.EXTERNAL
            for key, text in (("location", beside), ("offset", str(offset)), ("length", str(size))):
                entry.external_data.add(key=key, value=text)
            offset += size
            size = 0
        start: bytes = entry.SerializeToString(deterministic=True)
        start += head(RAW_DATA, size) if size else b""
        yield _StreamEntry(facts + head(INITIALIZER, len(start) + size) + start, size, tensor)


def _large_bytes(tensor: ir.TensorProtocol) -> int:
    """Return how many bytes of a large constant are written last; 0 for one that is small or lies in a file of its own."""
    if is_external(tensor) or tensor.dtype == ir.DataType.STRING or is_small(tensor):
        return 0
    return int(tensor.nbytes)


def _is_plain(value: ir.Value) -> bool:
    """Return whether there is nothing to write of a constant but its name, type, shape and bytes."""
    tensor = value.const_value
    assert tensor is not None
    return not (value.metadata_props or value.doc_string or value.meta or tensor.metadata_props or tensor.doc_string)


def _plain_entry(value: ir.Value, tensor: ir.TensorProtocol) -> tuple[onnx.TensorProto, bytes]:
    """Return a constant without its bytes. Of the thousands in a tiled model most are so; the long way takes many times as long."""
    return onnx.TensorProto(name=value.name, data_type=int(tensor.dtype), dims=tensor.shape.numpy()), b""


def _full_entry(value: ir.Value, tensor: ir.TensorProtocol, size: int) -> tuple[onnx.TensorProto, bytes]:
    """Return a constant, without its bytes where it is large, and what else is said of it, unless it is an input, which says it."""
    held = _stand_in(value, tensor) if size else value
    proto = onnx.GraphProto()
    ir.serde.serialize_graph_into(proto, ir.GraphView([], [], nodes=[], initializers=[held]))  # type: ignore[arg-type]
    entry = proto.initializer.pop()
    without_outputs([held], proto)
    if value.is_graph_output():
        proto.ClearField("quantization_annotation")  # the outputs, which are written elsewhere, have it
    return entry, b"" if value.is_graph_input() else proto.SerializeToString(deterministic=True)


def _around(model: ir.Model) -> tuple[bytes, bytes]:
    """Return the fields of `model` beside its main graph, and the fields of that graph beside nodes, initializers and their annotations."""
    graph = model.graph
    view = ir.GraphView(
        graph.inputs,
        graph.outputs,
        nodes=[],
        doc_string=graph.doc_string,
        opset_imports=graph.opset_imports,
        name=graph.name,
        metadata_props=graph.metadata_props,
    )
    # A graph view is what the serialiser takes in a graph's place; the annotation of Model has not heard of it.
    bare = ir.Model(
        view,  # type: ignore[arg-type]
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=list(model.functions.values()),
        metadata_props=model.metadata_props,
        device_configurations=model.device_configurations,
    )
    proto = ir.to_proto(bare)
    add_graph_outputs(graph, proto.graph)
    inside: bytes = proto.graph.SerializeToString(deterministic=True)
    proto.ClearField("graph")
    add_training(model, proto)
    return proto.SerializeToString(deterministic=True), inside


def _stand_in(value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
    nothing = ir.ExternalTensor(
        "-",
        None,
        None,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=value.name or "",
        doc_string=tensor.doc_string,
    )
    nothing.metadata_props.update(tensor.metadata_props)
    # What a tensor says of its type and shape is not said again, unless there is something more to say.
    known = (value.shape, value.type) if value.metadata_props or value.doc_string else (None, None)
    other = ir.Value(
        name=value.name, shape=known[0], type=known[1], doc_string=value.doc_string, const_value=nothing,
        metadata_props=value.metadata_props,
    )  # fmt: skip
    other.meta.update(value.meta)
    return other


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
    if inline_bytes(model) > MOST_BYTES:
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
    content = draft.content if isinstance(draft, Draft) else None
    # A constant in another file names its "location".
    external = external_tensors(model) if content is None or b"location" in content else []
    places = {Path(tensor.path) for tensor in external} | {path.parent / tensor.location for tensor in external}
    if any(is_file_of(path, file) for file in places):
        raise UsageError(f"{path} is a weights file of the model", hint="name another file with -o")
    if not external and (content is not None or inline_bytes(model) <= MOST_BYTES):
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
    inline = (tensor for tensor in constants if tensor is not None and not is_external(tensor))
    return sum(int(tensor.nbytes) for tensor in inline)
