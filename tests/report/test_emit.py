"""Files to emit: options that are about pictures, and the plan to compare with, checked before anything is planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxtile.report.format import Emission
from onnxtile.system.errors import UsageError
from tests.report.conftest import Plan


def test_the_title_is_the_name_of_the_file(problem: Plan, tmp_path: Path) -> None:
    header, page = tmp_path / "net.h", tmp_path / "net.v2.html"
    content = Emission.of([header, page]).content(problem)
    assert b"#ifndef NET_H" in content[header]
    assert b"<h1>net.v2</h1>" in content[page]


def test_another_plan_to_compare_with(problem: Plan, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    before.write_text(json.dumps(problem))
    page = tmp_path / "plan.html"
    assert b'"said":"before"' in Emission.of([page], compare=before).content(problem)[page]


@pytest.mark.parametrize(("names", "compare"), [(True, None), (False, None), (None, Path("before.json"))])
def test_options_of_pictures_need_one(names: bool | None, compare: Path | None) -> None:
    with pytest.raises(UsageError, match="about pictures"):
        Emission.of([Path("plan.json")], names, compare)


def test_an_unknown_colouring_is_refused() -> None:
    with pytest.raises(UsageError, match="invalid color_by='size'"):
        Emission.of([Path("plan.html")], color_by="size")


def test_the_page_opens_with_the_colouring_asked_for(plan: Plan, tmp_path: Path) -> None:
    page = tmp_path / "net.html"
    text = Emission.of([page], color_by="kind").content(plan)[page].decode()
    assert text.index('"name":"kind"') < text.index('"name":"operator"')


BUFFER = '{"name": "b", "arena": "a", "offset": 0, "size": 8, "kind": "activation", "first": %s}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file"),
        ("{", "is no JSON"),
        ("\x80", "is no JSON"),
        ("[]", "is no plan"),
        ('{"arenas": []}', "is no plan"),
        ('{"arenas": [], "buffers": [{"name": "a"}]}', "is no plan"),
        ('{"arenas": [], "buffers": [3]}', "is no plan: buffers.0: "),
        ('{"arenas": [{"name": "a"}], "buffers": []}', "is no plan: arenas.0.size: Field required"),
        ('{"arenas": [], "buffers": [], "alignment": 0}', "is no plan: alignment: "),
        ('{"arenas": [], "buffers": [], "schedule": ["n"], "steps": []}', "steps and schedule have different lengths"),
        ('{"arenas": [], "buffers": [], "operators": ["Conv"]}', "operators and schedule have different lengths"),
        ('{"arenas": [], "buffers": [], "operators": 3}', "is no plan: operators: "),
        ('{"arenas": [], "buffers": [], "constant_nodes": [1]}', "is no plan: constant_nodes.0: "),
        (
            '{"arenas": [], "buffers": [' + BUFFER % '"1", "last": 2' + "]}",
            "buffers.0.first: Input should be a valid integer",
        ),
        (
            '{"arenas": [], "buffers": [' + BUFFER % '3, "last": 2' + "]}",
            "the last step of its life is before the first",
        ),
        ('{"arenas": [], "buffers": [' + BUFFER % '1, "last": 9007199254740993' + "]}", "buffers.0.last: "),
    ],
)
def test_what_is_no_plan(text: str | None, message: str, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    if text is not None:
        before.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError, match=message):
        Emission.of([tmp_path / "plan.svg"], compare=before)
