"""One model through a pipeline: the steps in order, the budgets, the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from onnxtile import api
from onnxtile.api import Progress, silent
from onnxtile.errors import OnnxtileError
from onnxtile.json_text import as_json
from onnxtile.model.whole import require_writable, write_whole
from onnxtile.pipeline.budgets import Judged
from onnxtile.pipeline.figures import figures
from onnxtile.pipeline.file import Pipeline
from onnxtile.pipeline.place import Place
from onnxtile.pipeline.step import Done, State


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


def run_one(pipeline: Pipeline, source: Path, place: Place, progress: Progress = silent) -> Report:
    """Take the model `source` through `pipeline`. A failure is in the report, not an error, so that other models go on.

    The model and its files are written at the end, whole or not at all, and only where every step ran and every check said yes; the
    report always is.
    """
    target = place.model(pipeline, source)
    results: list[tuple[str, Mapping[str, Any]]] = []
    files: dict[Path, bytes] = {}
    state = State(source, source, progress)
    try:
        if not place.dry_run:
            require_writable(target, source=source, force=place.force)
        for step, options in pipeline.steps:
            with pipeline.limits.held():
                done = step.apply(options, state)
            results.append((step.name, done.result))
            files.update({target.with_suffix(ending): content for ending, content in done.files.items()})
            if done.reason is not None:
                return _reported(Report(source, tuple(results), error=f"{step.name}: {done.reason}"), target, place)
            state = _after(state, done)
    except OnnxtileError as error:
        line = str(error).partition("\n")[0] + (f" ({error.hint})" if error.hint else "")
        return _reported(Report(source, tuple(results), error=line), target, place)
    except Exception as error:  # noqa: BLE001 - a bug shows in this model's report, and the others go on
        line = " ".join(f"internal error: {type(error).__name__}: {error}".split())
        return _reported(Report(source, tuple(results), error=line), target, place)
    budgets = tuple(pipeline.budgets.judged(figures(results)))
    report = Report(source, tuple(results), budgets)
    if report.passed and not place.dry_run:
        _write(state, target, files, place.force)
        report = Report(source, report.steps, budgets, written=(*_models(state, target), *sorted(files)))
    return _reported(report, target, place)


def _after(state: State, done: Done) -> State:
    return state if done.model is None else State(state.source, done.model, state.progress)


def _models(state: State, target: Path) -> tuple[Path, ...]:
    return (target,) if isinstance(state.model, ir.Model) else ()


def _write(state: State, target: Path, files: Mapping[Path, bytes], force: bool) -> None:
    if isinstance(state.model, ir.Model):
        api.save(state.model, target, source=state.source, force=force)
    for path, content in files.items():
        write_whole(path, content)


def _reported(report: Report, target: Path, place: Place) -> Report:
    """Write the report beside the model that it is of, and return it."""
    if not place.dry_run and target.parent.is_dir():
        text = as_json(report.to_dict())
        write_whole(target.with_suffix(".report.json"), text.encode())
    return report
