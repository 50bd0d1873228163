"""Writes results as JSON: a line for each part, so that files can be searched and compared by line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

_STRICT = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
_DENSE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that JSON allows, and that terminals obey, editors hide or UTF-8 cannot encode."""


def as_json(content: Mapping[str, Any]) -> str:
    """Return `content` with a line for each of its fields and, where a field has parts with fields of their own, for each of these.

    Python's own indentation takes ten times as long, which is seconds for a plan of 100,000 buffers.
    """
    return _seen(_lines((f"{_encode(key)}: {_field(value)}" for key, value in content.items()), "{}", "") + "\n")


def compact(content: Any) -> str:
    """Return `content` as JSON on one line, without spaces."""
    return _seen(_encode(content, _DENSE))


def _encode(value: Any, encoder: json.JSONEncoder = _STRICT) -> str:
    """Return `value` as JSON; numbers for which JSON has no word are texts: "nan", "inf" and "-inf"."""
    try:
        return encoder.encode(value)
    except ValueError:
        return encoder.encode(_told(value))


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _told(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_told(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _seen(text: str) -> str:
    return text if text.isascii() and "\x7f" not in text else _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
