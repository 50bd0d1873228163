"""Fit with meta-ops: a model is fused before it is cut, or its pieces are; the cheaper result is taken."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from onnxtile.fitting.rewrites.editing import known_shapes
from onnxtile.fitting.rewrites.rewrite import ModelRewrite
from onnxtile.fitting.strips import Prices
from onnxtile.fusion.fuse import fuse
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import is_kernel
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.verbs.flows.fit_drafts import FitSubject
from onnxtile.verbs.flows.fitting import FitCandidate, candidate, planned_subject
from onnxtile.verbs.flows.fusing import chosen_patterns
from onnxtile.verbs.options.fit import FitOptions


def with_fused(options: FitOptions, subject: FitSubject, plain: FitCandidate) -> FitCandidate:
    """Return the best of a `plain` result, the one whose pieces are fused, and the one of the fused model.

    The best fits, of those that fit has the lowest price, and else the smallest arena.
    """
    fused = fused_subject(subject, options)
    before = _named_before(candidate(options, fused), fused.model)
    after = _named_after(candidate(options, replace(subject, fuses=True)))
    return min((plain, before, after), key=lambda one: _worth(one, options, subject))


def _worth(one: FitCandidate, options: FitOptions, subject: FitSubject) -> tuple[int, float, int]:
    """Return a key that is least for the best result."""
    arena = one.written.planned.plan.arena_size
    over = arena if options.memory is None else max(arena - options.memory[1], 0)
    prices, macs = Prices(), max(subject.regions.network.macs, 1)
    copied = sum(region.copied for region in one.written.schedule.regions)
    price = prices.macs * one.extra_macs / macs + prices.node * one.written.nodes + prices.copied * copied
    return over, price, arena


def fused_subject(subject: FitSubject, options: FitOptions) -> FitSubject:
    """Return the fused model, planned as it is; meta-ops are not cut."""
    model = subject.model.clone()
    copied = subject.shapes.of_copies(dict(zip(values(subject.model), values(model), strict=True)))
    return planned_subject(subject.original, model, fuse_pieces(model, copied), subject.about, options)


def fuse_pieces(model: ir.Model, shapes: Shapes) -> Shapes:
    """Fuse a model of known `shapes` (in place) as `onnxtile fuse` does by default; return its shapes."""
    fuse(model, chosen_patterns(()), shapes=lambda: known_shapes(model, shapes), through=True)
    # Values inside the functions of meta-ops are new.
    return resolve(model, run=True)


def _meta_ops(model: ir.Model) -> tuple[str, ...]:
    """Return the names of the nodes that call meta-ops."""
    functions = model.functions
    calls = (node for node in model.graph if node.op_identifier() in functions)
    return tuple(node.name or "" for node in calls if is_kernel(functions[node.op_identifier()]))


def _named_after(one: FitCandidate) -> FitCandidate:
    return replace(one, rewrites_after=_step("fused after the model was cut", _meta_ops(one.written.model)))


def _named_before(one: FitCandidate, model: ir.Model) -> FitCandidate:
    return replace(one, rewrites=(*_step("fused before the model is cut", _meta_ops(model)), *one.rewrites))


def _step(text: str, nodes: tuple[str, ...]) -> tuple[ModelRewrite, ...]:
    return (ModelRewrite("fuse", text, nodes),) if nodes else ()
