"""demo: all steps on a small transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from onnxtile.common_options import ReportOptions, RunLimitOptions
from onnxtile.declare.verb import Positional, Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.registry import late


@dataclass(frozen=True)
class DemoCommand(ReportOptions, RunLimitOptions):
    """Fuse, tile, plan and verify a small transformer that ships with onnxtile.

    Examples:
        onnxtile demo
        onnxtile demo FOLDER --json demo.json
    """

    folder: Annotated[Path, Positional("FOLDER", "folder for the files")] = Path("onnxtile-demo")


DEMO = Verb("demo", DemoCommand, late("onnxtile.demo:demo"))
