"""Seeded mutations of JSON texts: of their values, their structure and their characters."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.hostile.mutate import mutated_text

_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, float("nan"), float("inf"), "", "a", "x" * 3000),
    *("a\x1b[31mb", "\u202e", "\ud800", "../x", [], {}, [[]], {"a": {}}, [None], ["a", 1], "</script><b>", "=1+1"),
)


def mutated_json(text: str, rng: random.Random) -> str:
    """Return `text` with one to three faults: values and keys replaced, entries lost or doubled; now and then faults in its characters."""
    if rng.random() < 0.1:
        return mutated_text(text, rng)
    if rng.random() < 0.02:
        return rng.choice(("[" * 100_000, '{"a":' * 100_000, "null", "[]", "1" * 10_000, '{"buffers": ' + "[" * 3000))
    content = json.loads(text)
    for _ in range(rng.randint(1, 3)):
        content = _changed(content, rng)
    return json.dumps(content)


def _changed(content: Any, rng: random.Random) -> Any:
    if not isinstance(content, dict | list) or not content or rng.random() < 0.1:
        return rng.choice(_VALUES)
    if isinstance(content, list):
        at = rng.randrange(len(content))
        way = rng.random()
        if way < 0.1:
            return [*content[:at], *content[at + 1 :]]
        if way < 0.2:
            return [*content, content[at]]
        return [*content[:at], _changed(content[at], rng), *content[at + 1 :]]
    key = rng.choice(list(content))
    way = rng.random()
    if way < 0.15:
        return {name: value for name, value in content.items() if name != key}
    if way < 0.25:
        return {**content, rng.choice(("", "unknown", "a\x1bb", key.upper())): content[key]}
    return {**content, key: _changed(content[key], rng)}
