"""Messages in the words of their reader: what the code calls `--max-k 64` is `max_k=64` in Python, and `max_k = 64` in a pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

from onnxtile.errors import NAME_ONLY, Entry, OnnxtileError, QueryError, Wording
from onnxtile.sizes import whole
from onnxtile.values import ValueKind

_FLAG = re.compile(r"(--[a-z][a-z-]*)(?:[ =]((?:[^\s,;()]|\([^()]*\))+))?")
"""An option in a message, and the word behind it, which may be its value."""


class NamedOption(Protocol):
    """An option of a declaration (onnxtile.option.VerbParameter)."""

    @property
    def name(self) -> str:
        """Its keyword in Python."""
        ...

    @property
    def flags(self) -> tuple[str, ...]:
        """Its names on the command line."""
        ...

    @property
    def kind(self) -> ValueKind:
        """How its value is read."""
        ...

    def has_choice(self, text: str) -> bool:
        """Return whether `text` is one of the names that it takes."""
        ...


class _Dots:
    """Stands for a number that the reader knows."""

    def __repr__(self) -> str:
        return "..."


def reword(error: OnnxtileError, known: Mapping[str, NamedOption], wording: Wording) -> None:
    """Let `error` say each of the `known` parameters as `wording` has it. A query error shows the query as it is."""
    if isinstance(error, QueryError):
        return
    message, hint = error.worded(wording)
    error.say(reworded(message, known, wording), None if hint is None else reworded(hint, known, wording))


def reworded(text: str, known: Mapping[str, NamedOption], wording: Wording) -> str:
    """Return `text` with each option of the command line as `wording` has it."""
    flags = {flag: one for one in known.values() for flag in _flags(one)}

    def shown(found: re.Match[str]) -> str:
        flag, word = found[1], found[2] or ""
        if flag not in flags:
            return found[0]
        parameter = flags[flag]
        if parameter.kind.flag:
            return wording(parameter.name, not flag.startswith("--no-")) + found[0][len(flag) :]
        value = _value(parameter, word)
        return wording(parameter.name, value) + (found[0][len(flag) :] if value is NAME_ONLY else "")

    return _FLAG.sub(shown, text)


def _flags(parameter: NamedOption) -> list[str]:
    return [one for flag in parameter.flags for one in flag.split("/") if one.startswith("--")]


def _value(parameter: NamedOption, word: str) -> object:
    """Return the value that a word is; NAME_ONLY where it belongs to the sentence."""
    bare = word.strip("'")
    if parameter.kind.pair and "=" in bare:
        key, _, value = bare.rpartition("=")
        return Entry(key, _number(value) if parameter.kind.from_text("0") == 0 else value)
    if whole(word) is not None:
        return int(word)
    return bare if parameter.has_choice(bare) else NAME_ONLY


def _number(text: str) -> object:
    number = whole(text)
    return _Dots() if number is None else number
