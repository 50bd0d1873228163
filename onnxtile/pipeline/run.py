"""One model through a pipeline: the steps in order, the budgets, the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxtile import api
from onnxtile.api import Progress, silent
from onnxtile.errors import OnnxtileError
from onnxtile.json_text import as_json
from onnxtile.model.whole import require_writable, staged, write_whole
from onnxtile.pipeline.budgets import Judged
from onnxtile.pipeline.figures import figures
from onnxtile.pipeline.file import REPORT, Pipeline
from onnxtile.pipeline.place import Destination
from onnxtile.pipeline.stale import remove_stale
from onnxtile.pipeline.step import ModelSoFar, StepResult
from onnxtile.printable import error_line


@dataclass(frozen=True)
class Report:
    """What became of one model.

    `steps` are the results of the steps that ran, each with its name; `error` says in a line what stopped it, or which check said no.
    `written` are its files.
    """

    model: Path
    steps: tuple[tuple[str, Mapping[str, Any]], ...] = field(default=(), repr=False)
    budgets: tuple[Judged, ...] = ()
    error: str | None = None
    written: tuple[Path, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every step ran, every check said yes, and every budget was met."""
        return self.error is None and all(one.met for one in self.budgets)

    def summary(self) -> dict[str, Any]:
        """Return the JSON of the model's row in the summary of a run."""
        return {
            "model": str(self.model),
            "passed": self.passed,
            "error": self.error,
            "figures": figures(self.steps),
            "budgets": [one.to_dict() for one in self.budgets],
            "written": [str(path) for path in self.written],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the model's report: its summary, and the whole result of each step."""
        return {**self.summary(), "steps": [{"do": name, **result} for name, result in self.steps]}


def run_one(pipeline: Pipeline, source: Path, place: Destination, progress: Progress = silent) -> Report:
    """Take the model `source` through `pipeline`. A failure is in the report, not an error, so that other models go on.

    The model and its files are written at the end, whole or not at all, and only where every step ran and every check said yes; the
    report always is. Where one said no, the files that an earlier run wrote for this model are removed.
    """
    target = place.model(pipeline, source)
    results: list[tuple[str, Mapping[str, Any]]] = []
    try:
        report = _applied(pipeline, ModelSoFar(source, source, progress), target, place, results)
    except Exception as error:  # noqa: BLE001 - a bug shows in this model's report, and the others go on
        report = Report(source, tuple(results), error=_line(error))
    if place.dry_run or not target.parent.is_dir():
        return report
    if not report.passed:
        remove_stale(place.files(pipeline, source), source)
    try:
        write_whole(target.with_suffix(REPORT), as_json(report.to_dict()).encode())
    except OnnxtileError as error:
        return replace(report, error=report.error or _line(error))
    return report


def _line(error: Exception) -> str:
    """Return in a line what stopped a model."""
    if isinstance(error, OnnxtileError):
        return error_line(str(error), error.hint)
    return error_line(" ".join(f"internal error: {type(error).__name__}: {error}".split()), None)


def _applied(
    pipeline: Pipeline,
    state: ModelSoFar,
    target: Path,
    place: Destination,
    results: list[tuple[str, Mapping[str, Any]]],
) -> Report:
    """Take the model through the steps, noting their `results`, and write what they made, or nothing. Raises OnnxtileError."""
    source = state.source
    files: dict[Path, bytes] = {}
    if not place.dry_run:
        require_writable(target, source=source, force=place.force)
        for path in place.files(pipeline, source)[1:]:
            require_writable(path, source=source)
    for step in pipeline.steps:
        with pipeline.limits.held():
            done = step.apply(state)
        results.append((step.name, done.content))
        files.update({target.with_suffix(ending): content for ending, content in done.files.items()})
        if done.reason is not None:
            return Report(source, tuple(results), error=f"{step.name}: {done.reason}")
        state = _after(state, done)
    reached = figures(results)
    budgets = (*pipeline.budgets.judged(reached), *pipeline.baseline.judged(source, reached))
    report = Report(source, tuple(results), budgets)
    if not report.passed or place.dry_run:
        return report
    _write(state, target, files, place.force)
    return replace(report, written=(*_models(state, target), *sorted(files)))


def _after(state: ModelSoFar, done: StepResult) -> ModelSoFar:
    return state if done.model is None else ModelSoFar(state.source, done.model, state.progress)


def _models(state: ModelSoFar, target: Path) -> tuple[Path, ...]:
    return (target,) if isinstance(state.model, ir.Model) else ()


def _write(state: ModelSoFar, target: Path, files: Mapping[Path, bytes], force: bool) -> None:
    with staged(files):
        if isinstance(state.model, ir.Model):
            api.save(state.model, target, source=state.source, force=force)
