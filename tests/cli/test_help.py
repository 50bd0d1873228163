"""Help is short, quick, and has examples that work."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import typer.main

from onnxtile.cli.app import build, verbs
from onnxtile.declare.option import parameters

COLUMNS = 80
CLAUSE = 16
"""Words of an option's help, at most."""
HEAVY = {"onnx", "onnx_ir", "onnxruntime", "numpy", "networkx", "rich", "joblib"}


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


APP: Any = typer.main.get_command(build())
COMMANDS = list(_commands(APP))


def _command(path: tuple[str, ...]) -> Any:
    found = APP
    for name in path:
        found = found.commands[name]
    return found


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_the_width_of_a_terminal(
    run: Callable[..., Any], path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    lines = run(*path, "--help").out.splitlines()
    text = lines[: lines.index("Examples:")] if "Examples:" in lines else lines
    assert max(len(line) for line in text) < COLUMNS


@pytest.mark.parametrize("verb", verbs())
def test_the_help_of_an_option_is_one_short_clause(verb: str) -> None:
    """It begins in lower case and ends without a full stop."""
    for name, parameter in parameters(verbs()[verb].command).items():
        text = parameter.about.help
        assert text[:1] != text[:1].upper() or text[:2].isupper() or text.startswith("ONNX"), (name, text)
        assert not text.endswith(".") or text.endswith("..."), (name, text)
        assert len(text.split()) <= CLAUSE, (name, text)


@pytest.mark.parametrize("path", [path for path in COMMANDS if path != ("pattern",)], ids=" ".join)
def test_the_examples_stand_on_lines_of_their_own_and_are_read(run: Callable[..., Any], path: tuple[str, ...]) -> None:
    lines = run(*path, "--help").out.splitlines()
    examples = [line.strip() for line in lines[lines.index("Examples:") + 1 :]]
    assert examples
    for example in examples:
        words = shlex.split(example)
        assert words[: len(path) + 1] == ["onnxtile", *path]
        command = _command(path or (words[1],))
        with command.make_context(words[1], words[len(path or "1") + 1 :]) as context:
            assert context.params


def test_the_options_stand_under_headings(run: Callable[..., Any]) -> None:
    lines = run("plan", "--help").out.splitlines()
    headings = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == ["Arguments:", "Options:", "Search:", "Sizes and inputs:", "Writing:", "Reporting:", "Examples:"]


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plan", "-h"], ["run", "--help"]], ids=" ".join)
def test_nothing_heavy_is_loaded_for_help(arguments: list[str]) -> None:
    """In a process of its own, where nothing was loaded before."""
    script = f"""
import sys
from onnxtile.cli import main
sys.argv = ["onnxtile", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert end.code == 0
sys.stderr.write(" ".join(sorted({HEAVY!r} & sys.modules.keys())))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("verb", ["plan", "list"])
def test_the_command_of_a_verb_loads_no_other_verb(verb: str) -> None:
    script = f"""
import sys
from onnxtile.cli import main
sys.argv = ["onnxtile", {verb!r}, "--help"]
try:
    main()
except SystemExit as end:
    assert end.code == 0
verbs = (name for name in sys.modules if name.startswith("onnxtile.verbs.") and name.count(".") == 2)
sys.stderr.write(" ".join(verbs))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout
    assert done.stderr == f"onnxtile.verbs.{verb}"


@pytest.mark.parametrize("arguments", [(), ("pattern",)], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(run: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("Usage: onnxtile")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fuze", "m.onnx"), "No such command 'fuze'. Did you mean 'fuse', 'unfuse'? (onnxtile --help"),
        (("fuse",), "Missing argument 'IN'. (onnxtile fuse --help"),
        (
            ("plan", "m.onnx", "--plannner", "best"),
            "--plannner (Possible options: --place, --planner, --runner) (onnxtile plan --help",
        ),
        (("pattern", "nw"), "Did you mean 'new'? (onnxtile pattern --help"),
        (("plan", "m.onnx", "--streams", "two"), "invalid --streams 'two': give a whole number"),
        (("plan", "m.onnx", "--planner"), "'--planner' requires an argument"),
    ],
)
def test_a_slip_of_the_pen_gets_what_was_meant(
    run: Callable[..., Any], arguments: tuple[str, ...], message: str
) -> None:
    done = run(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: ") and message in done.err and done.err.count("\n") == 1
