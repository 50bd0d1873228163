"""The parsed queries that ship beside the pattern files: they are what the parser makes of the files, and nothing else is trusted."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from onnxtile.fusion.pattern import STORED, from_file, texts_of
from onnxtile.fusion.store_queries import content
from onnxtile.query.language import StoredQueries, parse, parse_condition
from onnxtile.query.syntax import Query
from onnxtile.system.errors import PatternError
from onnxtile.system.registry import data_folder

FOLDER = data_folder("patterns")
FILES = sorted(FOLDER.rglob("*.toml"))


def test_the_stored_queries_are_those_of_the_files() -> None:
    written = (FOLDER / STORED).read_text("utf-8")
    assert written == content(FOLDER), "run python -m onnxtile.fusion.store_queries"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_stored_query_is_what_the_parser_makes_of_it(path: Path) -> None:
    stored = StoredQueries(FOLDER / STORED)
    for query, *where in texts_of(path):
        assert stored.query(query) == parse(query)
        assert [stored.condition(text) for text in where] == [parse_condition(text) for text in where]


def test_an_edited_query_is_not_found_in_the_store() -> None:
    stored = StoredQueries(FOLDER / STORED)
    ((query, *_), *_) = texts_of(FILES[0])
    assert stored.query(query) is not None
    assert stored.query(query + " ") is None
    assert stored.condition(query) is None


@pytest.mark.parametrize("damage", ["another language", "no file"])
def test_a_store_that_does_not_fit_is_left_unread(tmp_path: Path, damage: str) -> None:
    known = json.loads((FOLDER / STORED).read_text("utf-8"))
    if damage == "another language":
        (tmp_path / STORED).write_text(json.dumps({**known, "language": "0"}), "utf-8")
    ((query, *_), *_) = texts_of(FILES[0])
    assert StoredQueries(tmp_path / STORED).query(query) is None


def test_the_pattern_of_a_user_is_parsed_even_where_its_text_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []

    def noted(text: str) -> Query:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr("onnxtile.query.language.parse", noted)
    own = Path(shutil.copy(FOLDER / "linear.toml", tmp_path / "linear.toml"))
    assert [program.query for program in from_file(own).programs] == [
        program.query for program in from_file(FOLDER / "linear.toml").programs
    ]
    assert parsed == [query for query, *_ in texts_of(own)]
    own.write_text(own.read_text("utf-8").replace("Gemm[{biased}]'", "Gemm[[{biased}]'"), "utf-8")
    with pytest.raises(PatternError, match=r"linear.toml:\d+: variant 2"):
        from_file(own)


def test_reading_the_library_takes_no_parser() -> None:
    code = "import sys; from onnxtile.fusion.library import pattern_set; pattern_set(); print('lark' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
