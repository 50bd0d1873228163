"""Windows and macOS lack calls of Linux: without them the commands do the same, simulated by taking the calls away."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

ROOT = Path(__file__).parent.parent

WITHOUT = """
import mmap, os, signal, sys, subprocess, tempfile, shutil, multiprocessing
{taken_away}
from onnxtile.__main__ import main
sys.argv = ["onnxtile", *sys.argv[1:]]
main()
"""
WINDOWS = """
for name in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[name] = None
for name in ("fork", "pread", "pwrite", "SEEK_DATA", "SEEK_HOLE", "O_NONBLOCK", "posix_fadvise", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
shutil._use_fd_functions = False  # as where os.open takes no folders
for name in ("SIGHUP", "SIGKILL", "SIGALRM"):
    delattr(signal, name)
for name in [name for name in vars(mmap) if name.startswith("MADV_")]:
    delattr(mmap, name)

class Mapped(mmap.mmap):
    madvise = property()

mmap.mmap = Mapped
opened = os.open

def open_file(path, *rest, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return opened(path, *rest, **more)

os.open = open_file
"""
MACOS = """
from pathlib import Path
read = Path.read_text

def read_text(self, *rest, **more):
    if str(self).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "No such file or directory", str(self))
    return read(self, *rest, **more)

Path.read_text = read_text
import fcntl

def refuse(*_):
    raise OSError(25, "Inappropriate ioctl for device")

fcntl.ioctl = refuse
"""
SYSTEMS = {"windows": WINDOWS, "macos": MACOS}

Run = Callable[..., str]


@pytest.fixture(name="run", params=SYSTEMS)
def _run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    def run(*arguments: object) -> str:
        script = WITHOUT.format(taken_away=SYSTEMS[request.param])
        command = [sys.executable, "-c", script, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def _model(path: Path, location: str | None) -> None:
    """Write a model whose weights are large enough to be mapped; at `location` beside it where that is given."""
    weights = np.random.default_rng(0).standard_normal((1024, 512)).astype(np.float32)
    weights[:512] = 0  # a hole
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 17]> g (float[4,1024] x) => (float[4,512] y) { h = MatMul(x, w) y = Relu(h) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    onnx.save(model, path, save_as_external_data=location is not None, location=location, size_threshold=0)


def test_models_are_read_planned_and_written_without_calls_of_linux(run: Run, tmp_path: Path) -> None:
    _model(tmp_path / "m.onnx", None)
    (tmp_path / "there").mkdir()
    run("plan", "m.onnx", "-o", "there/planned.onnx", "--emit", "plan.json")
    assert json.loads((tmp_path / "plan.json").read_text("utf-8"))["arenas"]
    assert np.array_equal(_weights(tmp_path / "there" / "planned.onnx"), _weights(tmp_path / "m.onnx"))


def test_weights_beside_a_model_are_carried_to_another_folder(run: Run, tmp_path: Path) -> None:
    _model(tmp_path / "m.onnx", "m.bin")
    (tmp_path / "there").mkdir()
    run("tile", "m.onnx", "--max", "2x_x_", "-o", "there/tiled.onnx", "--runs", "2GiB")
    assert (tmp_path / "there" / "m.bin").read_bytes() == (tmp_path / "m.bin").read_bytes()
    run("verify", "m.onnx", "there/tiled.onnx")


def test_a_pipeline_runs_over_several_processes(run: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        _model(tmp_path / f"{name}.onnx", None)
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "plan"\n')
    assert "a.onnx" in run("run", "p.toml", "a.onnx", "b.onnx", "--jobs", "2")


def _weights(path: Path) -> npt.NDArray[np.float32]:
    return np.asarray(numpy_helper.to_array(onnx.load(path).graph.initializer[0]), np.float32)


@pytest.mark.parametrize(("encoding", "shown"), [("cp1252", "x · ?(x)"), ("ascii", "x ? ?(x)"), ("utf-8", "x · σ(x)")])
def test_an_encoding_that_lacks_a_character_is_no_error(encoding: str, shown: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "onnxtile", "list", "patterns"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout.decode(encoding)


def test_a_pipe_whose_encoding_nobody_chose_is_utf_8() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "onnxtile", "list", "patterns", "--json", "-"]
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "x · σ(x)" in [one["summary"][-9:-1] for one in json.loads(done.stdout.decode())["names"]]


POSIX_ONLY = {"fcntl", "resource", "termios", "pwd", "grp", "pty"}
CALLS = {
    "pread",
    "pwrite",
    "SEEK_DATA",
    "SEEK_HOLE",
    "fork",
    "madvise",
    "SIGHUP",
    "SIGKILL",
    "getuid",
    "link",
    "mkfifo",
}


def sources(*words: str) -> Iterator[tuple[Path, ast.Module]]:
    """Yield the sources of the package in which one of `words` stands, parsed."""
    for file in sorted((ROOT / "onnxtile").rglob("*.py")):
        text = file.read_text("utf-8")
        if any(word in text for word in words):
            yield file, ast.parse(text)


def test_calls_of_posix_stand_in_one_module() -> None:
    for file, tree in sources(*POSIX_ONLY, *CALLS):
        if file.name == "posix.py":
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not POSIX_ONLY & {alias.name for alias in node.names}, file
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in POSIX_ONLY, file
            elif isinstance(node, ast.Attribute):
                assert node.attr not in CALLS, f"{file}:{node.lineno}"


def test_texts_are_read_and_written_as_utf_8() -> None:
    for file, tree in sources("read_text", "write_text"):
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in {"read_text", "write_text"}:
                place = 0 if node.func.attr == "read_text" else 1
                named = len(node.args) > place or any(keyword.arg == "encoding" for keyword in node.keywords)
                assert named, f"{file}:{node.lineno}"
