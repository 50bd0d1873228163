"""Names of inputs and outputs that are one state: past_key_values.0.key and present.0.key, cache_in and cache_out, h0 and hn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_BEFORE = frozenset({"past", "in", "input", "prev", "previous", "old", "init", "initial", "last"})
_AFTER = frozenset({"present", "out", "output", "new", "next", "updated", "final", "cur", "current"})
_EARLIER = frozenset({"past", "prev", "previous", "old"})
"""Words that only a state has: without them, an output of the same words is its next value, and numbers suffice."""
_FIRST, _LAST = "0", "n"
_CELLS = {"hx": "hy", "cx": "cy"}
"""Words of PyTorch for the state before and after."""
_SAME = "="
"""The first word of a key that an output has without a word that says after."""
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
    """Yield the words that an output for the input of these `words` may have: without "past", with it, or as h0 without the number."""
    short = words[:-1] if words[1:] and words[-1] == "i" else words
    rest = tuple(_CELLS.get(word, word) for word in short if word not in _BEFORE)
    is_earlier = not _EARLIER.isdisjoint(words)
    if any(map(str.isalpha, rest)) or (rest and is_earlier):
        yield rest
    if is_earlier and any(map(str.isalpha, rest)):
        yield (_SAME, *rest)
    # The word may be a part of the name, as in cache_last_channel.
    kept = {words, tuple(word for word in words if word not in _BEFORE - {"last"})} - {rest}
    yield from sorted(one for one in kept if len(one) > 1 and any(map(str.isalpha, one)))
    if len(words) > 1 and words[-1] == _FIRST and rest[:-1]:
        yield (*rest[:-1], _FIRST, _LAST)


def _keys_after(words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield the words that an input for the output of these `words` may have. Most outputs without a word that says after have none."""
    yield (_SAME, *words)
    if words[:1] == ("r",) and words[2:]:
        yield words[1:]
    short = words[:-1] if words[1:] and words[-1] == "o" else words
    rest = tuple(word for word in short if word not in _AFTER)
    if rest and (len(rest) < len(words) or not set(_CELLS.values()).isdisjoint(words)):
        yield rest
    last = rest[-1] if rest else ""
    if last == _LAST and rest[:-1]:
        yield rest[:-1]
        yield (*rest[:-1], _FIRST, _LAST)
    elif len(last) == 2 and last.endswith(_LAST):
        yield (*rest[:-1], last[0])
        yield (*rest[:-1], last[0], _FIRST, _LAST)
