"""Programs of these tests are compiled once: the same command makes the same files of the same texts; few are optimised or measured."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

Run: TypeAlias = Callable[[Sequence[str], Path | None], subprocess.CompletedProcess[str]]


def once(run: Run) -> Run:
    """Return `run`, which compiles no text again that it has compiled by the same command: it writes the files that were made then."""
    made: dict[object, tuple[subprocess.CompletedProcess[str], dict[str, bytes]]] = {}

    def compile_once(command: Sequence[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
        home = Path(command[command.index("-o") + 1]).parent if "-o" in command else None
        others = [word for word in command if word.endswith((".c", ".o", '.bin"')) and not word.startswith(str(home))]
        if home is None or others:
            return run(command, folder)
        before = {path.name: path.read_bytes() for path in home.iterdir()}
        texts = sorted((name, data) for name, data in before.items() if not name.endswith(".bin"))
        key = (*(word.replace(str(home), "") for word in command), *texts)
        if key not in made:
            done = run(command, folder)
            made[key] = done, {path.name: path.read_bytes() for path in home.iterdir() if path.name not in before}
        done, files = made[key]
        for name, data in files.items():
            (home / name).write_bytes(data)
            (home / name).chmod(0o755)
        return done

    return compile_once


@pytest.fixture(scope="session", autouse=True)
def _compiled_once() -> Iterator[None]:
    pytest.importorskip("emx_onnx_cgen", reason="the extra c is not installed")
    from onnxtile.firmware import build, prove

    compile_once = once(prove.command_done)
    with pytest.MonkeyPatch.context() as patch:
        for module in (build, prove):
            patch.setattr(module, "command_done", compile_once)
        yield


def plainly(run: Run) -> Run:
    """Return `run`, which compiles a program that only runs without optimisation: in half the time, and IEEE numbers are the same."""

    def compile_plainly(command: Sequence[str], folder: Path | None) -> subprocess.CompletedProcess[str]:
        is_program = "-o" in command and Path(command[-1]).name == "program"
        return run(["-O0" if word == "-O2" and is_program else word for word in command], folder)

    return compile_plainly


@pytest.fixture
def footprint() -> None:
    """Let the programs of a test be measured."""


@pytest.fixture
def optimised() -> None:
    """Let the programs of a test be compiled as those of users are; with --slow all are."""


@pytest.fixture(autouse=True)
def _few_are_measured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the bytes of programs, for which each is compiled once more, and optimisation, where a test does not ask for them."""
    from onnxtile.firmware import build, prove

    if "footprint" not in request.fixturenames:
        monkeypatch.setattr(build, "footprint_of", lambda *_, **__: None)
    if "optimised" not in request.fixturenames and not request.config.getoption("--slow"):
        for module in (build, prove):
            monkeypatch.setattr(module, "command_done", plainly(module.command_done))
