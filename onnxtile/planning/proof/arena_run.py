"""The proof of a plan by execution: inside the arena the model must give the same bits as outside.

It is evidence beside the check and the table of lawful aliases. A wrong plan can pass by luck, so kernels that share bytes run on
several values; a whole run is repeated, with other inputs and another pattern in the bytes of the arena, where runs may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.shapes import Shapes
from onnxtile.model.unfold import unfold
from onnxtile.model.wanted import ANYTHING, Wanted
from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.ordering.schedule import named, shuffled
from onnxtile.planning.order import find_order
from onnxtile.planning.proof.copy_orders import copy_orders
from onnxtile.planning.proof.draws import Unsure
from onnxtile.planning.proof.executor import ArenaExecutor, Corruption
from onnxtile.planning.proof.memory import same
from onnxtile.planning.proof.plain import PlainRun
from onnxtile.planning.result import PlanResult
from onnxtile.posix import return_free_memory
from onnxtile.progress import Progress, counted, silent
from onnxtile.runtime import Array

SEVERAL = 3
"""The whole runs where one run may differ from another."""

_PATTERNS = (0xFF, 0xA5, 0x5A)
"""The bytes of the arena before a run. As floats: NaN, a small negative number, a large positive one."""


_ROUNDED = "kernels round differently for a tensor not at a multiple of 64 bytes; at such addresses the nodes give the same bits"


@dataclass(frozen=True)
class ArenaVerdict:
    """Whether a model gives the same bits in its arena as in a plain run.

    `runs` runs on different inputs compared all `outputs`, and every tensor of the arena whenever it was written or read; they end with
    the first difference. `differing` is the first tensor with another bit, noticed at `step` (None: at the end). `red_zones` is true if
    nothing was written around the arena. `kernels` nodes ran in the arena, in `sessions` different sessions; `views` did not run, because
    their bytes are in place. `repeated` different kernels, which share bytes, ran on other values as well. Every tensor is compared with
    a run of the nodes one by one in memory of their own. `excused` outputs need not have the bits of the run of the whole model: by name,
    with the reason. `copy_runs` more runs made the copies between memories as early as the plan allows, and as late.
    """

    runs: int
    outputs: tuple[str, ...]
    differing: str | None
    step: int | None
    red_zones: bool
    kernels: int
    repeated: int
    sessions: int
    views: int
    excused: Mapping[str, str] = field(default_factory=dict)
    copy_runs: int = 0

    @property
    def equal(self) -> bool:
        """Whether every bit was as in the plain run, and nothing was written around the arena."""
        return self.differing is None and self.red_zones

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {"equal": self.equal, **vars(self), "outputs": list(self.outputs), "excused": dict(self.excused)}


def arena_run(  # noqa: PLR0913 - what a run can be asked for
    model: ir.Model,
    result: PlanResult,
    shapes: Shapes,
    constants: Constants,
    *,
    feeds: Sequence[Mapping[str, Array]] | None = None,
    wanted: Wanted = ANYTHING,
    repeats: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> ArenaVerdict:
    """Run `model` in the arena of `result` and outside it, on the same inputs, and compare all outputs bit for bit.

    `feeds` are the inputs of each run; by default `repeats` random sets, as `wanted`. By default there is one run in which kernels that
    share bytes are repeated on other values; several where the plan allows another order of the nodes, or data decide which nodes run
    or how large a tensor is. All use unoptimised kernels on one thread. Raises ModelError where onnxruntime cannot run the model or
    one of its nodes, CheckFailed where the plan leaves the arena.
    """
    model, shapes, constants = unfold(model, shapes, constants)
    executor = ArenaExecutor(model, result, shapes, constants, repeats=repeats is None)
    counted_runs = repeats if repeats is not None else SEVERAL if executor.may_differ else 1
    inputs = feeds if feeds is not None else wanted.feeds(model, shapes.sizes, counted_runs, seed=seed)
    prepared = [_arrays(fed) for fed in inputs]
    # The session of the whole model is gone before the nodes run, which read the weights once more.
    expected = _plain_runs(PlainRun(model, shapes, executor.addresses), prepared, progress)
    return_free_memory()
    schedule = named(model.graph, result.schedule, result.steps)
    every = find_order(result.order).every
    corruption, intact, runs = None, True, 0
    unsure = Unsure.of(LayoutFacts(model, shapes, constants))
    excused = dict(unsure.drawn)
    trials: list[tuple[int, Iterable[int] | None]] = [
        (number, shuffled(schedule, freely=every, seed=seed + number + 1) if number else None)
        for number in range(len(prepared))
    ]
    trials += [(0, order) for order in copy_orders(result.movement, len(result.schedule))] if result.movement else []
    for runs, (number, order) in enumerate(counted(trials, "running inside the arena", progress), start=1):
        fed, pattern = prepared[number], _PATTERNS[(runs - 1) % len(_PATTERNS)]
        for block in executor.blocks.values():
            block.fill(pattern)
        found = executor.run(fed, order)
        if isinstance(found, Corruption):
            corruption = found
        else:
            told = differences(found, expected[number], unsure, partial(executor.elsewhere, fed))
            corruption = next((Corruption(name, None) for name, reason in told.items() if reason is None), None)
            excused |= {name: reason for name, reason in told.items() if reason is not None}
        intact = all(block.is_intact(pattern) for block in executor.blocks.values())
        if corruption is not None or not intact:
            break
    return ArenaVerdict(
        runs=min(runs, len(prepared)),
        outputs=tuple(value.name or "" for value in model.graph.outputs),
        differing=corruption.name if corruption is not None else None,
        step=corruption.step if corruption is not None else None,
        red_zones=intact,
        kernels=executor.kernels,
        repeated=executor.repeated,
        sessions=executor.sessions,
        views=executor.views,
        excused=excused,
        copy_runs=max(0, runs - len(prepared)),
    )


def _plain_runs(plain: PlainRun, inputs: Sequence[Mapping[str, Array]], progress: Progress) -> list[dict[str, Any]]:
    """Return the outputs of a plain run on each of the inputs."""
    return [plain.run(fed) for fed in counted(inputs, "running the model", progress)]


def _arrays(feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return `feeds` with numpy scalars, which onnxruntime does not accept, as arrays of rank 0."""
    return {name: np.asarray(value) if isinstance(value, np.generic) else value for name, value in feeds.items()}


def differences(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    unsure: Unsure,
    elsewhere: Callable[[], Mapping[str, Any] | Corruption],
) -> dict[str, str | None]:
    """Return the outputs that differ from `expected`, the run of the whole model, each with its excuse or None.

    Outputs that depend on random numbers are not compared. Floats of 16 bits may have more bits in the whole run. The others must have the
    bits of `expected` in a run of the nodes `elsewhere`, outside the arena.
    """
    differing = [name for name, value in found.items() if name not in unsure.drawn and not same(value, expected[name])]
    if all(name in unsure.wider for name in differing):
        return {name: unsure.wider[name] for name in differing}
    nodes = elsewhere()
    if isinstance(nodes, Corruption):
        return dict.fromkeys(differing)
    rounded = {name: _ROUNDED for name in differing if same(nodes[name], expected[name])}
    return {name: unsure.wider.get(name) or rounded.get(name) for name in differing}
