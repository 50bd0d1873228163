"""Plain English, as far as a machine can tell: short sentences in the pages, and none of the phrases at which readers stopped.

The scope of the count of words is docs/*.md, README.md and the docstrings of results, errors and options at the top level. Code,
tables and headings are left out. A few phrases are also looked for in every text of the package: messages, help and docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import onnxtile

ROOT = Path(__file__).parent.parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]

MOST_WORDS = 30
LONGEST_LINE = 160

PHRASES = (
    *("is no effort", "there is no ", "hears", "told on", "tells on", "has the tile chosen", "the most of a size"),
    *("is left alone", "left alone", "stands in the", "stand in the", "stood in", "has nothing of", "are told"),
    *("what stands", "what lies", "what is not known", "of which is", "as far as they go", "there can be", "want of"),
)
"""Phrases without an object, metaphors, and German word order: each was found by a reader who stopped there."""

IN_NO_TEXT = (" hears ", "hearsay", "told on", "tells on", "has the tile chosen")
"""Of these, phrases that no text of the package has."""

_HEADLESS = re.compile(r"(?:^|[.:;] |\*\* )(?:What|That of|Those of|Of which|Whose) ")
"""A sentence that begins without a noun; headings that ask a question are left out."""


def prose(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, code as a word each."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#|\||<!--).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text):
        joined = " ".join(block.split())
        if joined:
            yield re.sub(r"^(?:[-*]|\d+\.) ", "", joined)


def sentences(page: str) -> Iterator[str]:
    for paragraph in prose(page):
        yield from re.split(r"(?<=[.!?])\)? +(?=[A-Z\[*(]|code|onnx|lark|float)", paragraph)


def words(sentence: str) -> int:
    return len([word for word in sentence.split() if re.search(r"\w", word)])


def test_a_sentence_is_counted_as_readers_count_it() -> None:
    page = "# Head\n\nOne `a b c` two. Three\nfour five:\n\n- item one. Two.\n- [link here](http://x.y/z) three\n\n```sh\na b\n```\n"
    assert [(text, words(text)) for text in sentences(page)] == [
        ("One code two.", 3),
        ("Three four five:", 3),
        ("item one.", 2),
        ("Two.", 1),
        ("[link here] three", 3),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_short_sentences_and_lines_and_no_phrase_that_stops_a_reader(page: Path) -> None:
    text = page.read_text()
    found = [f"{words(sentence)} words: {sentence}" for sentence in sentences(text) if words(sentence) > MOST_WORDS]
    assert not found, "\n".join(found)
    assert not [phrase for phrase in PHRASES if phrase in " ".join(text.split()).casefold()]
    assert not [paragraph for paragraph in prose(text) if _HEADLESS.search(paragraph)]
    lines = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines()
    assert not [line for line in lines if len(line) > LONGEST_LINE and not line.startswith("|")]


def test_no_text_of_the_package_has_a_phrase_that_stops_a_reader() -> None:
    for file in (ROOT / "onnxtile").rglob("*.py"):
        source = file.read_text("utf-8")
        # Few files have all words of a phrase, and only these are read as Python.
        known = source.casefold()
        if not any(all(word in known for word in phrase.split()) for phrase in IN_NO_TEXT):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = f" {' '.join(node.value.split()).casefold()} "
                assert not [phrase for phrase in IN_NO_TEXT if phrase in text], f"{file}:{node.lineno}"


CLASSES = [value for name in onnxtile.__all__ if inspect.isclass(value := getattr(onnxtile, name))]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_public_docstrings_have_short_sentences(kind: type) -> None:
    members = (member for name, member in vars(kind).items() if not name.startswith("_"))
    for value in (kind, *members):
        found = [text for text in sentences(inspect.getdoc(value) or "") if words(text) > MOST_WORDS]
        assert not found, found
