"""A page of one file: a template of web/ in which the other files there and what is to be shown take their places."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from onnxtile.system.errors import escaped
from onnxtile.system.text import compact

_PART = re.compile(r"@([a-z.]+)@")


def filled(template: str, given: Mapping[str, str]) -> bytes:
    """Return the page that `template` of web/ makes: `@name@` stands for the HTML `given` under the name, or for a file of web/."""
    files = resources.files("onnxtile.report") / "web"

    def part(match: re.Match[str]) -> str:
        name = match[1]
        return given[name] if name in given else (files / name).read_text(encoding="utf-8").strip()

    return _PART.sub(part, (files / template).read_text(encoding="utf-8")).encode()


def as_text(text: str) -> str:
    """Return `text` as it stands in a page: nothing in it is markup."""
    return html.escape(escaped(text))


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the figures of the head of a page: pairs of a label and a text."""
    return "\n".join(f"<div><dt>{as_text(label)}</dt><dd>{as_text(text)}</dd></div>" for label, text in pairs)


def in_script(content: Any) -> str:
    """Return JSON that cannot end the script element around it, whatever the names of tensors."""
    return compact(content).replace("<", "\\u003c")
