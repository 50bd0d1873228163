"""The proofs in a certificate that no plan copies fewer bytes between two memories than its bounds say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxtile.planning.check_movement import CLAIMS, Copies, is_proved
from onnxtile.planning.movement.copies import PlannedMovement
from onnxtile.planning.movement.gaps import Gap, MovementProblem
from onnxtile.planning.movement.relaxation import UNIT, prices


def bounds(said: Mapping[str, Any], movement: PlannedMovement) -> dict[str, dict[str, Any]]:
    """Return for each bound of `movement` the most bytes that `planning.check_movement` accepts, with their proof, up to those it says.

    `said` has the account of the bytes. The `reason` of a bound that is proved says nothing; else it has the bytes that the plan says.
    """
    return {name: _bound(said, name, getattr(movement, name)) for name in CLAIMS}


def _bound(said: Mapping[str, Any], name: str, claimed: int) -> dict[str, Any]:
    copies = Copies(said, in_parts=name != "lower_bound")
    proofs: list[dict[str, Any]] = [{}]
    if claimed > copies.forced and name != "any_order_bound":
        found = prices(_problem(copies))
        proofs = [{}, *([] if found is None else [{"prices": found, "unit": UNIT}])]
    for proof in reversed(proofs):
        entry = {"bytes": claimed, "reason": None, **proof}
        if is_proved({**said, "bounds": {name: entry}}, name):
            return entry
    proved = copies.forced + max(0, copies.priced(proofs[-1]["prices"], UNIT) if "prices" in proofs[-1] else 0)
    reason = f"the plan says {claimed} bytes, of which the scripts prove fewer"
    return {"bytes": min(proved, claimed), "reason": reason, **proofs[-1]}


def _problem(copies: Copies) -> MovementProblem:
    gaps = (Gap(g.first, g.last, g.size, g.bytes, g.tensor if copies.stores[g.tensor] else None) for g in copies.gaps)
    return MovementProblem(tuple(copies.free), tuple(gaps), tuple(copies.stores))
