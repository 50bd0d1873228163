"""Files of weights, made reachable from another folder: shared by the file system where it can, else copied.

Never hard-linked: onnx refuses to load weights from a file with two links, and a second link would so break the user's own model.
"""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from onnxtile.errors import UsageError
from onnxtile.model.temporary import temporary_file
from onnxtile.model.wire import Unusual, varint
from onnxtile.paths import real
from onnxtile.posix import cloned, copy_with_holes

if TYPE_CHECKING:
    import onnx_ir as ir

_CHUNK = 2**24
_LONGEST = 2**14
"""Bytes that the entry of a location takes, at most."""


def carry(tensors: Iterable[ir.ExternalTensor], folder: Path) -> list[Path]:
    """Make the files of `tensors` reachable from `folder` under their own names. Return the files that this made.

    A clone that shares its blocks where the file system has them (btrfs, XFS), else a copy with its holes. Raises UsageError
    where another file of that name is there, where the name leads out of `folder`, where a file is gone, or the system refuses; then
    nothing is left behind.
    """
    made: list[Path] = []
    try:
        for base, location in sorted({(Path(t.base_dir), os.fspath(t.location)) for t in tensors}):
            source, target = base / location, folder / location
            _require_sound(source, target, folder)
            if base.resolve() == folder or _is_there(source, target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_whole(source, target, made)
    except OSError as error:
        _remove(made)
        raise UsageError(
            f"the weights cannot be carried to {folder}: {error.strerror or error}", hint="write beside the input"
        ) from error
    except BaseException:
        _remove(made)
        raise
    return made


def named_weights(model: Path) -> frozenset[Path]:
    """Return the files that the model file `model` names as its external data; none where it cannot be read.

    The entries are found by their bytes, in the order in which protobuf writes them, so that a large model is not parsed.
    """
    return frozenset(model.parent / text for text in _named(model))


def weights_beside(target: Path, model: Path) -> frozenset[Path]:
    """Return where the external data of `model` go when it is written to `target`; those outside its folder stay where they are."""
    return frozenset(target.parent / straight(text, model.parent) for text in _named(model))


def straight(location: str | os.PathLike[str], folder: Path) -> str:
    """Return `location` as a path from `folder` without a way round, which from another folder may lead outside of it."""
    path, folder = Path(location), real(folder)
    if not path.is_absolute() and ".." not in path.parts:
        return str(location)
    file = real(folder / path)
    return str(file.relative_to(folder)) if file.is_relative_to(folder) else str(path)


def _named(model: Path) -> frozenset[str]:
    try:
        texts = {text for piece in _pieces(model) if b"location" in piece for text in _locations(piece)}
    except OSError:
        return frozenset()
    return frozenset(text for text in texts if text and "\0" not in text)


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the content of a file piece by piece, each with the end of the one before."""
    end = b""
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            whole = end + piece
            yield whole
            end = whole[-_LONGEST:]


def _locations(piece: bytes) -> Iterator[str]:
    yield from (_text(piece, found.end()) for found in _LOCATION.finditer(piece))
    yield from (found[1].decode(errors="replace") for found in _LOCATION_IN_TEXT.finditer(piece))


_LOCATION = re.compile(rb"\x0a\x08location\x12")
"""The key of an entry of TensorProto.external_data, and the tag of its value."""
_LOCATION_IN_TEXT = re.compile(rb'"location"[^"]{0,80}(?:"value"[^"]{0,80})?"([^"\n]*)"')
"""Such an entry in ONNX text, protobuf text or JSON."""


def is_file_of(path: Path, weights: Path) -> bool:
    """Return whether writing to `path` would replace the file `weights`."""
    if path.exists() and weights.exists() and path.samefile(weights):
        return True
    return path.parent.resolve() / path.name == weights.parent.resolve() / weights.name


def _text(data: bytes, start: int) -> str:
    """Return the text whose length is at `start`; an empty one where there is none, or `data` ends before."""
    try:
        length, content = varint(data, start)
        return data[content : content + length].decode() if content + length <= len(data) else ""
    except (Unusual, IndexError, UnicodeDecodeError):
        return ""


def _require_sound(source: Path, target: Path, folder: Path) -> None:
    if not source.is_file():
        raise UsageError(f"the weights file {source} is gone")
    if not target.resolve().is_relative_to(folder):
        raise UsageError(
            f"the weights would be written to {target.resolve()}, outside of {folder}", hint="write beside the input"
        )


def _is_there(source: Path, target: Path) -> bool:
    if not target.exists():
        return False
    if target.samefile(source) or filecmp.cmp(source, target, shallow=False):
        return True
    raise UsageError(f"{target} exists and is not the weights file of the model", hint="write into another folder")


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _copy_whole(source: Path, target: Path, made: list[Path]) -> None:
    with temporary_file(target.parent) as temporary:
        with source.open("rb") as old, temporary.open("wb") as new:
            if not cloned(old.fileno(), new.fileno()):
                copy_with_holes(old.fileno(), new.fileno())
        shutil.copymode(source, temporary)
        made.append(target)
        temporary.replace(target)
