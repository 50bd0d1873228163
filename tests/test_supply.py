"""The package runs no text as code, reads no pickle, and asks nobody over the network."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import onnxtile

SOURCES = sorted(Path(onnxtile.__file__).parent.rglob("*.py"))
CALLS = {"eval", "exec", "compile", "__import__"}
MODULES = {
    *(
        "pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
        "socket",
        "ssl",
        "ftplib",
        "smtplib",
        "telnetlib",
    ),
    *("http", "urllib", "requests", "httpx", "aiohttp", "webbrowser", "xmlrpc", "code", "codeop"),
}
GIVEN = {"shell", "allow_pickle", "trust_remote_code"}


def found(text: str) -> set[str]:
    """Return what a source calls, imports or allows that the package does without."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            names.add(node.func.id)
        elif isinstance(node, ast.Import):
            names |= {one.name for one in node.names if one.name.partition(".")[0] in MODULES}
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] in MODULES:
            names.add(str(node.module))
        elif isinstance(node, ast.keyword) and node.arg in GIVEN:
            names |= {node.arg} if not (isinstance(node.value, ast.Constant) and node.value.value is False) else set()
    return names


@pytest.mark.parametrize(
    "text",
    ["eval(x)", "import pickle", "from urllib.request import urlopen", "run(x, shell=True)", "load(x, allow_pickle=a)"],
)
def test_each_is_found(text: str) -> None:
    assert found(text)


def test_no_source_has_any() -> None:
    assert len(SOURCES) > 150
    assert {path.name: names for path in SOURCES if (names := found(path.read_text("utf-8")))} == {}


WATCHED = """
import os, sys
from pathlib import Path
asked = {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "pickle.find_class"}
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
places = {"open": [0], "os.mkdir": [0], "os.rename": [0, 1], "os.remove": [0], "os.rmdir": [0], "os.link": [1], "os.symlink": [1]}
allowed = (str(Path("out").resolve()), os.environ["TMPDIR"])
def refuse(event, arguments):
    if event in asked:
        raise RuntimeError(f"{event} {arguments}")
    if event == "open" and not (arguments[2] or 0) & writing:
        return
    for place in places.get(event, ()):
        path = arguments[place]
        if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path) != os.devnull:
            if not os.path.realpath(os.fsdecode(path)).startswith(allowed):
                sys.stderr.write(f"{event} {arguments}")
sys.addaudithook(refuse)
from onnxtile.__main__ import main
main()
"""
COMMANDS = (
    "inspect m.onnx --trace Softmax -o out/t.npz",
    "fuse m.onnx -o out/o.onnx --json out/r.json",
    "tile m.onnx --max 64 -o out/o.onnx",
    "plan m.onnx -o out/o.onnx --emit out/p.html --emit out/p.json --emit out/p.certificate.json",
    "fit m.onnx --capacity 129KiB -o out/o.onnx --emit out/p.json",
    "verify m.onnx m.onnx --json out/v.json",
    "run p.toml m.onnx -o out --json out/s.json",
)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_opens_no_connection_reads_no_pickle_and_writes_into_its_folder_alone(
    tmp_path: Path, shallow: Path, line: str
) -> None:
    (tmp_path / "m.onnx").write_bytes(shallow.read_bytes())
    (tmp_path / "p.toml").write_text('[[steps]]\ndo = "fuse"\n[[steps]]\ndo = "plan"\nemit = ["json"]\n')
    for folder in ("out", "tmp"):
        (tmp_path / folder).mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    command = [sys.executable, "-B", "-c", WATCHED, *line.split()]
    own = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "tmp").iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == before
    assert list((tmp_path / "out").iterdir())
