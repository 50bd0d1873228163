"""Workers end with the process that they work for, whatever ended that one."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from onnxtile.pipeline.run import Workers, starting_workers
from tests.hostile.kills import patience

WORKER = """
import os, sys, time
from pathlib import Path
from onnxtile.system.files import staged
from onnxtile.system.interpreter import end_with
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
    assert until(lambda: not alive(worker), patience())
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]


def test_a_worker_whose_parent_has_gone_does_not_begin() -> None:
    script = "import os\nfrom onnxtile.system.interpreter import end_with\nend_with(os.getppid() + 1)\nprint('began')"
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
@pytest.mark.parametrize("moment", [0.0, 0.4])
def test_workers_that_are_being_started_say_nothing_of_ctrl_c(tmp_path: Path, moment: float) -> None:
    """A terminal sends it to all of them, also while they import modules."""
    (tmp_path / "p.toml").write_text(PIPELINE)
    script = (
        "import os, threading, time\nfrom onnxtile.system.registry import defer_libraries\ndefer_libraries()\n"
        "from onnxtile.cli.streams import Signals\n"
        "from onnxtile.pipeline.run import Workers\nsignals = Signals()\nsignals.heed()\n"
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


@pytest.mark.skipif(sys.platform == "win32", reason="a process cannot send Ctrl-C to itself there")
def test_the_start_of_workers_is_not_interrupted_half_way() -> None:
    """The system gives the signal to the other thread, since this one blocks it."""
    ended, whole = threading.Event(), False
    threading.Thread(target=ended.wait, daemon=True).start()
    with pytest.raises(KeyboardInterrupt), starting_workers():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        whole = True
    ended.set()
    assert whole and signal.getsignal(signal.SIGINT) is signal.default_int_handler


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


def test_workers_stand_in_the_folder_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers of an earlier run stay alive for the next one. Their libraries wait for their first use, as those of a command do."""

    def here(_: int) -> tuple[Path, bool]:
        import onnxtile.pipeline.run  # noqa: F401

        return Path().absolute(), "sympy.core" in sys.modules

    assert set(Workers(2).each(Path.absolute, [Path()] * 3)) == {Path.cwd()}
    monkeypatch.chdir(tmp_path)
    assert set(Workers(2).each(here, range(3))) == {(tmp_path, False)}
