"""onnxtile run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import Annotated

from onnxtile.common_options import ReportOptions
from onnxtile.declare.option import REPORTING, Option
from onnxtile.declare.verb import Content, Outcome, Verb
from onnxtile.pipeline.options import RunOptions
from onnxtile.system.dataclass import dataclass


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


def _run(options: RunCommand) -> Outcome:
    from onnxtile.pipeline.library import run_within

    summaries = [Path(options.as_json)] if options.as_json not in {None, "-"} else []
    reserved = [*summaries, *(path for path in (options.junit, options.markdown) if path is not None)]
    result = run_within(options, options.run_limits, reserved)
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
