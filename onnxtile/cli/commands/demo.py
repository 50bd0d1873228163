"""onnxtile demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onnxtile.common_options import ReportOptions, RunLimitOptions
from onnxtile.declare.option import Positional
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class DemoCommand(ReportOptions, RunLimitOptions):
    """Fuse, tile, plan and verify a small transformer that ships with onnxtile.

    Examples:
        onnxtile demo
        onnxtile demo FOLDER --json demo.json
    """

    folder: Annotated[Path, Positional("FOLDER", "folder for the files")] = Path("onnxtile-demo")


def _run(options: DemoCommand) -> Outcome:
    from onnxtile import demo

    return Outcome(demo.demo(options.folder, progress=options.progress), "demo")


DEMO = Verb("demo", DemoCommand, _run)
