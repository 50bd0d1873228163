"""Help is short, quick, and has examples that work; names that are listed and completed are those that options take."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from onnxtile.cli.application import build, endings
from onnxtile.cli.command import verbs
from onnxtile.declare.verb import parameters
from onnxtile.verbs.list import KINDS, option_names
from tests.cli.conftest import Run
from tests.cli.test_cli import COMMANDS

# Help is short, quick, and has examples that work.


COLUMNS = 80
CLAUSE = 16
"""Words of an option's help, at most."""
HEAVY = {"onnx", "onnx_ir", "onnxruntime", "numpy", "networkx", "rich", "joblib"}


APP: Any = typer.main.get_command(build())


def _command(path: tuple[str, ...]) -> Any:
    found = APP
    for name in path:
        found = found.commands[name]
    return found


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_fits_the_width_of_a_terminal(run: Run, path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
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


MOST_OPTIONS = {"plan": 24, "tile": 16, "fit": 16}
"""Options of a command in all, without --help."""
MAIN_OPTIONS = 10
"""Options that the help of these commands shows first."""


@pytest.mark.parametrize("verb", MOST_OPTIONS)
def test_a_command_has_few_options_and_shows_the_ten_that_matter(run: Run, verb: str) -> None:
    first, every = (
        [line.split()[0] for line in run(verb, "--help", *more).out.splitlines() if line.startswith("  -")]
        for more in ([], ["all"])
    )
    assert len(first) - 1 == MAIN_OPTIONS and set(first) < set(every)
    assert len(every) - 1 <= MOST_OPTIONS[verb]


@pytest.mark.parametrize("path", [path for path in COMMANDS if path != ("pattern",)], ids=" ".join)
def test_the_examples_stand_on_lines_of_their_own_and_are_read(run: Run, path: tuple[str, ...]) -> None:
    lines = run(*path, "--help").out.splitlines()
    examples = [line.strip() for line in lines[lines.index("Examples:") + 1 :]]
    assert examples
    for example in examples:
        words = shlex.split(example)
        assert words[: len(path) + 1] == ["onnxtile", *path]
        command = _command(path or (words[1],))
        with command.make_context(words[1], words[len(path or "1") + 1 :]) as context:
            assert context.params


def test_the_options_stand_under_headings(run: Run) -> None:
    lines = run("plan", "--help", "all").out.splitlines()
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


@pytest.mark.parametrize("group", [(), ("pattern",)], ids=" ".join)
def test_the_help_of_a_group_says_how_to_see_all_options_of_a_command(run: Run, group: tuple[str, ...]) -> None:
    said = f"All options of a command: {' '.join(('onnxtile', *group))} COMMAND --help all"
    assert said in run(*group, "--help").out.splitlines()
    assert said in run(*group, "--help", "all").out.splitlines()


@pytest.mark.parametrize("arguments", [(), ("pattern",)], ids=" ".join)
def test_a_group_without_a_command_shows_its_help(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("Usage: onnxtile")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fuze", "m.onnx"), "No such command 'fuze'. Did you mean 'fuse', 'unfuse'? (onnxtile --help"),
        (("fuse",), "Missing argument 'IN'. (onnxtile fuse --help"),
        (("plan", "m.onnx", "--serch", "best"), "there is no option --serch (did you mean --search?)"),
        (("pattern", "nw"), "Did you mean 'new'? (onnxtile pattern --help"),
        (("tile", "m.onnx", "--max", "two"), "invalid --max 'two': this is not a bound of a tile"),
        (("plan", "m.onnx", "--search"), "'--search' requires an argument"),
    ],
)
def test_a_slip_of_the_pen_gets_what_was_meant(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    done.require_error(message)


# Every name that `list` shows is one that its option takes.


@pytest.mark.parametrize("kind", KINDS)
def test_each_name_stands_once_and_has_a_summary(run: Run, kind: str) -> None:
    listed = json.loads(run("list", kind, "--json", "-").out)
    names = [choice["name"] for choice in listed["names"]]
    assert names and len(set(names)) == len(names)
    assert all(choice["summary"].strip() for choice in listed["names"])
    shown = run("list", kind).out
    assert all(name in shown for name in names)


def test_the_names_are_those_of_the_plug_ins() -> None:
    from onnxtile.fusion.pattern import select
    from onnxtile.planning.orders import orders
    from onnxtile.planning.planners import planners
    from onnxtile.tiling.limits import figures_of, find, has_limits

    assert {choice.name for choice in option_names("planners").names} == planners().keys()
    assert {choice.name for choice in option_names("orders").names} == orders().keys()
    for choice in option_names("patterns").names:
        assert select([choice.name])[0].doc == choice.summary
    for choice in option_names("targets").names:
        assert find(choice.name) if has_limits(choice.name) else figures_of(choice.name).macs_by_type


def test_an_unknown_kind_or_pattern_gets_the_nearest_name(run: Run, folder: Path) -> None:
    done = run("list", "plannrs")
    assert (done.code, done.err) == (2, "error: invalid kind 'plannrs' (did you mean 'planners'?)\n")
    assert (folder / "m.onnx").exists()
    done = run("fuse", "m.onnx", "-p", "layernrm")
    assert (done.code, done.err) == (2, "error: unknown pattern 'layernrm' (did you mean 'LayerNorm'?)\n")


# Shell completion: the names that options take, as a shell asks for them.


def complete(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    """Return what bash is given where `line` ends."""
    from onnxtile import cli

    words = line.split(" ")
    monkeypatch.setenv("_ONNXTILE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setattr(sys, "argv", ["onnxtile"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("onnxtile in", {"inspect"}),
        ("onnxtile plan --al", {"--alignment"}),
        ("onnxtile plan m.onnx --search ", {"best", "exact", "greedy-by-size"}),
        ("onnxtile plan m.onnx --order m", {"model", "min-peak"}),
        ("onnxtile plan m.onnx --search n", {"normal"}),
        ("onnxtile plan m.onnx --io in", {"inside"}),
        ("onnxtile plan m.onnx --emit plan.h", {"plan.h", "plan.html"}),
        ("onnxtile fuse m.onnx -p La", {"LayerNorm"}),
        ("onnxtile fuse m.onnx -p a", {"aidge"}),
        ("onnxtile fuse m.onnx --explain Lay", {"LayerNorm"}),
        ("onnxtile fuse m.onnx --lower o", {"onnx", "ort"}),
        ("onnxtile tile m.onnx --accumulate ", {"sum", "chain", "tree", "gemm"}),
        ("onnxtile tile m.onnx --target 64", {"64x64x64"}),
        ("onnxtile run p.toml --backend d", {"dask"}),
        ("onnxtile inspect m.onnx --emit nodes.", {"nodes.csv", "nodes.json"}),
    ],
)
def test_names_are_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str, found: set[str]
) -> None:
    assert found <= set(complete(monkeypatch, capsys, line))


def test_where_a_file_is_meant_the_shell_completes_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in ("onnxtile fuse m", "onnxtile plan m.onnx -o ", "onnxtile plan m.onnx --emit out/pl"):
        assert complete(monkeypatch, capsys, line) == []


def test_endings_go_on_from_what_is_typed() -> None:
    known = [".json", ".trace.json", ".h"]
    assert endings("out/plan.", known) == ["out/plan.json", "out/plan.trace.json", "out/plan.h"]
    assert endings("plan.trace.j", known) == ["plan.trace.json"]
    assert endings("plan", known) == endings(".", known) == endings("", known) == []


def test_bash_takes_the_script_that_is_shown(tmp_path: Path) -> None:
    """As after `--install-completion`: the function is defined, and fills what bash asks it to."""
    (tmp_path / "onnxtile").write_text(f'#!/bin/sh\nexec {sys.executable} -m onnxtile "$@"\n')
    (tmp_path / "onnxtile").chmod(0o755)
    script = """
eval "$(onnxtile --show-completion)"
complete -p onnxtile
COMP_WORDS=(onnxtile plan --search gr); COMP_CWORD=3
_onnxtile_completion onnxtile
echo "${COMPREPLY[*]}"
"""
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert "-F _onnxtile_completion onnxtile" in done.stdout, done.stderr
    assert done.stdout.split()[-1] == "greedy-by-size"
