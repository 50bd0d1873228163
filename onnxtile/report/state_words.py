"""The states of a plan in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxtile.report.units import readable


def state_in_words(plan: Mapping[str, Any]) -> str | None:
    """Return the number of states kept in an arena and their bytes; None without any."""
    kept = [state for state in plan.get("states") or () if is_kept(state)]
    if not kept:
        return None
    copied = sum(state["copied"] for state in kept)
    after = f", {readable(copied)} copied after each run" if copied else ""
    return f"{len(kept):,} kept in {readable(sum(state['size'] for state in kept))}{after}"


def is_kept(state: Mapping[str, Any]) -> bool:
    """Return whether the plan keeps `state` in an arena; others are only listed."""
    return state.get("arena") is not None
