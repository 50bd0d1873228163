"""Limits files: TOML, one for each hardware, checked field by field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from onnxtile.system.errors import OnnxtileError, UsageError
from onnxtile.system.registry import data_folder, discover
from onnxtile.system.text import bytes_of
from onnxtile.system.toml_file import TomlFile, read
from onnxtile.tiling.limits import LARGEST, MOST_MEMORY, Limits, WindowBounds
from onnxtile.tiling.tileable import Tileable

_ENDING = ".toml"
_OF_CONVOLUTIONS = {"conv", "rows", "columns", "channels", "filters"}

Size = Annotated[int, pydantic.Field(strict=True, ge=1, le=LARGEST)]
DType = Literal[
    "float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "uint32", "int64", "uint64"
]  # fmt: skip


def _in_bytes(value: object) -> object:
    """Return the bytes that a text means; any other value is returned as it is."""
    if not isinstance(value, str):
        return value
    size = bytes_of(value)
    if size is None:
        raise ValueError(f'{value!r} is not a size in bytes: write 262144, "256KiB" or "8MiB"')
    return size


MemorySize = Annotated[int, pydantic.Field(strict=True, ge=1, le=MOST_MEMORY), pydantic.BeforeValidator(_in_bytes)]


class _TargetTable(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class _AxisLimits(_TargetTable):
    max: Size | None = None
    multiple: Size = 1

    @pydantic.model_validator(mode="before")
    @classmethod
    def _bare(cls, value: object) -> object:
        """Read `m = 64` as `m = { max = 64 }`."""
        if isinstance(value, int):
            return {"max": value}
        if not isinstance(value, dict):
            raise ValueError(f"{value!r} is not a whole number: write 64, or {{ max = 64, multiple = 8 }}")
        return value

    @pydantic.model_validator(mode="after")
    def _fit(self) -> _AxisLimits:
        if self.max is not None and self.max % self.multiple:
            raise ValueError(f"max = {self.max} is not a multiple of {self.multiple}")
        return self


class _Largest(_TargetTable):
    elements: Annotated[int, pydantic.Field(strict=True, ge=1, le=MOST_MEMORY)] | None = None
    bytes: MemorySize | None = None


class _Rules(_TargetTable):
    """The fields that may differ from operator to operator."""

    m: _AxisLimits = _AxisLimits()
    k: _AxisLimits = _AxisLimits()
    n: _AxisLimits = _AxisLimits()
    largest: _Largest = _Largest()
    memory: MemorySize | None = None
    dtypes: Annotated[tuple[DType, ...], pydantic.Field(min_length=1)] | None = None
    pad: Annotated[bool, pydantic.Field(strict=True)] = False
    conv: Annotated[bool, pydantic.Field(strict=True)] = False
    rows: Size | None = None
    columns: Size | None = None
    channels: Size | None = None
    filters: Size | None = None

    def limits(self) -> Limits:
        window = WindowBounds(self.rows, self.columns, self.channels, self.filters)
        return Limits(
            self.m.max,
            self.k.max,
            self.n.max,
            multiples=(self.m.multiple, self.k.multiple, self.n.multiple),
            largest_elements=self.largest.elements,
            largest_bytes=self.largest.bytes,
            memory=self.memory,
            dtypes=None if self.dtypes is None else frozenset(self.dtypes),
            pad=self.pad,
            window=window if self.conv or window.asks else None,
        )


class _LimitsFile(_Rules):
    doc: str = ""
    operator: dict[str, _Rules] = {}

    def limits(self) -> Limits:
        """Return the limits; fields that the table of an operator leaves out come from the file."""
        common = super().limits()
        own = [(name, self._with(rules, name).limits()) for name, rules in self.operator.items()]
        return replace(common, operators=tuple(sorted(own, key=lambda pair: pair[0])))

    def _with(self, rules: _Rules, operator: str) -> _Rules:
        """Return `rules`, with missing fields from the file. A table of a convolution requests that it is cut."""
        common = {name: getattr(self, name) for name in self.model_fields_set & _Rules.model_fields.keys()}
        own = {name: getattr(rules, name) for name in rules.model_fields_set}
        return _Rules.model_construct(**{**common, **own, "conv": _operators()[operator].windows})


def from_file(path: Path) -> Limits:
    """Return the limits in a TOML file. Raises UsageError with the file, the line and the field at fault."""
    file = read(path, UsageError, hint=f"ready-made: {', '.join(_ready_made_or_none())}")
    content = file.validated(_LimitsFile)
    _require_operators(file, content)
    limits = content.limits()
    if limits == Limits():
        raise UsageError(f"{file.place()}: no limit is given", hint='say m = 64, or memory = "256KiB"')
    return limits


def _operators() -> dict[str, Tileable]:
    return discover("onnxtile.tiling.operators", Tileable)  # type: ignore[type-abstract]


def _require_operators(file: TomlFile, content: _LimitsFile) -> None:
    known = _operators()
    for name, rules in content.operator.items():
        at = ("operator", name)
        if name not in known:
            raise UsageError(
                f"{file.place(at)}: field 'operator.{name}': tile cuts no such operator",
                hint=f"choose {', '.join(known)}",
            )
        alien = rules.model_fields_set & _OF_CONVOLUTIONS
        if alien and not known[name].windows:
            field = min(alien)
            raise UsageError(
                f"{file.place((*at, field))}: field 'operator.{name}.{field}': {name} is not a convolution"
            )


def ready_made() -> list[str]:
    """Return the names of the limits files that ship with onnxtile."""
    return sorted(path.name.removesuffix(_ENDING) for path in data_folder("limits").glob(f"*{_ENDING}"))


def descriptions() -> dict[str, str]:
    """Return, by the name of each limits file that ships with onnxtile, the sentence in its `doc` field."""
    folder = data_folder("limits")
    return {name: read(folder / f"{name}{_ENDING}", UsageError).validated(_LimitsFile).doc for name in ready_made()}


def find(name: str) -> Limits:
    """Return the limits in the file `name`, or in the ready-made one called so. Raises UsageError."""
    if name in _ready_made_or_none():
        return from_file(data_folder("limits") / f"{name}{_ENDING}")
    return from_file(Path(name))


def _ready_made_or_none() -> list[str]:
    try:
        return ready_made()
    except OnnxtileError:
        return []
