"""Builds the wheel, and installs it for each Python with the newest versions of all dependencies, and with the oldest, each time anew.

    python -m tests.bench.supply python3.11 python3.12 python3.13

In each environment the demo runs, the version is printed, and pip looks for what does not fit. The oldest are those of pyproject.toml.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent.parent
BINARIES = "Scripts" if os.name == "nt" else "bin"


def oldest() -> list[str]:
    """Return each dependency at its lower bound, as pip takes it, with the Pythons that the bound is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = [Requirement(one) for one in project["dependencies"]]
    lowest = [(one, next(s.version for s in one.specifier if s.operator == ">=")) for one in found]
    return [f"{one.name}=={version}{f'; {one.marker}' if one.marker else ''}" for one, version in lowest]


def call(*command: object, folder: Path) -> str:
    """Run `command` in `folder` and return its output; where it fails, end with what it said."""
    own = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(list(map(str, command)), cwd=folder, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout[-1000:]}\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def tried(python: str, wheel: Path, extra: list[str], folder: Path) -> str:
    """Install `wheel` for `python` into an environment in `folder`, run the demo, and return the versions of what was installed."""
    call(python, "-m", "venv", "env", folder=folder)
    own = folder / "env" / BINARIES
    call(own / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, *extra, folder=folder)
    call(own / "python", "-m", "pip", "check", folder=folder)
    call(own / "onnxtile", "demo", folder=folder)
    return call(own / "python", "-m", "pip", "freeze", folder=folder).replace("\n", " ")


def main(pythons: list[str]) -> None:
    """Try each of the Pythons, with the newest dependencies and with the oldest."""
    with tempfile.TemporaryDirectory(prefix="onnxtile-supply.") as place:
        call(sys.executable, "-m", "build", "--wheel", "--outdir", place, ROOT, folder=Path(place))
        (wheel,) = Path(place).glob("*.whl")
        for number, python in enumerate(pythons):
            for name, extra in (("newest", []), ("oldest", oldest())):
                folder = Path(place) / f"{name}{number}"
                folder.mkdir()
                print(f"{python}, {name}: the demo runs; {tried(python, wheel, extra, folder)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    main(parser.parse_args().pythons)
