"""Whole numbers and sizes in bytes, as people write them."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNITS = {
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "k": 2**10, "m": 2**20, "g": 2**30},
    **{"kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1, "": 1},
}
"""Bytes of a unit, in lower case: k, m and g count by 1,024 as compilers and linkers do, kB, MB and GB by 1,000."""
_DIGITS = 30
"""Of a number, at most: a longer one is a mistake, and Python refuses to read those of more than 4,300."""
LARGEST_COUNT = 2**63 - 1
"""The largest number that an option takes: that of a dimension in ONNX."""
LARGEST_BOUND = 2**31 - 1
"""Above this a bound on a tile is a slip of the keyboard: no hardware multiplies matrices of that size, and no axis reaches it."""
LARGEST_MEMORY = 2**50
"""In bytes; above this a memory is a slip of the keyboard, too."""
MOST_RUNS = 1_000_000
"""Sets of random inputs that may be asked for."""


def whole(text: str) -> int | None:
    """Return the whole number that `text` is, digits only; None for what is none, or has more than 30 digits.

    >>> whole("262144")
    262144
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS else None


def bytes_of(text: str) -> int | None:
    """Return the bytes that "256KiB", "256k", "1.25 MB" or "4096" mean; None for other texts, and where these are no whole bytes.

    >>> bytes_of("1.25KiB")
    1280
    """
    match = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?\s*([a-zA-Z]*)", text.strip())
    if match is None or (unit := _UNITS.get(match[3].lower())) is None:
        return None
    decimals = match[2] or ""
    number, parts = whole(match[1] + decimals), int("1" + "0" * len(decimals))
    return None if number is None or number * unit % parts else number * unit // parts


def seconds_of(text: str) -> float | None:
    """Return the seconds that "5s", "200ms" or "2min" mean; None for other texts.

    >>> seconds_of("200ms")
    0.2
    """
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(s|ms|min)", text.strip())
    return None if match is None else float(match[1]) * {"s": 1.0, "ms": 0.001, "min": 60.0}[match[2]]


_DIGIT_RUN = re.compile(r"[0-9]+")
_DIGITS_OF_A_RUN = 10
"""Digits of a longer number are no count of layers."""
_NUMBERS = 4
"""Numbers that are written out where they are no run."""


_NAME_IN_QUOTES = re.compile(r"'[^']*'")


def unquoted(message: str) -> str:
    """Return what messages that differ in quoted names only have in common."""
    return _NAME_IN_QUOTES.sub("''", message)


def without_numbers(name: str) -> str:
    """Return what names that differ in numbers only have in common."""
    return _DIGIT_RUN.sub("#", name)


def alike(names: Iterable[str]) -> list[str]:
    """Return `names` with those that differ in numbers only as one, in the order of the first of each.

    >>> alike(["blocks.0.attn", "blocks.1.attn", "blocks.2.attn", "head", "a.3.1", "a.3.2", "a.4.0"])
    ['blocks.{0..2}.attn', 'head', 'a.3.{1,2}', 'a.4.0']
    """
    groups: dict[str, dict[str, None]] = {}
    for name in names:
        groups.setdefault(without_numbers(name), {})[name] = None
    return [text for group in groups.values() for text in (_as_few([*group]) if len(group) > 1 else group)]


def _as_few(names: Sequence[str]) -> list[str]:
    """Return different names that differ in numbers only as few texts, each of which stands for all combinations of its numbers."""
    columns = list(zip(*map(_DIGIT_RUN.findall, names), strict=True))
    different = [column for column in dict.fromkeys(columns) if len({*column}) > 1]  # equal columns have one number
    if len(different) > _NUMBERS:
        return list(names)
    texts = []
    for sets in _combinations([*zip(*different, strict=True)]):
        shown = dict(zip(different, map(_numbers, sets), strict=True))
        each = iter([shown.get(column, column[0]) for column in columns])
        texts.append(_DIGIT_RUN.sub(lambda _, each=each: next(each), names[0]))  # type: ignore[misc]
    return texts


def _combinations(rows: Sequence[tuple[str, ...]]) -> list[tuple[list[str], ...]]:
    """Return numbers in order for each column; the combinations of all are exactly `rows`, none of them twice."""
    if not rows[0]:
        return [()]
    after: dict[str, dict[tuple[str, ...], None]] = {}
    for first, *rest in rows:
        after.setdefault(first, {})[tuple(rest)] = None
    firsts: dict[frozenset[tuple[str, ...]], list[str]] = {}
    for first, rests in after.items():
        firsts.setdefault(frozenset(rests), []).append(first)
    return [
        (sorted(same, key=lambda digits: (len(digits), digits)), *sets)
        for same in firsts.values()
        for sets in _combinations([*after[same[0]]])
    ]


def _numbers(numbers: Sequence[str]) -> str:
    """Return different numbers, in their order, as a shell writes them: "{0..11}", "{1,4,7}"."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return first
    if len(numbers) > 2 and len(last) < _DIGITS_OF_A_RUN and int(last) - int(first) == len(numbers) - 1:
        return f"{{{first}..{last}}}"
    more = [*numbers[:_NUMBERS], *(["…"] if len(numbers) > _NUMBERS else [])]
    return f"{{{','.join(more)}}}"


# Writes results as JSON: a line for each part, so that files can be searched and compared by line.

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
        return {key: _told(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_told(element) for element in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _seen(text: str) -> str:
    return text if text.isascii() and "\x7f" not in text else _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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


# Writes results as CSV: no name of a model becomes a formula in a spreadsheet or moves a cursor, and each name can be read back.

_FORMULA = re.compile(r"'*[=+\-@]")
"""First characters of a formula in a spreadsheet (https://owasp.org/www-community/attacks/CSV_Injection), and the quote."""
_SPECIAL = re.compile(r'^\s|[",]')
_QUOTED = re.compile(r"'+[=+\-@]")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
"""An escape of one character, as Python writes it."""


def as_csv(rows: Iterable[Iterable[object]]) -> bytes:
    """Return `rows` as a file (RFC 4180, lines end in LF); a text that would be a formula has an apostrophe before it."""
    return "".join(f"{','.join(map(_cell, row))}\n" for row in rows).encode()


def text_of(cell: str) -> str:
    """Return the text that stands in a `cell` which `as_csv` wrote."""
    return _ESCAPE.sub(_character, cell[1:] if _QUOTED.match(cell) else cell)


def _character(escape: re.Match[str]) -> str:
    number = int(next(filter(None, escape.groups())), 16)
    char = chr(number) if number <= sys.maxunicode else ""
    return escape[0] if char.isprintable() and char != "\\" else char


def _escaped(text: str) -> str:
    """Return `text` with characters that are not printable as `text_of` reads them; what looks so already has its backslash escaped."""
    plain = _ESCAPE.sub(lambda match: f"\\x5c{match[0][1:]}" if _character(match) != match[0] else match[0], text)
    return plain if plain.isprintable() else "".join(char if char.isprintable() else _escape(char) for char in plain)


def _escape(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _cell(cell: object) -> str:
    """Return a cell; Python's own writer leaves a space that readers skip without the quotes it needs."""
    text = "" if cell is None else _escaped(str(cell))
    if isinstance(cell, str) and _FORMULA.match(text):
        text = f"'{text}"
    return '"{}"'.format(text.replace('"', '""')) if _SPECIAL.search(text) else text
