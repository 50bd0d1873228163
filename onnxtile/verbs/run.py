"""run: take models through the steps of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from onnxtile.common_options import ReportOptions, RunLimitOptions
from onnxtile.declare import values
from onnxtile.declare.verb import REPORTING, WRITING, Choices, Content, Option, Positional, Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.registry import late

_WORKERS = "Workers"
_CHECKS = "Checks"


@dataclass(frozen=True)
class RunOptions(RunLimitOptions):
    """The options of `run`."""

    pipeline: Annotated[Path | str, Positional("PIPELINE", "a pipeline file")]
    models: Annotated[
        Sequence[Path | str] | Path | str, Positional("IN", "ONNX models", values.FILES, default="those the file names")
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
            choices=Choices("onnxtile.pipeline.run:BACKENDS"),
        ),
    ] = "loky"
    scheduler: Annotated[str | None, Option("address of the cluster, for dask", "ADDRESS", heading=_WORKERS)] = None
    baseline: Annotated[
        Path | None, Option("earlier --json summary; exit 1 when a figure is worse", "FILE", heading=_CHECKS)
    ] = None
    force: Annotated[bool, Option("allow a model to be written over itself", heading=WRITING)] = False
    dry_run: Annotated[bool, Option("write no models and reports", heading=WRITING)] = False


@dataclass(frozen=True)
class RunCommand(ReportOptions, RunOptions):
    """Take models through the steps of a file; exit 1 when any failed.

    Examples:
        onnxtile run deploy.toml models/*.onnx --jobs 2
        onnxtile run deploy.toml model.onnx -o build --json summary.json
        onnxtile run deploy.toml models/*.onnx --baseline summary.json --junit run.xml --markdown run.md
        onnxtile run deploy.toml models/*.onnx --backend dask --scheduler tcp://host:8786
    """

    _: KW_ONLY
    junit: Annotated[Path | None, Option("write the summary as JUnit XML", "FILE.xml", heading=REPORTING)] = None
    markdown: Annotated[Path | None, Option("write the summary as Markdown", "FILE.md", heading=REPORTING)] = None


def _prepare(options: RunCommand, _paths: Sequence[Path]) -> Callable[[Content], Mapping[Path, bytes]]:
    """Return the function that renders the summaries; a dry run writes them, too."""
    from onnxtile.report.tables import to_junit, to_markdown
    from onnxtile.system.files import require_writable

    asked = {path: render for path, render in ((options.junit, to_junit), (options.markdown, to_markdown)) if path}
    for path in asked:
        require_writable(path)
    return lambda content: {path: render(content) for path, render in asked.items()}


RUN = Verb("run", RunCommand, late("onnxtile.pipeline.run:run_command"), emits=_prepare)
