"""plan: give every activation an offset in an arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onnxtile.common_options import (
    ReportOptions,
    VerifyOptions,
    WriteOptions,
)
from onnxtile.declare.option import declared, names, narrowed, require_within
from onnxtile.declare.verb import Content, Outcome, Verb
from onnxtile.system.errors import NAME_ONLY, UsageError
from onnxtile.verbs.options.plan import (
    CheckOptions,
    PlanCommand,
    PlanOptions,
    PlanOutput,
    PlanStep,
    ProblemOptions,
    TfliteOptions,
    require_target,
    wants_c,
)

if TYPE_CHECKING:
    from onnxtile.check.audit import Audit
    from onnxtile.planning.result import PlanResult
    from onnxtile.verbs.flows.other_formats import PlannedTflite
    from onnxtile.verbs.flows.results import PlannedModel


@declared(PlanOptions)
def plan(options: PlanOptions) -> PlannedModel:
    """Give every activation of `model` an offset in an arena, and annotate the model with it.

    The result is checked against the model by code that shares nothing with what plans (see `check_plan`); with `verify`, the model is also
    run with every tensor at its planned address. Raises ModelError, UsageError; Infeasible over `capacity`; CheckFailed where the check
    says no; Mismatch where the run inside the arena differs.
    """
    from onnxtile.verbs.flows import planning

    return planning.plan(options)


@declared(ProblemOptions)
def plan_problem(options: ProblemOptions) -> PlanResult:
    """Give every buffer of the problem in the CSV `file` (columns id, lower, upper, size) an offset in an arena.

    Raises UsageError for a file that holds no problem, Infeasible over `capacity`.
    """
    from onnxtile.verbs.flows import other_formats as placing

    return placing.plan_problem(options)


@declared(TfliteOptions)
def plan_tflite(options: TfliteOptions) -> PlannedTflite:
    """Give every tensor of the TensorFlow Lite model `file` an offset in an arena, for TensorFlow Lite Micro.

    The result holds the model with the plan as its metadata. A replay of the written file checks it. With `verify`, and the extra
    tflite-micro installed, TensorFlow Lite Micro runs the model with and without the plan. Raises ModelError, UsageError; Infeasible over
    `capacity`; CheckFailed where the check says no; Mismatch where the runs differ.
    """
    from onnxtile.verbs.flows import other_formats as micro

    return micro.plan_tflite(options)


@declared(CheckOptions)
def check_plan(options: CheckOptions) -> Audit:
    """Return the faults of `plan`, a plan of `model`.

    Dimensions and bounds are bound as the plan says, beside `dims`, `shapes` and `bounds`. `inputs` and `ranges` are for models that are
    run where no inference knows a shape. Raises ModelError, and UsageError where `plan` is none.
    """
    from onnxtile.verbs.flows import checking

    return checking.check_plan(options)


def _is_bare(options: PlanOptions) -> bool:
    return isinstance(options.model, Path) and options.model.suffix.lower() == ".csv"


def _is_tflite(options: PlanOptions) -> bool:
    return isinstance(options.model, Path) and options.model.suffix.lower() == ".tflite"


def _run(options: PlanStep) -> Outcome:
    if isinstance(options, PlanCommand) and options.check is not None:
        from onnxtile.verbs.flows import checking

        audit = checking.check_plan(narrowed(CheckOptions, options, plan=options.check))
        return Outcome(audit, "check", reason=None if audit.sound else "the plan is wrong")
    if _is_bare(options):
        from onnxtile.system.process import collector_paused
        from onnxtile.verbs.flows import other_formats as placing

        with collector_paused():
            return Outcome(placing.plan_problem(narrowed(ProblemOptions, options, file=options.model)), "plan")
    if _is_tflite(options):
        from onnxtile.verbs.flows import other_formats as micro

        written = micro.plan_tflite(narrowed(TfliteOptions, options, file=options.model))
        return Outcome(written, "plan", save=written.save, emitted=written.plan.to_dict())
    from onnxtile.verbs.flows import planning

    planned = planning.plan(options)
    if wants_c(options.emit):
        planned = planning.with_firmware(planned, options)
    return Outcome(planned, "plan", planned.model, emitted=planned.document)


def _require(options: PlanStep) -> None:
    require_target(options)
    if isinstance(options, PlanCommand):
        _require_one_mode(options)
    if not _is_bare(options) and options.workspaces:
        from onnxtile.planning.workspaces import WorkspaceRules

        WorkspaceRules.of(options.workspaces, options.share_workspaces)


def _require_one_mode(options: PlanCommand) -> None:
    if _is_bare(options):
        allowed = names(ProblemOptions, PlanOutput, WriteOptions, VerifyOptions) - {"output"}
        require_within(options, allowed, "{option} is for models, not for a bare problem", "leave it out")
    elif _is_tflite(options):
        allowed = names(TfliteOptions, PlanOutput, WriteOptions) | {"model"}
        require_within(options, allowed, "{option} is for ONNX models, not for a .tflite", "leave it out")
        _require_tflite_files(options)
    elif options.check is not None:
        allowed = names(CheckOptions, ReportOptions) | {"check", "dry_run"}
        message = "{option} is for planning, and {check} plans nothing"
        require_within(options, allowed, message, "leave one of the two out", check=NAME_ONLY)


def _require_tflite_files(options: PlanCommand) -> None:
    """Raise UsageError for files that the plan of a .tflite cannot be written to."""
    if options.output == "-":
        raise UsageError(
            "a .tflite is written to a file, not to stdout",
            hint="name a file with {output}",
            given={"output": NAME_ONLY},
        )
    for file in options.emit:
        if file.endswith((".tflm", ".tflm.json", ".bin")):
            raise UsageError(
                f"{file}: of a .tflite this is not written", hint="the written model has the plan and the constants"
            )


def _prepare(options: PlanStep, paths: Sequence[Path]) -> Callable[[Content], Mapping[Path, bytes]]:
    from onnxtile.report.format import Emission

    return Emission.of(paths, options.names, options.compare, options.color_by).content


def _writes(options: PlanCommand) -> str | None:
    if _is_tflite(options):
        return "planned.tflite"
    return None if options.check is not None or _is_bare(options) else "planned"


PLAN = Verb("plan", PlanCommand, _run, PlanStep, _writes, _prepare, _require)
