"""Many models through a pipeline, one after the other or side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from onnxtile.api import Progress, silent
from onnxtile.errors import OnnxtileError, UsageError
from onnxtile.pipeline.file import Pipeline
from onnxtile.pipeline.place import Destination, apart, make_folders
from onnxtile.pipeline.run import Report, run_one
from onnxtile.pipeline.stale import remove_stale
from onnxtile.pipeline.workers import Workers


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
    place: Destination | None = None,
    workers: Workers | None = None,
    progress: Progress = silent,
    reserved: Iterable[Path] = (),
) -> RunResult:
    """Take each of `models` (those that the pipeline's file names, where none are given) through `pipeline`.

    A model that fails does not stop the others; nor does one whose worker dies, which is reported. The files `reserved` have another use,
    and nothing is written to one. Raises UsageError where two models would be written to one file, where there is none, and where the
    backend cannot be reached.
    """
    place, workers = place or Destination(), workers or Workers()
    models = list(models or pipeline.models)
    if not models:
        raise UsageError("no model is given", hint="name models, or list them as `models` in the pipeline file")
    pipeline.baseline.require(models)
    if workers.are_a_cluster:  # whose processes may stand in another folder
        models = [model.absolute() for model in models]
        place = replace(place, folder=place.folder and place.folder.absolute())
    place = apart(place, pipeline, models, reserved)
    make_folders(place, pipeline, models)
    if workers.are_here or (len(models) == 1 and not workers.are_a_cluster):
        reports = (run_one(pipeline, model, place, _told(progress, i, models)) for i, model in enumerate(models))
        return RunResult(pipeline.name, tuple(reports))
    done: dict[Path, Report] = {}
    progress("models", 0, len(models))
    for report in _side_by_side(pipeline, models, place, workers):
        done[report.model] = report
        progress("models", len(done), len(models))
    return RunResult(pipeline.name, tuple(done[model] for model in models))


def _told(progress: Progress, position: int, models: Sequence[Path]) -> Progress:
    """Return the receiver of the stages of one of several models, which names that model."""
    name = f"{position + 1} of {len(models)}: {models[position].name}: " if len(models) > 1 else ""
    return lambda stage, done=0, total=0, /: progress(f"{name}{stage}", done, total)


def _side_by_side(pipeline: Pipeline, models: Sequence[Path], place: Destination, workers: Workers) -> Iterator[Report]:
    """Yield the reports as they come; models that were lost with a worker are tried again, each in a process of its own."""
    left = dict.fromkeys(models)
    try:
        for report in workers.each(partial(_one, pipeline, place), models):
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


def _one(pipeline: Pipeline, place: Destination, model: Path) -> Report:
    return run_one(pipeline, model, place)


def _alone(pipeline: Pipeline, model: Path, place: Destination, lost: str) -> Report:
    try:
        # With two jobs for one model, joblib takes a process for it even so.
        return next(Workers(2).each(partial(_one, pipeline, place), [model]))
    except BrokenProcessPool:
        if not place.dry_run:
            remove_stale(place.files(pipeline, model), model)
        reason = f"the process that worked on it died ({lost}), perhaps for want of memory"
        return Report(model, error=f"{reason}; fewer --jobs take less")
