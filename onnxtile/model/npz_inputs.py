"""Arrays in files: NumPy's .npz, one array for each input or activation of a model, never a pickle."""

from __future__ import annotations

import lzma
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.model.binding import free_inputs
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, nearest
from onnxtile.system.files import require_readable, write_whole_with
from onnxtile.system.runtime import Array
from onnxtile.system.text import whole

# NumPy's .npz files: the headers of their arrays first, the elements only when they are asked for, never a pickle.

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


Feeds: TypeAlias = Mapping[str, Array | list[Array] | None]
"""Inputs by name: an array, the elements of a sequence, or None for an optional value without content."""


def read_inputs(path: Path | str, model: ir.Model) -> dict[str, Array | list[Array]]:
    """Return the arrays of the .npz file `path` by input name, found to be what the inputs of `model` take.

    The elements of a sequence `x` are the arrays `x[0]`, `x[1]` ... Strings are arrays of NumPy's text type (`<U`); element types that
    NumPy lacks (bfloat16, float8) are taken as `numpy.savez` writes them, as raw bytes of the same width. An input that has a default
    value in the model is not fed. Raises UsageError where the file is missing, is no .npz, is damaged or
    holds pickled objects. It does so, too, where a name, an element type or a shape is not the model's.
    """
    path = Path(path)
    inputs = {value.name or "": value for value in free_inputs(model)}
    bound: dict[str, tuple[int, str]] = {}
    with reading(path) as npz:
        named = _by_input(npz.headers, inputs, path)
        for name, value in inputs.items():
            _require_fitting(value, named[name], npz.headers, bound, path)
        return {name: _read(npz, value, named[name]) for name, value in inputs.items()}


def write_arrays(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write `arrays` to the .npz file `path`, whole or not at all, the same bytes for the same arrays.

    Texts are of NumPy's text type; element types that NumPy lacks (bfloat16) are raw bytes of the same width. Raises UsageError.
    """
    write_whole_with(path, lambda file: _write(file, arrays))


def _write(file: BinaryIO, arrays: Mapping[str, Array]) -> None:
    """Write what `numpy.savez` would, which itself takes no array called "file"."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            plain = array.astype(str) if array.dtype.kind == "O" else array
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, plain, allow_pickle=False)


def given_shapes(feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """Return the whole shape of each tensor of `feeds` by its name, as `onnxtile.model.binding.bind` takes them."""
    return {name: tuple(array.shape) for name, array in feeds.items() if isinstance(array, np.ndarray)}


def _by_input(arrays: Iterable[str], inputs: Mapping[str, ir.Value], path: Path) -> dict[str, str | list[str]]:
    """Return which of the arrays each input is fed: one, or those of a sequence."""
    named: dict[str, str | list[str]] = {}
    taken: set[str] = set()
    for name, value in inputs.items():
        if isinstance(value.type, ir.SequenceType):
            elements = _elements(name, arrays)
            taken.update(elements)
            named[name] = elements
        elif name in arrays:
            taken.add(name)
            named[name] = name
        else:
            hint = nearest(name, arrays, f"it has {', '.join(arrays) or 'none'}")
            raise UsageError(f"{path} has no array {name!r}, which the model takes", hint=hint)
    for name in arrays:
        if name not in taken:
            hint = nearest(name, inputs, f"its inputs are {', '.join(inputs) or 'none'}")
            raise UsageError(f"{path}: the model has no input {name!r} to be fed", hint=hint)
    return named


def _elements(name: str, arrays: Iterable[str]) -> list[str]:
    """Return the names of the elements of the sequence `name` in their order, which is that of numbers."""
    matches = [(re.fullmatch(r"\[(\d+)\]", key.removeprefix(name)), key) for key in arrays if key.startswith(name)]
    numbered = ((whole(match[1]), key) for match, key in matches if match)
    return [key for _, key in sorted((number, key) for number, key in numbered if number is not None)]


def _require_fitting(
    value: ir.Value,
    named: str | list[str],
    headers: Mapping[str, ArrayHeader],
    bound: dict[str, tuple[int, str]],
    path: Path,
) -> None:
    """Raise UsageError unless the input `value` takes the arrays `named`.

    Note in `bound` what size its symbols have, and which input said so.
    """
    subject = f"{path}: the input {value.name!r}"
    if isinstance(named, list):
        for name in named:
            _require_type(headers[name].dtype, _element_type(value), subject)
        return
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise UsageError(f"{subject} is neither a tensor nor a sequence of tensors: an .npz file can hold nothing else")
    _require_type(headers[named].dtype, value.dtype, subject)
    _require_shape(value, headers[named].shape, bound, subject)


def _element_type(value: ir.Value) -> ir.DataType | None:
    element = value.type.elem_type if isinstance(value.type, ir.SequenceType) else value.type
    return element.dtype if isinstance(element, ir.TensorType) else None


def _require_type(given: np.dtype[Any], dtype: ir.DataType | None, subject: str) -> None:
    if dtype is None:
        return
    if dtype == ir.DataType.STRING:
        fits = given.kind == "U"
    else:
        native, wanted = given.newbyteorder("="), np.dtype(dtype.numpy())
        fits = native == wanted or (native.kind == wanted.kind == "V" and native.itemsize == wanted.itemsize)
    if not fits:
        raise UsageError(f"{subject} takes {dtype.name.lower()}, and {given} is given")


def _read(npz: Npz, value: ir.Value, named: str | list[str]) -> Array | list[Array]:
    """Return the arrays `named` in the element type that the input `value` has."""
    dtype = _element_type(value)
    arrays = [_typed(npz.array(name), dtype) for name in ([named] if isinstance(named, str) else named)]
    return arrays[0] if isinstance(named, str) else arrays


def _typed(array: Array, dtype: ir.DataType | None) -> Array:
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if dtype == ir.DataType.STRING:
        return array.astype(object)
    return array.view(dtype.numpy()) if dtype is not None and array.dtype.kind == "V" else array


def _require_shape(value: ir.Value, shape: tuple[int, ...], bound: dict[str, tuple[int, str]], subject: str) -> None:
    if value.shape is None:
        return
    wrong = f"{subject} takes {_shown(value.shape)}, and {_shown(shape)} is given"
    if len(shape) != len(value.shape):
        raise UsageError(wrong)
    for dim, size in zip(value.shape, shape, strict=True):
        if isinstance(dim, int):
            if dim != size:
                raise UsageError(wrong, hint=f"--shape {value.name}={'x'.join(map(str, shape))} overrides it")
        elif dim.value and dim.value.isidentifier():
            before, name = bound.setdefault(dim.value, (size, value.name or ""))
            if before != size:
                raise UsageError(f"{wrong}, but {dim.value!r} is {before} in the input {name!r}")


def _shown(shape: Iterable[int | ir.SymbolicDim]) -> str:
    return f"[{', '.join(str(dim if isinstance(dim, int) else dim.value or '?') for dim in shape)}]"
