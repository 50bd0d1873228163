"""Values of options: one reader for each kind of value, shared by the command line, pipeline files and Python.

A reader takes a value as Python or TOML gives it, or the text of the command line, and returns the value that a verb uses. It raises
Unreadable with the reason.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OnnxtileError, UsageError
from onnxtile.system.files import require_possible
from onnxtile.system.text import LARGEST_COUNT, MOST_RUNS, bytes_of, seconds_of, whole

STATE_WORDS = ("found", "none")
"""Words for all states that are found, and for no search."""

EXAMPLE_SIZES = "write 262144, 256KiB or 8MiB"


class Unreadable(ValueError):
    """A value that an option does not take. `key` names the entry of a table at fault, `hint` says how to write it."""

    def __init__(self, reason: str, *, hint: str | None = None, key: str | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.key = key


@dataclass(frozen=True)
class ValueKind:
    """A kind of value: how it is read, and how the command line gives it.

    `from_text` turns one text of the command line into what `read` takes. An option with `several` may be given more than once; `pair`
    ("NAME=N") says that each of these texts is one entry of a table, and `lone` that a single text without "=" stands for itself.
    `forms` are examples in Python, one of each form, which the docstrings of verbs show.
    """

    read: Callable[[Any], Any]
    from_text: Callable[[str], Any] = str
    several: bool = False
    pair: str = ""
    lone: bool = False
    flag: bool = False
    forms: tuple[str, ...] = ()


T = TypeVar("T")


def _table_of(read: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    """Return the reader of a table of names and values, each of which `read` takes."""

    def read_table(value: Any) -> dict[str, T]:
        if not isinstance(value, Mapping):
            raise Unreadable("give a table of names and values")
        table = {}
        for name, entry in value.items():
            try:
                table[name] = read(entry)
            except Unreadable as error:
                raise Unreadable(error.reason, hint=error.hint, key=name) from None
        return table

    return read_table


def read_flag(value: Any) -> bool:
    """Return a bool as it is."""
    if not isinstance(value, bool):
        raise Unreadable("choose true or false")
    return value


def read_count(value: Any) -> int:
    """Return a whole number of at least 1."""
    return _whole(value, 1)


def read_natural(value: Any) -> int:
    """Return a whole number of at least 0."""
    return _whole(value, 0)


@dataclass(frozen=True)
class RunChoice:
    """How a model is run: on so many sets of inputs, and within limits of each run, in seconds and in bytes. None: what is usual."""

    count: int | None = None
    seconds: float | None = None
    memory: int | None = None

    def __str__(self) -> str:
        words = (
            None if self.count is None else str(self.count),
            None if self.seconds is None else f"{self.seconds:.10g}s",
            None if self.memory is None else f"{self.memory}B",
        )
        return ",".join(word for word in words if word is not None)


def read_runs(value: Any) -> RunChoice:
    """Return what the words for runs mean: a number of runs, a time and a size in bytes, each once."""
    if isinstance(value, RunChoice):
        return value
    return RunChoice(**one_of_each(value, _run_word, _EXAMPLE_RUNS))


def one_of_each(value: Any, read: Callable[[Any], tuple[str, Any]], example: str) -> dict[str, Any]:
    """Return what the words of a list, or of a text with commas, mean: `read` gives the kind and the meaning of a word.

    Raises Unreadable, with the `example` as its hint, for a second word of a kind.
    """
    entries = value if isinstance(value, list | tuple) else [value]
    meanings: dict[str, Any] = {}
    for word in (part for entry in entries for part in (entry.split(",") if isinstance(entry, str) else [entry])):
        kind, meaning = read(word)
        if kind in meanings:
            raise Unreadable(f"{word!r} is the second of its kind", hint=example)
        meanings[kind] = meaning
    return meanings


def read_limits(value: Any) -> RunChoice:
    """Return what the words for limits of runs mean: a time and a size in bytes."""
    choice = read_runs(value)
    if choice.count is not None:
        raise Unreadable("a number of runs is for tile, plan and verify", hint="write 60s or 4GiB")
    return choice


def _run_word(word: Any) -> tuple[str, Any]:
    number = whole(word.strip()) if isinstance(word, str) else word
    if isinstance(number, int) and not isinstance(number, bool):
        if not 1 <= number <= MOST_RUNS:
            raise Unreadable(f"give a whole number from 1 to {MOST_RUNS:,}")
        return "count", number
    if not isinstance(word, str):
        raise Unreadable("give a number of runs, a time or a size in bytes", hint=_EXAMPLE_RUNS)
    seconds = seconds_of(word)
    if seconds is not None:
        return "seconds", read_seconds(seconds)
    if bytes_of(word) is None:
        raise Unreadable(
            f"{word.strip()!r} is neither a number of runs, a time, nor a size in bytes", hint=_EXAMPLE_RUNS
        )
    return "memory", read_size(word)


_EXAMPLE_RUNS = "write 8, 60s or 4GiB"


def read_seconds(value: Any) -> float:
    """Return a number of seconds above 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unreadable("give a number of seconds")
    if not (math.isfinite(value) and 0 < value <= 1e8):
        raise Unreadable("give a number of seconds above 0, up to 100,000,000")
    return float(value)


def read_time(text: str) -> float:
    """Return the seconds that "30s", "500ms" or "2min" mean."""
    seconds = seconds_of(text)
    if seconds is None:
        raise Unreadable(f"{text!r} is not a time", hint="write 30s, 500ms or 2min")
    return seconds


def read_size(value: Any) -> int:
    """Return the bytes that a number or a text such as "256KiB" means, at least 1."""
    size = bytes_of(value) if isinstance(value, str) else value
    if not isinstance(size, int) or isinstance(size, bool):
        raise Unreadable("this is not a size in bytes", hint=EXAMPLE_SIZES)
    if size < 1:
        raise Unreadable("a size in bytes is at least 1", hint=EXAMPLE_SIZES)
    if size > LARGEST_COUNT:
        raise Unreadable("a size in bytes is at most 2^63 - 1", hint=EXAMPLE_SIZES)
    return size


def read_sizes(value: Any) -> int | dict[str, int]:
    """Return one size in bytes, or several by name, in their order."""
    return _table_of(read_size)(value) if isinstance(value, Mapping) else read_size(value)


def _offset(value: Any) -> int:
    offset = bytes_of(value) if isinstance(value, str) else value
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
        raise Unreadable("this is not an offset in bytes", hint="write 0, 4096 or 4KiB")
    if offset > LARGEST_COUNT:
        raise Unreadable("an offset in bytes is at most 2^63 - 1")
    return offset


def read_rate(value: Any) -> int:
    """Return the bytes per second that "8GB/s" means, at least 1; a number is one of bytes."""
    text = value.strip() if isinstance(value, str) else None
    rate = value if text is None else bytes_of(text[:-2]) if text.endswith("/s") else None
    if not isinstance(rate, int) or isinstance(rate, bool):
        raise Unreadable("this is not a number of bytes per second", hint=_EXAMPLE_RATE)
    if not 1 <= rate <= LARGEST_COUNT:
        raise Unreadable("a number of bytes per second is at least 1, at most 2^63 - 1", hint=_EXAMPLE_RATE)
    return rate


_EXAMPLE_RATE = "write 8GB/s, 400MB/s or 1.5GiB/s"


def read_speed(value: Any) -> int:
    """Return the number that "4G" or a whole number means, at least 1; K, M, G and T count by 1,000."""
    speed = value
    if isinstance(value, str):
        number = re.fullmatch(r"([0-9]{1,15})(?:\.([0-9]{1,15}))?\s*([kKMGT]?)", value.strip())
        power = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12}[number[3]] if number else 0
        decimals = (number[2] or "") if number else ""
        speed = int(number[1] + decimals) * 10**power // 10 ** len(decimals) if number else None
    if not isinstance(speed, int) or isinstance(speed, bool) or not 1 <= speed <= LARGEST_COUNT:
        raise Unreadable("give a number of at least 1", hint="write 4G, 500M or 4000000000")
    return speed


def read_text(value: Any) -> str:
    """Return a text as it is."""
    if not isinstance(value, str):
        raise Unreadable("give a text")
    return value


def read_texts(value: Any) -> tuple[str, ...]:
    """Return texts; a lone one stands for itself."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Iterable) or isinstance(value, Mapping | bytes):
        raise Unreadable("give a text, or several")
    return tuple(map(read_text, value))


def read_patterns(value: Any) -> tuple[Any, ...]:
    """Return patterns: texts, (name, query) pairs, or Pattern objects; a lone text or pattern stands for itself."""
    entries = (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
    for entry in entries:
        if not isinstance(entry, str | tuple | list | os.PathLike) and not hasattr(entry, "programs"):
            raise Unreadable("give the name of a pattern, a file, a query, or a pair of a name and a query")
    return entries


def read_file(value: Any) -> Path:
    """Return the path of a file."""
    if not isinstance(value, str | os.PathLike):
        raise Unreadable("give the name of a file")
    try:
        require_possible(Path(value), UsageError)
    except UsageError as error:
        raise Unreadable(error.message, hint=error.hint) from None
    return Path(value)


def read_source(value: Any) -> Any:
    """Return a model as it is: a path, or a model in memory."""
    if isinstance(value, str | os.PathLike):
        return read_file(value) if isinstance(value, Path) else value
    if not hasattr(value, "graph"):
        raise Unreadable("give a path, a ModelProto or an onnx_ir.Model")
    return value


def read_plan(value: Any) -> Any:
    """Return a plan as it is: a path, or a result."""
    if not isinstance(value, str | os.PathLike) and not hasattr(value, "to_dict"):
        raise Unreadable("give a plan: a result, a .json file or a planned model")
    return value


def path_of(value: Any) -> Path:
    """Return the path that a caller gave. Raises UsageError for what is none."""
    try:
        return read_file(value)
    except Unreadable as error:
        raise UsageError(f"{value!r}: {error.reason}", hint=error.hint) from None


def read_files(value: Any) -> tuple[Path, ...]:
    """Return the paths of files; a lone one stands for itself."""
    return tuple(map(read_file, value if isinstance(value, list | tuple) else [value]))


def read_states(value: Any) -> str | dict[str, str]:
    """Return the names of outputs by inputs, or one of the words "found" and "none"."""
    if isinstance(value, str) and value in STATE_WORDS:
        return value
    if isinstance(value, str) or not isinstance(value, Mapping):
        raise Unreadable("give pairs of an input and an output", hint="write INPUT=OUTPUT, found or none")
    return _table_of(read_text)(value)


def _whole(value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Unreadable(f"give a whole number of at least {least}")
    if value > LARGEST_COUNT:
        raise Unreadable("this number is too large", hint="at most 2^63 - 1")
    return value


_RANGE_OF_SIZES = "write a size as in 8, the least and the largest as in 1:8, or another dimension as in past+1"
DimSize: TypeAlias = int | str | tuple[int | None, int]
"""One size, a sum of dimensions "past + 1", the two ends of a range, or (None, 8) for an upper bound of 8."""
_SUM = re.compile(r"[A-Za-z_]\w*(\s*\+\s*\w+)*", re.ASCII)


def _dim(value: Any) -> DimSize:
    """Return what a size of a dimension means; a range of one size is that size."""
    ends = value
    if isinstance(value, str) and _SUM.fullmatch(value.strip()):
        return " + ".join(part.strip() for part in value.split("+"))
    if isinstance(value, str):
        first, _, last = value.partition(":")
        numbers = [whole(first) if first else None, whole(last)]
        if numbers[1] is None or (first and numbers[0] is None):
            raise Unreadable("give a whole number of at least 1", hint=_RANGE_OF_SIZES)
        ends = numbers
    if not isinstance(ends, list | tuple):
        return read_count(ends)
    if len(ends) != 2:
        raise Unreadable("a range of sizes has two ends", hint=_RANGE_OF_SIZES)
    if ends[0] is None:
        return None, read_count(ends[1])
    low, high = 0 if ends[0] == 0 and isinstance(ends[0], int) else read_count(ends[0]), read_count(ends[1])
    if low > high:
        raise Unreadable("the range is empty: its first size is the larger one", hint=f"write {high}:{low}")
    return low if low == high else (low, high)


def _shape(value: Any) -> tuple[int | tuple[int, int], ...]:
    if isinstance(value, str):
        texts = [size.removeprefix("(").removesuffix(")") if ":" in size else size for size in value.split("x")]
        sizes: list[Any] = [text if ":" in text else whole(text) for text in texts]
        if None in sizes:
            raise Unreadable("this is not a shape", hint="write sizes with an x between them, as in 1x3x224x224")
    elif isinstance(value, Iterable):
        sizes = list(value)
    else:
        raise Unreadable("this is not a shape", hint="write [1, 3, 224, 224]")
    return tuple(_size(size) for size in sizes)


def _size(value: Any) -> int | tuple[int, int]:
    """Return one size, or the two ends of a range."""
    is_range = isinstance(value, list | tuple) or (isinstance(value, str) and ":" in value)
    size = _dim(value) if is_range else read_count(value)
    if isinstance(size, tuple) and size[0] is None:
        raise Unreadable("a range of sizes has two ends", hint=_RANGE_OF_SIZES)
    assert not isinstance(size, str)
    return size  # type: ignore[return-value]


def _range(value: Any) -> tuple[float, float]:
    """Return a range of numbers: "0:100", [0, 100], or one number."""
    ends = list(value) if isinstance(value, list | tuple) else [value]
    ends = ends[:1] if len(ends) == 2 and ends[0] == ends[1] else ends  # one number
    text = ":".join(map(str, ends))
    try:
        return parse_range(text)
    except OnnxtileError as error:
        raise Unreadable(error.message, hint=error.hint) from None


@dataclass(frozen=True)
class InputRange:
    """The numbers of a random input: from `low` to below `high`, or `low` alone where both are the same."""

    name: str
    low: float
    high: float


InputValues: TypeAlias = tuple[Path | InputRange, ...]
"""What a model is run on: at most one file, and ranges of random inputs."""


def read_inputs(value: Any) -> InputValues:
    """Return the inputs of a run: the file of a text, ranges by name or as texts "x=0:1", or several of these."""
    entries = list(value) if isinstance(value, list | tuple) else [value]
    read_entries = tuple(part for entry in entries for part in _input(entry))
    if sum(isinstance(entry, Path) for entry in read_entries) > 1:
        raise Unreadable("there are two files of inputs", hint="put all inputs into one file")
    names = [entry.name for entry in read_entries if isinstance(entry, InputRange)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Unreadable(f"{twice!r} has two ranges", hint="leave one of the two out")
    return read_entries


def _input(entry: Any) -> Iterator[Path | InputRange]:
    if isinstance(entry, InputRange):
        yield entry
    elif isinstance(entry, Mapping):
        yield from (InputRange(name, *ends) for name, ends in _table_of(_range)(entry).items())
    elif isinstance(entry, str) and "=" in entry and not entry.endswith(_ARRAYS):
        name, _, ends = entry.rpartition("=")
        yield InputRange(name, *_range(ends))
    else:
        yield read_file(entry)


_ARRAYS = ".npz"
"""The ending of a file of inputs, whose name may hold an equals sign."""


def number_or_text(text: str) -> int | str:
    """Return the whole number that `text` is, or `text` itself."""
    number = whole(text)
    return text if number is None else number


def _rule(value: Any) -> str:
    """Return a text as it is; a whole number stands for its text."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else read_text(value)


read_names = _table_of(read_text)
"""Returns texts by name."""
read_rules = _table_of(_rule)
"""Returns rules by name, as texts: "4096 shared", or a number."""
read_offsets = _table_of(_offset)
"""Returns offsets in bytes by name: a number of at least 0, or a text such as "4KiB"."""
read_dims = _table_of(_dim)
"""Returns sizes of at least 1, by name: a number, a range "1:8" or [1, 8] whose ends are both in it, an upper bound ":8", or a sum of
others, "past + 1"."""
read_shapes = _table_of(_shape)
"""Returns whole shapes of inputs, by name: "1x3x224x224", or a sequence of sizes; a size may be a range, as in "1x3x48x(1:320)"."""


def read_target(value: Any) -> str | Mapping[str, Any]:
    """Return the name or the file of a target, or a table of what such a file says."""
    return value if isinstance(value, Mapping) else str(read_file(value))


FLAG = ValueKind(read_flag, flag=True)
TARGET = ValueKind(read_target, forms=('"cortex-m7"', '{"memory": "64KiB", "macs_per_second": "4G"}'))
COUNT = ValueKind(read_count, number_or_text)
RUNS = ValueKind(read_runs, number_or_text, several=True, forms=("8", '[8, "60s", "4GiB"]'))
LIMITS = ValueKind(read_limits, number_or_text, several=True, forms=('"60s"', '["60s", "4GiB"]'))
NATURAL = ValueKind(read_natural, number_or_text)
SIZE = ValueKind(read_size, number_or_text, forms=("64", '"4KiB"'))
SIZES = ValueKind(
    read_sizes, several=True, pair="NAME=SIZE", lone=True, forms=('"256KiB"', '{"sram": "64KiB", "dram": "8MiB"}')
)
TEXT = ValueKind(read_text)
TEXTS = ValueKind(read_texts, several=True)
PATTERNS = ValueKind(read_patterns, several=True, forms=('"LayerNorm"', '["my.toml", ("Linear", "MatMul-*>Add")]'))
FILE = ValueKind(read_file)
SOURCE = ValueKind(read_source, Path)
PLAN = ValueKind(read_plan)
FILES = ValueKind(read_files, several=True)
DIMS = ValueKind(
    read_dims,
    number_or_text,
    several=True,
    pair="NAME=N",
    forms=('{"batch": 8, "total": "past + 1"}', '{"batch": (1, 8)}', '{"found": (None, 8)}'),
)
SHAPES = ValueKind(
    read_shapes,
    several=True,
    pair="INPUT=1x3x224x224",
    forms=('{"image": (1, 3, 224, 224)}', '{"image": (1, 3, 8, (1, 64))}'),
)
INPUTS = ValueKind(read_inputs, several=True, forms=('"inputs.npz"', '{"ids": (0, 30522)}'))
STATES = ValueKind(read_states, several=True, pair="INPUT=OUTPUT", lone=True, forms=('"found"', '{"past": "present"}'))
ANY = ValueKind(lambda value: value)


# Ranges as users write them: "0:100" means 0 to below 100, "16000" means exactly 16000.


def parse_range(text: str) -> tuple[float, float]:
    """Return the ends of the range that `text` names; the second is not in it, unless both are the same. Raises UsageError."""
    low, colon, high = text.partition(":")
    try:
        ends = float(low), float(high if colon else low)
    except ValueError:
        raise UsageError(f"{text!r} is not a range", hint="write LOW:HIGH, as in 0:100") from None
    if not math.isfinite(ends[1] - ends[0]):
        raise UsageError(f"the range {text} is too wide", hint="its ends, and the difference of both, are numbers")
    if colon and not ends[0] < ends[1]:
        raise UsageError(f"the range {text} is empty", hint="HIGH is not in the range, as in Python")
    return ends


# The figures of a target: what its file says of the hardware beside the limits on one tile, which `onnxtile.tiling.limits` reads.


@dataclass(frozen=True)
class TargetFigures:
    """What the file of a target says beside the limits on one tile.

    `bandwidth` has the bytes per second of memories by name, `macs_per_second` is the speed of the kernels. Up to `streams` independent
    nodes run at the same time. `macs_by_type` has the speed for each element type where the file tells them apart, as `int8` and `float32`;
    `copied_per_second` are bytes within the memory of the activations, `calls_per_second` kernels that do nothing.
    `c_kernels` is the file of a table of functions in C for kernels. `cc` compiles a program in C for the target (empty: the compiler of
    this machine), and `runner` runs what it makes (empty: nothing does). `weights` says where the weights of such a program are: in its
    "code", or in a "file" beside it.
    """

    bandwidth: Mapping[str, int] = field(default_factory=dict)
    macs_per_second: int | None = None
    streams: int = 1
    c_kernels: Path | None = None
    cc: str = ""
    runner: str = ""
    weights: str = "code"
    macs_by_type: Mapping[str, int] = field(default_factory=dict)
    copied_per_second: int | None = None
    calls_per_second: int | None = None
