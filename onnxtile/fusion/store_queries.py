"""Writes the parsed queries of the pattern library beside its files: `python -m onnxtile.fusion.store_queries`."""

from __future__ import annotations

from pathlib import Path

from onnxtile.fusion.pattern import STORED, texts_of
from onnxtile.query.language import parse, parse_condition, stored_text
from onnxtile.system.registry import data_folder


def content(folder: Path) -> str:
    """Return the content of the file for the patterns of a folder and its folders. Raises PatternError, QueryError."""
    texts = [text for path in sorted(folder.rglob("*.toml")) for text in texts_of(path)]
    conditions = {condition: parse_condition(condition) for _, *where in texts for condition in where}
    return stored_text([parse(query) for query, *_ in texts], conditions.items())


if __name__ == "__main__":
    patterns = data_folder("patterns")
    (patterns / STORED).write_text(content(patterns), "utf-8")
