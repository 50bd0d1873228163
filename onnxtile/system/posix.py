"""Calls that POSIX systems have and Windows, or macOS, lacks: each says what is done without it.

No other module uses `fcntl`, `resource`, `os.pread`, `os.SEEK_DATA`, `mmap.madvise` or `malloc_trim`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
