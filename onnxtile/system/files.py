"""Paths that users give: judged once, before anything is opened."""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from operator import methodcaller
from pathlib import Path
from threading import Event, Lock
from typing import TYPE_CHECKING, BinaryIO

from onnxtile.system.errors import OnnxtileError, UsageError
from onnxtile.system.posix import cloned, copy_with_holes, hold, locked, open_entry, take
from onnxtile.system.protobuf_wire import Unusual, varint

if TYPE_CHECKING:
    import onnx_ir as ir


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


# Temporary files in the folder of the files that they become, and temporary folders; those of processes that were killed are removed.
#
# Each is locked by the process that writes it, and the system lets the lock go when that process ends. So a file that nobody has locked is
# left over, also where its process ran in another container, or its number was given to another process since.

_PREFIX, _SUFFIX = ".onnxtile.", ".tmp"
_NAME = re.compile(rf"{re.escape(_PREFIX)}\w{{8}}{re.escape(_SUFFIX)}")
_PRESENT: set[Path] = set()
"""Temporary files and folders of this process."""
_IS_FILE, _IS_FOLDER = (methodcaller(name, follow_symlinks=False) for name in ("is_file", "is_dir"))
_ENDING = Event()
"""Set when this process is about to end without leaving its blocks: no thread makes further ones."""


@contextmanager
def temporary_file(folder: Path) -> Iterator[Path]:
    """Make an empty file in `folder` for the block, which may rename it; remove it at the end where it is still there.

    Files that killed processes left in `folder` are removed first, once for each folder. Raises OSError.
    """
    _remove_left_over(folder.absolute(), _IS_FILE)
    with _locked_entry(folder, _new_file) as path:
        yield path


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make an empty folder where the system keeps temporary files; remove it with its content at the end of the block.

    Those that killed processes left there are removed first, once. Raises OSError.
    """
    folder = Path(tempfile.gettempdir())
    _remove_left_over(folder.absolute(), _IS_FOLDER)
    with _locked_entry(folder, _new_folder) as path:
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


# Files of weights, made reachable from another folder: shared by the file system where it can, else copied.
#
# Never hard-linked: onnx refuses to load weights from a file with two links, and a second link would so break the user's own model.

_CHUNK = 2**24
_LONGEST = 2**14
"""Bytes that the entry of a location takes, at most."""


def carry(tensors: Iterable[ir.ExternalTensor], folder: Path) -> list[Path]:
    """Make the files of `tensors` reachable from `folder` under their own names. Return the files that this made.

    A clone that shares its blocks where the file system has them (btrfs, XFS), else a copy with its holes. Raises UsageError
    where another file of that name is there, where the name leads out of `folder`, where a file is gone, or the system refuses; then
    nothing is left behind.
    """
    written: list[Path] = []
    try:
        for base, location in sorted({(Path(t.base_dir), os.fspath(t.location)) for t in tensors}):
            source, target = base / location, folder / location
            _require_sound(source, target, folder)
            if base.resolve() == folder or _is_there(source, target):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy_whole(source, target, written)
    except OSError as error:
        _remove_all(written)
        raise UsageError(
            f"the weights cannot be carried to {folder}: {error.strerror or error}", hint="write beside the input"
        ) from error
    except BaseException:
        _remove_all(written)
        raise
    return written


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
    yield from (_text(piece, match.end()) for match in _LOCATION.finditer(piece))
    yield from (match[1].decode(errors="replace") for match in _LOCATION_IN_TEXT.finditer(piece))


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


def _remove_all(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def _copy_whole(source: Path, target: Path, written: list[Path]) -> None:
    with temporary_file(target.parent) as temporary:
        with source.open("rb") as old, temporary.open("wb") as new:
            if not cloned(old.fileno(), new.fileno()):
                copy_with_holes(old.fileno(), new.fileno())
        shutil.copymode(source, temporary)
        written.append(target)
        temporary.replace(target)


# Files that appear whole or not at all.

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
    if path.is_file() or not path.exists():
        with refusals(path), temporary_file(path.parent):
            pass  # only the system knows who may write there


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
