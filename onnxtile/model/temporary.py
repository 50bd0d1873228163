"""Temporary files in the folder of the files that they become, and temporary folders; those of processes that were killed are removed.

Each is locked by the process that writes it, and the system lets the lock go when that process ends. So a file that nobody has locked is
left over, also where its process ran in another container, or its number was given to another process since.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Event

from onnxtile.posix import hold, open_entry, take

_PREFIX, _SUFFIX = ".onnxtile.", ".tmp"
_NAME = re.compile(rf"{re.escape(_PREFIX)}\w{{8}}{re.escape(_SUFFIX)}")
_PRESENT: set[Path] = set()
"""Temporary files and folders of this process."""
_ENDING = Event()
"""Set when this process is about to end without leaving its blocks: no thread makes further ones."""


@contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """Make an empty file in `folder` for the block, which may rename it; remove it at the end where it is still there.

    Files that killed processes left in `folder` are removed first, once for each folder. Raises OSError.
    """
    _remove_left_over(folder.absolute(), _is_file)
    with _locked_entry(folder, _new_file) as path:
        yield path


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make an empty folder where the system keeps temporary files; remove it with its content at the end of the block.

    Those that killed processes left there are removed first, once. Raises OSError.
    """
    place = Path(tempfile.gettempdir())
    _remove_left_over(place.absolute(), _is_folder)
    with _locked_entry(place, _new_folder) as path:
        yield path


def remove_temporary() -> None:
    """Remove all temporary files and folders of this process, which is about to end without leaving its blocks, and let none be made."""
    _ENDING.set()
    for path in tuple(_PRESENT):
        _remove(path)


@contextmanager
def _locked_entry(folder: Path, make: Callable[[Path], tuple[int, Path]]) -> Iterator[Path]:
    lock, path = _made(folder, make)
    _PRESENT.add(path.absolute())
    try:
        if _ENDING.is_set():
            raise SystemExit
        yield path
    finally:
        _remove(path)
        _PRESENT.discard(path.absolute())
        if lock is not None:
            os.close(lock)


def _made(folder: Path, make: Callable[[Path], tuple[int, Path]]) -> tuple[int | None, Path]:
    """Return the descriptor that holds the lock of a new entry, None where the system has no locks, and the path of the entry."""
    while True:
        descriptor, path = make(folder)
        if not hold(descriptor):
            os.close(descriptor)
            return None, path
        if _is_at(descriptor, path):
            return descriptor, path
        os.close(descriptor)  # another process took it for left over before it was locked


def _new_file(folder: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
    return descriptor, Path(name)


def _new_folder(folder: Path) -> tuple[int, Path]:
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder))
    # Windows opens no folder; it has no locks either.
    return os.open(path if os.name == "posix" else os.devnull, os.O_RDONLY), path


def _remove(path: Path) -> None:
    """Remove the file or the folder `path`, where it still is. Raises OSError for a file that the system does not remove."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the open file is the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


@cache
def _remove_left_over(folder: Path, is_of_kind: Callable[[os.DirEntry[str]], bool]) -> None:
    """Remove the temporary files, or folders, in `folder` that no process has locked; what the system refuses stays."""
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if _NAME.fullmatch(entry.name) and is_of_kind(entry):
                _remove_unlocked(Path(entry.path))


def _remove_unlocked(path: Path) -> None:
    with suppress(OSError):
        descriptor = open_entry(path)
        try:
            if take(descriptor) and _is_at(descriptor, path):
                _remove(path)
        finally:
            os.close(descriptor)
