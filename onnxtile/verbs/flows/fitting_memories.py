"""Rewrite a model for a fast and a slow memory: operands of a kernel are in the fast one, with the fewest copied bytes of several cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from onnxtile.check.audit import require
from onnxtile.fitting.result import steps_before, steps_of
from onnxtile.fitting.rewrites.rewrite import ModelRewrite
from onnxtile.fitting.search import FitTarget
from onnxtile.model.constants import Constants
from onnxtile.model.quantising import is_quantised
from onnxtile.planning.annotate import annotate
from onnxtile.planning.movement.plan import plan_with_movement
from onnxtile.planning.result import PlannedMovement
from onnxtile.shapes.resolve import resolve
from onnxtile.system.errors import Infeasible
from onnxtile.verbs.flows.fit_drafts import FitSubject, WrittenSchedule, as_it_is
from onnxtile.verbs.flows.fitted_model import FittedModel, ModelPlan
from onnxtile.verbs.flows.fitting import cost, cut, judged
from onnxtile.verbs.flows.kernels import choose_kernels
from onnxtile.verbs.flows.planning import settings_of
from onnxtile.verbs.flows.results import file_of
from onnxtile.verbs.options.fit import FitOptions
from onnxtile.verbs.options.plan import PlanOptions

_LESS = (1.0, 0.8, 0.6)
"""Shares of the fast memory for which a model is cut, until one can be planned: copies of parts of inputs need bytes, too."""
_MORE = (1.5, 2.0, 3.0)
"""Shares for which it is cut then, with fewer MACs done again and more tensors that leave the fast memory."""


@dataclass(frozen=True)
class _MovedCandidate:
    """A model with a schedule written into it, and its plan with two memories; `fitted` has the copies."""

    subject: FitSubject
    rewrites: tuple[ModelRewrite, ...]
    written: WrittenSchedule
    fitted: ir.Model
    planned: ModelPlan

    @property
    def movement(self) -> PlannedMovement:
        """The copies of the plan."""
        assert self.planned.plan.movement is not None
        return self.planned.plan.movement

    @property
    def worth(self) -> tuple[int, int, int]:
        """A key that is least for the fewest copied bytes, then MACs and nodes."""
        return self.movement.bytes, self.written.schedule.macs, self.written.nodes


def attempt_moved(options: FitOptions, subject: FitSubject) -> FittedModel:
    """Return the model that fits two memories with the fewest copied bytes of several. Raises Infeasible where none fits."""
    best = _fewest(options, subject)
    chosen, arena = best.written.schedule, best.planned.plan.arenas[0]
    after = replace(cost(chosen, best.planned, best.written.nodes), arena=arena.size, peak=arena.peak)
    annotate(best.fitted, best.planned.plan)
    verdict, inside = None, None
    if options.verify:
        verdict, inside = judged(subject.original, best.fitted, best.planned, options)
    return FittedModel(
        best.fitted,
        subject.planned,
        best.planned,
        options.memory,
        subject.before,
        after,
        steps_before(best.rewrites) + steps_of(best.subject.regions, chosen.regions),
        None,
        verdict,
        inside,
        tiled=best.written.tiled,
        source=file_of(options.model),
    )


def _fewest(options: FitOptions, subject: FitSubject) -> _MovedCandidate:
    """Return the candidate with the fewest copied bytes. One that is cut as little as possible is enough where only parts of inputs, and
    outputs, are copied."""
    best: _MovedCandidate | None = None
    error: Infeasible | None = None
    for found in _candidates(options, subject):
        if isinstance(found, Infeasible):
            error = error or found
            continue
        if best is None or found.worth < best.worth:
            best = found
        if found.movement.bytes == found.movement.forced:
            break
    if best is None:
        assert error is not None
        raise error
    return best


def _candidates(options: FitOptions, subject: FitSubject) -> Iterator[_MovedCandidate | Infeasible]:
    """Yield the model as it is, then cut for less and more of the fast memory, or why it cannot be planned."""
    assert options.memory is not None
    yield _planned(options, subject, (), as_it_is(subject, options.progress))
    has_fit = False
    for share in (*_LESS, *_MORE):
        if (has_fit and share in _LESS) or (not has_fit and share in _MORE):
            continue
        target = FitTarget(int(share * options.memory[1]), float(options.max_extra_macs), options.max_nodes)
        edited, rewrites, written = cut(subject, target, options)
        if written is None:
            continue
        found = _planned(options, edited, rewrites, written)
        yield found
        has_fit = has_fit or isinstance(found, _MovedCandidate)
        if not has_fit and written.planned.plan.arena_size > int(share * options.memory[1]):
            return  # smaller pieces were not found


def _planned(
    options: FitOptions, subject: FitSubject, rewrites: tuple[ModelRewrite, ...], written: WrittenSchedule
) -> _MovedCandidate | Infeasible:
    """Return the model of `written` with its plan, which has passed the check."""
    defaults = PlanOptions(written.model)
    model, counted = written.model, None
    if is_quantised(model):
        model = model.clone()
        counted = choose_kernels(model, defaults.kernels)
    about = subject.about
    settings = replace(settings_of(defaults), name=about.name, dims=about.dims, capacity=options.memories)
    options.progress("planning")
    try:
        moved = plan_with_movement(model, resolve(model, run=True), Constants(model), settings)
    except Infeasible as error:
        return error
    plan = replace(moved.result, kernels=None if counted is None else counted.to_dict())
    opened = moved.opened
    require(opened.model, plan, opened.shapes, opened.constants)
    return _MovedCandidate(subject, rewrites, written, moved.model, ModelPlan(opened, plan))
