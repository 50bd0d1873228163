"""onnxtile run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated

from onnxtile.common_options import ReportOptions
from onnxtile.declare import values
from onnxtile.declare.option import REPORTING, WRITING, Choices, Option, Positional
from onnxtile.declare.verb import Content, Outcome, Verb
from onnxtile.system.limits import RunLimits

_WORKERS = "Workers"
_CHECKS = "Checks"


@dataclass(frozen=True)
class RunCommand(ReportOptions):
    """Take models through the steps of a file; exit 1 when any failed.

    Examples:
        onnxtile run deploy.toml models/*.onnx --jobs 2
        onnxtile run deploy.toml model.onnx -o build --json summary.json
        onnxtile run deploy.toml models/*.onnx --baseline summary.json --junit run.xml --markdown run.md
        onnxtile run deploy.toml models/*.onnx --backend dask --scheduler tcp://host:8786
    """

    pipeline: Annotated[Path, Positional("PIPELINE", "a pipeline file")]
    models: Annotated[
        tuple[Path, ...], Positional("IN", "ONNX models", values.FILES, default="those the file names")
    ] = ()
    _: KW_ONLY
    output: Annotated[
        Path | None, Option("folder for the files", "FOLDER", ("-o", "--output"), WRITING, default="beside each model")
    ] = None
    jobs: Annotated[int, Option("models worked on at a time", "N", ("-j", "--jobs"), _WORKERS)] = 1
    backend: Annotated[
        str,
        Option(
            "processes, threads or a cluster",
            "loky|threading|dask",
            heading=_WORKERS,
            choices=Choices("onnxtile.pipeline.workers:BACKENDS"),
        ),
    ] = "loky"
    scheduler: Annotated[str | None, Option("address of the cluster, for dask", "ADDRESS", heading=_WORKERS)] = None
    baseline: Annotated[
        Path | None, Option("earlier --json summary; exit 1 when a figure is worse", "FILE", heading=_CHECKS)
    ] = None
    junit: Annotated[Path | None, Option("write the summary as JUnit XML", "FILE.xml", heading=REPORTING)] = None
    markdown: Annotated[Path | None, Option("write the summary as Markdown", "FILE.md", heading=REPORTING)] = None
    force: Annotated[bool, Option("allow a model to be written over itself", heading=WRITING)] = False
    dry_run: Annotated[bool, Option("write no models and reports", heading=WRITING)] = False


def _run(options: RunCommand) -> Outcome:
    from onnxtile.pipeline.budgets import Baseline, read_baseline
    from onnxtile.pipeline.file import Destination, from_file
    from onnxtile.pipeline.run import run as run_all
    from onnxtile.pipeline.workers import Workers

    steps = from_file(options.pipeline)
    limits = RunLimits(options.run_seconds, options.run_memory).or_else(steps.limits)
    baseline = Baseline() if options.baseline is None else read_baseline(options.baseline)
    steps = replace(steps, limits=limits, baseline=baseline)
    workers = Workers(options.jobs, options.backend, options.scheduler)
    summaries = [Path(options.as_json)] if options.as_json not in {None, "-"} else []
    used = (options.pipeline, options.baseline, options.junit, options.markdown)
    reserved = [*summaries, *(path for path in used if path is not None)]
    destination = Destination(options.output, options.force, options.dry_run)
    result = run_all(steps, options.models, destination, workers, options.progress, reserved)
    return Outcome(result, "run", reason=None if result.passed else "a model failed")


def _prepare(options: RunCommand, _paths: Sequence[Path]) -> Callable[[Content], Mapping[Path, bytes]]:
    """Return the function that renders the summaries; a dry run writes them, too."""
    from onnxtile.report.run_tables import to_junit, to_markdown
    from onnxtile.system.files import require_writable

    asked = {path: render for path, render in ((options.junit, to_junit), (options.markdown, to_markdown)) if path}
    for path in asked:
        require_writable(path)
    return lambda content: {path: render(content) for path, render in asked.items()}


RUN = Verb("run", RunCommand, _run, emits=_prepare)
