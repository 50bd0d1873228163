"""The Python reference, made from signatures and docstrings when the site is built."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import onnxtile

MARK = "<!-- reference -->"
_KINDS = ("Functions", "Results", "Errors", "Options")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the reference in the place of its mark and of what follows it; called by mkdocs for each page."""
    before, mark, _ = markdown.partition(MARK)
    return before + reference() if mark else markdown


def reference() -> str:
    """Return the reference as Markdown."""
    found: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for name in onnxtile.__all__:
        value = getattr(onnxtile, name)
        if name not in {"Source", "__version__"}:
            found[_kind(value)].append("\n".join(_entry(name, value)))
    return "\n\n".join(f"## {kind}\n\n" + "\n\n".join(entries) for kind, entries in found.items())


def _kind(value: Any) -> str:
    if not inspect.isclass(value):
        return "Functions"
    if issubclass(value, Exception):
        return "Errors"
    return "Results" if issubclass(value, onnxtile.VerbResult) else "Options"


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if not inspect.isclass(value):
        yield f"```text\n{_signature(name, value)}\n```\n"
    yield _text(value)
    if inspect.isclass(value):
        yield ""
        yield from (f"- {line}" for line in _members(value))


def _signature(name: str, function: Any) -> str:
    """Return the signature with a parameter on each line."""
    signature = inspect.signature(function)
    rows: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in rows:
            rows.append("*")
        rows.append(_parameter(parameter))
    return f"{name}(\n    " + ",\n    ".join(rows) + f",\n) -> {_type(signature.return_annotation)}"


def _parameter(parameter: inspect.Parameter) -> str:
    prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    typed = "" if parameter.annotation is parameter.empty else f": {_type(parameter.annotation)}"
    default = getattr(parameter.default, "__name__", None) or repr(parameter.default)
    return f"{prefix}{parameter.name}{typed}" + ("" if parameter.default is parameter.empty else f" = {default}")


def _type(annotation: Any) -> str:
    """Return an annotation as text."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _text(value: Any) -> str:
    return inspect.getdoc(value) or ""


def _members(kind: type) -> Iterator[str]:
    """Yield a line for each public property and method of `kind`."""
    for name, member in inspect.getmembers(kind):
        is_shown = isinstance(member, property) or inspect.isfunction(member)
        doc = inspect.getdoc(member)
        if not name.startswith("_") and is_shown and doc:
            call = "" if isinstance(member, property) else "()"
            yield f"`{name}{call}`: {doc.partition(chr(10))[0]}"
