"""Limits files: TOML, one for each hardware, checked field by field."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

from onnxtile.declare.values import read_rate, read_speed
from onnxtile.system.text import LARGEST_BOUND, LARGEST_MEMORY, bytes_of

Size = Annotated[int, pydantic.Field(strict=True, ge=1, le=LARGEST_BOUND)]
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


MemorySize = Annotated[int, pydantic.Field(strict=True, ge=1, le=LARGEST_MEMORY), pydantic.BeforeValidator(_in_bytes)]


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
    elements: Annotated[int, pydantic.Field(strict=True, ge=1, le=LARGEST_MEMORY)] | None = None
    bytes: MemorySize | None = None


class _Outer(_TargetTable):
    """The limits on an outer tile, around the tiles that the other fields bound."""

    memory: MemorySize


class Rules(_TargetTable):
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
    outer: _Outer | None = None


Rate = Annotated[int, pydantic.BeforeValidator(read_rate)]
Speed = Annotated[int, pydantic.BeforeValidator(read_speed)]


class LimitsFile(Rules):
    """The fields of a limits file."""

    doc: str = ""
    operator: dict[str, Rules] = {}
    bandwidth: dict[str, Rate] = {}
    macs_per_second: Speed | dict[DType, Speed] | None = None
    copied_per_second: Rate | None = None
    calls_per_second: Speed | None = None
    streams: Size = 1
    c_kernels: str | None = None
    cc: str = ""
    runner: str = ""
    weights: Literal["code", "file"] = "code"
