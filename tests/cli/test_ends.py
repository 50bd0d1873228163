"""How a command ends: signals at any time, streams that are closed, and outputs that are all written or none."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onnxtile.report.format import Emission
from onnxtile.system.errors import UsageError
from tests.cli.conftest import Run, files

FUSE = "fuse m.onnx -p LayerNorm --no-verify -o out.onnx"


def python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_after_the_work_is_an_exit_code_and_no_traceback(name: str) -> None:
    """It comes while Python takes itself down, where an exception would be printed and forgotten."""
    done = python(
        "import atexit, os, signal\n"
        "from onnxtile.cli.streams import Signals\n"
        f"atexit.register(lambda: os.kill(os.getpid(), signal.{name}))\n"
        "signals = Signals()\nsignals.heed()\nsignals.finish()\n"
    )
    assert (done.returncode, done.stderr) == (128 + getattr(signal, name), "")


def test_a_signal_in_a_finaliser_is_not_lost() -> None:
    """Python cannot raise there: the work goes on to its end, and the exit code says what was asked."""
    done = python(
        "import os, signal, sys\n"
        "from onnxtile.cli.streams import Signals\n"
        "class Last:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        for i in range(1000): pass\n"
        "signals = Signals()\nsignals.heed()\nLast()\nsys.exit(signals.code)\n"
    )
    assert (done.returncode, done.stderr) == (143, "")


def test_a_lack_of_memory_in_a_finaliser_is_not_printed() -> None:
    """The next piece of memory that is asked for is refused, too, and that ends the command in one line."""
    done = python(
        "from onnxtile.system.interpreter import silence_finalisers\nsilence_finalisers()\n"
        "class Last:\n    def __del__(self):\n        raise MemoryError\n"
        "Last()\n"
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted where the system lists them")
def test_numpy_starts_no_threads_in_a_command() -> None:
    """They would take processor time without any work."""
    done = python(
        "import os\n"
        "os.environ.pop('OPENBLAS_NUM_THREADS', None)\n"
        "from onnxtile import __main__, cli\n"
        "def count() -> None:\n"
        "    import numpy\n"
        "    print(len(os.listdir('/proc/self/task')))\n"
        "cli.main = count\n__main__.main()\n"
    )
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_the_first_of_several_signals_counts() -> None:
    done = python(
        "import os, signal, sys\n"
        "from onnxtile.cli.streams import Signals\n"
        "signals = Signals()\nsignals.heed()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGHUP)\n"
        "finally:\n    os.kill(os.getpid(), signal.SIGTERM)\n    print('cleaned')\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (129, "cleaned\n", "")


def test_signals_that_the_caller_ignores_stay_ignored() -> None:
    """As nohup does."""
    done = python(
        "import os, signal\n"
        "from onnxtile.cli.streams import Signals\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "Signals().heed()\nos.kill(os.getpid(), signal.SIGHUP)\nprint('on')\n"
    )
    assert (done.returncode, done.stdout) == (0, "on\n")


@pytest.mark.parametrize(
    ("line", "redirected", "code"),
    [
        (FUSE, "2>&-", 0),
        (FUSE, ">&-", 0),
        (FUSE, "<&- >&- 2>&-", 0),
        ("match m.onnx MatMul --json r.json", ">&- 2>&-", 0),
        ("match m.onnx LSTM", "2>&-", 1),
        ("fuse absent.onnx", "2>&-", 2),
        ("fuse absent.onnx", "2> >(true)", 2),
    ],
)
def test_closed_streams_change_nothing_else(run: Run, folder: Path, line: str, redirected: str, code: int) -> None:
    command = f"{sys.executable} -m onnxtile"
    plain = run(*line.split())
    expected = files(folder)
    for name in expected.keys() - {"m.onnx"}:
        (folder / name).unlink()
    done = subprocess.run(
        ["bash", "-c", f"{command} {line} {redirected}"], cwd=folder, capture_output=True, check=False
    )
    assert plain.code == done.returncode == code
    assert files(folder) == expected


@pytest.mark.parametrize("line", ["fuse m.onnx -p LayerNorm -o -", "match m.onnx MatMul --json -"])
def test_a_result_for_a_closed_stdout_is_refused(folder: Path, line: str) -> None:
    command = f"{sys.executable} -m onnxtile {line} >&-"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "stdout is closed" in done.stderr


@pytest.mark.parametrize("length", [300, 5000])
def test_a_query_may_be_longer_than_the_name_of_a_file(run: Run, folder: Path, length: int) -> None:
    query = f"({'|'.join(['MatMul'] * (length // 7))})-*>Add"
    assert len(query) > 255
    short = run("match", "m.onnx", "MatMul-*>Add", "--json", "-")
    done = run("match", "m.onnx", query, "--json", "-")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["matches"] == json.loads(short.out)["matches"]
    assert run("fuse", "m.onnx", "-p", query, "--no-verify", "-q", "--dry-run").code == 0
    assert files(folder).keys() == {"m.onnx"}


def test_a_pattern_file_is_not_written_over(run: Run, folder: Path) -> None:
    (folder / "p.toml").write_text('name = "P"\ndoc = "x"\n[[variants]]\nquery = "MatMul-*>Add"\n')
    done = run("fuse", "m.onnx", "-p", "p.toml", "--json", "p.toml")
    assert done.code == 2 and "over what is read" in done.err


def _unwritable(_emission: Emission, _plan: object) -> dict[Path, bytes]:
    raise UsageError("this format cannot say it")


def test_a_plan_that_a_format_cannot_say_leaves_nothing_written(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files(folder)
    # TensorFlow Lite Micro has one arena, and this plan two.
    two = ("--capacity", "a=20KiB", "--capacity", "b=8MiB")
    done = run("plan", "m.onnx", "--no-verify", *two, "--emit", "p.json", "--emit", "p.tflm", "--json", "r.json")
    assert done.code == 2 and "one arena" in done.err
    assert files(folder) == before
    monkeypatch.setattr(Emission, "content", _unwritable)
    (folder / "b.csv").write_text("id,lower,upper,size\na,0,1,4\n")
    before = files(folder)
    assert run("plan", "b.csv", "--emit", "p.html", "--json", "r.json").code == 2
    assert files(folder) == before


OUTPUTS = {
    "plan": ("plan", "m.onnx", "--no-verify", "--emit", "p.csv", "--json", "r.json"),
    "fuse": (*FUSE.split(), "--json", "r.json"),
    "inspect": ("inspect", "m.onnx", "--emit", "n.csv", "--json", "r.json"),
    "trace": ("inspect", "m.onnx", "--trace", "Softmax", "-o", "a.npz", "--json", "r.json"),
    "pattern": ("pattern", "new", "--from", "m.onnx", "--nodes", "{node}", "-o", "p.toml", "--json", "r.json"),
}


@pytest.mark.parametrize("fault", ["the JSON cannot be rendered", "the tables cannot be rendered", "the disk is full"])
@pytest.mark.parametrize("verb", OUTPUTS)
def test_a_failure_leaves_no_output_of_any_kind(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, verb: str, fault: str
) -> None:
    root = json.loads(run("match", "m.onnx", "MatMul", "--json", "-").out)["matches"][0]["root"]
    line = [part.format(node=root) for part in OUTPUTS[verb]]
    before = files(folder)

    def fail(*_arguments: object) -> Any:
        raise UsageError("not this one")

    if fault == "the JSON cannot be rendered":
        monkeypatch.setattr("onnxtile.cli.command.as_json", fail)
    elif fault == "the tables cannot be rendered":
        if verb == "pattern":
            pytest.skip("it prints no table")
        monkeypatch.setattr("onnxtile.cli.command._tables", fail)
    else:
        line[-1] = "/dev/full"
    done = run(*line)
    assert done.code == 2 and done.err.startswith("error: ")
    assert files(folder) == before


def test_what_is_written_is_named_as_it_is(run: Run, folder: Path) -> None:
    """Square brackets are not marks of style."""
    done = run("fuse", "m.onnx", "-p", "LayerNorm", "--no-verify", "-o", "[/red]m[bold].onnx"[6:])
    assert "written: m[bold].onnx\n" in done.out
    Path(folder / "m[bold].onnx").unlink()


CRASHES = {
    "address 0": "ctypes.string_at(0)",
    "a word of the C library": "(free(at := malloc(64)), free(at))",
    "a word of a library": "(os.write(2, b'terminate called'), os.abort())",
}
"""Ends of a kernel that a model with odd values leads astray."""


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_of_a_library_is_one_line(tmp_path: Path, crash: str) -> None:
    """The C library says on stderr that memory was freed twice, and aborts."""
    (tmp_path / "m.onnxtxt").write_text(
        '<ir_version: 10, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }'
    )
    done = python(
        "import ctypes, os, sys, onnxruntime\n"
        "malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free\n"
        "malloc.restype, free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]\n"
        f"onnxruntime.InferenceSession.__init__ = lambda *_, **__: {CRASHES[crash]}\n"
        f"sys.argv = ['onnxtile', 'inspect', {str(tmp_path / 'm.onnxtxt')!r}, '--trace', '.']\n"
        "from onnxtile.__main__ import main\n"
        "main()\n"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: a library crashed on this model: ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
def test_an_interrupt_while_modules_are_imported_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "difflib.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from onnxtile.__main__ import main; main()"
    done = python(script)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    (tmp_path / "difflib.py").rename(tmp_path / "typer.py")  # which is loaded for help, once signals are handled
    done = python(script)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_nothing_is_imported_before_interrupts_are_handled() -> None:
    """Only what Python itself, or the module signal, has imported: Ctrl-C in an import would print a traceback."""
    done = python(
        "import signal, sys\nbefore = set(sys.modules)\nimport onnxtile.__main__\nprint(*sorted(set(sys.modules) - before))\n"
    )
    assert done.stdout.split() == ["onnxtile", "onnxtile.__main__"], done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no signals of this kind")
def test_an_interrupt_of_the_other_command_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "difflib.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    start = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from onnxtile.__main__ import minimalloc; "
    done = python(f"{start}minimalloc()")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
    script = "import os, signal, time; time.monotonic = lambda: os.kill(os.getpid(), signal.SIGINT); "
    done = python(f"from onnxtile.__main__ import minimalloc; {script}minimalloc()")
    assert (done.returncode, done.stderr) == (130, "")


IN_A_RUN = """
import onnx
from onnxtile.system.runtime import Session
model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 17]>
  g (float[64, 64] x) => (float[64, 64] y) <int64 n = {1000000000}, bool go = {1}> {
    y = Loop (n, go, x) <body = l (int64 turn, bool on, float[64, 64] v) => (bool o, float[64, 64] w)
      { o = Identity(on) w = MatMul(v, v) }>
  }''')
session = Session(model.SerializeToString())
print("ready", flush=True)
with RunLimits(seconds=100).held():
    session.run({"x": np.zeros((64, 64), np.float32)})
"""
IN_A_LIBRARY = """
import hashlib
from onnxtile.system.files import temporary_file, temporary_folder
with temporary_file(Path()), temporary_folder() as folder:
    (folder / "m").write_bytes(b"m")
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""
IN_A_THREAD = f"""
def work():
    {"    ".join(IN_A_LIBRARY.strip().splitlines(keepends=True))}
threading.Thread(target=work).start()
time.sleep(100)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are those of POSIX")
@pytest.mark.parametrize("work", [IN_A_RUN, IN_A_LIBRARY, IN_A_THREAD])
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_a_call_of_a_library_that_takes_minutes(tmp_path: Path, work: str, name: str) -> None:
    """Python alone would call the handler after the call; nor does it end while another thread works."""
    script = (
        "import sys, threading, time\nfrom pathlib import Path\nimport numpy as np\nfrom onnxtile.cli import streams\n"
        "from onnxtile.system.long_work import RunLimits\nstreams._GRACE = 0.1\nsignals = streams.Signals()\nsignals.heed()\n"
        f"try:\n    exec({work!r}, globals())\nexcept BaseException as error:\n"
        "    if not signals.code: raise\nsys.exit(signals.code)\n"
    )
    command, own = [sys.executable, "-c", script], {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=own, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        time.sleep(0.2)
        process.send_signal(getattr(signal, name))
        said = process.communicate(timeout=10)[1]
    assert process.returncode == 128 + getattr(signal, name)
    assert said in {b"", b"error: interrupted\n"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_raises_nothing_while_a_compiled_module_is_imported(tmp_path: Path, name: str) -> None:
    """It would pass through C++, as of nanobind, which ends the process by std::terminate."""
    done = python(
        "import os, signal\n"
        "from importlib.machinery import ExtensionFileLoader\n"
        "from pathlib import Path\n"
        "from onnxtile.cli.streams import Signals\n"
        "from onnxtile.system.files import temporary_file\n"
        "class Compiled(ExtensionFileLoader):\n"
        "    def create_module(self, spec):\n"
        f"        try: os.kill(os.getpid(), signal.{name})\n"
        "        except BaseException: os.write(2, b'raised')\n"
        "Signals().heed()\n"
        f"with temporary_file(Path({str(tmp_path)!r})):\n"
        "    Compiled('m', 'm').create_module(None)\n"
    )
    assert done.returncode == 128 + getattr(signal, name)
    assert done.stderr == ("error: interrupted\n" if name == "SIGINT" else "")
    assert list(tmp_path.iterdir()) == []
