"""The interactive page as a file: it needs nothing else, says what the plan says, and no name in it becomes part of the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from onnxtile.report.format import Options
from onnxtile.report.formats.to_html import FORMAT
from tests.report.conftest import Plan, bare, row


class _Reader(HTMLParser):
    """Collects the elements, and the text of each script."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements[-1:] and self.elements[-1][0] == "script":
            self.scripts.append(data)


def read(page: bytes) -> _Reader:
    reader = _Reader()
    reader.feed(page.decode())
    return reader


def data(page: bytes) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(read(page).scripts[0])
    return content


def test_it_asks_for_nothing_from_elsewhere(plan: Plan) -> None:
    page = FORMAT.render(plan)
    reader = read(page)
    assert not {"src", "href"} & {name for _, attributes in reader.elements for name in attributes}
    assert not re.search(rb"https?://|url\(|@import|fetch\(|XMLHttpRequest", page)
    policy = next(a["content"] for tag, a in reader.elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert not re.search(rb"@[a-z]+(\.[a-z]+)?@", page)


def test_it_has_every_tensor(plan: Plan) -> None:
    (shown,) = data(FORMAT.render(plan))["plans"]
    (arena,) = shown["arenas"]
    rows = {r["name"]: r for r in arena["rows"]}
    assert rows.keys() == {b["name"] for b in plan["buffers"]}
    for buffer in plan["buffers"]:
        found = rows[buffer["name"]]
        assert {key: found[key] for key in ("offset", "size", "first", "last", "node", "dtype", "shape")} == {
            key: buffer[key] for key in ("offset", "size", "first", "last", "node", "dtype", "shape")
        }
        assert found["owner"] == buffer["alias"]
    assert (arena["peak"], arena["peakStep"]) == (plan["peak"], plan["peak_step"])
    assert [live for step, live in arena["live"] if step <= plan["peak_step"]][-1] == plan["peak"]


def test_what_lies_inside_another_is_drawn_after_it(plan: Plan) -> None:
    rows = data(FORMAT.render(plan))["plans"][0]["arenas"][0]["rows"]
    inside = [r["owner"] is not None for r in rows]
    assert any(inside)
    assert inside == sorted(inside)


def test_names_do_not_end_the_script(odd: Plan) -> None:
    page = FORMAT.render(odd, Options("</title><script>alert(1)</script>"))
    reader = read(page)
    assert [tag for tag, _ in reader.elements].count("script") == 2
    names = {r["name"] for arena in data(page)["plans"][0]["arenas"] for r in arena["rows"]}
    assert names == {b["name"] for b in odd["buffers"]}


def test_two_plans(problem: Plan) -> None:
    before = bare([row("old", 0, 8, 0, 1)])
    assert [shown["said"] for shown in data(FORMAT.render(problem, Options(before=before)))["plans"]] == [
        "before",
        "after",
    ]
