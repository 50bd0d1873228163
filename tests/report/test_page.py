"""The interactive page as a file: it needs nothing else, says what the plan says, and no name in it becomes part of the page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

from onnxtile.report.format import RenderOptions
from onnxtile.report.formats.pictures import HTML
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
    page = HTML.render(plan)
    reader = read(page)
    assert not {"src", "href"} & {name for _, attributes in reader.elements for name in attributes}
    assert not re.search(rb"https?://|url\(|@import|fetch\(|XMLHttpRequest", page)
    policy = next(a["content"] for tag, a in reader.elements if tag == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'")
    assert not re.search(rb"@[a-z]+(\.[a-z]+)?@", page)


def test_it_has_every_tensor(plan: Plan) -> None:
    (shown,) = data(HTML.render(plan))["plans"]
    (arena,) = shown["arenas"]
    rows = {r["name"]: r for r in arena["rows"]}
    assert rows.keys() == {b["name"] for b in plan["buffers"]}
    operators = dict(zip(plan["schedule"], plan["operators"], strict=True))
    for buffer in plan["buffers"]:
        found = rows[buffer["name"]]
        assert {key: found[key] for key in ("offset", "size", "node", "shape")} == {
            key: buffer[key] for key in ("offset", "size", "node", "shape")
        }
        assert found["dtype"] == {"FLOAT": "float32"}.get(buffer["dtype"], buffer["dtype"].lower())
        assert found["operator"] == operators[buffer["node"]]
        assert found["owner"] == buffer["alias"]
        assert found["last"] - found["first"] <= buffer["last"] - buffer["first"]
        assert shown["runs"][str(found["first"])] == plan["schedule"][buffer["first"]]
    assert arena["peak"] == plan["peak"]
    assert shown["runs"][str(arena["peakStep"])] == plan["schedule"][plan["peak_step"]]
    assert [live for step, live in arena["live"] if step <= arena["peakStep"]][-1] == plan["peak"]


def test_steps_that_only_make_constants_do_not_count() -> None:
    rows = [row("a", 0, 8, 1, 4, node="a"), row("w", 8, 8, 6, 6, node="w")]
    nodes = {
        "schedule": ["c0", "a", "c1", "c2", "b", "c3", "w", "c4"],
        "constant_nodes": ["c0", "c1", "c2", "c3", "c4"],
    }
    (shown,) = data(HTML.render(bare(rows, **nodes)))["plans"]
    assert (shown["steps"], shown["runs"]) == (3, {"0": "a", "1": "b", "2": "w"})
    lives = [(r["first"], r["last"]) for r in shown["arenas"][0]["rows"]]
    assert lives == [(0, 1), (2, 2)]


def test_a_step_in_which_alone_a_buffer_lives_counts() -> None:
    plan = bare([row("unread", 0, 8, 0, 0, kind="input")], schedule=["c", "n"], constant_nodes=["c"])
    (shown,) = data(HTML.render(plan))["plans"]
    assert shown["runs"] == {"0": "c", "1": "n"}


def test_the_head_says_model_inputs_arena_savings_and_proof(plan: Plan) -> None:
    page = HTML.render(plan, RenderOptions("file")).decode()
    assert "<h1>transformer</h1>" in page
    named = " ".join(("float32", "×".join(map(str, plan["inputs"][0]["shape"]))))
    assert f'<p id="inputs">{plan["inputs"][0]["name"]} {named}</p>' in page
    assert re.findall("<dt>(.*?)</dt>", page) == ["arena", "activations without sharing", "saved by sharing", "proof"]
    size, whole = plan["arenas"][0]["size"], plan["activation_bytes"]
    assert f"<dd>{(1 - size / whole) * 100:.1f}%</dd>" in page
    assert "<dd>smallest " in page


def test_what_lies_inside_another_is_drawn_after_it(plan: Plan) -> None:
    rows = data(HTML.render(plan))["plans"][0]["arenas"][0]["rows"]
    inside = [r["owner"] is not None for r in rows]
    assert any(inside)
    assert inside == sorted(inside)


def test_names_do_not_end_the_script(odd: Plan) -> None:
    page = HTML.render(odd, RenderOptions("</title><script>alert(1)</script>"))
    reader = read(page)
    assert [tag for tag, _ in reader.elements].count("script") == 2
    names = {r["name"] for arena in data(page)["plans"][0]["arenas"] for r in arena["rows"]}
    assert names == {b["name"] for b in odd["buffers"]}


def test_two_plans(problem: Plan) -> None:
    before = bare([row("old", 0, 8, 0, 1)])
    assert [shown["said"] for shown in data(HTML.render(problem, RenderOptions(before=before)))["plans"]] == [
        "before",
        "after",
    ]
