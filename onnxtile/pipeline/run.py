"""Models through a pipeline: one through the steps in order, the budgets and the files; many, one after the other or side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import onnx_ir as ir

from onnxtile.declare import values
from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome, VerbResult
from onnxtile.pipeline.budgets import Baseline, Judged, figures, read_baseline
from onnxtile.pipeline.file import REPORT, Destination, Pipeline, apart, from_file, make_folders, remove_stale
from onnxtile.pipeline.step import ModelSoFar, PipelineStep, StepResult
from onnxtile.pipeline.workers import Workers
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OnnxtileError, UsageError, error_line
from onnxtile.system.files import require_writable, staged, write_whole
from onnxtile.system.limits import RunLimits
from onnxtile.system.progress import Progress, silent
from onnxtile.system.text import as_json
from onnxtile.verbs.flows.results import save
from onnxtile.verbs.run import RunCommand, RunOptions


@dataclass(frozen=True)
class Report:
    """What became of one model.

    `steps` are the results of the steps that ran, each with its name; `error` says in a line what stopped it, or which check failed.
    `written` are its files. `model` is the path of the file, `budgets` say which of them are met.
    """

    model: Path
    steps: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), repr=False)
    budgets: tuple[Judged, ...] = ()
    error: str | None = None
    written: tuple[Path, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every step ran, every check said yes, and every budget was met."""
        return self.error is None and all(budget.met for budget in self.budgets)

    def summary(self) -> dict[str, Any]:
        """Return the JSON of the model's row in the summary of a run."""
        return {
            "model": str(self.model),
            "passed": self.passed,
            "error": self.error,
            "figures": figures(self.steps),
            "budgets": [budget.to_dict() for budget in self.budgets],
            "written": [str(path) for path in self.written],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the model's report: its summary, and the whole result of each step."""
        return {**self.summary(), "steps": [{"do": name, **result} for name, result in self.steps]}


def run_one(pipeline: Pipeline, source: Path, destination: Destination, progress: Progress = silent) -> Report:
    """Take the model `source` through `pipeline`. A failure is in the report, not an error, so that other models go on.

    The model and its files are written at the end, whole or not at all, and only where every step ran and every check said yes; the
    report always is. Where one said no, the files that an earlier run wrote for this model are removed.
    """
    target = destination.model(pipeline, source)
    results: list[tuple[str, Mapping[str, Any]]] = []
    try:
        report = _applied(pipeline, ModelSoFar(source, source, progress, target.stem), target, destination, results)
    except Exception as error:  # noqa: BLE001 - a bug shows in this model's report, and the others go on
        report = Report(source, tuple(results), error=_line(error))
    if destination.dry_run or not target.parent.is_dir():
        return report
    if not report.passed:
        remove_stale(destination.files(pipeline, source), source)
    try:
        write_whole(target.with_suffix(REPORT), as_json(report.to_dict()).encode())
    except OnnxtileError as error:
        return replace(report, error=report.error or _line(error))
    return report


def _line(error: Exception) -> str:
    """Return in a line what stopped a model."""
    if isinstance(error, OnnxtileError):
        return error_line(error.message, error.hint)
    return error_line(" ".join(f"internal error: {type(error).__name__}: {error}".split()), None)


def _applied(
    pipeline: Pipeline,
    state: ModelSoFar,
    target: Path,
    destination: Destination,
    results: list[tuple[str, Mapping[str, Any]]],
) -> Report:
    """Take the model through the steps, noting their `results`, and write what they made, or nothing. Raises OnnxtileError."""
    source = state.source
    files: dict[Path, bytes] = {}
    if not destination.dry_run:
        require_writable(target, source=source, force=destination.force)
        for path in destination.files(pipeline, source)[1:]:
            require_writable(path, source=source)
    for step in pipeline.steps:
        done = _done(step.of(source), state, pipeline.limits)
        results.append((step.name, done.content))
        files.update({target.with_suffix(ending): content for ending, content in done.files.items()})
        if done.reason is not None:
            return Report(source, tuple(results), error=f"{step.name}: {done.reason}")
        state = _next_state(state, done)
    reached = figures(results)
    budgets = (*pipeline.budgets.of(source).judged(reached), *pipeline.baseline.judged(source, reached))
    report = Report(source, tuple(results), budgets)
    if not report.passed or destination.dry_run:
        return report
    _write(state, target, files, destination.force)
    return replace(report, written=(*_models(state, target), *sorted(files)))


def _done(step: PipelineStep, state: ModelSoFar, limits: RunLimits) -> StepResult:
    """Return what a step did, within `limits`. Raises OnnxtileError, which names the step."""
    with limits.held():
        try:
            return step.apply(state)
        except OnnxtileError as error:
            error.say(f"{step.name}: {error.message}", error.hint)
            raise


def _next_state(state: ModelSoFar, done: StepResult) -> ModelSoFar:
    return state if done.model is None else replace(state, model=done.model)


def _models(state: ModelSoFar, target: Path) -> tuple[Path, ...]:
    return (target,) if isinstance(state.model, ir.Model) else ()


def _write(state: ModelSoFar, target: Path, files: Mapping[Path, bytes], force: bool) -> None:
    with staged(files):
        if isinstance(state.model, ir.Model):
            save(state.model, target, source=state.source, force=force)


# Many models through a pipeline, one after the other or side by side.


@dataclass(frozen=True, repr=False)
class RunResult(VerbResult):
    """What became of each model: the name of the `pipeline`, and `reports` in the order in which the models were given."""

    verb: ClassVar[str] = "run"

    pipeline: str
    reports: tuple[Report, ...]

    @property
    def summary(self) -> str:
        """How many models passed."""
        return f"{sum(report.passed for report in self.reports):,} of {len(self.reports):,} models passed"

    @property
    def passed(self) -> bool:
        """Whether every model passed."""
        return all(report.passed for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `run`: a summary of each model, whose whole report is in another file."""
        return {
            "pipeline": self.pipeline,
            "passed": sum(report.passed for report in self.reports),
            "failed": sum(not report.passed for report in self.reports),
            "models": [report.summary() for report in self.reports],
        }


def run_all(
    pipeline: Pipeline,
    models: Sequence[Path] = (),
    destination: Destination | None = None,
    workers: Workers | None = None,
    progress: Progress = silent,
    reserved: Iterable[Path] = (),
) -> RunResult:
    """Take each of `models` (those that the pipeline's file names, where none are given) through `pipeline`.

    A model that fails does not stop the others; nor does one whose worker dies, which is reported. The files `reserved` have another use,
    and nothing is written to one. Raises UsageError where two models would be written to one file, where there is none, and where the
    backend cannot be reached.
    """
    destination, workers = destination or Destination(), workers or Workers()
    models = list(models or pipeline.models)
    if not models:
        raise UsageError("no model is given", hint="name models, or list them as `models` in the pipeline file")
    pipeline.baseline.require(models)
    if workers.are_a_cluster:  # whose processes may stand in another folder
        models = [model.absolute() for model in models]
        destination = replace(destination, folder=destination.folder and destination.folder.absolute())
    destination = apart(destination, pipeline, models, reserved)
    make_folders(destination, pipeline, models)
    if workers.are_here or (len(models) == 1 and not workers.are_a_cluster):
        reports = (
            run_one(pipeline, model, destination, _progress_of(progress, i, models)) for i, model in enumerate(models)
        )
        return RunResult(pipeline.name, tuple(reports))
    done: dict[Path, Report] = {}
    progress("models", 0, len(models))
    for report in _side_by_side(pipeline, models, destination, workers):
        done[report.model] = report
        progress("models", len(done), len(models))
    return RunResult(pipeline.name, tuple(done[model] for model in models))


def _progress_of(progress: Progress, position: int, models: Sequence[Path]) -> Progress:
    """Return the receiver of the stages of one of several models, which names that model."""
    name = f"{position + 1} of {len(models)}: {models[position].name}: " if len(models) > 1 else ""
    return lambda stage, done=0, total=0, /: progress(f"{name}{stage}", done, total)


def _side_by_side(
    pipeline: Pipeline, models: Sequence[Path], destination: Destination, workers: Workers
) -> Iterator[Report]:
    """Yield the reports as they come; models that were lost with a worker are tried again, each in a separate process."""
    left = dict.fromkeys(models)
    try:
        for report in workers.each(partial(_report_of, pipeline, destination), models):
            del left[report.model]
            yield report
    except OnnxtileError:
        raise
    except Exception as error:  # each backend has another error for a worker that died
        if not left:
            raise
        lost = type(error).__name__
        for model in left:
            yield _run_alone(pipeline, model, destination, lost)


def _report_of(pipeline: Pipeline, destination: Destination, model: Path) -> Report:
    return run_one(pipeline, model, destination)


def _run_alone(pipeline: Pipeline, model: Path, destination: Destination, lost: str) -> Report:
    try:
        # With two jobs for one model, joblib takes a process for it even so.
        return next(Workers(2).each(partial(_report_of, pipeline, destination), [model]))
    except BrokenProcessPool:
        if not destination.dry_run:
            remove_stale(destination.files(pipeline, model), model)
        reason = f"the process that worked on it died ({lost}), perhaps for want of memory"
        return Report(model, error=f"{reason}; fewer --jobs take less")


# The command, and its form in Python: `onnxtile.run("deploy.toml", ["model.onnx"])`.


@declared(RunOptions)
def run(options: RunOptions) -> RunResult:
    """Take models through the steps of the file `pipeline`, and return what became of each.

    A model that fails does not stop the others: the result says why, and `passed` whether all did. Files are written as the command writes
    them. Raises UsageError for a pipeline that cannot be read, where there is no model, and where two models would be written to one file.
    """
    return _run(options, RunLimits(), ())


def run_command(options: RunCommand) -> Outcome:
    """Return the result of `run` with the limits of the command, where it gives some; the files of its summaries are not written over."""
    summaries = [Path(options.as_json)] if options.as_json not in {None, "-"} else []
    reserved = [*summaries, *(path for path in (options.junit, options.markdown) if path is not None)]
    result = _run(options, options.run_limits, reserved)
    return Outcome(result, "run", reason=None if result.passed else "a model failed")


def _run(options: RunOptions, limits: RunLimits, reserved: Sequence[Path]) -> RunResult:
    pipeline = from_file(Path(options.pipeline))
    baseline = Baseline() if options.baseline is None else read_baseline(options.baseline)
    pipeline = replace(pipeline, limits=limits.or_else(pipeline.limits), baseline=baseline)
    workers = Workers(options.jobs, options.backend, options.scheduler)
    used = [Path(options.pipeline), *([] if options.baseline is None else [options.baseline])]
    destination = Destination(options.output, options.force, options.dry_run)
    models = values.read_files(options.models)
    return run_all(pipeline, models, destination, workers, options.progress, [*used, *reserved])
