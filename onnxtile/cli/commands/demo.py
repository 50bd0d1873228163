"""onnxtile demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from onnxtile.common_options import ReportOptions
from onnxtile.option import Positional
from onnxtile.printable import escaped
from onnxtile.verb import Outcome, Verb


@dataclass(frozen=True)
class DemoCommand(ReportOptions):
    """Fuse, tile, plan and verify a small transformer that ships with onnxtile.

    Examples:
        onnxtile demo
        onnxtile demo FOLDER --json demo.json
    """

    folder: Annotated[Path, Positional("FOLDER", "folder for the files")] = Path("onnxtile-demo")


def _run(options: DemoCommand) -> Outcome:
    from onnxtile import demo

    result = demo.demo(options.folder, progress=options.progress)
    folder = escaped(str(options.folder))
    return Outcome(
        result,
        "demo",
        after=f"The files are in {folder}/. Open transformer.fused.plan.html in a browser to see the arena step by step,\n"
        "and transformer.fused.onnx in a viewer such as Netron. Then use a model of your own:\n"
        "  onnxtile fuse MODEL.onnx -o fused.onnx && onnxtile tile fused.onnx --max 64 -o tiled.onnx && "
        "onnxtile plan tiled.onnx --emit plan.html\n",
    )


DEMO = Verb("demo", DemoCommand, _run)
