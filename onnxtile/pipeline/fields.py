"""Types of the fields of a pipeline file outside its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pydantic

from onnxtile.values import Unreadable, read_count, read_seconds, read_size


def _as_pydantic(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def validated(value: Any) -> Any:
        try:
            return read(value)
        except Unreadable as error:
            raise ValueError(f"{value!r}: {error.reason}" + (f" ({error.hint})" if error.hint else "")) from None

    return validated


SizeField = Annotated[int, pydantic.BeforeValidator(_as_pydantic(read_size))]
"""Bytes: a number, or text such as "256KiB"."""
CountField = Annotated[int, pydantic.BeforeValidator(_as_pydantic(read_count))]
SecondsField = Annotated[float, pydantic.BeforeValidator(_as_pydantic(read_seconds))]
