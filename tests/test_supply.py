"""The package runs no text as code, reads no pickle, and asks nobody over the network."""

from __future__ import annotations

import ast
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
    assert len(SOURCES) > 500
    assert {path.name: names for path in SOURCES if (names := found(path.read_text("utf-8")))} == {}


WATCHED = """
import sys
def refuse(event, arguments):
    if event in {"socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "pickle.find_class"}:
        raise RuntimeError(f"{event} {arguments}")
sys.addaudithook(refuse)
from onnxtile.__main__ import main
main()
"""


def test_a_command_opens_no_connection_and_reads_no_pickle(tmp_path: Path, shallow: Path) -> None:
    line = ["plan", str(shallow), "-o", "o.onnx", "--emit", "p.html", "--emit", "p.json"]
    command = [sys.executable, "-c", WATCHED, *line]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
