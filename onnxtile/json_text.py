"""How results are written as JSON: a line for each part, so that files can be searched and compared by line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False).encode


def as_json(content: Mapping[str, Any]) -> str:
    """Return `content` with a line for each of its fields and, where a field has parts with fields of their own, for each of these.

    Python's own indentation takes ten times as long, which is seconds for a plan of 100,000 buffers.
    """
    return _lines((f"{_encode(key)}: {_field(value)}" for key, value in content.items()), "{}", "") + "\n"


def _field(value: Any) -> str:
    if isinstance(value, list | tuple) and any(_has_parts(item) for item in value):
        return _lines(map(_encode, value), "[]", " ")
    if isinstance(value, dict) and any(_has_parts(item) for item in value.values()):
        return _lines((f"{_encode(str(key))}: {_encode(item)}" for key, item in value.items()), "{}", " ")
    return _encode(value)


def _has_parts(value: Any) -> bool:
    return isinstance(value, dict | list | tuple)


def _lines(parts: Iterable[str], brackets: str, indent: str) -> str:
    text = f",\n{indent} ".join(parts)
    return f"{brackets[0]}\n{indent} {text}\n{indent}{brackets[1]}" if text else brackets
