"""This process: calls that only POSIX systems have, its garbage collector, and what libraries write."""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import mmap
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import FrameType
from typing import Any

# Calls that POSIX systems have and Windows, or macOS, lacks: each says what is done without it.
#
# No other module uses `fcntl`, `resource`, `os.pread`, `os.SEEK_DATA`, `mmap.madvise` or `malloc_trim`.


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_FICLONE = 0x40049409
"""The request of ioctl_ficlone(2)."""
_CHUNK = 2**24
"""Bytes that are copied at a time."""
_NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF}
"""File systems without locks answer so."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of `folder` during the block; a process that is killed lets it go.

    Without `fcntl`, and on file systems without locks, two processes that write weights into one folder are not kept apart. Raises OSError.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        yield
    finally:
        os.close(descriptor)


def hold(file: int) -> bool:
    """Lock the open `file` until its descriptor is closed, or the process ends; return whether the system has locks. Raises OSError."""
    return fcntl is not None and _locked(file, fcntl.LOCK_EX)


def take(file: int) -> bool:
    """Lock the open `file` where no process has; return whether that is so. Without locks it cannot be known, and False is returned."""
    return fcntl is not None and _locked(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _locked(file: int, way: int) -> bool:
    try:
        fcntl.flock(file, way)
    except OSError as error:
        if error.errno not in _NO_LOCKS | {errno.EWOULDBLOCK, errno.EACCES}:
            raise
        return False
    return True


def open_entry(path: Path) -> int:
    """Return a descriptor of the file at `path` itself: where that is a link, or has become one, OSError is raised."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))


def open_to_read(path: Path) -> int:
    """Return a descriptor of the file `path`, whose bytes are read as they are. Raises OSError."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))


def cloned(source: int, target: int) -> bool:
    """Let the file `target` share the blocks of `source` until one is written to; return whether the system can. Else copy."""
    if fcntl is None:
        return False
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def copy_with_holes(source: int, target: int) -> None:
    """Copy the file `source` to `target` so that its unwritten ranges (holes) take no blocks in the copy either.

    Without `os.SEEK_DATA` the holes are written as zeros. Raises OSError.
    """
    os.truncate(target, os.fstat(source).st_size)
    for start, stop in _written_ranges(source):
        os.lseek(source, start, os.SEEK_SET)
        os.lseek(target, start, os.SEEK_SET)
        left = stop - start
        while left > 0:
            left -= _write_all(target, os.read(source, min(left, _CHUNK)))


def _written_ranges(file: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of `file` that are not holes, as half-open ranges of bytes."""
    size = os.fstat(file).st_size
    if not hasattr(os, "SEEK_DATA"):
        yield 0, size
        return
    position = 0
    while position < size:
        try:
            start = os.lseek(file, position, os.SEEK_DATA)
        except OSError:
            return  # nothing but a hole is left
        position = os.lseek(file, start, os.SEEK_HOLE)
        yield start, position


def _write_all(target: int, data: bytes) -> int:
    """Write `data` and return its length. Raises OSError where the source ended before its size said so."""
    if not data:
        raise OSError(errno.EIO, "the file became shorter while it was copied")
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(target, rest) :]
    return len(data)


def let_go(data: mmap.mmap, start: int, stop: int) -> None:
    """Take the pages of a mapped file from the byte `start` on out of memory; whoever reads there has the system read again.

    Without `madvise` they stay until the system needs the memory.
    """
    if hasattr(data, "madvise"):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        data.madvise(mmap.MADV_DONTNEED, first, stop - first)


def data_limit() -> tuple[int, int]:
    """Return the soft and the hard limit on the private memory of this process, in bytes; -1 is no limit."""
    return (-1, -1) if resource is None else resource.getrlimit(resource.RLIMIT_DATA)


def set_data_limit(soft: int, hard: int) -> None:
    """Set the limits on the private memory of this process, in bytes. Without `resource`, memory is not limited."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def data_bytes() -> int | None:
    """Return the bytes of private memory, mapped files apart, that this process has asked for; None where only Linux would tell."""
    try:
        pages = Path("/proc/self/statm").read_text("ascii").split()[5]
    except OSError:
        return None
    return None if resource is None else int(pages) * resource.getpagesize()


def return_free_memory() -> None:
    """Give memory that the C library holds free back to the system; nothing is done without glibc's malloc_trim(3)."""
    trim = None if os.name == "nt" else getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# The cyclic garbage collector: held while much is made and nothing thrown away, and asked for what one block of code threw away.


_FROZEN_BY_PYTHON = 1_000 if sys.version_info[:2] == (3, 12) else 0
"""Objects, at most, that Python itself has frozen when a program begins: 375 in 3.12.1, none in other versions."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Hold the collector, also as a decorator: it would walk every live object again and again, and find none to free.

    On a graph of 50,000 nodes this halves the time to load; of a plan for 100,000 buffers it is a fourth. What reference counts free is
    freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def cycles_freed() -> Iterator[None]:
    """Free at the end of the block the objects made in it that nothing outside refers to, also as a decorator.

    Nodes and values of a graph refer to each other, so a copy of a graph is freed by the collector alone, and in the meantime it would be
    held beside the next one. Objects made before the block are frozen (gc.freeze), so that the collector does not walk them. Nothing is
    done in a process that has frozen objects already.
    """
    if gc.get_freeze_count() > _FROZEN_BY_PYTHON:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()


# Libraries warn and log for programmers; a user of the command reads results and errors only.

_WARNINGS = "PYTHONWARNINGS"
"""Environment variable that Python reads at its start and passes on to worker processes."""


_silenced: list[bool] = []


def is_silenced() -> bool:
    """Return whether this process is one in which no library is to print: a command, or a worker of a pipeline."""
    return bool(_silenced)


def silence_libraries() -> None:
    """Let no library log or warn on stderr, in this process and in those that it starts.

    Warnings stay where Python was told what to do with them, by -W or PYTHONWARNINGS.
    """
    _silenced.append(True)
    root = logging.getLogger()
    if not root.handlers:  # without any, Python would print what is a warning or worse
        root.addHandler(logging.NullHandler())
    if not sys.warnoptions:
        os.environ[_WARNINGS] = "ignore"
        warnings.simplefilter("ignore")


def silence_finalisers() -> None:
    """Let Python not print what cannot be raised in a finaliser: an exit that a signal asked for, and a lack of memory.

    The signal is known anyway, and the next piece of memory that is asked for is refused, too.
    """
    sys.unraisablehook = _without_exits(sys.unraisablehook)


def _without_exits(hook: Any) -> Any:
    def heard(unraisable: Any) -> None:
        if not issubclass(unraisable.exc_type, SystemExit | KeyboardInterrupt | MemoryError):
            hook(unraisable)

    return heard


def imports_compiled(frame: FrameType | None) -> bool:
    """Return whether `frame`, or one that called it, imports a compiled module.

    An exception that a signal's handler raises there passes through C++, which may end the process by std::terminate.
    """
    while frame is not None:
        if frame.f_code.co_name in {"create_module", "exec_module"}:
            loader = frame.f_locals.get("self")
            if isinstance(loader, ExtensionFileLoader):
                return True
        frame = frame.f_back
    return False
