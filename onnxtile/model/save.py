"""From a graph to a file that appears whole or not at all, with its weights where they were if they did not change."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import EncodeError

from onnxtile.errors import UsageError
from onnxtile.model import stream
from onnxtile.model.load import external_tensors
from onnxtile.model.stream import Draft, TooLarge, write_data, write_model
from onnxtile.model.weights import carry, free_name
from onnxtile.model.whole import require_writable, write_whole_with

MIN_IR_VERSION = 10
"""The first with metadata on nodes, functions and values."""
MAX_IR_VERSION = 13
"""The last that onnxruntime loads."""


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
    """Return `model` as the bytes of an ONNX file; external weights stay references. Raises TooLarge above 2 GiB."""
    if sum(tensor.nbytes for _, tensor in _inline_values(model)) > stream.MOST_BYTES:
        raise TooLarge
    try:
        data: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    except EncodeError:
        raise TooLarge from None
    return data


def external_folder(model: ir.Model) -> Path | None:
    """Return the folder that the external data of `model` is relative to; None where it has none."""
    tensors = external_tensors(model)
    return Path(tensors[0].base_dir) if tensors else None


def save(draft: ir.Model | Draft, path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Write a model, which stays as it is, to `path`. On an error every file is as it was before.

    External weights stay where they are when `path` is in the same folder; elsewhere they are cloned, or copied with holes kept
    where that cannot be. Constants in memory that do not fit into one file (2 GiB) go to `path`.data beside it. Raises UsageError where
    `path` is the `source` and `force` is off, its folder does not exist, or it cannot be written.
    """
    require_writable(path, source=source, force=force)
    model = draft.model if isinstance(draft, Draft) else draft
    external = external_tensors(model)
    if path.exists() and any(path.samefile(tensor.path) for tensor in external):
        raise UsageError(f"{path} is a weights file of the model", hint="name another file with -o")
    made: list[Path] = []
    try:
        made.extend(carry(external, path.parent.resolve()))
        try:
            write_whole_with(path, partial(write_model, draft))
        except TooLarge:
            beside = _write_beside(draft, path, made)
            write_whole_with(path, partial(write_model, draft, beside=beside))
    except BaseException:
        for file in made:
            file.unlink(missing_ok=True)
        raise


def _inline_values(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None and not isinstance(value.const_value, ir.ExternalTensor):
                yield value, value.const_value


def _write_beside(draft: ir.Model | Draft, path: Path, made: list[Path]) -> str:
    """Write the large constants in memory to one file beside `path`; return its name, and note it in `made`."""
    model = draft.model if isinstance(draft, Draft) else draft
    folder = path.parent.resolve()
    name = free_name(folder, f"{path.name}.data", external_tensors(model))
    if not (folder / name).exists():
        made.append(folder / name)
    write_whole_with(folder / name, partial(write_data, draft))
    return name
