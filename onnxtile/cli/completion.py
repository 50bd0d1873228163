"""Shell completion: the names that an option takes, found where they are known, and only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath

from onnxtile.option import Option, VerbParameter

Complete = Callable[[str], list[str]]
"""Takes the text so far; returns the texts that it may become. Where there are none, the shell completes files."""


def complete(parameter: VerbParameter) -> Complete | None:
    """Return the function that completes the value of an option or argument; None without known values."""
    choices, about = parameter.choices, parameter.about
    if choices is not None:
        return lambda incomplete: [name for name in choices.names() if name.startswith(incomplete)]
    known = about.endings if isinstance(about, Option) else None
    return None if known is None else lambda incomplete: endings(incomplete, known.names())


def endings(incomplete: str, known: Iterable[str]) -> list[str]:
    """Return `incomplete` with each of the `known` endings that its own begins."""
    name = PurePath(incomplete).name
    stem, dot, begun = name.partition(".")
    if not dot or not stem:
        return []
    start = incomplete.removesuffix(f".{begun}")
    return [start + ending for ending in known if ending.startswith(f".{begun}")]
