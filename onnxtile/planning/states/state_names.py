"""Names of inputs and outputs that are one state: past_key_values.0.key and present.0.key, cache_in and cache_out, h0 and hn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_BEFORE = frozenset({"past", "in", "input", "prev", "previous", "old", "init", "initial", "last"})
_AFTER = frozenset({"present", "out", "output", "new", "next", "updated", "final", "cur", "current"})
_FIRST, _LAST = "0", "n"
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def matching_names(inputs: Iterable[str], outputs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each of `inputs` with the one of `outputs` that has the same words, apart from those that say before or after.

    A name with several partners has none.
    """
    outputs = list(outputs)
    before: dict[tuple[str, ...], list[str]] = {}
    after: dict[tuple[str, ...], list[str]] = {}
    for names, keys, found in ((inputs, _keys_before, before), (outputs, _keys_after, after)):
        for name in names:
            for key in keys(_words(name)):
                found.setdefault(key, []).append(name)
    seen: set[str] = set()
    for key, names in before.items():
        partners = after.get(key, [])
        if len(names) == len(partners) == 1 and seen.isdisjoint((names[0], partners[0])):
            seen.update((names[0], partners[0]))
            yield names[0], partners[0]


def _words(name: str) -> tuple[str, ...]:
    """Return the words of `name`, in lower case; those of "key_values", which only says that both are there, are left out."""
    words = [word.lower() for word in _WORD.findall(name)]
    found: list[str] = []
    for word in words:
        if (
            word in {"values", "value"}
            and found
            and found[-1] == "key"
            and len(found) > 1
            and found[-2] in _BEFORE | _AFTER
        ):
            found.pop()
        else:
            found.append(word)
    return tuple(found)


def _keys_before(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words that an output for the input of these `words` may have: without "past", or as h0 without the number."""
    rest = tuple(word for word in words if word not in _BEFORE)
    if any(map(str.isalpha, rest)):
        yield rest
    if len(words) > 1 and words[-1] == _FIRST and rest[:-1]:
        yield (*rest[:-1], _FIRST, _LAST)


def _keys_after(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words that an input for the output of these `words` may have. An output without a word that says after has none."""
    rest = tuple(word for word in words if word not in _AFTER)
    if any(map(str.isalpha, rest)) and len(rest) < len(words):
        yield rest
    last = rest[-1] if rest else ""
    if last == _LAST and rest[:-1]:
        yield rest[:-1]
        yield (*rest[:-1], _FIRST, _LAST)
    elif len(last) == 2 and last.endswith(_LAST):
        yield (*rest[:-1], last[0])
        yield (*rest[:-1], last[0], _FIRST, _LAST)
