"""From a path, a ModelProto or an onnx_ir.Model to a graph that may be edited freely."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from onnxtile.errors import ModelError
from onnxtile.model.check import check

Source: TypeAlias = str | Path | onnx.ModelProto | ir.Model


def load(source: Source) -> ir.Model:
    """Return `source` as an onnx_ir model of its own: editing it changes neither the file nor the caller's object.

    Weights in external files stay there and are mapped when they are read. Raises ModelError where the file is missing, is
    not ONNX, is truncated, breaks the ONNX specification, or where its external data is not there.
    """
    if isinstance(source, ir.Model):
        model = source.clone()
    elif isinstance(source, onnx.ModelProto):
        model = _deserialise(source, "the ModelProto")
    else:
        model = _read(Path(source))
    _name_values(model)
    check(model)
    return model


def digest(source: Source) -> str | None:
    """Return the SHA-256 of the model file in hexadecimal; None for a model that is not a file."""
    if not isinstance(source, str | Path):
        return None
    with Path(source).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read(path: Path) -> ir.Model:
    try:
        proto = onnx.load(path, load_external_data=False)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except (DecodeError, ValueError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{path}: not an ONNX model, or a truncated one ({reason})") from None
    model = _deserialise(proto, str(path))
    folder = path.parent.resolve()
    ir.external_data.set_base_dir(model.graph, folder)
    for tensor in external_tensors(model):
        _require_data(tensor, folder, path)
    return model


def _deserialise(proto: onnx.ModelProto, name: str) -> ir.Model:
    # Bytes of another format can parse as a message with nothing in it.
    if proto.ir_version < 1 or not proto.HasField("graph"):
        raise ModelError(f"{name}: not an ONNX model (it has no graph)")
    try:
        return ir.from_proto(proto)
    except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError, ir.serde.SerdeError) as error:
        cause = error.__cause__ or error
        raise ModelError(f"{name}: not a valid ONNX model ({' '.join(str(cause).split())})") from None


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Return the initializers of all graphs whose bytes lie in external files, in order."""
    values = (value for graph in model.graphs() for value in graph.initializers.values())
    return [v.const_value for v in values if isinstance(v.const_value, ir.ExternalTensor)]


def _require_data(tensor: ir.ExternalTensor, folder: Path, model: Path) -> None:
    """Raise ModelError unless the bytes of `tensor` are there, inside the model's folder (as the ONNX specification asks)."""
    file = Path(tensor.path).resolve()
    if not file.is_relative_to(folder):
        raise ModelError(
            f"{model}: the external data of {tensor.name!r} lies outside the model's folder: {tensor.location}"
        )
    if not file.is_file():
        raise ModelError(
            f"{model}: the external data file {tensor.location!r} of {tensor.name!r} is missing",
            hint=f"it belongs beside {model}",
        )
    end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
    if file.stat().st_size < end:
        raise ModelError(
            f"{model}: the external data file {tensor.location!r} is truncated: {tensor.name!r} ends at byte {end}"
        )


def _name_values(model: ir.Model) -> None:
    """Refuse what cannot be referred to: the specification gives every value a name, and so do all tools but hand-made models."""
    for node in model.graph.all_nodes():
        for value in node.outputs:
            if value.name is None:
                raise ModelError(f"an output of a {node.op_type} node has no name")
