"""Ends commands by signals at random moments, and prints what was found: `python -m tests.hostile.kills --count 100`.

After each, every file is the old one, the whole new one, or absent, and no process is left. What SIGKILL leaves, the next run removes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from onnxtile.registry import data_folder

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COMMANDS = (
    "fuse a.onnx -o out/o.onnx --json out/r.json --no-verify",
    "tile a.onnx --max 64 -o out/o.onnx --no-verify",
    "plan a.onnx --no-verify --emit out/p.json --emit out/p.html -o out/o.onnx",
    "run p.toml a.onnx b.onnx --jobs 2 -o out --json out/s.json",
    "run p.toml a.onnx b.onnx -o out --json out/s.json",
    "run p.toml a.onnx b.onnx --jobs 2 --backend dask -o out --json out/s.json",
)
PIPELINE = """[[steps]]
do = "fuse"
verify = false
[[steps]]
do = "plan"
emit = ["json"]
verify = false
"""
_DASKS_LOCKS = "dask-scratch-space"
"""The folder of locks that Dask makes, which all its programs on a machine share and leave there."""
_END = 5.0
"""Seconds in which all processes have to end, where no other work makes them wait for a processor."""


def patience() -> float:
    """Return the seconds of the clock that `_END` is on a machine as loaded as this one is."""
    return _END * max(1.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


@dataclass(frozen=True)
class Finished:
    """What a command that nobody ends leaves: its files with their bytes, and the seconds that it takes."""

    files: Mapping[str, bytes]
    seconds: float


@dataclass
class Kills:
    """Commands, each in a folder of its own, that are ended at moments drawn from `seed`."""

    place: Path
    seed: int = 0
    moments: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        _heed_all()
        self.random = random.Random(self.seed)
        self.known: dict[str, Finished] = {}
        model = (data_folder("models") / "transformer.onnx").read_bytes()
        self.inputs = {"a.onnx": model, "b.onnx": model, "p.toml": PIPELINE.encode()}

    def finished(self, line: str) -> Finished:
        """Return what the command leaves when it runs to its end."""
        if line not in self.known:
            folder = self._folder()
            start = time.monotonic()
            _start(line, folder).wait(timeout=600)
            self.known[line] = Finished(_files(folder / "out"), time.monotonic() - start)
        return self.known[line]

    def faults(self, line: str, number: signal.Signals) -> list[str]:
        """End the command by the signal at a random moment; return what is wrong after that."""
        expected = self.finished(line)
        folder, moment = self._folder(), self.random.random() * expected.seconds * 1.05
        process = _start(line, folder)
        code: int | str
        try:
            code = process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
            code = self._ended(process)
        self.moments["ran to its end" if code == 0 else number.name] += 1
        left = _wait_for_group(process.pid)
        said = (folder / "stderr").read_text()
        wrong = [f"{len(left)} processes live on"] if left else []
        if code not in {0, -number, 128 + number}:
            wrong.append(f"exit {code}")
        if said.count("\n") > 1 or "Traceback" in said:
            wrong.append(f"stderr: {said[:300]!r}")
        wrong += self._of_files(folder, expected, may_leave=number == signal.SIGKILL)
        for one in left:
            os.kill(one, signal.SIGKILL)
        return wrong or self._of_next_run(line, folder, expected)

    def _ended(self, process: subprocess.Popen[bytes]) -> int | str:
        try:
            return process.wait(timeout=(most := patience()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"none within {most:.0f} s"

    def _of_files(self, folder: Path, expected: Finished, *, may_leave: bool) -> list[str]:
        wrong = [f"{name} was changed" for name, data in self.inputs.items() if (folder / name).read_bytes() != data]
        for name, data in _files(folder / "out").items():
            if name.startswith(".onnxtile."):
                wrong += [] if may_leave else [f"{name} is left"]
            elif expected.files.get(name) != data:
                wrong.append(f"{name} is not whole")
        left = sorted(path.name for path in (folder / "tmp").iterdir() if path.name != _DASKS_LOCKS)
        if left and not may_leave:
            wrong.append(f"temporary files are left: {left}")
        return wrong

    def _of_next_run(self, line: str, folder: Path, expected: Finished) -> list[str]:
        """Run the command again where the one that was ended left a temporary file: it is removed."""
        if not any(name.startswith(".onnxtile.") for name in _files(folder / "out")):
            return []
        self.moments["left a temporary file"] += 1
        _start(line, folder).wait(timeout=600)
        return (
            [] if _files(folder / "out") == expected.files else ["the next run does not leave the folder as it should"]
        )

    def _folder(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self.place))
        (folder / "out").mkdir()
        (folder / "tmp").mkdir()
        for name, data in self.inputs.items():
            (folder / name).write_bytes(data)
        return folder


def _start(line: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "stderr").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "onnxtile", *line.split(), "-q"],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


def _heed_all() -> None:
    """Heed what nohup, or a shell in the background, has this process ignore: its children would ignore it, too."""
    for number in SIGNALS[1:]:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files of `folder` by name; the whole paths in reports of a cluster start at OUT."""
    whole, short = str(folder.parent).encode(), b"OUT"
    return {path.name: path.read_bytes().replace(whole, short) for path in folder.iterdir() if path.is_file()}


def _wait_for_group(number: int) -> set[int]:
    """Return the processes of a session that are there after the time in which they have to end."""
    end = time.monotonic() + patience()
    while (left := _session(number)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _session(number: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == number:
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                found |= {int(entry.name)} if state != "Z" else set()
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


def main() -> None:
    """End as many commands as the options say; end with 1 where something is wrong after one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onnxtile-kills.") as place:
        kills, found = Kills(Path(place), given.seed), 0
        for turn in range(given.count):
            line, number = COMMANDS[turn % len(COMMANDS)], kills.random.choice(SIGNALS)
            wrong = kills.faults(line, number)
            found += bool(wrong)
            if wrong:
                sys.stdout.write(f"{turn}: {line}: {number.name}: {wrong}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{given.count} commands, {found} with a fault: {dict(kills.moments.most_common())}\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
