"""A pipeline in Python: `onnxtile.run("deploy.toml", ["model.onnx"])`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from onnxtile.declare import values
from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome
from onnxtile.pipeline.budgets import Baseline, read_baseline
from onnxtile.pipeline.file import Destination, from_file
from onnxtile.pipeline.run import RunResult
from onnxtile.pipeline.run import run as run_all
from onnxtile.pipeline.workers import Workers
from onnxtile.system.limits import RunLimits
from onnxtile.verbs.run import RunCommand, RunOptions


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
