"""Picture of docs/tutorials/firmware.md: one command from a model to a program that runs on an emulated Cortex-M7, with what it prints.

    python docs/firmware_picture.py [FILE.svg]

It needs the extra "c", and Debian's gcc-arm-none-eabi, libnewlib-arm-none-eabi and qemu-system-arm.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "images" / "firmware.svg"
TARGET = "docs/firmware/mps2-an500.toml"
SHOWN = f"$ onnxtile plan models/transformer.onnx --emit net.c --target {TARGET}\n"
WIDTH = 118


def printed() -> str:
    """Return the lines of what the command prints that are about memory and the program."""
    command = [sys.executable, "-m", "onnxtile", "plan", "models/transformer.onnx"]
    with tempfile.TemporaryDirectory() as folder:
        files = ["--emit", f"{folder}/net.c", "--dry-run"]
        done = subprocess.run(
            [*command, *files, "--target", TARGET], cwd=ROOT, capture_output=True, text=True, check=True
        )
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    plan, program = lines[: lines.index("C")], lines[lines.index("C") + 1 :]
    kept = [line for line in plan if line.startswith(("arena", "activations"))]
    kept += [line for line in program if not line.startswith(("figure", "written"))]
    return "\n".join(kept)


def main(file: Path = PICTURE) -> None:
    """Run the command and write the picture to `file`."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text(SHOWN, style="bold"))
    console.print(Text(printed()))
    file.write_text(console.export_svg(title="from model.onnx to a Cortex-M7", unique_id="firmware"), "utf-8")


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:2]))
