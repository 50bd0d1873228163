"""Temporary files in the folder of the files that they become; those of processes that were killed are removed.

Each is locked by the process that writes it, and the system lets the lock go when that process ends. So a file that nobody has locked is
left over, also where its process ran in another container, or its number was given to another process since.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from onnxtile.posix import hold, open_entry, take

_PREFIX, _SUFFIX = ".onnxtile.", ".tmp"
_NAME = re.compile(rf"{re.escape(_PREFIX)}\w{{8}}{re.escape(_SUFFIX)}")


@contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """Make an empty file in `folder` for the block, which may rename it; remove it at the end where it is still there.

    Files that killed processes left in `folder` are removed first, once for each folder. Raises OSError.
    """
    _remove_left_over(folder.absolute())
    lock, path = _made(folder)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        if lock is not None:
            os.close(lock)


def _made(folder: Path) -> tuple[int | None, Path]:
    """Return the descriptor that holds the lock of a new file, None where the system has no locks, and the path of the file."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
        if not hold(descriptor):
            os.close(descriptor)
            return None, Path(name)
        if _is_at(descriptor, Path(name)):
            return descriptor, Path(name)
        os.close(descriptor)  # another process took it for left over before it was locked


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


@cache
def _remove_left_over(folder: Path) -> None:
    """Remove the temporary files in `folder` that no process has locked; what the system refuses stays."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _remove_unlocked(Path(entry.path))


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError):
        descriptor = open_entry(path)
        try:
            if take(descriptor) and _is_at(descriptor, path):
                path.unlink()
        finally:
            os.close(descriptor)
