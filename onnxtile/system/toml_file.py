"""TOML files that users write: read, checked against a schema, and errors that name the file and the line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OnnxtileError, nearest
from onnxtile.system.files import require_readable

if TYPE_CHECKING:
    import pydantic_core

Location = Sequence[str | int]
"""The path of a value in a file: keys of tables, positions in arrays."""

_Model = TypeVar("_Model", bound="pydantic.BaseModel")


@dataclass(frozen=True)
class TomlFile:
    """A file, its text, and what that says. Bad content raises errors of `kind`.

    `path` is that of the file, `text` its text, `content` its tables.
    """

    path: Path
    text: str = field(repr=False)
    content: dict[str, Any] = field(repr=False)
    kind: type[OnnxtileError] = OnnxtileError

    def place(self, location: Location = ()) -> str:
        """Return "path:line" of what stands at `location`."""
        return f"{self.path}:{line_of(self.text, location)}"

    def validated(self, schema: type[_Model]) -> _Model:
        """Return the content as `schema` says it has to be. Raises an error with file, line and field."""
        try:
            return schema.model_validate(self.content)
        except pydantic.ValidationError as error:
            # A key that is misspelled is said before the one that is missing for it.
            first = min(error.errors(), key=lambda fault: fault["type"] not in _UNKNOWN)
            # Of a field of several types, pydantic names the one that it tried, too.
            location = tuple(part for part in first["loc"] if part != "[key]" and not str(part).startswith("function-"))
            # Positions in arrays are left out: the line of the error says which table it is.
            name = ".".join(part for part in location if isinstance(part, str))
            hint = None
            if first["type"] in _UNKNOWN:
                message, hint = f"unknown key {name!r}", _nearest(location, schema)
            elif "missing" in first["type"]:
                message = f"the field {name!r} is missing"
            else:
                message = (f"field {name!r}: " if name else "") + _fault(first)
            raise self.kind(f"{self.place(location)}: {message}", hint=hint) from None


_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
"""What pydantic calls a key that a table does not take."""


_WANTED = {
    **{"int": "a whole number", "float": "a number", "string": "text in quotes", "bool": "true or false"},
    **dict.fromkeys(("tuple", "list"), "a list"),
    **dict.fromkeys(("dict", "model", "model_attributes", "dataclass"), "a table"),
}
"""What a value has to be, by the type of pydantic's error without its ending "_type"."""


def _fault(fault: pydantic_core.ErrorDetails) -> str:
    """Return what is wrong with a value: by a check of ours, else what it should be."""
    start, _, wanted = fault["msg"].partition("Input should be ")
    wanted = _WANTED.get(fault["type"].removesuffix("_type"), wanted)
    if start or not wanted:
        return fault["msg"].removeprefix("Value error, ")
    return f"{json.dumps(fault['input'], default=str, ensure_ascii=False)} should be {wanted}"


_OF_MODELS = frozenset({".onnx", ".tflite"})
"""Endings of files that are no TOML, however they begin."""


def read(path: Path, kind: type[OnnxtileError], *, hint: str | None = None) -> TomlFile:
    """Return the TOML file at `path`. Raises an error of `kind` with file and line; `hint` is for a file that is not there."""
    require_readable(path, kind, hint=hint)
    if path.suffix in _OF_MODELS:
        raise kind(f"{path}: this is a model, not a TOML file")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise kind(f"{path}:{line}: this is not UTF-8 text") from None
    except OSError as error:
        raise kind(f"{path}: {error.strerror or error}") from None
    try:
        return TomlFile(path, text, tomllib.loads(text), kind)
    except tomllib.TOMLDecodeError as error:
        message, line = _syntax_error(str(error), text)
        raise kind(f"{path}:{line}: {message}") from None
    except ValueError:  # what Python says of a number with more digits than it reads
        raise kind(f"{path}:{_line_of_long_number(text)}: this number has too many digits") from None
    except RecursionError:
        raise kind(f"{path}:1: this is nested too deeply") from None


def _line_of_long_number(text: str) -> int:
    match = re.search(r"[\d_]{4300,}", text)
    return 1 if match is None else text.count("\n", 0, match.start()) + 1


_TWICE = ("Cannot overwrite a value", "this key has a value already")
"""What tomllib says of a key that is there twice, and the same for users."""


def _syntax_error(message: str, text: str) -> tuple[str, int]:
    """Return the message of tomllib, and its line: "Invalid value (at line 2, column 8)", or at the end."""
    reason, _, where = message.replace(*_TWICE).rpartition(" (at ")
    words = where.removesuffix(")").replace(",", "").split()
    line = int(words[1]) if words[:1] == ["line"] else text.count("\n") + (not text.endswith("\n"))
    return f"{reason[:1].lower()}{reason[1:]} in line {line}", max(1, line)


def line_of(text: str, location: Location) -> int:
    """Return the line, from 1, where what stands at `location` begins; of what is missing, where the table begins that lacks it.

    Found without a parser of our own: it begins after the longest text that reads without it. A value is complete on the line
    on which the text up to there holds it for the first time.
    """
    lines = text.splitlines()
    complete, deepest, line = 0, 0, 1
    for count in range(1, len(lines) + 1):
        try:
            content = tomllib.loads("\n".join(lines[:count]))
        except tomllib.TOMLDecodeError:
            continue
        depth = _depth(content, location)
        if depth > deepest:
            deepest, line = depth, complete + 1
        if depth == len(location):
            break
        complete = count
    return line


def _depth(content: Any, location: Location) -> int:
    """Return how much of `location` there is in `content`."""
    for depth, part in enumerate(location):
        there = isinstance(content, dict) and part in content
        there = there or (isinstance(content, list) and isinstance(part, int) and part < len(content))
        if not there:
            return depth
        content = content[part]
    return len(location)


def _nearest(location: Location, schema: type[pydantic.BaseModel]) -> str:
    """Return the key that was meant by the last part of `location`: in which table it stands, else the nearest that its own table takes."""
    whole = schema.model_json_schema()
    inside = list(_referred(whole, whole))
    for part in location[:-1]:  # a part that is no key is a position, or a type that pydantic tried
        inside = _tables(inside, part, whole) or inside
    key, known = location[-1], sorted(set().union(*map(_keys, inside)))
    holders = [name for name in known if any(key in _keys(table) for table in _tables(inside, name, whole))]
    return (
        f"it is a key of {', '.join(holders)}" if holders else nearest(str(key), known, f"there is {', '.join(known)}")
    )


def _tables(inside: Iterable[Mapping[str, Any]], key: str | int, whole: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the JSON schemas of the tables that the key `key` of one of the tables `inside` may hold."""
    return [entry for table in inside for value in _values(table, key) for entry in _referred(value, whole)]


def _keys(table: Mapping[str, Any]) -> set[str]:
    return {*table.get("properties", {})}


def _values(table: Mapping[str, Any], key: str | int) -> list[Any]:
    """Return the JSON schemas of the value of `key` in a table; a table of arbitrary keys has one schema for all."""
    value = table.get("properties", {}).get(key, table.get("additionalProperties"))
    return [value] if isinstance(value, dict) else []


def _referred(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the tables that a JSON schema allows: itself, those of its union, that of its array, and what it refers to in `whole`."""
    yield schema
    parts = [*schema.get("anyOf", ()), *schema.get("allOf", ())]
    parts += [schema["items"]] if isinstance(schema.get("items"), dict) else []
    parts += [whole["$defs"][schema["$ref"].rpartition("/")[2]]] if "$ref" in schema else []
    for part in parts:
        yield from _referred(part, whole)
