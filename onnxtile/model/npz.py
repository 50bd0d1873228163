"""NumPy's .npz files: the headers of their arrays first, the elements only when they are asked for, never a pickle."""

from __future__ import annotations

import lzma
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from onnxtile.errors import UsageError
from onnxtile.paths import require_readable
from onnxtile.runtime import Array

_BROKEN = (
    *(ValueError, TypeError, EOFError, OSError, MemoryError, SyntaxError, NotImplementedError, RuntimeError),
    *(zlib.error, lzma.LZMAError, zipfile.BadZipFile, struct.error, tokenize.TokenError),
)
"""Exceptions of numpy and zipfile for a file that is damaged, encrypted or inconsistent."""
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_ENDING = ".npy"


@dataclass(frozen=True)
class ArrayHeader:
    """The shape and the element type of an array in a file."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements in memory."""
        return prod(self.shape) * self.dtype.itemsize


class Npz:
    """An open .npz file, and the headers of its arrays by name. Its elements have not been decompressed."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._zip = zipfile.ZipFile(file)
        names = {name.removesuffix(_ENDING): name for name in self._zip.namelist()}
        self._members = {key: self._zip.getinfo(name) for key, name in names.items()}
        self.headers: Mapping[str, ArrayHeader] = {name: self._header(name) for name in names}

    def array(self, name: str) -> Array:
        """Return the elements of an array. Raises what a damaged file makes NumPy raise: see `reading`."""
        with self._zip.open(self._members[name]) as member:
            array: Array = np.lib.format.read_array(member, allow_pickle=False)
        return array

    def _header(self, name: str) -> ArrayHeader:
        with self._zip.open(self._members[name]) as member:
            header = self._read_header(name, member)
            start = member.tell()
        if header.dtype.hasobject:
            raise UsageError(
                f"{self._path}: {name!r} is pickled: it is refused, because a pickle can run code",
                hint="strings are arrays of NumPy's text type: array.astype(str)",
            )
        if any(size < 0 for size in header.shape) or self._members[name].file_size - start != header.nbytes:
            raise UsageError(f"{self._path}: {name!r} is truncated, or its header is wrong")
        return header

    def _read_header(self, name: str, member: IO[bytes]) -> ArrayHeader:
        if member.read(len(np.lib.format.MAGIC_PREFIX)) != np.lib.format.MAGIC_PREFIX:
            raise UsageError(f"{self._path}: {name!r} is not an array")
        version = tuple(member.read(2))
        if version not in _HEADERS:
            raise UsageError(f"{self._path}: {name!r} is a structured array, which no input takes")
        shape, _, dtype = _HEADERS[version](member)
        return ArrayHeader(shape, dtype)


@contextmanager
def reading(path: Path) -> Iterator[Npz]:
    """Open the .npz file `path` for the block. Raises UsageError where it is missing or no .npz, and where it turns out to be damaged."""
    require_readable(path, UsageError)
    try:
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise UsageError(f"{path} is not an .npz file", hint="write one with numpy.savez(file, name=array)")
            yield Npz(path, file)
    except _BROKEN as error:
        raise UsageError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
