"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from onnxtile.errors import UsageError
from onnxtile.paths import require_possible

_BUFFER = 2**20
_UMASK = Lock()
"""It is asked for by setting it: two threads at once would leave it at 0."""


def require_writable(path: Path, *, source: Path | None = None, force: bool = False) -> None:
    """Raise UsageError, before any work is done, where `path` cannot or must not be written."""
    require_possible(path, UsageError)
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise UsageError(f"{path} is a folder, not a file")
    if not force and source is not None and path.exists() and source.exists() and path.samefile(source):
        raise UsageError(f"{path} would be overwritten", hint="name another file with -o, or say --force")


def write_whole(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that the file is the old one or the whole new one at any time.

    A device or a pipe is written to, not replaced. Raises UsageError where the system refuses.
    """
    write_whole_with(path, lambda file: file.write(data))


def write_whole_with(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill the file `path` piece by piece, so that it is the old one or the whole new one at any time.

    A device or a pipe is written to, not replaced. Raises UsageError where the system refuses.
    """
    with refusals(path):
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                write(file)
        else:
            _replace(path, write)


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    descriptor, name = tempfile.mkstemp(prefix=".onnxtile.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb", buffering=_BUFFER) as file:
            write(file)
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    with _UMASK:
        mask = os.umask(0)
        os.umask(mask)
    return mask


@contextmanager
def refusals(path: Path) -> Iterator[None]:
    """Turn what the system says (no permission, no space left) into one line."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
