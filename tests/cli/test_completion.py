"""Shell completion: the names that options take, as a shell asks for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from onnxtile.cli.command import endings


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
        ("onnxtile plan m.onnx --planner ", {"best", "exact", "greedy-by-size"}),
        ("onnxtile plan m.onnx --order m", {"model", "min-peak"}),
        ("onnxtile plan m.onnx --effort n", {"normal"}),
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
COMP_WORDS=(onnxtile plan --planner gr); COMP_CWORD=3
_onnxtile_completion onnxtile
echo "${COMPREPLY[*]}"
"""
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )
    assert "-F _onnxtile_completion onnxtile" in done.stdout, done.stderr
    assert done.stdout.split()[-1] == "greedy-by-size"
