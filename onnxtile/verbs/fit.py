"""fit: rewrite a model so that its activations fit a memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxtile.common_options import (
    ReportOptions,
)
from onnxtile.declare.option import declared, names, require_within
from onnxtile.declare.verb import Content, Outcome, Verb
from onnxtile.system.errors import NAME_ONLY
from onnxtile.verbs.options.fit import CurveOptions, FitCommand, FitOptions, FitStepOptions, require_memory
from onnxtile.verbs.options.plan import require_target, wants_c

if TYPE_CHECKING:
    from onnxtile.declare.verb import ResultWriter
    from onnxtile.verbs.flows.fitted_model import FitCurve, FittedModel


@declared(FitOptions)
def fit(options: FitOptions) -> FittedModel:
    """Return a model that computes what `model` computes, and whose arena is at most `capacity` bytes large.

    Runs of operators are cut into strips of rows; rows that the next strip reads again are kept. With `smallest`, the smallest arena within
    the budget is looked for. The arena is that of `onnxtile.plan` with its defaults; with `verify`, both models are run and compared. With
    a fast and a slow memory in `capacity`, the operands of each kernel are in the fast one while it runs. Of the cuts that are tried, the
    one with the fewest copied bytes is taken.

    Raises ModelError, UsageError; Infeasible where nothing fits; Mismatch where an output differs.
    """
    from onnxtile.verbs.flows import fitting

    return fitting.fit(options)


@declared(CurveOptions)
def fit_curve(options: CurveOptions) -> FitCurve:
    """Return the trade of the arena of `model` against multiply-accumulates, nodes and copied bytes.

    Each point is the cheapest way that was found to fit three quarters of the bytes of the point before, within the budgets. It was
    written and planned, or says that it is an estimate; the models are not run. Raises ModelError, UsageError.
    """
    from onnxtile.verbs.flows import fitting

    return fitting.fit_curve(options)


def _run(options: FitStepOptions) -> Outcome:
    from onnxtile.verbs.flows import fitting

    subject = fitting.read_subject(options)
    curve = None
    if isinstance(options, FitCommand) and options.curve:
        curve = fitting.curve_of(subject)
        if not _fits_one(options):
            return Outcome(curve, "curve", emitted={"curve": curve.to_dict()})
    result = replace(fitting.attempt(options, subject), curve=curve)
    if wants_c(options.emit) and result.fits:
        result = _with_firmware(result, options)
    note = "" if result.reason is None else f"error: {result.reason}"
    model = result.model if result.fits else None
    emitted = {**result.documents, "curve": curve and curve.to_dict()}
    return Outcome(result, "fit", model, reason=result.reason, note=note, emitted=emitted)


def _with_firmware(result: FittedModel, options: FitStepOptions) -> FittedModel:
    """Return `result` with its program in C. Raises UsageError, Mismatch."""
    from onnxtile.firmware.build import ProgramTarget, build

    target = ProgramTarget(options.target_cc, options.runner)
    planned = result.planned
    how: dict[str, Any] = {"verify": options.verify, "weights": options.weights, "progress": options.progress}
    made = build(planned.opened, planned.plan, target=target, **how)
    return replace(result, planned=replace(planned, firmware=made))


def _prepare(options: FitStepOptions, paths: Sequence[Path]) -> Callable[[Content], Mapping[Path, bytes]]:
    """Return what renders the plan, in pictures beside the plan before; and the curve."""
    from onnxtile.report.format import Emission

    emission = Emission.of(paths, options.names, color_by=options.color_by)
    drawn = _curve_files(options)

    def rendered(content: Content) -> Mapping[Path, bytes]:
        files = replace(emission, before=content["before"]).content(content["after"]) if paths else {}
        return {**files, **{path: write(content["curve"], path) for path, write in drawn.items()}}

    return rendered


def _curve_files(options: FitStepOptions) -> dict[Path, ResultWriter]:
    """Return the files of the curve, each with what writes it. Raises UsageError, also where a package is missing that draws it."""
    from onnxtile.declare.verb import writer_of
    from onnxtile.report.curve_files import require_drawable
    from onnxtile.system.files import require_writable

    paths = [Path(name) for name in getattr(options, "curve", ()) if name != "-"]
    for path in paths:
        require_writable(path, source=options.model if isinstance(options.model, Path) else None)
        require_drawable(path)
    return {path: writer_of("curve", path) for path in paths}


def _fits_one(options: FitOptions) -> bool:
    """Return whether one memory is to be fitted: with --curve alone there is none."""
    return options.capacity is not None or options.smallest


def _writes(options: FitCommand) -> str | None:
    return "fitted" if not options.curve or _fits_one(options) else None


def _require(options: FitStepOptions) -> None:
    _ = options.limits
    require_target(options)
    if not isinstance(options, FitCommand) or not options.curve or _fits_one(options):
        require_memory(options)
        return
    allowed = names(CurveOptions, ReportOptions) | {"curve", "dry_run"}
    message = "{option} is for one model that fits, and {curve} alone writes none"
    require_within(options, allowed, message, "add --capacity 256KiB or --smallest", curve=NAME_ONLY)


FIT = Verb("fit", FitCommand, _run, FitStepOptions, _writes, _prepare, _require)
