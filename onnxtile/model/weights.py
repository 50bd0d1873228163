"""Files of weights, made reachable from another folder: shared by the file system where it can, else copied.

Never hard-linked: onnx refuses to load weights from a file with two links, and a second link would so break the user's own model.
"""

from __future__ import annotations

import fcntl
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from onnxtile.errors import UsageError

_CHUNK = 2**24
_FICLONE = 0x40049409
"""The request of ioctl_ficlone(2)."""


def carry(tensors: Iterable[ir.ExternalTensor], folder: Path) -> list[Path]:
    """Make the files of `tensors` reachable from `folder` under their own names. Return the files that this made.

    A clone that shares its blocks where the file system has them (btrfs, XFS), else a copy with its holes. Raises UsageError
    where another file of that name is there, or the system refuses; then nothing is left behind.
    """
    made: list[Path] = []
    try:
        for base, location in sorted({(Path(t.base_dir), os.fspath(t.location)) for t in tensors}):
            source, target = base / location, folder / location
            if base.resolve() == folder or _is_there(source, target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_whole(source, target)
            made.append(target)
    except OSError as error:
        _remove(made)
        raise UsageError(
            f"the weights cannot be carried to {folder}: {error.strerror or error}", hint="write beside the input"
        ) from error
    except BaseException:
        _remove(made)
        raise
    return made


def free_name(folder: Path, name: str, tensors: Iterable[ir.ExternalTensor]) -> str:
    """Return `name`, or `name` with a number, such that no file of `tensors` in `folder` has it."""
    taken = {Path(tensor.path).resolve() for tensor in tensors} | {
        (folder / tensor.location).resolve() for tensor in tensors
    }
    candidate, number = name, 0
    while (folder / candidate).resolve() in taken:
        number += 1
        candidate = f"{name}.{number}"
    return candidate


def _is_there(source: Path, target: Path) -> bool:
    if not target.exists():
        return False
    if target.samefile(source) or filecmp.cmp(source, target, shallow=False):
        return True
    raise UsageError(f"{target} exists and is not the weights file of the model", hint="write into another folder")


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _copy_whole(source: Path, target: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".onnxtile.", dir=target.parent)
    temporary = Path(name)
    try:
        with source.open("rb") as old, os.fdopen(descriptor, "wb") as new:
            if not _cloned(old.fileno(), new.fileno()):
                _copy_with_holes(old.fileno(), new.fileno())
        shutil.copymode(source, temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _cloned(source: int, target: int) -> bool:
    """Let `target` share the blocks of `source` until one is written to; tell whether the file system could."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def _copy_with_holes(source: int, target: int) -> None:
    """Copy a file whose unwritten stretches (holes) take no room, so that they take none in the copy either."""
    size = os.fstat(source).st_size
    os.truncate(target, size)
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
        except OSError:
            break  # nothing but a hole is left
        position = os.lseek(source, start, os.SEEK_HOLE)
        _copy_bytes(source, target, start, position)


def _copy_bytes(source: int, target: int, start: int, stop: int) -> None:
    while start < stop:
        start += os.pwrite(target, os.pread(source, min(stop - start, _CHUNK), start), start)
