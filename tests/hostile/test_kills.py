"""Signals, full disks, folders that are read only, two writers of one file: each file is whole or absent, and inputs stay."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import folder, run
from tests.hostile.kills import COMMANDS, SIGNALS, Kills

__all__ = ["folder", "run"]

Run = Callable[..., Any]
pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="its processes are not listed here")
FUSE = "fuse m.onnx -p LayerNorm --no-verify -q"


@pytest.mark.parametrize("number", SIGNALS)
def test_files_are_whole_or_absent_after_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """More of them: python -m tests.hostile.kills."""
    kills = Kills(tmp_path, seed=int(number))
    line = COMMANDS[SIGNALS.index(number) % 3]
    assert kills.faults(line, number) == []


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
from onnxtile.__main__ import main
main()
"""


@pytest.mark.parametrize(
    "line", [FUSE, "plan m.onnx --no-verify -q --emit p.html", "tile m.onnx --max 64 --no-verify -q"]
)
def test_a_full_disk_leaves_nothing(folder: Path, line: str) -> None:
    before = files(folder)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *line.split()], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "File too large" in done.stderr
    assert files(folder) == before


def _can_mount() -> bool:
    """Return whether this process may mount file systems in a namespace of its own, as root may on Linux."""
    if shutil.which("unshare") is None:
        return False
    return not subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode


MOUNTS = {"full": ("size=96k", "No space left on device"), "read only": ("ro", "Read-only file system")}


@pytest.mark.skipif(not _can_mount(), reason="no file system can be mounted here")
@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("full", "tile m.onnx --max 32 --no-verify -q -o disk/o.onnx"),
        ("full", "fit m.onnx --capacity 129KiB --no-verify -q -o disk/o.onnx"),
        ("full", "run p.toml m.onnx n.onnx --jobs 2 -q -o disk"),
        ("read only", "tile m.onnx --max 32 --no-verify -q -o disk/o.onnx"),
        ("read only", "run p.toml m.onnx n.onnx -q -o disk"),
    ],
)
def test_a_disk_that_is_full_or_read_only_gets_no_part_of_a_file(folder: Path, kind: str, line: str) -> None:
    options, reason = MOUNTS[kind]
    (folder / "disk").mkdir()
    (folder / "n.onnx").write_bytes((folder / "m.onnx").read_bytes())
    (folder / "p.toml").write_text('[[steps]]\ndo = "tile"\nmax = 64\nverify = false\n')
    before = files(folder)
    script = f"mount -t tmpfs -o {options} tmpfs disk && {sys.executable} -m onnxtile {line}; echo $?; ls -A disk"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=folder, capture_output=True, text=True, check=False
    )
    code, *left = done.stdout.split()
    if line.startswith("run"):  # a report of a model says what was refused, where it has room
        assert int(code) in {1, 2} and not [name for name in left if not name.endswith(".report.json")]
    else:
        assert (code, left) == ("2", []) and reason in done.stderr and done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr
    assert files(folder) == before


def test_a_file_that_takes_nothing_is_refused(run: Run, folder: Path) -> None:
    before = files(folder)
    done = run(*FUSE.split(), "-o", "/dev/full")
    assert done.code == 2 and "No space left" in done.err and done.err.count("\n") == 1
    assert files(folder) == before


def test_a_folder_that_takes_no_file_is_refused(run: Run, folder: Path) -> None:
    """Root, too, makes no file in /proc."""
    before = files(folder)
    for more in (("-o", "/proc/o.onnx"), ("--json", "/proc/r.json")):
        done = run(*FUSE.split(), *more)
        assert done.code == 2 and "cannot be written: " in done.err and done.err.count("\n") == 1
    assert files(folder) == before


def test_an_output_that_is_a_link_to_the_input_is_refused(run: Run, folder: Path) -> None:
    (folder / "link.onnx").symlink_to("m.onnx")
    before = files(folder)
    done = run(*FUSE.split(), "-o", "link.onnx")
    assert done.code == 2 and "would be overwritten" in done.err
    assert files(folder) == before and (folder / "link.onnx").is_symlink()


def test_a_link_to_the_input_is_replaced_by_force_and_the_input_stays(run: Run, folder: Path) -> None:
    (folder / "link.onnx").symlink_to("m.onnx")
    before = (folder / "m.onnx").read_bytes()
    assert run(*FUSE.split(), "-o", "link.onnx", "--force").code == 0
    assert (folder / "m.onnx").read_bytes() == before
    assert not (folder / "link.onnx").is_symlink() and (folder / "link.onnx").read_bytes() != before


def test_two_processes_may_write_one_file(folder: Path) -> None:
    command = [sys.executable, "-m", "onnxtile", *FUSE.split(), "-o", "o.onnx", "--json", "r.json"]
    started = [subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    ends = [(process.communicate(timeout=120)[1], process.returncode) for process in started]
    assert ends == [("", 0), ("", 0)]
    found = files(folder)
    alone = subprocess.run([*command[:-4], "-o", "o.onnx", "--json", "r.json"], cwd=folder, check=False)
    assert alone.returncode == 0
    assert files(folder) == found and found.keys() == {"m.onnx", "o.onnx", "r.json"}
