"""The curve of fit as files."""

from __future__ import annotations

import csv
import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from onnxtile.declare.verb import write_result
from onnxtile.report.curve_files import ENDINGS
from onnxtile.system.errors import UsageError

POINTS = {
    "curve": [
        {"arena": 20672, "peak": 20672, "macs": 1000, "nodes": 13, "copied": 0, "estimated": False},
        {"arena": 5120, "peak": 5000, "macs": 1100, "nodes": 4000, "copied": 2048, "estimated": True},
    ]
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_format_is_the_same_bytes_every_time(tmp_path: Path, ending: str) -> None:
    files = [tmp_path / folder / f"model{ending}" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        write_result(POINTS, "curve", file)
    assert files[0].read_bytes() == files[1].read_bytes() != b""


@pytest.mark.parametrize("ending", [".html", ".md"])
def test_the_table_says_which_arenas_are_estimates(tmp_path: Path, ending: str) -> None:
    write_result(POINTS, "curve", tmp_path / f"c{ending}")
    rows = [line for line in (tmp_path / f"c{ending}").read_text().splitlines() if line.startswith(("<tr", "|"))]
    first, second = [line for line in rows if "20,672" in line or "5,120" in line]
    assert "planned" in first and "estimated" in second and "+10.0%" in second


def test_a_page_needs_no_other_file(tmp_path: Path) -> None:
    write_result(POINTS, "curve", tmp_path / "a<b.html")
    page = (tmp_path / "a<b.html").read_text()
    assert "<svg" in page and "<title>a&lt;b</title>" in page
    assert "src=" not in page and "<script" not in page


def test_data_files_have_all_fields(tmp_path: Path) -> None:
    for ending in ("csv", "json", "svg"):
        write_result(POINTS, "curve", tmp_path / f"c.{ending}")
    rows = list(csv.DictReader((tmp_path / "c.csv").read_text().splitlines()))
    assert rows[1] == {
        "arena": "5120",
        "peak": "5000",
        "macs": "1100",
        "nodes": "4000",
        "copied": "2048",
        "estimated": "true",
    }
    assert json.loads((tmp_path / "c.json").read_text()) == POINTS
    assert "hollow points: estimated" in "".join(ET.parse(tmp_path / "c.svg").getroot().itertext())


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no format of curve has this ending"):
        write_result(POINTS, "curve", tmp_path / "c.txt")
