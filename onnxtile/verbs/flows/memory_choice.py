"""Chooses meta-ops by memory: those as whose kernels the model needs no larger arena than node by node."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

import onnx_ir as ir

from onnxtile.fusion.fuse import PatternResult, Site
from onnxtile.model import keys
from onnxtile.model.topology import all_values, node_ids
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.results import ArenaChange
from onnxtile.verification.open_sizes import bound_copy

if TYPE_CHECKING:
    from onnxtile.planning.result import PlanResult


_ROUNDS = 32
"""Largest number of plans that are made to find the meta-ops that cost memory; after that, all are left out."""

Fusion: TypeAlias = tuple[ir.Model, list[PatternResult]]


@dataclass(frozen=True)
class MemoryChoice:
    """The fused model, the outcome of each pattern, and the arena before and after."""

    model: ir.Model
    patterns: list[PatternResult]
    arena: ArenaChange


def choose_by_memory(
    original: ir.Model, fuse: Callable[[Container[Site]], Fusion], dims: Mapping[str, int], progress: Progress
) -> MemoryChoice:
    """Fuse `original`, and leave out sites until its arena, as `plan` makes it by default, is no larger than before.

    `fuse` fuses a copy of the model without certain sites. `dims` are the sizes of its symbolic dimensions. Sites are left out whose kernel
    runs, or whose operands live, while the model needs more bytes than before.
    """
    progress("planning")
    before = _arena(_plan(original, dims))
    left_out: set[Site] = set()
    for _ in range(_ROUNDS):
        fused, results = fuse(left_out)
        planned = _plan(fused, dims)
        if _arena(planned) <= before:
            return MemoryChoice(fused, results, ArenaChange(before, _arena(planned)))
        costly = _costly(fused, planned, before) - left_out
        if not costly:
            break
        left_out |= costly
    fused, results = fuse(_AllSites())
    return MemoryChoice(fused, results, ArenaChange(before, before))


class _AllSites:
    def __contains__(self, site: object) -> bool:
        return True


def _plan(model: ir.Model, dims: Mapping[str, int]) -> PlanResult:
    """Return the plan of `model` that `plan` makes by default."""
    from onnxtile.verbs.flows import planning
    from onnxtile.verbs.options.plan import PlanOptions

    copy = bound_copy(model, dims)
    # Only sizes are compared: the memories that tensors are placed in have no capacities here.
    for value in all_values(copy):
        value.metadata_props.pop(keys.PLACE_IN, None)
    return planning.plan(PlanOptions(copy, verify=False)).plan


def _arena(plan: PlanResult) -> int:
    return sum(arena.size for arena in plan.arenas)


def _costly(model: ir.Model, plan: PlanResult, limit: int) -> set[Site]:
    """Return the sites of meta-ops that run while more than `limit` bytes live; where none runs then, those whose operands live then."""
    steps = _steps_over(plan, limit)
    names = {name: node for node, name in node_ids(model.graph).items() if keys.FUSED in node.metadata_props}
    at = dict(zip(plan.schedule, plan.steps, strict=True))
    running = {_site(node) for name, node in names.items() if at.get(name) in steps}
    if running:
        return running
    live = {row.name for row in plan.buffers if any(row.first <= step <= row.last for step in steps)}
    touched = {name: {value.name for value in (*node.inputs, *node.outputs) if value} for name, node in names.items()}
    return {_site(node) for name, node in names.items() if live & touched[name]}


def _steps_over(plan: PlanResult, limit: int) -> set[int]:
    """Return the steps at which more than `limit` bytes live; those of the largest sum where none has more, as between buffers are gaps."""
    change = [0] * (max((row.last for row in plan.buffers), default=0) + 2)
    for row in (row for row in plan.buffers if row.alias is None):
        size = -(-row.size // plan.alignment) * plan.alignment
        change[row.first] += size
        change[row.last + 1] -= size
    live = list(accumulate(change))
    least = min(limit + 1, max(live))
    return {step for step, size in enumerate(live) if size >= least}


def _site(call: ir.Node) -> Site:
    return keys.meta_op(call.op_type), call.outputs[0].name or ""
