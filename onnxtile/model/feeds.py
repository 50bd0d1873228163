"""The inputs of a run: arrays in a file, NumPy's .npz, and samples drawn at random inside what their consumers allow."""

from __future__ import annotations

import lzma
import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.model.binding import free_inputs, input_named, missing_sizes
from onnxtile.model.constants import constant_tensor
from onnxtile.operators.table import movement_of, operator_of
from onnxtile.operators.takes import Domain, Sizes, Use, float_info
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError, nearest
from onnxtile.system.files import require_readable, write_whole_with
from onnxtile.system.long_work import too_much_memory
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
        return math.prod(self.shape) * self.dtype.itemsize


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


# The range of numbers that an input may hold, and random draws from it.

Ranges: TypeAlias = Mapping[str, tuple[float, float]]
"""The lowest number of an input and the first above the highest, by the input's name; the same twice: that number alone."""


_NO_NUMBERS = {ir.DataType.STRING, ir.DataType.UNDEFINED}


def holds(dtype: ir.DataType, low: float, high: float) -> bool:
    """Return whether numbers from `low` to below `high` can be drawn as elements of `dtype`."""
    if dtype in _NO_NUMBERS:
        return True
    numbers = np.dtype(dtype.numpy())
    if numbers.kind in "fV" and dtype.is_floating_point():
        top = float(float_info(numbers).max)
        return -top <= low and high <= top
    if dtype.is_integer():
        bits, signed = dtype.bitwidth, dtype.is_signed()
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if signed else (0, 2 ** min(bits, 63))
        return least <= low and high <= most
    return True


# Requirements of operators on the numbers in their operands: indices below an axis size, valid shapes, lengths, axes, counts.


def domains(model: ir.Model, sizes: Sizes, ranges: Ranges | None = None) -> dict[str, Domain]:
    """Return the domain of each input of `model` that must be fed; `sizes` gives the shape of a value.

    What the user says in `ranges` counts alone. Raises UsageError where that names no input, or no number is in it.
    """
    inputs = {value.name or "": value for value in free_inputs(model)}
    stated = {name: _stated_domain(name, ends, inputs) for name, ends in (ranges or {}).items()}
    return {name: stated.get(name) or allowed(value, model, sizes) for name, value in inputs.items()}


def _stated_domain(name: str, ends: tuple[float, float], inputs: Mapping[str, ir.Value]) -> Domain:
    dtype, (low, high) = input_named(name, inputs).dtype, ends
    if high < low:
        raise UsageError(f"the range {low:g}:{high:g} of {name!r} is empty")
    if not math.isfinite(high - low) or (dtype is not None and not holds(dtype, low, high)):
        raise UsageError(f"the range {low:g}:{high:g} of {name!r} is wider than its element type")
    return Domain(fixed=(low,)) if low == high else Domain(low, high)


def allowed(value: ir.Value, model: ir.Model, sizes: Sizes) -> Domain:
    """Return the narrowest range that operators which read `value`, or a rearrangement of it, allow."""
    shape = sizes(value) or ()
    limits = [domain for use in _uses(value, model, sizes, shape) if (domain := _of_use(use)) is not None]
    fixed = next((domain.fixed for domain in limits if domain.fixed is not None), None)
    choices = next((domain.choices for domain in limits if domain.choices), ())
    low = max((domain.low for domain in limits if domain.low is not None), default=None)
    high = min((domain.high for domain in limits if domain.high is not None), default=None)
    return Domain(low, high, choices, fixed)


def _of_use(use: Use) -> Domain | None:
    row = operator_of(use.node)
    rule = None if row is None else row.takes.get(use.position)
    return None if rule is None else rule(use)


def _uses(value: ir.Value, model: ir.Model, sizes: Sizes, shape: tuple[int, ...]) -> Iterator[Use]:
    """Yield the operands that `value` comes to be, also in bodies and in local functions."""
    outer: dict[ir.Value, ir.Value] = {}

    def sizes_of(asked: ir.Value) -> tuple[int, ...] | None:
        return sizes_of(outer[asked]) if asked in outer else sizes(asked)

    todo, dtypes = [value], {value: value.dtype}
    while todo:
        current = todo.pop()
        for node, position in current.uses():
            reached, dtype = list(_inside(node, model, outer)[position : position + 1]), dtypes[current]
            if not reached:
                yield Use(node, position, dtype, shape, sizes_of, _constant)
            movement = movement_of(node)
            if movement == "joins" or (position == 0 and movement not in {"", "pads"}):
                reached, dtype = list(node.outputs), _moved(node, dtype)
            new = [operand for operand in reached if operand not in dtypes]
            todo.extend(new)
            dtypes.update(dict.fromkeys(new, dtype))


def _moved(node: ir.Node, dtype: ir.DataType | None) -> ir.DataType | None:
    """Return the element type of what `node` makes of elements of `dtype`, which it moves or converts."""
    if movement_of(node) != "converts":
        return dtype
    return ir.DataType(node.attributes.get_int("to")) if "to" in node.attributes else node.outputs[0].dtype


def _inside(node: ir.Node, model: ir.Model, outer: dict[ir.Value, ir.Value]) -> list[ir.Value]:
    """Return the inputs of the function that `node` calls; note in `outer` which values of the caller they stand for."""
    function = model.functions.get(node.op_identifier())
    if function is None:
        return []
    outer.update(
        {inner: given for inner, given in zip(function.inputs, node.inputs, strict=False) if given is not None}
    )
    return list(function.inputs)


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    node = value.producer()
    return constant_tensor(node) if node is not None and node.op_type == "Constant" else value.const_value


_ELEMENTS = 2
"""Number of tensors in a random sequence."""
MOST_DIMENSIONS = 64
"""Of an array of numpy (NPY_MAXDIMS)."""
_MOST_ELEMENTS = 2**58
"""Of a tensor whose bytes a number of 64 bits counts."""


def sample_feeds(model: ir.Model, sizes: Sizes, *, seed: int = 0, ranges: Ranges | None = None) -> dict[str, Any]:
    """Return an array (a list of arrays for a sequence) for each input of `model` that must be fed, the same for the same seed.

    An optional input is given what it may hold. `sizes` gives the shape of a value. Numbers lie in `ranges` where these name the input,
    else inside what the operators that read the input allow (`onnxtile.model.feeds`). Where nothing limits them, floats are standard
    normal, and integers 0 or 1. Raises ModelError for inputs without a known shape, and for maps and sparse tensors, and UsageError for a
    bad range.
    """
    generator = np.random.default_rng(seed)
    open_ = [value for value in free_inputs(model) if _has_shape(value) and fed_sizes(value, sizes) is None]
    if open_:
        raise missing_sizes(open_)
    known = domains(model, sizes, ranges)
    return {
        value.name or "": _fed(generator, value, fed_sizes(value, sizes), known[value.name or ""])
        for value in free_inputs(model)
    }


def fed_sizes(value: ir.Value, sizes: Sizes) -> tuple[int, ...] | None:
    """Return the shape of an input, or of the tensors that it holds: for these, `sizes` knows none, and the file's counts."""
    known = sizes(value)
    if known is not None or isinstance(value.type, ir.TensorType | None):
        return known
    return value.shape.numpy() if value.shape is not None and value.shape.is_static() else None


def _has_shape(value: ir.Value) -> bool:
    return isinstance(value.type, ir.TensorType | ir.SequenceType | ir.OptionalType | None)


def _fed(generator: np.random.Generator, value: ir.Value, shape: tuple[int, ...] | None, domain: Domain) -> Any:
    """Return random content of the type of `value`: of an optional one its element, of a sequence some elements."""
    if isinstance(value.type, ir.OptionalType):
        return _fed(generator, _element(value, value.type), shape, domain)
    if isinstance(value.type, ir.SequenceType):
        element = _element(value, value.type)
        return [_fed(generator, element, shape, domain) for _ in range(_ELEMENTS)]
    return _drawn(generator, value, shape, domain)


def _element(value: ir.Value, type_: ir.SequenceType | ir.OptionalType) -> ir.Value:
    return ir.Value(name=value.name, type=type_.elem_type, shape=value.shape)


def draw(generator: np.random.Generator, value: ir.Value, sizes: Sizes) -> Array:
    """Return a random array of the type and shape of `value`; integers are 0 or 1."""
    return _drawn(generator, value, sizes(value), Domain())


def _drawn(generator: np.random.Generator, value: ir.Value, shape: tuple[int, ...] | None, domain: Domain) -> Array:
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise ModelError(
            f"the input {value.name!r} is a {_kind(value.type)}, and sample inputs are tensors, sequences or optional values"
        )
    dtype = value.dtype
    if dtype is None:
        raise ModelError(f"the element type of the input {value.name!r} is not known")
    if shape is None:
        raise missing_sizes([value])
    require_array(value.name, shape)
    if math.prod(shape) > _MOST_ELEMENTS:
        raise too_much_memory()
    if dtype == ir.DataType.STRING:
        return np.full(shape, "a", dtype=object)
    if dtype == ir.DataType.BOOL and domain.fixed is None:
        return _mask(np.asarray(generator.random(shape) < 0.5))
    if dtype in {ir.DataType.COMPLEX64, ir.DataType.COMPLEX128}:
        return (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype.numpy())
    array = domain.draw(generator, shape, np.dtype(dtype.numpy()))
    return array if dtype.is_floating_point() or domain.is_bounded or dtype.bitwidth == 8 else _mask(array)


def require_array(name: str | None, shape: Sequence[int]) -> None:
    """Raise ModelError unless an array may have as many dimensions as `shape`, which is that of the tensor `name`."""
    if len(shape) > MOST_DIMENSIONS:
        raise ModelError(
            f"the tensor {name!r} has {len(shape)} dimensions, and arrays of numpy, in which it would be computed, have at most "
            f"{MOST_DIMENSIONS}",
            hint="reshape it to fewer dimensions; --no-verify does not run it",
        )


def _mask(array: Array) -> Array:
    """Let something and, of booleans, not everything be chosen along the last axis: a mask that hides all is none that is meant."""
    if array.ndim > 1 and array.shape[-1] > 1:
        array[..., 0] = 1
        if array.dtype.kind == "b":
            array[..., -1] = False
    return array


def _kind(type_: ir.TypeProtocol) -> str:
    return type(type_).__name__.removesuffix("Type").lower()


# Inputs for runs of a model: given arrays, or random ones inside ranges that the user may set.


@dataclass(frozen=True)
class Wanted:
    """The inputs `given` for every run; where there are none, random ones with numbers in `ranges` (see model.feeds)."""

    given: Feeds | None = None
    ranges: Ranges | None = None

    def feeds(self, model: ir.Model, sizes: Sizes, runs: int, *, seed: int = 0) -> list[Mapping[str, Any]]:
        """Return the inputs of each of `runs` runs. Raises ModelError, UsageError as `sample_feeds` does."""
        if self.given is not None:
            return [self.given] * runs
        return [sample_feeds(model, sizes, seed=seed + run, ranges=self.ranges) for run in range(runs)]


ANYTHING = Wanted()
