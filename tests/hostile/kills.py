"""Ends commands by signals at random moments, and prints what was found: `python -m tests.hostile.kills --count 100`.

After each, every file is the old one, the whole new one, or absent, and no process is left. What SIGKILL leaves, the next run removes.
Half of the signals go to the command alone, as `kill` sends them, the others to its whole group, as a terminal does. `--only run` takes
the commands of that name; those that need an absent package are left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from onnxtile.system.registry import data_folder

SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
COMMANDS = (
    "fuse a.onnx -o out/o.onnx --json out/r.json --no-verify",
    "tile a.onnx --max 64 -o out/o.onnx --no-verify",
    "plan a.onnx --no-verify --emit out/p.json --emit out/p.html -o out/o.onnx",
    "run p.toml a.onnx b.onnx --jobs 2 -o out --json out/s.json",
    "run p.toml a.onnx b.onnx -o out --json out/s.json",
    "run p.toml a.onnx b.onnx --jobs 2 --backend dask -o out --json out/s.json",
    "fit a.onnx --capacity 64KiB -o out/o.onnx --emit out/p.json --json out/r.json --no-verify",
    "fuse e.onnx -o out/o.onnx --no-verify",
    "tile e.onnx --max 64 -o out/o.onnx",
    "run v.toml a.onnx b.onnx --jobs 2 -o out --json out/s.json",
    "run v.toml a.onnx b.onnx --jobs 2 --backend threading -o out --json out/s.json",
    "run v.toml a.onnx b.onnx -o out --json out/s.json",
    "run v.toml a.onnx b.onnx --jobs 2 --backend dask -o out --json out/s.json",
)
PIPELINE = """[[steps]]
do = "fuse"
verify = false
[[steps]]
do = "plan"
emit = ["json"]
verify = false
"""
VERIFIED = f"{PIPELINE}[[steps]]\ndo = 'verify'\nruns = 40\n"
_OF_CLUSTERS = {"dask-scratch-space"}
"""A folder of locks and logs that Dask makes, which all its programs on a machine share and leave there."""
_BEFORE = ("Could not import runpy module", "Failed to import the site module", "in _get_module_details")
"""Messages of Python where a signal comes before it has begun with the program."""
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
    nice: int = 0
    """That of the session of each command, where the system groups processes by session, from -20 to 19."""
    moments: Counter[str] = field(default_factory=Counter)
    longest: dict[str, float] = field(default_factory=dict)
    """Seconds from the signal until the last process had ended, the most by the name of each kind of command."""

    def __post_init__(self) -> None:
        _heed_all()
        self.random = random.Random(self.seed)
        self.known: dict[str, Finished] = {}
        model = (data_folder("models") / "transformer.onnx").read_bytes()
        self.inputs = {"a.onnx": model, "b.onnx": model, "p.toml": PIPELINE.encode(), "v.toml": VERIFIED.encode()}
        self.inputs |= _with_external_data(model, self.place)

    def finished(self, line: str) -> Finished:
        """Return what the command leaves when it runs to its end."""
        if line not in self.known:
            folder = self._folder()
            start = time.monotonic()
            if _start(line, folder, self.nice).wait(timeout=600):
                sys.exit(f"{line} fails by itself: {(folder / 'stderr').read_text()}")
            self.known[line] = Finished(_files(folder / "out"), time.monotonic() - start)
        return self.known[line]

    def faults(self, line: str, number: signal.Signals) -> list[str]:
        """End the command by the signal at a random moment; return what is wrong after that."""
        expected = self.finished(line)
        folder, moment = self._folder(), self.random.random() * expected.seconds * 1.05
        of_group = number != signal.SIGKILL and self.random.random() < 0.5
        process = _start(line, folder, self.nice)
        code: int | str
        sent = None
        try:
            code = process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            sent = time.monotonic()
            (os.killpg if of_group else os.kill)(process.pid, number)
            code = self._ended(process)
        self.moments["ran to its end" if code == 0 else f"{number.name}{' of the group' if of_group else ''}"] += 1
        left = _wait_for_all(process.pid, folder)
        if sent is not None:
            self.longest[kind(line)] = max(self.longest.get(kind(line), 0.0), time.monotonic() - sent)
        said = (folder / "stderr").read_text()
        wrong = [f"processes live on: {sorted(map(_name, left))}"] if left else []
        if code not in {0, -number, 128 + number}:
            wrong.append(f"exit {code}")
        if said.count("\n") > 1 or "Traceback" in said:
            wrong.append(f"stderr: {said[:300]!r}")
        if any(one in said for one in _BEFORE) and "onnxtile/" not in said:
            self.moments["while Python itself started"] += 1  # no code of onnxtile has run
            wrong = []
        wrong += self._of_files(folder, expected, may_leave=number == signal.SIGKILL)
        for one in left:
            os.kill(one, signal.SIGKILL)
        wrong = wrong or self._of_next_run(line, folder, expected)
        shutil.rmtree(folder)
        return wrong

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
                wrong.append(f"{name} is not whole: {data[-300:]!r}")
        left = sorted(path.name for path in (folder / "tmp").iterdir() if path.name not in _OF_CLUSTERS)
        if left and not may_leave:
            wrong.append(f"temporary files are left: {left}")
        return wrong

    def _of_next_run(self, line: str, folder: Path, expected: Finished) -> list[str]:
        """Run the command again where the one that was ended left a temporary file: it is removed."""
        if not any(name.startswith(".onnxtile.") for name in _files(folder / "out")):
            return []
        self.moments["left a temporary file"] += 1
        _start(line, folder, self.nice).wait(timeout=600)
        return (
            [] if _files(folder / "out") == expected.files else ["the next run does not leave the folder as it should"]
        )

    def _folder(self) -> Path:
        # Short, since the sockets of a cluster lie in it, whose paths the system limits to 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="", dir=self.place))
        (folder / "out").mkdir()
        (folder / "tmp").mkdir()
        for name, data in self.inputs.items():
            (folder / name).write_bytes(data)
        return folder


def _start(line: str, folder: Path, nice: int) -> subprocess.Popen[bytes]:
    with (folder / "stderr").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "onnxtile", *line.split(), "-q"],
            cwd=folder,
            env={**os.environ, "TMPDIR": str(folder / "tmp")},
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    if nice:
        Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))
    return process


def _heed_all() -> None:
    """Heed what nohup, or a shell in the background, has this process ignore: its children would ignore it, too."""
    for number in SIGNALS[1:]:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _files(folder: Path) -> dict[str, bytes]:
    """Return the files of `folder` by name; the whole paths in reports of a cluster start at OUT."""
    whole, short = str(folder.parent).encode(), b"OUT"
    return {path.name: path.read_bytes().replace(whole, short) for path in folder.iterdir() if path.is_file()}


def _wait_for_all(number: int, folder: Path) -> set[int]:
    """Return the processes of a command that are there after the time in which they have to end."""
    end = time.monotonic() + patience()
    while (left := _started_by(number, folder)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def _started_by(number: int, folder: Path) -> set[int]:
    """Return the live processes of the session `number`, and those that have their temporary files in `folder`."""
    found, mark = set(), f"TMPDIR={folder / 'tmp'}\0".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (
                os.getsid(int(entry.name)) == number or mark in (entry / "environ").read_bytes()
            ):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                found |= {int(entry.name)} if state != "Z" else set()
        except (ProcessLookupError, FileNotFoundError, PermissionError):
            continue
    return found


def _name(number: int) -> str:
    """Return the arguments of a process, shortened."""
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[-120:]
    except OSError:
        return "?"


def _with_external_data(model: bytes, place: Path) -> dict[str, bytes]:
    """Return the files of `model` with its weights in a file beside it."""
    path = place / "e.onnx"
    loaded = onnx.ModelProto.FromString(model)
    onnx.save_model(loaded, path, save_as_external_data=True, location="e.onnx.data", size_threshold=1024)
    return {one.name: one.read_bytes() for one in (path, place / "e.onnx.data")}


def kind(line: str) -> str:
    """Return the command's name, and for `run` who does the work."""
    words = line.split()
    if words[0] != "run":
        return words[0]
    serial = "serial" if "--jobs" not in words else "processes"
    return f"run {words[words.index('--backend') + 1] if '--backend' in words else serial}"


def possible() -> list[str]:
    """Return the commands whose packages are installed."""
    has_dask = importlib.util.find_spec("distributed") is not None
    return [line for line in COMMANDS if has_dask or "--backend dask" not in line]


def main() -> None:
    """End as many commands as the options say; end with 1 where something is wrong after one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nice", type=int, default=0, help="of each command's session: below 0 beside other work")
    parser.add_argument("--only", default="", help="commands whose kind has this in its name, as 'run dask' has")
    given = parser.parse_args()
    commands = [line for line in possible() if given.only in kind(line)]
    with tempfile.TemporaryDirectory(prefix="k.") as place:
        kills, found = Kills(Path(place), given.seed, given.nice), 0
        for turn in range(given.count):
            line, number = commands[turn % len(commands)], kills.random.choice(SIGNALS)
            wrong = kills.faults(line, number)
            found += bool(wrong)
            if wrong:
                sys.stdout.write(f"{turn}: {line}: {number.name}: {wrong}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{given.count} commands, {found} with a fault: {dict(kills.moments.most_common())}\n")
    slowest = {name: round(seconds, 1) for name, seconds in sorted(kills.longest.items())}
    sys.stdout.write(f"most seconds from the signal to the end of the last process: {slowest}\n")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
