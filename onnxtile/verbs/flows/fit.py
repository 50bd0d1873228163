"""Rewrite a model so that its activations fit a memory."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.declare.verb import Outcome, changed, declared, narrowed, parameters, with_progress
from onnxtile.fitting.editing import copy_of
from onnxtile.fitting.floor import Floor, floor_of, waiting_floor
from onnxtile.fitting.read_network import separate
from onnxtile.fitting.regions import Regions
from onnxtile.fitting.result import (
    InputPlace,
    ModelCost,
    obstacle_at,
    obstacle_of,
    steps_before,
    steps_of,
    streamed_of,
)
from onnxtile.fitting.rewrites.rewrite import (
    ModelRewrite,
    batch_apart,
    in_order_of_plan,
    outputs_grouped,
    passed_twice,
    rows_streamed,
    sizes_written,
    skips_made_again,
    unblock,
)
from onnxtile.fitting.search import Descent, FitTarget, is_too_large
from onnxtile.fitting.strips import FitSchedule, Prices
from onnxtile.fitting.write import inline
from onnxtile.kernels.aliases import containers, kind_name
from onnxtile.model.binding import bind, bind_leading, require_sizes
from onnxtile.model.constants import Constants
from onnxtile.model.load import file_name, load
from onnxtile.model.topology import clear_plan, cloned
from onnxtile.model.validity import check
from onnxtile.planning.model_plan import PlanSettings, plan_model
from onnxtile.planning.result import MovementResult
from onnxtile.planning.rows import annotate
from onnxtile.report.words import readable
from onnxtile.shapes.infer import values
from onnxtile.shapes.opened_calls import is_kernel
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import Infeasible, Mismatch, ModelError
from onnxtile.system.long_work import within
from onnxtile.verbs.fit import CurveOptions, FitOptions, FitStepOptions, require_memory, require_no_fusing
from onnxtile.verbs.flows.fit_drafts import (
    FitAttempts,
    FitSubject,
    WrittenSchedule,
    cost,
    fuse_pieces,
    opened_model,
    planned_model,
    regions_of,
    running_nodes,
    tokens_cut,
)
from onnxtile.verbs.flows.kernels import program_in_c, settings_of
from onnxtile.verbs.flows.results import CurvePoint, FitCurve, FittedModel, OpenSizes, agreeing, file_of, require_equal
from onnxtile.verbs.plan import OVERWRITE, PlanOptions
from onnxtile.verification.rounding import judge, within_one_step
from onnxtile.verification.trials import Verdict

if TYPE_CHECKING:
    from onnxtile.arena.run import ArenaVerdict


_PLANNED_TWICE = 100
"""Nodes of the largest result that is planned once more, with its inputs in the other place."""
_NEGLIGIBLE = 1e-4
"""The share of its MACs by which rewrites of a model may exceed the budget: the product with one pixel more."""


@declared(FitOptions)
def fit(options: FitOptions) -> FittedModel:
    """Return a model that computes what `model` computes, and whose arena is at most `capacity` bytes large.

    Runs of operators are cut into strips of rows; rows that the next strip reads again are kept. With `capacity` "smallest", the smallest
    arena within the budget is looked for. The arena is that of `onnxtile.plan` with its defaults; with `verify`, both models are run and
    compared. With a fast and a slow memory in `capacity`, the operands of each kernel are in the fast one while it runs. Of the cuts that
    are tried, the one with the fewest copied bytes is taken.

    Raises ModelError, UsageError; Infeasible where nothing fits; Mismatch where an output differs.
    """
    require_memory(options)
    fitted = attempt(options, read_subject(options))
    if fitted.reason is not None:
        raise Infeasible(fitted.reason, hint=_next_step(options, fitted))
    return fitted


def _next_step(options: FitOptions, fitted: FittedModel) -> str:
    """Return what may help where nothing fits. A larger budget does not help where the bound of the search ended it."""
    blocked = fitted.blocked_by
    memory = options.memory
    if blocked is not None and (blocked.search == "floor" or (memory is not None and memory[1] < blocked.floor)):
        return f"give --capacity of at least {blocked.floor:,} bytes"
    if options.memories is not None:
        return f"give the fast memory {fitted.after.arena:,} bytes"
    is_ended = blocked is not None and blocked.search == "bound"
    further = (
        ("a larger --budget", not is_ended),
        ("no --tolerance", options.exact),
        ("--functions fuse", "fuse" not in options.functions),
        ("--io outside", options.placing != "outside"),
    )
    ways = [words for words, is_left in further if is_left]
    return " or ".join([f"give --capacity {fitted.after.arena}", *(["try " + ", ".join(ways)] if ways else [])])


def run(options: FitStepOptions) -> Outcome:
    """Do what the command and the step `fit` ask for."""
    subject = read_subject(options)
    curve = None
    if options.wants_curve or not options.fits_one:
        curve = curve_of(subject)
    if curve is not None and not options.fits_one:
        sizes = [] if subject.leading is None else [f"sizes: {subject.leading}"]
        note = "; ".join([*sizes, "no --capacity is given, so this is the trade, and no model is written"])
        return Outcome(curve, "curve", emitted={"curve": curve.to_dict()}, note=note)
    result = replace(attempt(options, subject), curve=curve)
    if options.wants_c and result.fits:
        planned = result.planned
        firmware = program_in_c(planned.opened, planned.plan, options)
        result = replace(result, planned=replace(planned, firmware=firmware))
    note = "" if result.reason is None else f"error: {result.reason} ({_next_step(options, result)})"
    model = result.model if result.fits else None
    emitted = {**result.documents, "curve": curve and curve.to_dict()}
    return Outcome(result, "fit", model, reason=result.reason, note=note, emitted=emitted)


# The model to fit: its sizes are bound, its calls are written out, and it is planned as it is.


def read_subject(options: CurveOptions) -> FitSubject:
    """Return the model that the options name, planned as it is. Raises ModelError, UsageError."""
    options.progress("reading the model")
    model = load(options.model)
    clear_plan(model)
    dims = bind(model, options.single_dims, options.whole_shapes)
    leading = bind_leading(model)
    dims |= {} if leading is None else leading.dims
    placed = PlanOptions(model, io=OVERWRITE if options.placing == "inside" else options.placing)
    settings = replace(settings_of(placed), name=file_name(options.model), dims=dims)
    original = cloned(model)
    inline(model)
    separate(model)
    options.progress("inferring shapes")
    shapes = resolve(model, run=True)
    _require_sizes(model, shapes)
    subject = _planned_subject(options, settings, original, model, shapes)
    return replace(_with_streams(subject), leading=leading, budget=options.search_budget)


def _with_streams(subject: FitSubject) -> FitSubject:
    """Return the model whose inputs come row by row that the options name. Raises UsageError, Infeasible for one without rows."""
    if not subject.options.streamed:
        return subject
    axes = {about.name: about.axis for about in subject.regions.network.tensors}
    streamed = rows_streamed(subject.model, subject.shapes, {name: axes.get(name) for name in subject.options.streamed})
    return subject.rewritten(streamed)


def _planned_subject(
    options: CurveOptions, settings: PlanSettings, original: ir.Model, model: ir.Model, shapes: Shapes
) -> FitSubject:
    """Return a model that computes what the `original` does, planned as it is."""
    constants = Constants(model)
    options.progress("planning")
    planned = planned_model(opened_model(model, shapes), settings)
    regions = regions_of(model, shapes, constants, exact=options.exact, io=settings.io)
    subject = FitSubject(options, settings, original, model, shapes, regions, planned, ModelCost(0, 0, 0, 0))
    before = cost(subject.whole, planned.plan, running_nodes(model, constants))
    return replace(subject, before=replace(before, seconds=subject.seconds))


def _require_sizes(model: ir.Model, shapes: Shapes) -> None:
    """Raise ModelError where the size of an input or a tensor is not known."""
    require_sizes(model, shapes.sizes)
    open_ = next((value for value in values(model) if value.name and shapes.sizes(value) is None), None)
    held = containers(model, shapes).get(open_) if open_ is not None else None
    if open_ is not None and held is not None:
        kind = "an optional" if kind_name(held) == "optional" else f"a {kind_name(held)}"
        raise ModelError(
            f"{open_.name!r} is {kind}, and fit takes models of tensors only",
            hint="use onnxtile plan, which keeps such values outside the arena",
        )
    if open_ is not None:
        raise ModelError(f"the size of {open_.name!r} is not known: {shapes.reason(open_)}")


# The flow: the best of several schedules is written into the model, planned, and proved by runs.


def attempt(options: FitOptions, subject: FitSubject) -> FittedModel:
    """Return the model that fits, or the smallest that was reached; means stay whole where sums of strips change an output too much.

    Raises Infeasible where nothing fits two memories, and Mismatch where an output differs in every way.
    """
    try:
        return _attempt(options, subject)
    except Mismatch:
        if options.exact:
            raise
        options.progress("cutting again, with whole means")
        careful = _attempt(options, replace(subject, keeps_means=True))
        if not careful.fits:
            raise
        return careful


def _attempt(options: FitOptions, subject: FitSubject) -> FittedModel:
    """Return the model that fits, or the smallest that was reached."""
    if options.memories is not None:
        best = _fewest_copied(options, subject)
    else:
        best = candidate(options, subject)
        if options.fuses:
            # The first of equals is written: plain, fused before it is cut, fused after that.
            others = (fused_subject(subject), replace(subject, fuses=True))
            drafts = (best, *(candidate(options, other) for other in others))
            capacity = None if options.memory is None else options.memory[1]
            best = min(drafts, key=lambda draft: draft.worth(capacity, subject.prices))
    after = replace(best.cost, macs=subject.before.macs + best.extra_macs)
    fits = options.memory is None or after.arena <= options.memory[1]
    # A model with quantised islands is annotated only where its copies between memories are in the file.
    if fits and (best.plan.kernels is None or best.plan.movement is not None):
        annotate(best.written.model, best.plan)
    verdict, inside = judged(subject.original, best, options) if options.verify and fits else (None, None)
    rewrites, regions, chosen = best.subject.rewrites, best.subject.regions, best.schedule.regions
    fused_after = _fusing("fused after the model was cut", best.written.model) if best.subject.fuses else ()
    return FittedModel(
        best.written.model,
        subject.planned,
        best.planned,
        options.memory,
        subject.before,
        after,
        steps_before(rewrites) + steps_of(regions, chosen) + steps_before(fused_after),
        None
        if fits
        else best.obstacle or obstacle_of(best.plan, regions, chosen, is_cut_short=best.is_cut_short, floor=best.floor),
        verdict,
        inside,
        tiled=best.written.tiled,
        speeds=options.speeds.name,
        open_sizes=None if subject.leading is None else OpenSizes(subject.leading.options, subject.leading.sizes),
        source=file_of(options.model),
        plan_inputs=tuple
        if options.memories is not None or options.streamed
        else partial(places_of_inputs, subject, best),
        streamed=streamed_of(best.plan),
    )


def places_of_inputs(subject: FitSubject, best: WrittenSchedule) -> tuple[InputPlace, ...]:
    """Return the arenas before and after with inputs outside, and inside: one is that of the plan, one is planned beside it."""
    is_inside = subject.settings.io == "inside"
    settings = replace(subject.settings, io="outputs" if is_inside else "inside", overwrite_inputs=not is_inside)
    before = plan_model(*subject.planned.opened, settings).arena_size
    at_most = best.nodes > _PLANNED_TWICE
    placed = best.placed_with(settings) if at_most else None
    after = plan_model(*best.planned.opened, settings).arena_size if placed is None else placed.size
    written_place = InputPlace(is_inside, subject.before.arena, best.plan.arena_size)
    other = InputPlace(not is_inside, before, after, at_most)
    return (other, written_place) if is_inside else (written_place, other)


def candidate(options: FitOptions, subject: FitSubject) -> WrittenSchedule:
    """Return the cheapest way to cut a model that fits one memory, or the smallest that was reached."""
    whole, capacity = subject.as_it_is(), None if options.memory is None else options.memory[1]
    if capacity is not None and whole.plan.arena_size <= capacity:
        return whole
    if capacity is None and is_too_large(subject.kernels):
        raise Infeasible(
            f"the smallest arena is not looked for: the model has {subject.kernels:,} operators, too many for a search",
            hint="fuse the model first, or give a capacity that it fits as it is",
        )
    best, is_cut_short = cut(subject, _target(subject, capacity))
    if best is None or best.plan.arena_size >= whole.plan.arena_size:
        best = whole if best is None else replace(whole, obstacle=best.obstacle, floor=best.floor)
    return replace(best.settled, is_cut_short=is_cut_short)


def _target(subject: FitSubject, capacity: int | None) -> FitTarget:
    options = subject.options
    return FitTarget(capacity, options.extra_macs, options.max_nodes, budget=subject.budget)


def judged(original: ir.Model, best: WrittenSchedule, options: FitOptions) -> tuple[Verdict, ArenaVerdict]:
    """Return the verdict of the runs of both models, and of the run inside the arena. Raises Mismatch where a result differs."""
    progress = options.progress
    progress("verifying")
    check(best.written.model)
    compared = within_one_step(original) if options.tolerance == "1step" else None
    verdict = agreeing(judge(original, best.written.model, progress, compared), "the fitted model")
    if options.exact and any(output.max_abs for output in verdict.outputs):
        worst = max(verdict.outputs, key=lambda output: output.max_abs)
        raise Mismatch(
            f"{worst.name!r} of the fitted model is not equal to the last bit: it is off by {worst.max_abs:.3g}",
            hint="nothing was written; onnxruntime sums strips in another order, or rounds 16-bit floats elsewhere: leave out --tolerance",
        )
    inside = best.planned.run(progress)
    require_equal(inside)
    return verdict, inside


# The ways to cut a model: items of a batch, tokens in pieces, or regions, after the rewrites that let more of it be cut.


def cut(subject: FitSubject, wanted: FitTarget) -> tuple[WrittenSchedule | None, bool]:
    """Return the model with a schedule written into it, and whether the bound of its work ended the search for it.

    Where that alone may do, items of a batch run one by one, or tokens in pieces; else regions are cut, or tokens where these take fewer
    bytes. Nothing is written into a model of too many kernels.
    """
    if is_too_large(subject.kernels):
        return None, True
    subject = _in_order(subject)
    # Items of a batch, and tokens, would need parts of rows that come from outside.
    keeps = subject.options.exact or bool(subject.options.streamed)
    items = None if keeps else batch_apart(subject.model, subject.shapes)
    if items is not None:
        apart = subject.rewritten(items)
        if apart.whole.peak < subject.whole.peak:
            subject, too_large = apart, is_too_large(apart.kernels)
            too_many = wanted.nodes is not None and apart.whole.nodes > wanted.nodes
            if (too_large or _is_within(apart.whole.peak, wanted)) and not too_many:
                return WrittenSchedule(apart, apart.whole), too_large
    forms = RegionForms(subject)
    blocked = _blocked(subject, forms, wanted, keeps=keeps)
    if blocked is not None:
        return blocked, False
    tokens = None if keeps else tokens_cut(subject, wanted)
    return _cut_into_regions(forms, wanted) if tokens is None else _best_with(tokens, forms, wanted)


def _blocked(subject: FitSubject, forms: RegionForms, wanted: FitTarget, *, keeps: bool) -> WrittenSchedule | None:
    """Return the model as it is where neither regions nor pieces of tokens, unless these are kept, can fit; None where one may."""
    if wanted.capacity is None:
        return None
    lowest: list[tuple[Floor, Regions]] = []
    if not keeps and subject.token_trials.cuts is not None:
        lowest.append(subject.token_trials.floor())
        if lowest[0][0].bytes <= wanted.capacity:
            return None
    lowest.append(forms.floor_above(wanted.capacity))
    floor, regions = min(lowest, key=lambda each: each[0].bytes)
    if floor.bytes <= wanted.capacity:
        return None
    return replace(subject.as_it_is(), obstacle=obstacle_at(floor, regions))


def _best_with(tokens: WrittenSchedule, forms: RegionForms, wanted: FitTarget) -> tuple[WrittenSchedule | None, bool]:
    """Return tokens in pieces where these fit, else regions; where neither fits, as many pieces as the smallest arena has."""
    least = min(tokens.schedule.peak, tokens.arena)
    if _is_within(least, wanted) and _is_within(tokens.plan.arena_size, wanted):
        return tokens, False
    subject, (of_regions, is_cut_short) = forms.subject, _cut_into_regions(forms, wanted)
    if of_regions is not None and _is_within(of_regions.plan.arena_size, wanted):
        return of_regions, is_cut_short
    if wanted.capacity is not None and not wanted.is_late:
        # As few pieces as seem to fit may leave gaps, or copies. What fits the smallest arena fits each larger one.
        smallest = tokens_cut(subject, replace(wanted, capacity=None)) or tokens
        tokens = min((tokens, smallest), key=lambda draft: draft.plan.arena_size)
        if _is_within(tokens.plan.arena_size, wanted):
            return tokens, False
    return (tokens, False) if of_regions is None or of_regions.plan.peak > least else (of_regions, is_cut_short)


def _is_within(size: int, wanted: FitTarget) -> bool:
    return wanted.capacity is not None and size <= wanted.capacity


def _in_order(subject: FitSubject) -> FitSubject:
    """Return the model with sizes written, a quantised one in the order of its plan where that takes no more bytes."""
    sizes = sizes_written(subject.model, subject.shapes)
    if sizes is not None:
        subject = subject.rewritten(sizes)
    ordered = in_order_of_plan(subject.model, subject.shapes, subject.planned.plan.results)
    if ordered is not None:
        moved = subject.rewritten(ordered)
        if moved.whole.peak <= subject.whole.peak:
            return moved
    return subject


class RegionForms:
    """The forms of a model of which regions are cut."""

    def __init__(self, subject: FitSubject) -> None:
        self.subject = subject
        self._above: dict[int, tuple[Floor, Regions]] = {}
        self._last, self._more = list[FitSubject](), last_forms(subject)

    @cached_property
    def base(self) -> FitSubject:
        """The model after the rewrites that let more of it be cut."""
        return unblocked_subject(self.subject)

    @cached_property
    def forms(self) -> list[FitSubject]:
        """The model as it is, and with tensors made twice."""
        return _forms(self.base)

    @cached_property
    def floor(self) -> Floor:
        """The bytes that no way to cut a form into regions goes below, by the rows of the model."""
        return floor_of(self.base.regions, self.base.extra_left, remakes=not self.subject.options.exact)

    def last_forms(self) -> Iterator[FitSubject]:
        """Yield the forms that are tried only where no other fits; each is made once."""
        for number in count():
            if number == len(self._last):
                self._last += islice(self._more, 1)
            if number == len(self._last):
                return
            yield self._last[number]

    def floor_above(self, capacity: int) -> tuple[Floor, Regions]:
        """Return bytes above a capacity that no way to cut a form goes below, with the network of this form; else fewer bytes."""
        if capacity not in self._above:
            waiting, by_rows = self._waiting_above(capacity), (self.floor if self.base.extra_left <= 0 else None)
            if waiting is None or (by_rows is not None and by_rows.bytes >= waiting[0].bytes):
                waiting = by_rows or self.floor, self.base.regions
            self._above[capacity] = waiting
        return self._above[capacity]

    def _waiting_above(self, capacity: int) -> tuple[Floor, Regions] | None:
        """Return the lowest floor of all forms by the kernels that wait; None where that of one is within the capacity."""
        lowest: tuple[Floor, Regions] | None = None
        for form in self._all_forms():
            floor = waiting_floor(form.regions, max(form.extra_left, 0.0))
            if floor.bytes <= capacity:
                return None
            if lowest is None or floor.bytes < lowest[0].bytes:
                lowest = floor, form.regions
        return lowest

    def _all_forms(self) -> Iterator[FitSubject]:
        yield self.base
        yield from self.forms[1:]
        yield from self.last_forms()


def _cut_into_regions(about: RegionForms, wanted: FitTarget) -> tuple[WrittenSchedule | None, bool]:
    """Return the best of the model's forms with the schedule of regions written into it, and whether the bound ended the search.

    The best is the one that fits for the lowest price, else the one with the smallest arena. No further form is tried where one fits as
    it is, or nearly so. Where a floor shows that none fits, the model stays as it is.
    """
    best: WrittenSchedule | None = None
    winner: FitAttempts | None = None
    subject = about.subject
    is_cut_short, prices = False, subject.prices
    least = wanted.capacity, prices
    if wanted.capacity is not None:
        floor, regions = about.floor_above(wanted.capacity)
        if floor.bytes > wanted.capacity:
            return replace(subject.as_it_is(), obstacle=obstacle_at(floor, regions)), False
    floor = about.floor
    forms = [_attempts_on(form, wanted) for form in about.forms]
    last = (_attempts_on(form, wanted) for form in about.last_forms())
    # What fits is looked for in each form first: the whole way down of one takes much longer.
    for tries in forms if wanted.capacity is not None else ():
        if best is None or _macs_again(tries.subject, prices) < best.price(prices):
            best = _better(best, tries.result(goes_down=False), *least)
        if wanted.is_late or (best is not None and best.is_slight):
            break
    is_last_worth = wanted.capacity is not None and wanted.capacity > _NEAR * floor.bytes
    for tries in chain(last, forms) if is_last_worth else chain(forms, last):
        if best is not None and best.fits(wanted.capacity):
            break
        better = _better(best, tries.result(below=sys.maxsize if best is None else best.least_known), *least)
        if better is not best:
            best, winner = better, tries
        is_cut_short |= tries.subject.regions.is_cut_short
        if wanted.is_late or (tries is forms[-1] and best is not None and best.least_known <= _NEAR * floor.bytes):
            break
    settled = best if best is None else best.settled if winner is None else winner.settled(best)
    return settled and replace(settled, floor=floor.bytes), is_cut_short


def _attempts_on(form: FitSubject, wanted: FitTarget) -> FitAttempts:
    return FitAttempts(form, replace(wanted, extra_macs=max(form.extra_left, 0.0), prices=form.prices))


def _macs_again(form: FitSubject, prices: Prices) -> float:
    """Return the price of the multiply-accumulates that a form has beyond the model as it was."""
    before = form.before.macs
    return prices.macs * (form.regions.network.macs - before) / max(before, 1)


def _better(
    best: WrittenSchedule | None, candidate: WrittenSchedule | None, capacity: int | None, prices: Prices
) -> WrittenSchedule | None:
    """Return the better one: that which fits for the lowest price, else the one with the smallest arena."""
    if best is None or candidate is None:
        return best or candidate
    return min(best, candidate, key=lambda draft: draft.worth(capacity, prices))


_NEAR = 17 / 16
"""An arena of at most this many times the bytes that no schedule can pass is small enough: no last form is tried."""
_SHARES = (0.7, 0.5, 0.35, 0.25, 0.125)
"""Shares of the peak of the model: operands of reductions that take more are made twice, where the budget allows it."""


def _forms(edited: FitSubject) -> list[FitSubject]:
    """Return the model as it is, and with tensors made twice: operands of reductions, wide ones, then narrower ones too; and long skips.

    They are the same for every capacity, so that what fits less fits more.
    """
    most = edited.extra_left * edited.regions.network.macs
    forms = [edited]
    for share in () if edited.options.exact else _SHARES:
        twice = passed_twice(edited.model, edited.shapes, edited.regions, int(share * edited.whole.peak), most)
        form = None if twice is None else edited.rewritten(twice)
        if form is not None and all(form.rewrites != other.rewrites for other in forms):
            forms.append(form)
    skips = () if edited.options.exact else skips_made_again(edited.model, edited.shapes, edited.regions, most)
    return [*forms, *(edited.rewritten(skip) for skip in skips)]


def last_forms(subject: FitSubject) -> Iterator[FitSubject]:
    """Yield forms of the model that are tried only where no other fits: with outputs in groups of channels."""
    for grouped in outputs_grouped(subject.model, subject.shapes, subject.regions, exact=subject.options.exact):
        yield unblocked_subject(subject.rewritten(grouped))


def unblocked_subject(subject: FitSubject) -> FitSubject:
    """Return the model after the rewrites that let more of it be cut; without those that take more MACs than the budget."""
    given = subject.options.exact
    for exact, more_macs in dict.fromkeys([(given, not given), (given, False), (True, False)]):
        edit = unblock(subject.model, subject.shapes, exact=exact, more_macs=more_macs, keeps_means=subject.keeps_means)
        if edit is None:
            continue
        edited = subject.rewritten(edit)
        if edited.extra_left >= -_NEGLIGIBLE:
            return edited
    return subject


# Fused models, of which the cheapest that fits is written.


def fused_subject(subject: FitSubject) -> FitSubject:
    """Return the fused model, planned as it is; meta-ops are not cut."""
    model, shapes = copy_of(subject.model, subject.shapes)
    shapes = fuse_pieces(model, shapes)
    fused = _planned_subject(subject.options, subject.settings, subject.original, model, shapes)
    return replace(fused, rewrites=_fusing("fused before the model is cut", model), budget=subject.budget)


def _fusing(text: str, model: ir.Model) -> tuple[ModelRewrite, ...]:
    """Return the rewrite that made the meta-ops of a model; none where there are none."""
    functions = model.functions
    calls = (node for node in model.graph if node.op_identifier() in functions)
    nodes = tuple(node.name or "" for node in calls if is_kernel(functions[node.op_identifier()]))
    return (ModelRewrite("fuse", text, nodes),) if nodes else ()


# Two memories: a model is cut for several shares of the fast one, and the one that copies the fewest bytes is written.

_LESS = (1.0, 0.8, 0.6)
"""Shares of the fast memory for which a model is cut, until one can be planned: copies of parts of inputs need bytes, too."""
_MORE = (1.5, 2.0, 3.0)
"""Shares for which it is cut then, with fewer MACs done again and more tensors that leave the fast memory."""


def _fewest_copied(options: FitOptions, subject: FitSubject) -> WrittenSchedule:
    """Return the candidate with the fewest copied bytes, then MACs and nodes. Raises Infeasible where none can be planned.

    One that is cut as little as possible is enough where only parts of inputs, and outputs, are copied.
    """
    assert options.memory is not None
    settings = replace(subject.settings, capacity=options.memories)
    planned: list[WrittenSchedule] = []
    error: Infeasible | None = None
    has_fit = False
    for share in (0.0, *_LESS, *_MORE):
        if share and has_fit is (share in _LESS):
            continue
        capacity = int(share * options.memory[1])
        drafted = cut(subject, _target(subject, capacity))[0] if share else subject.as_it_is()
        if drafted is None:
            continue
        try:
            planned.append(drafted.moved(settings))
        except Infeasible as reason:
            error = error or reason
            if share and not has_fit and drafted.plan.arena_size > capacity:
                break  # smaller pieces were not found
            continue
        has_fit = has_fit or share > 0
        movement = _movement(planned[-1])
        if movement.bytes == movement.forced:
            break
    if not planned:
        assert error is not None
        raise error
    return min(planned, key=lambda draft: (_movement(draft).bytes, draft.schedule.macs, draft.nodes))


def _movement(draft: WrittenSchedule) -> MovementResult:
    assert draft.plan.movement is not None
    return draft.plan.movement


# The trade of a model's arena against multiply-accumulates, nodes and copied bytes.

_RATIO = 0.75
"""The most bytes of a point as a share of the peak of the point before."""
_PLANNED = 3_000
"""Kernels of the largest schedule that is written and planned; the arena of a larger one is an estimate."""


@declared(CurveOptions)
def fit_curve(options: CurveOptions) -> FitCurve:
    """Return the trade of the arena of `model` against multiply-accumulates, nodes and copied bytes.

    One search goes down from the model as it is to the smallest arena within the budgets. Each point takes at most three quarters of the
    bytes of the point before, but for the last. It was written and planned, or says that it is an estimate; the models are not run.
    Raises ModelError, UsageError.
    """
    require_no_fusing(options)
    return curve_of(read_subject(options))


def curve_of(subject: FitSubject) -> FitCurve:
    """Return the trade of a model that was read."""
    points = [CurvePoint(subject.before, False)]
    for point in _points(unblocked_subject(subject)):
        # Gaps between buffers may make an arena larger than its peak.
        if point.cost.arena < points[-1].cost.arena:
            points.append(point)
    file = file_of(subject.options.model)
    return FitCurve(tuple(points), "" if file is None else file.name, _command(subject.options))


def _command(options: CurveOptions) -> str:
    """Return the command line of fit with the model and the options that differ from their defaults, without a capacity."""
    words = ["onnxtile", "fit", str(file_of(options.model) or "model.onnx")]
    settings, known = narrowed(CurveOptions, options), parameters(CurveOptions)
    for name in changed(settings):
        value, flag = getattr(settings, name), known[name].flags[0]
        if name == "verify":
            continue  # the command proves its result
        if isinstance(value, Mapping):
            words += [word for key, size in value.items() for word in (flag, f"{key}={_size_text(size)}")]
        elif isinstance(value, tuple):
            words += [word for entry in value for word in (flag, str(entry))]
        else:
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)


def _size_text(size: object) -> str:
    """Return a size, or a whole shape, as the command line takes it."""
    return "x".join(map(str, size)) if isinstance(size, tuple) else str(size)


def _points(subject: FitSubject) -> Iterator[CurvePoint]:
    """Yield points with ever fewer bytes, of one search; the last has the least peak."""
    for point in _all_points(subject):
        # The written model may have more nodes than the search counts.
        if point.estimated or subject.options.max_nodes is None or point.cost.nodes <= subject.options.max_nodes:
            yield point


def _all_points(subject: FitSubject) -> Iterator[CurvePoint]:
    left = None
    for at_stage, schedule, is_far in _steps_down(subject):
        left = None if is_far else (at_stage, schedule)
        if is_far:
            yield _point(at_stage, schedule)
    if left is not None:
        yield _point(*left)


def _steps_down(subject: FitSubject) -> Iterator[tuple[FitSubject, FitSchedule, bool]]:
    """Yield schedules with ever fewer bytes, and whether one takes at most three quarters of those of the last one of which that is so.

    The progress of the subject says which point is looked for.
    """
    options, number, reached, stage = subject.options, 2, subject.before.arena, [""]

    def name_stage() -> FitSubject:
        stage[0] = f"point {number}, up to {readable(int(_RATIO * reached))} of {readable(subject.before.arena)}"
        return replace(subject, options=with_progress(options, within(options.progress, stage[0])))

    def tell(part: str, done: int = 0, total: int = 0, /) -> None:
        options.progress(f"{stage[0]}: {part}", done, total)

    target = FitTarget(None, max(subject.extra_left, 0.0), options.max_nodes, subject.prices, budget=subject.budget)
    at_stage = name_stage()
    way = Descent(subject.regions, target, tell)
    while way.is_longer():
        schedule = way.points[-1]
        if schedule.is_whole or schedule.peak >= reached:
            continue
        is_far = schedule.peak <= _RATIO * reached
        yield at_stage, schedule, is_far
        if is_far:
            number, reached = number + 1, schedule.peak
            at_stage = name_stage()


def _point(subject: FitSubject, schedule: FitSchedule) -> CurvePoint:
    """Return the point of a schedule: written and planned, or estimated where it has too many nodes for that."""
    if schedule.nodes <= _PLANNED:
        return CurvePoint(WrittenSchedule(subject, schedule).cost, False)
    estimate = ModelCost(
        schedule.peak, schedule.peak, schedule.macs, schedule.nodes, schedule.copied, subject.estimate(schedule)
    )
    return CurvePoint(estimate, True)
