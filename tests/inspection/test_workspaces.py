"""Workspaces that patterns declare, in JSON, CSV and on the terminal."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from onnxtile import api, cli

Run = Callable[..., str]

TEXT = """<ir_version: 10, opset_import: ["": 17]> g (float[4,8] x, float[m,n] v) => (float[8,4] y, float[n,m] w, float[4,8] u) {
  a = Neg(x)  b = Transpose(a)  y = Softmax(b)
  c = Neg(v)  d = Transpose(c)  w = Softmax(d)
  u = Exp(x)
}"""


@pytest.fixture(name="inspected")
def _inspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Give a function that fuses the model by a pattern that declares `workspace` and shows it: it returns the terminal's text."""

    def look(workspace: str, *options: str) -> str:
        pattern, path = tmp_path / "soft.toml", tmp_path / "m.onnx"
        pattern.write_text(
            f'name = "Soft"\ndoc = "d"\n{workspace}\n[[variants]]\nquery = "Neg#1->Transpose->Softmax"\n'
        )
        onnx.save(onnx.parser.parse_model(TEXT), path)
        ir.save(api.fuse(path, [str(pattern)], verify=False).model, tmp_path / "f.onnx")
        monkeypatch.setattr("sys.argv", ["onnxtile", "inspect", str(tmp_path / "f.onnx"), *options])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code
        return capsys.readouterr().out

    return look


def rows(text: str) -> dict[str, str]:
    """Return the lines about workspaces, by their first words."""
    lines = (line.split("  ", 1) for line in text.splitlines() if line.startswith(("largest work", "workspaces")))
    return {name: value.strip() for name, value in lines}


def test_the_largest_and_the_sum_are_shown(inspected: Run) -> None:
    shown = rows(inspected('workspace = "2 * outputs[0].bytes"', "--dim", "m=2", "--dim", "n=8"))
    assert shown["largest workspace"].startswith("256 B at ")
    assert shown["workspaces of all nodes"] == f"{2 * (8 * 4 * 4 + 8 * 2 * 4)} B"


def test_what_is_not_known_is_open(inspected: Run) -> None:
    shown = rows(inspected('workspace = "2 * outputs[0].bytes"'))
    assert shown["largest workspace"].endswith("without 1 node of unknown size")
    assert shown["workspaces of all nodes"] == "256 B + ?"
    assert rows(inspected('workspace = "inside"')) == {
        "largest workspace": "?",
        "workspaces of all nodes": "0 B + ?",
    }


def test_without_a_declaration_nothing_is_shown(inspected: Run) -> None:
    assert not rows(inspected(""))


def test_json_and_csv_have_the_workspace_of_each_node(inspected: Run, tmp_path: Path) -> None:
    content = json.loads(inspected('workspace = "64"', "--json", "-", "--emit", str(tmp_path / "n.csv")))
    assert [node["workspace"] for node in content["nodes"]] == [64, 64, 0]
    assert content["workspaces"]["sum"] == 128
    assert content["workspaces"]["nodes"] == 2
    with (tmp_path / "n.csv").open() as file:
        assert [row["workspace"] for row in csv.DictReader(file)] == ["64", "64", "0"]
