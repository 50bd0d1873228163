"""The peers of the benchmark: each in an environment of its own, which `tests.bench.compare` makes once."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "onnxsim": ("onnxsim", "onnxruntime", "z3-solver"),
    "onnxslim": ("onnxslim", "onnxruntime"),
    "onnxscript": ("onnxscript", "onnxruntime"),
    "onnxruntime": ("onnxruntime", "onnx", "sympy"),
    "ethos-u-vela": ("ethos-u-vela",),
    "aidge": ("aidge-core", "aidge-onnx", "aidge-backend-cpu"),
}
"""The packages of each peer; the version is that of the first."""
_TIMEOUT = 1800


class Peers:
    """The environments in `folder`. A peer that cannot be installed is left out, with the reason in `missing`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.missing: dict[str, str] = {}

    def python(self, name: str) -> str | None:
        """Return the Python of a peer, installed where it is not there yet; None where that fails."""
        place = self.folder / name
        program, done = place / "bin" / "python", place / "installed"
        if name not in self.missing and not done.exists():
            venv.create(place, with_pip=True, clear=True)
            reason = self._failure([str(program), "-m", "pip", "install", "-q", *PACKAGES[name]])
            if reason:
                self.missing[name] = reason
            else:
                done.touch()
        return None if name in self.missing else str(program)

    def version(self, name: str) -> str:
        """Return the version of a peer, or the reason why it is missing."""
        program = self.python(name)
        if program is None:
            return f"not installed: {self.missing[name]}"
        code = f"import importlib.metadata as m; print(m.version({PACKAGES[name][0]!r}))"
        return subprocess.run([program, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    @staticmethod
    def _failure(command: list[str]) -> str:
        """Run a command; return the last line of what it says where it fails, else nothing."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return (lines[-1] if lines else f"exit {done.returncode}")[:200] if done.returncode else ""


def own_version() -> str:
    """Return the commit of onnxtile that is measured, "-dirty" where the package is another than the commit's, and the Python."""

    def told(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parents[2]), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    dirty = "-dirty" if told("status", "--porcelain", "--", "onnxtile") else ""
    return f"{told('describe', '--always')}{dirty}, Python {sys.version.split()[0]}"
