"""Parsed queries as JSON, for those that ship with the package: reading them takes a tenth of the time that parsing takes.

A query is stored under the digest of its text, so a query that was edited since is not found and is parsed. The test of the pattern
library compares every stored query with a fresh parse; `python -m onnxtile.fusion.store_queries` writes the file anew.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from onnxtile.query import syntax

_CLASSES: Mapping[str, type[Any]] = {
    name: kind for name, kind in vars(syntax).items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}


class StoredQueries:
    """The queries and conditions of one file, by their texts; none where the file is missing or was written for another grammar."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        self._parsed: Mapping[str, Any] = content["parsed"] if content.get("language") == _language() else {}

    def query(self, text: str) -> syntax.Query | None:
        """Return the query that the parser made of `text`; None where it is not stored."""
        clauses = self._get(_key(text, is_query=True))
        return None if clauses is None else syntax.Query(text, clauses)

    def condition(self, text: str) -> syntax.Expression | None:
        """Return the condition that the parser made of `text`; None where it is not stored."""
        condition: syntax.Expression | None = self._get(_key(text, is_query=False))
        return condition

    def _get(self, key: str) -> Any:
        stored = self._parsed.get(key)
        return None if stored is None else _decoded(stored)


def stored_text(queries: Iterable[syntax.Query], conditions: Iterable[tuple[str, syntax.Expression]]) -> str:
    """Return the content of a file that holds `queries`, and `conditions` with their texts."""
    trees: dict[str, Any] = {_key(query.text, is_query=True): query.clauses for query in queries}
    trees |= {_key(text, is_query=False): condition for text, condition in conditions}
    lines = {json.dumps(key): json.dumps(_encoded(tree), separators=(",", ":")) for key, tree in trees.items()}
    entries = ",\n".join(f"{key}: {value}" for key, value in sorted(lines.items()))
    return f'{{"language": "{_language()}", "parsed": {{\n{entries}\n}}}}\n'


def _key(text: str, *, is_query: bool) -> str:
    return ("query " if is_query else "condition ") + _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _language() -> str:
    """Return a digest of the grammar and of the classes that a parsed query is made of."""
    grammar = resources.files("onnxtile.query").joinpath("grammar.lark").read_text("utf-8")
    fields = {name: [field.name for field in dataclasses.fields(kind)] for name, kind in _CLASSES.items()}
    return _digest(grammar + repr(fields))


def _encoded(part: Any) -> Any:
    """Return an object as a list of its class's name and its fields, and a tuple as one that begins with 0."""
    if isinstance(part, tuple):
        return [0, *map(_encoded, part)]
    if not dataclasses.is_dataclass(part):
        return part
    return [type(part).__name__, *(_encoded(getattr(part, field.name)) for field in dataclasses.fields(part))]


def _decoded(part: Any) -> Any:
    if type(part) is not list:
        return part
    parts = [item if type(item) is not list else _decoded(item) for item in part[1:]]
    return tuple(parts) if part[0] == 0 else _CLASSES[part[0]](*parts)
