"""Workers end with the process that they work for, whatever ended that one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hostile.kills import patience

WORKER = """
import os, sys, time
from pathlib import Path
from onnxtile.system.files import staged
from onnxtile.pipeline.parent import end_with
end_with(os.getppid())
with staged({Path("result"): b"half"}):
    Path("pid").write_text(str(os.getpid()))
    os.rename("pid", "ready")
    time.sleep(60)
"""
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {WORKER!r}])
"""
PIPELINE = '[[steps]]\ndo = "verify"\nruns = 1000000\n'


def alive(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{number}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def until(true: object, seconds: float) -> bool:
    assert callable(true)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform == "win32", reason="a process keeps its parent's number there")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_ends_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], cwd=tmp_path) as parent:
        assert until((tmp_path / "ready").exists, 30)
        worker = int((tmp_path / "ready").read_text())
        parent.send_signal(number)
        parent.wait(timeout=10)
    assert until(lambda: not alive(worker), 5)
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


def test_a_worker_whose_parent_has_gone_does_not_begin() -> None:
    script = "import os\nfrom onnxtile.pipeline.parent import end_with\nend_with(os.getppid() + 1)\nprint('began')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def _group(number: int) -> set[int]:
    """Return the live processes of a process group."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getpgid(int(entry.name)) == number and alive(int(entry.name)):
                found.add(int(entry.name))
        except (ProcessLookupError, FileNotFoundError):
            continue
    return found


@pytest.mark.skipif(not Path("/proc").exists(), reason="its processes are not listed here")
@pytest.mark.parametrize("moment", [0.0, 0.2, 0.4, 0.6])
def test_workers_that_are_being_started_say_nothing_of_ctrl_c(tmp_path: Path, moment: float) -> None:
    """A terminal sends it to all of them, also while they import modules."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    script = (
        "import os, threading, time\nfrom onnxtile.cli.streams import Signals\n"
        "from onnxtile.pipeline.workers import Workers\nsignals = Signals()\nsignals.heed()\n"
        "threading.Timer(0.1, print, ['started'], {'flush': True}).start()\n"
        "try:\n    list(Workers(2).each(time.sleep, [60, 60]))\nexcept KeyboardInterrupt:\n    os._exit(130)\n"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, cwd=tmp_path, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"started\n"
        assert until(lambda: len(_group(process.pid)) >= 3, 60)
        time.sleep(moment)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    assert (process.returncode, said) == (130, b"")


@pytest.mark.skipif(not Path("/proc").exists(), reason="its processes are not listed here")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_a_run_ends_with_all_its_workers(tmp_path: Path, transformer: Path, number: signal.Signals) -> None:
    (tmp_path / "p.toml").write_text(PIPELINE)
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(transformer.read_bytes())
    command = [sys.executable, "-m", "onnxtile", "run", "p.toml", "a.onnx", "b.onnx", "--jobs", "2", "-q"]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE) as process:
        # The command, a process that tracks its resources, and two workers.
        assert until(lambda: len(_group(process.pid)) >= 4, 60)
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(timeout=patience()) == (-number if number == signal.SIGKILL else 128 + number)
        assert until(lambda: not _group(process.pid), patience())
        assert process.stderr is not None
        assert process.stderr.read().decode() == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "p.toml"]


CLUSTER = """
import os, subprocess, sys, time
from pathlib import Path
from onnxtile.pipeline.cluster_processes import ended_with_this_process
other = subprocess.Popen(["sleep", "60"])
with ended_with_this_process():
    # One that writes over its environment, as Ray's agents do, and is in a session of its own.
    nested = "exec env -i setsid sleep 60 & echo $! > pids; sleep 60"
    subprocess.Popen(["sh", "-c", nested], start_new_session=True)
    while not Path("pids").exists() or not Path("pids").read_text().endswith("\\n"):
        time.sleep(0.01)
    time.sleep(1.2)  # two looks
    print(Path("pids").read_text().strip(), other.pid, flush=True)
    if sys.argv[1] == "wait":
        time.sleep(60)
other.kill()
other.wait()
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are not listed here")
@pytest.mark.parametrize("way", ["wait", "leave"])
def test_processes_of_a_cluster_end_with_the_one_that_began_it(tmp_path: Path, way: str) -> None:
    command = [sys.executable, "-c", CLUSTER, way]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        nested, other = map(int, process.stdout.readline().split())
        if way == "wait":
            assert alive(nested)
            process.kill()
    assert until(lambda: not alive(nested), 5)
    if way == "wait":  # it was started outside of the block
        assert alive(other)
        os.kill(other, signal.SIGKILL)
