"""The proofs in a certificate that no plan copies fewer bytes between two memories than its bounds say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count, pairwise
from typing import Any

from onnxtile.planning.check_movement import CLAIMS, Copies, is_proved
from onnxtile.planning.movement.copies import PlannedMovement
from onnxtile.planning.movement.eviction import choose_evictions
from onnxtile.planning.movement.gaps import Gap, MovementProblem
from onnxtile.planning.movement.relaxation import UNIT, prices

_MOST_BRANCHES = 2_000
"""Branches, at most, of the proof of a bound."""
_DEEPEST = 200
"""Waits that are decided one in the other, at most: Python and readers of JSON limit how deep a proof may be."""
_MOST_WORK = 1_000_000
"""The same times the kernels and the waiting tensors of the graph: each branch has prices of its own."""

_MOST_RUNS = 12
"""Runs of full kernels, at most, of which one part of a proof is looked for."""
_MOST_SUMS = 20_000_000
"""The same for a proof in parts, of which each has few prices."""

MovementProof = dict[str, Any]
"""{"prices": by kernel}, {"wait": number, "stays": the proof where it stays, "leaves": the proof where it leaves}, or {"parts": of the
kernels up to each `end`, their `bytes` and their `proof`}."""


def bounds(said: Mapping[str, Any], movement: PlannedMovement) -> dict[str, dict[str, Any]]:
    """Return for each bound of `movement` the most bytes that `planning.check_movement` accepts, with their proof, up to those it says.

    `said` has the account of the bytes. The `reason` of a bound that is proved says nothing; else it has the bytes that the plan says.
    """
    return {name: _bound(said, name, getattr(movement, name)) for name in CLAIMS}


def _bound(said: Mapping[str, Any], name: str, claimed: int) -> dict[str, Any]:
    copies = Copies(said, in_parts=name != "lower_bound")
    proved, proof = min(claimed, copies.forced), None
    if claimed > proved and name != "any_order_bound":
        kernels = range(len(copies.over))
        problem, _ = _problem(copies, {}, kernels)
        found = prices(problem)
        if found is not None:
            proof = {"prices": found}
            proved = min(claimed, copies.forced + max(0, copies.priced(found, UNIT, {}, kernels)))
        if name == "lower_bound" and proved < claimed and min(problem.free) >= 0:
            # The account may allow a choice that copies fewer bytes than the plan says.
            target = min(claimed, copies.forced + choose_evictions(problem).cost)
            longer = proof_of(copies, target - copies.forced - 1) if proved < target else None
            proved, proof = (proved, proof) if longer is None else (target, longer)
    entry = {"bytes": proved, "reason": None} | ({} if proof is None else {"proof": proof, "unit": UNIT})
    assert is_proved({**said, "bounds": {name: entry}}, name)
    if proved < claimed:
        entry["reason"] = f"the plan says {claimed} bytes, of which the scripts prove fewer"
    return entry


def proof_of(copies: Copies, limit: int, most: int = _MOST_BRANCHES) -> MovementProof | None:
    """Return the proof that every choice copies more than `limit` bytes; None where it has more than `most` branches, for each part."""
    whole, size = range(len(copies.over)), len(copies.over) + len(copies.waits)
    parts = _parts(copies, limit)
    counted = count(1 - min(most * len(parts), _MOST_SUMS // size))
    proofs = [_branches(copies, bytes_ - 1, {}, counted, kernels) for kernels, bytes_ in parts]
    if parts and None not in proofs:
        rows = ((kernels.stop, bytes_) for kernels, bytes_ in parts)
        return {"parts": [{"end": e, "bytes": b, "proof": one} for (e, b), one in zip(rows, proofs, strict=True)]}
    return _branches(copies, limit, {}, count(1 - min(most, _MOST_WORK // size)), whole)


def _parts(copies: Copies, limit: int) -> list[tuple[range, int]]:
    """Return runs of kernels, several, and the bytes that are copied for each alone, which sum to more than `limit`; none without any."""
    full = [at for at, over in enumerate(copies.over) if over > 0]
    ends = [*(before + 1 for before, at in pairwise(full) if at > before + 1), len(copies.over)]
    if len(ends) * _MOST_RUNS * len(copies.waits) > _MOST_SUMS:
        return []
    best: dict[int, tuple[int, list[tuple[range, int]]]] = {0: (0, [])}
    for number, end in enumerate(ends):
        for start in reversed([0, *ends[:number]][-_MOST_RUNS:]):
            found = choose_evictions(_problem(copies, {}, range(start, end))[0])
            total = best[start][0] + found.cost * found.exact
            if end not in best or total > best[end][0]:
                best[end] = total, [*best[start][1], (range(start, end), found.cost * found.exact)]
    total, parts = best[ends[-1]]
    return parts if total > limit and len(parts) > 1 else []


def _problem(copies: Copies, leaves: Mapping[int, bool], kernels: range) -> tuple[MovementProblem, list[int]]:
    """Return what is left to choose beside `kernels` where tensors leave or stay as `leaves` says, and the numbers of its waits.

    Only what begins at `kernels` is copied.
    """
    low, high = kernels.start, kernels.stop
    stored = {copies.waits[number].tensor for number, leave in leaves.items() if leave}
    numbers = [n for n, wait in enumerate(copies.waits) if wait.first < high and wait.end > low]
    gaps = {}
    for number in numbers:
        tensor, first, end, size, again = copies.waits[number]
        store = tensor if copies.begins[tensor] in kernels and copies.stores[tensor] and tensor not in stored else None
        gaps[number] = Gap(max(first, low) - low, min(end, high) - 1 - low, size, again * (first in kernels), store)
    over = tuple(copies.over[low:high])
    can_leave = MovementProblem(
        over, tuple(gap for n, gap in gaps.items() if leaves.get(n, True)), tuple(copies.stores)
    )
    free = tuple(held - more for held, more in zip(can_leave.held(range(len(can_leave.gaps))), over, strict=True))
    left = [number for number in numbers if number not in leaves]
    return MovementProblem(free, tuple(gaps[number] for number in left), can_leave.stores), left


def _branches(
    copies: Copies, limit: int, leaves: Mapping[int, bool], counted: count[int], kernels: range
) -> MovementProof | None:
    """Return the proof for the choices in which tensors leave or stay as `leaves` says; None where it is too long or too deep."""
    if next(counted) > 0 or len(leaves) > _DEEPEST:
        return None
    problem, numbers = _problem(copies, leaves, kernels)
    full = next((at for at, free in enumerate(problem.free) if free < 0), None)
    # Beside a kernel where those that stay do not fit, a byte has the price of more bytes than the limit.
    found = prices(problem) if full is None else {str(full): UNIT * (limit + 1)}
    if found is None:
        return None
    at_kernels = {str(kernels[int(at)]): price for at, price in found.items()}
    if copies.priced(at_kernels, UNIT, leaves, kernels) > limit:
        return {"prices": at_kernels}
    wait = _next_wait(problem, found, numbers)
    if wait is None:
        return None
    sides = {}
    for side, leave in (("stays", False), ("leaves", True)):
        proof = _branches(copies, limit, {**leaves, wait: leave}, counted, kernels)
        if proof is None:
            return None
        sides[side] = proof
    return {"wait": wait, **sides}


def _next_wait(problem: MovementProblem, found: Mapping[str, int], numbers: Sequence[int]) -> int | None:
    """Return the one of `numbers`, those of the gaps, of which prices say least whether it is to stay; None where no step is full."""
    full = problem.full_steps

    def doubt(pair: tuple[int, Gap]) -> tuple[int, int, int]:
        number, gap = pair
        price = sum(found.get(str(at), 0) for at in full if gap.first <= at <= gap.last)
        stored = 0 if gap.store is None else problem.stores[gap.store]
        return abs(UNIT * (gap.loaded + stored) - gap.size * price), -gap.size, number

    pairs = zip(numbers, problem.gaps, strict=True)
    left = [pair for pair in pairs if any(pair[1].first <= at <= pair[1].last for at in full)]
    return min(left, key=doubt)[0] if left else None
