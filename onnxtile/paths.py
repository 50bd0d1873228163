"""Paths that users give: judged once, before anything is opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from onnxtile.errors import OnnxtileError

_LONGEST_NAME = 255
"""Bytes, in the file systems of Linux and macOS."""


def require_readable(path: Path, kind: type[OnnxtileError], *, hint: str | None = None) -> None:
    """Raise an error of `kind` unless `path` is a regular file or a link to one.

    A device may give bytes without end, and a pipe may wait forever. `hint` is for a file that is missing.
    """
    mode = _mode(path, kind)
    if mode is None:
        raise kind(f"{path}: no such file", hint=hint)
    if stat.S_ISDIR(mode):
        raise kind(f"{path}: {os.strerror(errno.EISDIR)}", hint="name a file")
    if not stat.S_ISREG(mode):
        raise kind(f"{path}: not a regular file", hint="write a device's or a pipe's bytes to a file first")


def require_possible(path: Path, kind: type[OnnxtileError]) -> None:
    """Raise an error of `kind` where no file can be at `path`: its links go in a circle, or its name is none.

    A file that is missing is possible.
    """
    _mode(path, kind)


def is_file_name(text: str) -> bool:
    """Return whether `text` can be the name of a file in some folder."""
    return "/" not in text and "\0" not in text and 0 < len(os.fsencode(text)) <= _LONGEST_NAME


def real(path: Path) -> Path:
    """Return `path` as an absolute path with links followed as far as they lead; nothing is raised for links in a circle."""
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a character that no path has
        return path.absolute()


def _mode(path: Path, kind: type[OnnxtileError]) -> int | None:
    """Return the mode of the file at `path`, None where there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
    except OSError as error:
        raise kind(f"{path}: {error.strerror or error}") from None
    except ValueError:
        raise kind(f"{str(path)!r} is not a valid path: it has a character that no path may have") from None
