"""The files that a step writes beside the model, by what its `emit` says."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onnxtile.errors import invalid
from onnxtile.paths import is_file_name


def asked_for(emit: Iterable[str], step: str, known: Collection[str]) -> dict[str, str]:
    """Return the ending of each file, with the format of `known` (".json" ...) that it is in.

    "json" stands for ".plan.json" where the `step` is plan; what has a name of its own, as "before.json" has, keeps it. Raises UsageError.
    """
    found = {}
    for entry in emit:
        name = f".{entry.removeprefix('.')}"
        fitting = [ending for ending in known if name.endswith(ending)]
        if not fitting or not is_file_name(name):
            endings = ", ".join(ending.removeprefix(".") for ending in sorted(known))
            raise invalid("emit", entry, hint=f"choose {endings}, or a name before one of them")
        found[f".{step}{name}" if name in known else name] = max(fitting, key=len)
    return found
