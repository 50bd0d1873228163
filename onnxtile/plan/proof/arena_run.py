"""The proof of a plan by execution: inside the arena the model must give what it gives anywhere else, bit for bit.

It is evidence, beside the check and the table of lawful aliases: a wrong plan can pass by luck, so the run is repeated, on
other inputs and over another pattern in the arena's bytes each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.model.wanted import ANYTHING, Wanted
from onnxtile.plan.order.choice import order as find_order
from onnxtile.plan.order.schedule import named, shuffled
from onnxtile.plan.proof.executor import ArenaExecutor, Clash
from onnxtile.plan.proof.memory import Site
from onnxtile.plan.proof.plain import PlainRun, why_unlike
from onnxtile.plan.result import PlanResult
from onnxtile.progress import Progress, counted, silent
from onnxtile.runtime import Array

_PATTERNS = (0xFF, 0xA5, 0x5A)
"""What the arena holds before a run. As floats: NaN, a small negative number, a large positive one."""


_ROUNDED = "kernels round otherwise where a tensor is not at a multiple of 64 bytes; at such addresses the nodes give the same bits"


@dataclass(frozen=True)
class ArenaVerdict:
    """Whether a model gives in its arena what it gives in a plain run.

    `runs` runs on different inputs compared every one of `outputs`, and every tensor of the arena whenever it was written or read;
    they end with the first that differs. `differing` is the first tensor that had another bit, noticed at `step` (None: at
    the end), `red_zones` whether nothing was written around the arena. `kernels` nodes were executed, in `sessions`
    different sessions; `views` were not, as their bytes are already there. Where the run of the whole model gives other bits
    than its nodes one by one, `unlike` says why that is not held against the plan: every tensor was as in a run of the nodes elsewhere.
    """

    runs: int
    outputs: tuple[str, ...]
    differing: str | None
    step: int | None
    red_zones: bool
    kernels: int
    sessions: int
    views: int
    unlike: str | None = None

    @property
    def equal(self) -> bool:
        """Whether every bit was as in the plain run, and nothing was written around the arena."""
        return self.differing is None and self.red_zones

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {"equal": self.equal, **vars(self), "outputs": list(self.outputs)}


def arena_run(  # noqa: PLR0913 - what a run can be asked for
    model: ir.Model,
    result: PlanResult,
    shapes: Shapes,
    constants: Constants,
    *,
    feeds: Sequence[Mapping[str, Array]] | None = None,
    wanted: Wanted = ANYTHING,
    repeats: int = 3,
    seed: int = 0,
    progress: Progress = silent,
) -> ArenaVerdict:
    """Run `model` in the arena that `result` plans, and plainly, on the same inputs, and compare all outputs bit for bit.

    `feeds` are the inputs of each run; by default `repeats` sets, as `wanted`. Both ways run unoptimised kernels on one
    thread. All runs but the first take the nodes in another order, where the plan is for more than one. Raises ModelError where
    onnxruntime cannot run the model or one of its nodes at all, CheckFailed where the plan does not even stay inside the arena.
    """
    inputs = feeds if feeds is not None else wanted.feeds(model, shapes.sizes, repeats, seed=seed)
    plain = PlainRun(model, shapes)
    executor = ArenaExecutor(model, result, shapes, constants)
    schedule = named(model.graph, result.schedule, result.steps)
    every = find_order(result.order).every
    clash, intact, runs = None, True, 0
    reason, unlike = why_unlike(model, shapes), None
    prepared = [_arrays(fed) for fed in inputs]
    for runs, fed in enumerate(counted(prepared, "running inside the arena", progress), start=1):
        pattern = _PATTERNS[(runs - 1) % len(_PATTERNS)]
        for block in executor.blocks.values():
            block.fill(pattern)
        order = shuffled(schedule, freely=every, seed=seed + runs) if runs > 1 else None
        expected = plain.run(fed)
        found = executor.run(fed, order)
        clash = _compare(found, expected)
        if clash is not None and not isinstance(found, Clash):
            excuse = reason or (_ROUNDED if _compare(executor.elsewhere(fed), expected) is None else None)
            clash, unlike = (None, excuse) if excuse else (clash, unlike)
        intact = all(block.is_intact(pattern) for block in executor.blocks.values())
        if clash is not None or not intact:
            break
    return ArenaVerdict(
        runs=runs,
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        differing=clash.name if clash is not None else None,
        step=clash.step if clash is not None else None,
        red_zones=intact,
        kernels=executor.kernels,
        sessions=executor.sessions,
        views=executor.views,
        unlike=unlike,
    )


def _arrays(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return `feeds` with numpy's scalars, which onnxruntime does not take, as arrays without dimensions."""
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in feeds.items()}


def _compare(found: Mapping[str, Any] | Clash, expected: Mapping[str, Any]) -> Clash | None:
    if isinstance(found, Clash):
        return found
    return next((Clash(name, None) for name, value in found.items() if not _same(value, expected[name])), None)


def _same(found: Any, expected: Any) -> bool:
    """Return whether two values have the same bits."""
    if isinstance(found, Site) and isinstance(expected, Site):
        return found.equals(expected)
    if isinstance(expected, Site):
        expected = expected.array()
    if isinstance(found, list):
        return len(found) == len(expected) and all(map(_same, found, expected))
    if isinstance(found, np.ndarray) and found.dtype != object:
        return (found.dtype, found.shape) == (expected.dtype, expected.shape) and found.tobytes() == expected.tobytes()
    return bool(np.array_equal(found, expected))
