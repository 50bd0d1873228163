"""The tables of fit, from rows that were measured before."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from tests.bench import measure
from tests.bench.commands import Row
from tests.bench.fit_tables import PUBLISHED, WITHIN, distinct_kernels
from tests.build import parsed
from tests.fitting.networks import deep

ROW: Row = {"before": 900, "arena": 300, "macs before": 1_000, "macs": 1_072, "nodes": 12, "kernels": 7, "copied": 64}
ROW |= {"estimated": 1.08, "onnxruntime": 1.25, "equal": True, "seconds": 9.6}


def lines(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    """Return the rows of a table that is printed."""
    measure.main([str(word) for word in words])
    return capsys.readouterr().out.splitlines()[2:]


def rows(folder: Path, *kept: tuple[str, str, str, Row]) -> Path:
    file = folder / "rows.jsonl"
    told = [{"model": model, "place": place, "within": within} | row for model, place, within, row in kept]
    file.write_text("".join(json.dumps(row) + "\n" for row in told))
    return file


def test_rows_that_are_there_are_not_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed: dict[str, Row] = {"quarter,25%": {"reached": 400}, "smallest,10%": {"failed": "over 300 s"}}
    file = rows(tmp_path, *(("net", "inside", within, failed.get(within, ROW)) for within in WITHIN))
    before = file.read_text()
    assert lines(capsys, "fit", tmp_path / "net.onnx", "--rows", file, "--io", "inside") == [
        "| net | inside | 900 | 300 | (400) | 300 | over 300 s | 300 |"
    ]
    assert file.read_text() == before


def test_a_row_is_kept_when_it_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net, file = tmp_path / "net.onnx", tmp_path / "rows.jsonl"
    onnx.save(deep(), net)
    words = ("fit", net, "--rows", file, "--io", "outputs", "--within", "half,0%")
    line, commit = lines(capsys, *words)
    kept = json.loads(file.read_text())
    assert kept["equal"] and kept["arena"] <= kept["before"] / 2 and kept["nodes"] >= kept["kernels"] > 3
    assert kept["estimated"] > 1 and kept["onnxruntime"] > 0 and kept["seconds"] > 0
    assert line.startswith(f"| net | outside | {kept['before']:,} |")
    assert commit == f"Measured at {kept['onnxtile'].partition(',')[0]}."
    measure.main([str(word) for word in words])
    assert json.loads(file.read_text()) == kept


def test_costs_are_those_within_a_part_of_the_arena(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = (("outputs", "half,25%"), ("outputs", "smallest,0%"), ("inside", "half,25%"))
    file = rows(tmp_path, *(("net", place, within, ROW) for place, within in places))
    assert lines(capsys, "fit-costs", "--rows", file) == [
        "| net | half | 300 | +7.2% | 12 | 7 | 64 | 1.08 | 1.25 | yes | 9.60 |"
    ]


def test_a_published_arena_that_is_smaller_is_bold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arenas: list[Row] = [
        ROW | {"arena": 162_112, "macs": 1_026},
        ROW | {"arena": 90_000},
        {"reached": 25_900, "seconds": 9.6},
    ]
    kept = zip(PUBLISHED, arenas, strict=False)
    file = rows(tmp_path, *((model, "outputs", within, row) for (model, within), row in kept))
    first, second, third = lines(capsys, "fit-published", "--rows", file)
    assert first.endswith("| 172,000 | 10% | 10% | 162,112 | 2.6% | 12 |")
    assert "| **83,133** | 1.9% | 1.9% | 90,000 |" in second
    assert "| **25,803** | 26% | 26% | (25,900) |" in third


def test_kernels_differ_in_operator_attributes_and_sizes(tmp_path: Path) -> None:
    text = """g (float[4] x, float[8] z) => (float[4] y, float[8] w) {
    a = Elu(x) b = Elu(a) c = Elu<alpha=0.5>(b) y = Neg(c) w = Elu(z) }"""
    onnx.save(parsed(text), tmp_path / "net.onnx")
    assert distinct_kernels(tmp_path / "net.onnx") == 4
