"""Shell completion: the names that an option takes, found where they are known, and only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath

from onnxtile.option import Option, VerbParameter

Complete = Callable[[str], list[str]]
"""Takes the text so far; returns the texts that it may become. Where there are none, the shell completes files."""


def complete(parameter: VerbParameter) -> Complete | None:
    """Return the function that completes the value of an option or argument; None without known values."""
    choices = parameter.choices
    if choices is not None:
        return lambda incomplete: [name for name in choices.names() if name.startswith(incomplete)]
    names_files = isinstance(parameter.about, Option) and parameter.about.endings is not None
    return (lambda incomplete: endings(incomplete, parameter.endings)) if names_files else None


def endings(incomplete: str, known: Iterable[str]) -> list[str]:
    """Return `incomplete` with each of the `known` endings that its own begins."""
    name = PurePath(incomplete).name
    stem, dot, begun = name.partition(".")
    if not dot or not stem:
        return []
    start = incomplete.removesuffix(f".{begun}")
    return [start + ending for ending in known if ending.startswith(f".{begun}")]
