"""Many models through a pipeline, side by side: joblib, whose backends reach from the processes of one machine to clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxtile.api import Progress, silent
from onnxtile.errors import OnnxtileError, UsageError
from onnxtile.pipeline.file import Pipeline
from onnxtile.pipeline.run import Place, Report, run_one

BACKENDS = ("loky", "threading", "dask", "ray")


@dataclass(frozen=True)
class Workers:
    """Who does the work: how many models at a time, and where. `scheduler` is the address of a cluster, for dask and ray."""

    jobs: int = 1
    backend: str = "loky"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise UsageError(f"--jobs {self.jobs}: at least one model is worked on at a time")
        if self.backend not in BACKENDS:
            raise UsageError(f"there is no backend {self.backend!r}", hint=f"there is {', '.join(BACKENDS)}")
        if self.scheduler is not None and self.backend not in {"dask", "ray"}:
            raise UsageError(f"the backend {self.backend} has no scheduler", hint="--backend dask or ray has one")


@dataclass(frozen=True)
class RunResult:
    """What became of each model, in the order in which they were given."""

    pipeline: str
    reports: tuple[Report, ...]

    @property
    def passed(self) -> bool:
        """Whether every model passed."""
        return all(report.passed for report in self.reports)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `run`: a summary of each model, whose own report stands in a file of its own."""
        return {
            "pipeline": self.pipeline,
            "passed": sum(report.passed for report in self.reports),
            "failed": sum(not report.passed for report in self.reports),
            "models": [report.summary() for report in self.reports],
        }


def run(
    pipeline: Pipeline,
    models: Sequence[Path] = (),
    place: Place | None = None,
    workers: Workers | None = None,
    progress: Progress = silent,
) -> RunResult:
    """Take each of `models` (those that the pipeline's file names, where none are given) through `pipeline`.

    A model that fails does not stop the others; nor does one whose worker dies, which is reported. Raises UsageError where two models
    would be written to one file, where there is none, and where the backend cannot be reached.
    """
    place, workers = place or Place(), workers or Workers()
    models = list(models or pipeline.models)
    _require_apart(pipeline, models, place)
    if place.folder is not None and not place.dry_run:
        _make(place.folder)
    if len(models) == 1 or (workers.jobs == 1 and workers.scheduler is None):
        reports = (run_one(pipeline, model, place, _told(progress, i, models)) for i, model in enumerate(models))
        return RunResult(pipeline.name, tuple(reports))
    done: dict[Path, Report] = {}
    for report in _side_by_side(pipeline, models, place, workers):
        done[report.model] = report
        progress(f"{len(done)} of {len(models)} models done")
    return RunResult(pipeline.name, tuple(done[model] for model in models))


def _require_apart(pipeline: Pipeline, models: Sequence[Path], place: Place) -> None:
    if not models:
        raise UsageError(
            "there is no model to work on", hint="name some, or list them as `models` in the pipeline file"
        )
    targets: dict[Path, Path] = {}
    for model in models:
        other = targets.setdefault(place.model(pipeline, model).resolve(), model)
        if other is not model:
            raise UsageError(
                f"{other} and {model} would be written to one file",
                hint="run them one after the other, into two folders",
            )


def _told(progress: Progress, position: int, models: Sequence[Path]) -> Progress:
    """Return what hears of the stages of one of several models, and says which it is."""
    count = f"{position + 1} of {len(models)}: {models[position].name}: " if len(models) > 1 else ""
    return lambda stage: progress(f"{count}{stage}")


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}") from None


def _side_by_side(pipeline: Pipeline, models: Sequence[Path], place: Place, workers: Workers) -> Iterator[Report]:
    """Yield the reports as they come; models that were lost with a worker are tried again, each in a process of its own."""
    import joblib

    left = dict.fromkeys(models)
    try:
        with _backend(workers):
            parallel = joblib.Parallel(n_jobs=workers.jobs, return_as="generator_unordered")
            for report in parallel(joblib.delayed(run_one)(pipeline, model, place) for model in models):
                del left[report.model]
                yield report
    except OnnxtileError:
        raise
    except Exception as error:  # for a worker that died, each backend has an error of its own
        if not left:
            raise
        lost = type(error).__name__
        for model in left:
            yield _alone(pipeline, model, place, lost)


def _alone(pipeline: Pipeline, model: Path, place: Place, lost: str) -> Report:
    import joblib

    try:
        # With two jobs for one model, joblib takes a process for it even so.
        reports: list[Report] = joblib.Parallel(n_jobs=2, backend="loky")(
            [joblib.delayed(run_one)(pipeline, model, place)]
        )
    except BrokenProcessPool:
        reason = f"the process that worked on it died ({lost}), perhaps for want of memory"
        return Report(model, error=f"{reason}; fewer --jobs take less")
    return reports[0]


@contextmanager
def _backend(workers: Workers) -> Iterator[None]:
    """Have joblib use the backend. Raises UsageError where it is not installed or cannot be reached."""
    import joblib

    if workers.backend == "dask":
        with _dask(workers), joblib.parallel_config(backend="dask"):
            yield
        return
    if workers.backend == "ray":
        _ray(workers)
    with joblib.parallel_config(backend=workers.backend):
        yield


@contextmanager
def _dask(workers: Workers) -> Iterator[None]:
    try:
        from distributed import Client
    except ImportError:
        raise UsageError("the backend dask is not installed", hint="pip install 'onnxtile[dask]'") from None
    try:
        # A cluster of our own listens on free ports, and shows no dashboard on a fixed one.
        own = {"n_workers": workers.jobs, "dashboard_address": None}
        where = own if workers.scheduler is None else {"address": workers.scheduler}
        client = Client(timeout="5s", **where)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        address = workers.scheduler or "this machine"
        raise UsageError(f"no dask scheduler answers at {address}: {error}", hint="start one: dask scheduler") from None
    with client:
        yield


def _ray(workers: Workers) -> None:
    try:
        import ray
        from ray.util.joblib import register_ray
    except ImportError:
        raise UsageError("the backend ray is not installed", hint="pip install 'onnxtile[ray]'") from None
    try:
        ray.init(address=workers.scheduler, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UsageError(f"ray cannot be reached: {error}", hint="start it: ray start --head") from None
    register_ray()
