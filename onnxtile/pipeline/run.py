"""Runs of a pipeline: models through its steps, one after the other or side by side by workers."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from logging import CRITICAL
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import onnx_ir as ir

from onnxtile.declare import values
from onnxtile.declare.verb import Outcome, VerbResult, declared
from onnxtile.pipeline.file import (
    REPORT,
    Baseline,
    Destination,
    Judged,
    ModelSoFar,
    Pipeline,
    PipelineStep,
    StepResult,
    apart,
    figures,
    from_file,
    make_folders,
    read_baseline,
    remove_stale,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OnnxtileError, UsageError, about_options, error_line, invalid, of_extra
from onnxtile.system.files import require_writable, staged, write_whole
from onnxtile.system.interpreter import begin_worker
from onnxtile.system.long_work import Progress, RunLimits, silent
from onnxtile.system.text import as_json
from onnxtile.verbs.flows.results import save
from onnxtile.verbs.run import RunCommand, RunOptions

# The start of worker processes: a terminal's signals to its whole group reach this process alone, with which they end.

_OF_TERMINALS = ("SIGINT", "SIGHUP")
"""By name: Windows lacks the last."""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start processes in the block that never see Ctrl-C or the end of a terminal: a new process inherits what is blocked.

    Else one of them, still importing modules, prints a traceback, or a report says that a worker died.
    """
    numbers = [getattr(signal, name) for name in _OF_TERMINALS if hasattr(signal, name)]
    with _later(numbers):
        if not hasattr(signal, "pthread_sigmask"):  # Windows
            _start_trackers()
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        _start_trackers()
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # Python has let some through again
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _later(numbers: Iterable[int]) -> Iterator[None]:
    """Handle signals that come in the block after it: loky raises an error of its own where one interrupts the start of a process.

    What the main thread blocks is not enough: the system may give a signal to another thread, and Python handles it in the main one.
    """
    if threading.current_thread() is not threading.main_thread():  # no other may say what signals do
        yield
        return
    came: list[int] = []
    handlers = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def _start_trackers() -> None:
    """Start the processes that remove shared memory and semaphores of workers without a stderr.

    One prints a traceback where two processes that end at once both say that a semaphore is not needed. One that a terminal's end has
    killed is started again by Python, with stderr: so it must not see that.
    """
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as of_joblib

    with _without_stderr():
        resource_tracker.ensure_running()
        of_joblib.ensure_running()


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Let the descriptor 2, which a new process inherits, lead nowhere in the block."""
    nowhere, stderr = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


# Workers of a pipeline, threads or processes of this machine, by joblib, or of a cluster; and how the results come back.

T = TypeVar("T")
R = TypeVar("R")

BACKENDS = ("loky", "threading", "dask")
_PATIENCE = 5.0
"""Seconds in which a scheduler has to answer."""
_ON_LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
"""Address of the HTTP server of our own Dask cluster: a free port of the loopback interface, not 8787."""
_WITHOUT_PAGES = {
    "distributed.scheduler.allowed-failures": 0,  # what killed a worker is not tried again on the next
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


@dataclass(frozen=True)
class Workers:
    """Who does the work: how many models at a time, and where. `scheduler` is the address of a cluster, for dask."""

    jobs: int = 1
    backend: str = "loky"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise invalid("jobs", self.jobs, reason="at least one model is worked on at a time")
        if self.backend not in BACKENDS:
            raise invalid("backend", self.backend, BACKENDS)
        if self.scheduler is not None and not self.are_a_cluster:
            raise about_options("{scheduler} needs a cluster", hint="add {backend} dask", scheduler=self.scheduler)

    @property
    def are_here(self) -> bool:
        """Whether this process does it all."""
        return self.jobs == 1 and not self.are_a_cluster

    @property
    def are_a_cluster(self) -> bool:
        """Whether the work goes to the processes of a cluster, on this machine or others."""
        return self.backend == "dask"

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the result of `work` for each of `items`, in the order of completion.

        Raises UsageError where the backend is not installed or cannot be reached; another error, at the end, where a worker died:
        what has not come by then is lost.
        """
        if self.are_a_cluster:
            yield from _each_on_dask(self, work, items)
            return
        import joblib

        process_options = (
            {"initializer": begin_worker, "initargs": (os.getpid(), Path.cwd())} if self.backend == "loky" else {}
        )
        with joblib.parallel_config(backend=self.backend, **process_options):
            parallel = joblib.Parallel(n_jobs=self.jobs, return_as="generator_unordered")
            with starting_workers():
                results = parallel(joblib.delayed(work)(item) for item in items)
            yield from results


def _each_on_dask(workers: Workers, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the results of a Dask cluster. joblib 1.6 is not used: it waits forever for the results of a worker that died."""
    with _client(workers) as client:
        from distributed import as_completed

        futures = client.map(work, items, pure=False)
        lost = None
        for future in as_completed(futures):  # type: ignore[no-untyped-call]
            if future.status == "finished":
                yield future.result()
            else:
                lost = lost or future.exception()
        if lost is not None:
            raise lost


@contextmanager
def _client(workers: Workers) -> Iterator[Any]:
    try:
        import dask
        from distributed import Client
    except ImportError:
        raise UsageError("the backend dask is not installed", hint=of_extra("dask")) from None
    try:
        _require_answer(workers.scheduler)
        cluster = {"n_workers": workers.jobs, "threads_per_worker": 1, "silence_logs": CRITICAL, **_ON_LOOPBACK}
        where = cluster if workers.scheduler is None else {"address": workers.scheduler}
        with dask.config.set(_WITHOUT_PAGES), starting_workers():
            client = Client(timeout=_PATIENCE, **where)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        address = workers.scheduler or "this machine"
        reason = " ".join(str(error).split()) or f"nothing came in {_PATIENCE:g} s"
        raise UsageError(
            f"no dask scheduler answers at {address}: {reason}",
            hint="start one by `dask scheduler`, which prints its address",
        ) from None
    with client:
        yield client


def _require_answer(address: str | None) -> None:
    """Raise TimeoutError or OSError where nothing at `address` answers as a scheduler does.

    A client would wait without end for a scheduler that accepts and does not answer.
    """
    if address is None:
        return
    import asyncio

    from distributed.comm.core import connect

    async def shake_hands() -> None:
        comm = await asyncio.wait_for(connect(address, timeout=_PATIENCE), _PATIENCE)  # type: ignore[no-untyped-call]
        await comm.close()

    asyncio.run(shake_hands())


# One model through the steps of a pipeline in order, then its budgets and its files.


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
        done = _done(step.step_for(source), state, pipeline.limits)
        results.append((step.name, done.content))
        files.update({target.with_suffix(ending): content for ending, content in done.files.items()})
        if done.reason is not None:
            return Report(source, tuple(results), error=f"{step.name}: {done.reason}")
        state = state if done.model is None else replace(state, model=done.model)
    reached = figures(results)
    budgets = (*pipeline.budgets.budgets_of(source).judged(reached), *pipeline.baseline.judged(source, reached))
    report = Report(source, tuple(results), budgets)
    if not report.passed or destination.dry_run:
        return report
    _write(state, target, files, destination.force)
    return replace(report, written=(*((target,) if isinstance(state.model, ir.Model) else ()), *sorted(files)))


def _done(step: PipelineStep, state: ModelSoFar, limits: RunLimits) -> StepResult:
    """Return what a step did, within `limits`. Raises OnnxtileError, which names the step."""
    with limits.held():
        try:
            return step.apply(state)
        except OnnxtileError as error:
            error.say(f"{step.name}: {error.message}", error.hint)
            raise


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
        for report in workers.each(partial(run_one, pipeline, destination=destination), models):
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


def _run_alone(pipeline: Pipeline, model: Path, destination: Destination, lost: str) -> Report:
    try:
        # With two jobs for one model, joblib takes a process for it even so.
        return next(Workers(2).each(partial(run_one, pipeline, destination=destination), [model]))
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
