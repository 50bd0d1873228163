"""Names of tensors as C identifiers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import count

_SIGNIFICANT = 40
"""Characters kept of a name. C99 (5.2.4.1) distinguishes 63; the prefix and the ending of a macro need the others."""


def identifier(name: str) -> str:
    """Return `name` with one underscore for each run of characters that C does not allow. It is never empty; it may begin with a digit."""
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "unnamed"


def identifiers(names: Iterable[str]) -> list[str]:
    """Return an identifier for each of `names`, all different: of a long name its end, and a number where two would be the same."""
    wanted = [identifier(name)[-_SIGNIFICANT:].strip("_") for name in names]
    times = Counter(wanted)
    used = {name for name in wanted if times[name] == 1}
    numbers = {name: count(1) for name in wanted if times[name] > 1}
    made = []
    for name in wanted:
        unique = name if times[name] == 1 else next(n for i in numbers[name] if (n := f"{name}_{i}") not in used)
        used.add(unique)
        made.append(unique)
    return made
