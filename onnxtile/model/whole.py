"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from onnxtile.errors import UsageError
from onnxtile.model.temporary import temporary_file
from onnxtile.model.weights import is_file_of, named_weights
from onnxtile.paths import require_possible
from onnxtile.posix import locked

_BUFFER = 2**20
_UMASK = Lock()
"""It is asked for by setting it: two threads at once would leave it at 0."""


def require_writable(path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Raise UsageError, before any work is done, where `path` cannot or must not be written.

    It must not be the model file `source`, save by `force`, nor ever a weights file of that.
    """
    require_possible(path, UsageError)
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file")
    if not force and source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{path} would be overwritten", hint="name another file with -o, or say --force")
    if source is not None and path.is_file() and any(is_file_of(path, file) for file in named_weights(source)):
        raise UsageError(f"{path} is a weights file of {source}", hint="name another file")


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that the file is the old one or the whole new one at any time.

    A device or a pipe is written to, not replaced. Raises UsageError where the system refuses.
    """
    write_whole_with(path, lambda file: file.write(data))


def write_whole_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill the file `path` piece by piece, so that it is the old one or the whole new one at any time.

    A device or a pipe is written to, not replaced. Raises UsageError where the system refuses.
    """
    with refusals(path), _filled(path, write) as temporary:
        if temporary is not None:
            temporary.replace(path)


@contextmanager
def staged(files: Mapping[Path, bytes]) -> Iterator[None]:
    """Write `files` beside their places, run the block, and put them there; an error before its end leaves each file as it was.

    A device or a pipe is written to before the block. Raises UsageError where the system refuses.
    """
    with ExitStack() as stack:
        ready: list[tuple[Path, Path]] = []
        for path, data in files.items():
            with refusals(path):
                temporary = stack.enter_context(_filled(path, partial(_write, data)))
            ready += [] if temporary is None else [(temporary, path)]
        yield
        for temporary, path in ready:
            with refusals(path):
                temporary.replace(path)


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


@contextmanager
def _filled(path: Path, write: Callable[[BinaryIO], object]) -> Iterator[Path | None]:
    """Let `write` fill a file that can take the place of `path`, and is removed unless it has; None for a device, which is written to."""
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            write(device)
        yield None
        return
    with temporary_file(path.parent) as temporary:
        with temporary.open("wb", buffering=_BUFFER) as file:
            write(file)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask())
        yield temporary


def umask() -> int:
    """Return the permissions that new files of this process lack."""
    with _UMASK:
        mask = os.umask(0)
        os.umask(mask)
    return mask


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process writes models with weights in `folder`, and let others wait, where the system has locks."""
    with ExitStack() as stack:
        with refusals(folder):
            stack.enter_context(locked(folder))
        yield


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn what the system says (no permission, no space left) into one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
