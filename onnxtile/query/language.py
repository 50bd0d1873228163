"""From the text of a query to its clauses, with errors that show where and what was expected."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, cast

import lark

from onnxtile.query import syntax
from onnxtile.system.errors import QueryError

_MAX_LENGTH = 20_000
_MAX_DEPTH = 50
_MAX_TREE_DEPTH = 4 * _MAX_DEPTH
_MAX_DIGITS = 9
_MAX_INT64_DIGITS = 20

# What the grammar's terminals are to a reader of the message.
_READABLE = {
    "TYPE": "an operator name",
    "ANY": "'.'",
    "LOOKED_AT": "'@'",
    "ANCHOR": "an anchor such as '#1'",
    "FORWARD": "a forward edge such as '->'",
    "BACKWARD": "a backward edge such as '<-'",
    "COMPARE": "a comparison such as '=='",
    "COUNT": "a number",
    "NUMBER": "a number",
    "POSITION": "a position",
    "STRING": "a string",
    "NAME": "an attribute's name",
    "LPAR": "'('",
    "RPAR": "')'",
    "LSQB": "'['",
    "RSQB": "']'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "SEMICOLON": "';'",
    "DOLLAR": "'$'",
    "OPTIONAL": "'?'",
    "STAR": "'*'",
    "PLUS": "'+'",
    "AMPERSAND": "'&'",
    "VBAR": "'|'",
    "_AND": "'and'",
    "_OR": "'or'",
    "_NOT": "'not'",
    "COMMA": "','",
    "DOT": "'.'",
    "$END": "the end",
}


def parse(text: str) -> syntax.Query:
    """Return the query that `text` means. Raises QueryError with the line, a caret and what was expected."""
    return syntax.Query(text, cast("tuple[syntax.Clause, ...]", _built(text, "start")))


def parse_condition(text: str) -> syntax.Expression:
    """Return the expression over anchors that `text` means. Raises QueryError."""
    return cast("syntax.Expression", _built(text, "condition"))


def _built(text: str, start: str) -> Any:
    if len(text) > _MAX_LENGTH:
        raise QueryError(f"this is longer than {_MAX_LENGTH:,} characters", text, (_MAX_LENGTH, _MAX_LENGTH + 1))
    _limit_blocks(text)
    try:
        tree = _grammar().parse(text, start=start)
        _limit_depth(tree, text)
        return _Builder(text).transform(tree)
    except lark.exceptions.UnexpectedInput as error:
        raise _readable(error, text) from None
    except lark.exceptions.VisitError as error:
        raise error.orig_exc from None


@cache
def _grammar() -> lark.Lark:
    grammar = resources.files("onnxtile.query").joinpath("grammar.lark").read_text("utf-8")
    starts = ["start", "condition"]
    return lark.Lark(grammar, parser="lalr", start=starts, propagate_positions=True, maybe_placeholders=True)


def _limit_blocks(text: str) -> None:
    depth = 0
    for position, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth > _MAX_DEPTH:
            raise QueryError(f"blocks are nested deeper than {_MAX_DEPTH}", text, (position, position + 1))


def _limit_depth(tree: lark.Tree[Any], text: str) -> None:
    """Raise QueryError where the tree is deeper than what works on it recursively can bear, as after 500 times `not`."""
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > _MAX_TREE_DEPTH:
            raise QueryError("this is nested too deeply", text, _span(level[0].meta))
        level = [child for parent in level for child in parent.children if isinstance(child, lark.Tree)]


def _readable(error: lark.exceptions.UnexpectedInput, text: str) -> QueryError:
    if isinstance(error, lark.exceptions.UnexpectedToken):
        expected = error.accepts or error.expected
    else:
        expected = getattr(error, "allowed", None) or set()
    wanted = sorted({_READABLE.get(name, name) for name in expected})
    start = error.pos_in_stream if error.pos_in_stream is not None and error.pos_in_stream >= 0 else len(text)
    token = getattr(error, "token", None)
    if token is not None and token.type == "$END":
        start, found = len(text), "the query ends here"
    else:
        found = f"{(str(token) if token else text[start : start + 1])!r} cannot stand here"
    stop = start + (len(token) if token else 1)
    return QueryError(f"{found}; expected {_listed(wanted)}", text, (start, stop))


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _span(meta: Any) -> syntax.Span:
    return (meta.start_pos, meta.end_pos)


@lark.v_args(meta=True)
class _Builder(lark.Transformer[Any, Any]):
    """Turns the parse tree into syntax objects, bottom up; method names are the grammar's rules."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def start(self, _meta: Any, clauses: list[syntax.Clause]) -> tuple[syntax.Clause, ...]:
        return tuple(clauses)

    def condition(self, _meta: Any, children: list[Any]) -> Any:
        return children[0]

    def sequence(self, meta: Any, children: list[Any]) -> syntax.Sequence:
        return syntax.Sequence(tuple(children[::2]), tuple(children[1::2]), _span(meta))

    def node(self, meta: Any, children: list[Any]) -> syntax.Node:
        looked_at, type_, anchor, test, repeat = children
        name = anchor and str(anchor)[1:].strip()
        return syntax.Node(str(type_), name, test, repeat or syntax.ONCE, _span(meta), looked_at is not None)

    def end(self, meta: Any, _children: list[Any]) -> syntax.End:
        return syntax.End(_span(meta))

    def block(self, meta: Any, children: list[Any]) -> syntax.QueryBlock:
        body, repeat = children
        return syntax.QueryBlock(body, repeat or syntax.ONCE, _span(meta))

    def parallel(self, meta: Any, branches: list[syntax.Clause]) -> syntax.Parallel:
        return syntax.Parallel(tuple(branches), _span(meta))

    def alternative(self, meta: Any, branches: list[syntax.Clause]) -> syntax.Alternative:
        return syntax.Alternative(tuple(branches), _span(meta))

    def edge(self, meta: Any, children: list[lark.Token]) -> syntax.Edge:
        (token,) = children
        text = re.sub(r"\s", "", str(token))
        forward = token.type == "FORWARD"
        exclusive = "~" not in text
        # Forward `-OUT-IN>` or `-IN>`, backward `<IN-OUT-` or `<IN-`: strip the arrow, then read it in its direction.
        inner = text[1:-1]
        first, dash, second = inner.partition("-")
        source, target = (first if dash else "", second if dash else first) if forward else (second, first)
        return syntax.Edge(forward, self._slot(source, meta), self._slot(target, meta), exclusive, _span(meta))

    def _slot(self, text: str, meta: Any) -> int | None:
        if text == "*":
            return None
        return self._integer(text, _span(meta)) if text else 0

    def _integer(self, text: str, span: syntax.Span) -> int:
        if len(text) > _MAX_DIGITS:
            raise QueryError("this number is too large", self._text, span)
        return int(text)

    def quantifier(self, meta: Any, children: list[lark.Token]) -> syntax.Repeat:
        (token,) = children
        if token.type == "COUNT":
            most = self._integer(token, _span(meta))
            if most < 1:
                raise QueryError("a number of times starts at 1", self._text, _span(meta))
            return syntax.Repeat(1, most)
        return {"?": syntax.Repeat(0, 1), "*": syntax.Repeat(0, None), "+": syntax.Repeat(1, None)}[str(token)]

    def any_of(self, _meta: Any, operands: list[Any]) -> syntax.Logic:
        return operands[0] if len(operands) == 1 else syntax.Logic("or", tuple(operands))

    def all_of(self, _meta: Any, operands: list[Any]) -> syntax.Logic:
        return operands[0] if len(operands) == 1 else syntax.Logic("and", tuple(operands))

    def negated(self, _meta: Any, operands: list[Any]) -> syntax.Not:
        return syntax.Not(operands[0])

    def comparison(self, meta: Any, children: list[Any]) -> Any:
        left, operator, right = children
        if operator is None:
            return left
        sign = "≈" if operator == "~=" else str(operator)
        return syntax.Comparison(left, cast("Any", sign), right, _span(meta))

    def number(self, _meta: Any, children: list[lark.Token]) -> syntax.Number:
        text = str(children[0])
        whole = re.fullmatch(r"[-+]?\d+", text) and len(text) <= _MAX_INT64_DIGITS
        return syntax.Number(int(text) if whole else float(text))

    def text(self, _meta: Any, children: list[lark.Token]) -> syntax.Text:
        return syntax.Text(str(children[0])[1:-1])

    def name(self, meta: Any, children: list[lark.Token]) -> syntax.Name:
        return syntax.Name(str(children[0]), _span(meta))

    def index(self, meta: Any, children: list[Any]) -> syntax.ElementOf:
        return syntax.ElementOf(children[0], self._integer(children[1], _span(meta)), _span(meta))

    def field(self, meta: Any, children: list[Any]) -> syntax.PropertyOf:
        return syntax.PropertyOf(children[0], str(children[1]), _span(meta))

    def list_of(self, _meta: Any, items: list[Any]) -> syntax.ListOf:
        return syntax.ListOf(tuple(item for item in items if item is not None))


# Parsed queries as JSON, for those that ship with the package: reading them takes a tenth of the time that parsing takes.
#
# A query is stored under the digest of its text, so a query that was edited since is not found and is parsed. The test of the pattern
# library compares every stored query with a fresh parse; `python -m onnxtile.fusion.store_queries` writes the file anew.

_CLASSES: Mapping[str, type[Any]] = {
    name: kind for name, kind in vars(syntax).items() if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}


class StoredQueries:
    """The queries and conditions of one file, by their texts; none where the file is missing or was written for another grammar."""

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        self._parsed: Mapping[str, Any] = content["parsed"] if content.get("language") == _language() else {}

    def query(self, text: str) -> syntax.Query | None:
        """Return the query that the parser made of `text`; None where it is not stored."""
        clauses = self._get(_key(text, is_query=True))
        return None if clauses is None else syntax.Query(text, clauses)

    def condition(self, text: str) -> syntax.Expression | None:
        """Return the condition that the parser made of `text`; None where it is not stored."""
        condition: syntax.Expression | None = self._get(_key(text, is_query=False))
        return condition

    def _get(self, key: str) -> Any:
        stored = self._parsed.get(key)
        return None if stored is None else _decoded(stored)


def stored_text(queries: Iterable[syntax.Query], conditions: Iterable[tuple[str, syntax.Expression]]) -> str:
    """Return the content of a file that holds `queries`, and `conditions` with their texts."""
    trees: dict[str, Any] = {_key(query.text, is_query=True): query.clauses for query in queries}
    trees |= {_key(text, is_query=False): condition for text, condition in conditions}
    lines = {json.dumps(key): json.dumps(_encoded(tree), separators=(",", ":")) for key, tree in trees.items()}
    entries = ",\n".join(f"{key}: {value}" for key, value in sorted(lines.items()))
    return f'{{"language": "{_language()}", "parsed": {{\n{entries}\n}}}}\n'


def _key(text: str, *, is_query: bool) -> str:
    return ("query " if is_query else "condition ") + _digest(text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _language() -> str:
    """Return a digest of the grammar and of the classes that a parsed query is made of."""
    grammar = resources.files("onnxtile.query").joinpath("grammar.lark").read_text("utf-8")
    fields = {name: [field.name for field in dataclasses.fields(kind)] for name, kind in _CLASSES.items()}
    return _digest(grammar + repr(fields))


def _encoded(part: Any) -> Any:
    """Return an object as a list of its class's name and its fields, and a tuple as one that begins with 0."""
    if isinstance(part, tuple):
        return [0, *map(_encoded, part)]
    if not dataclasses.is_dataclass(part):
        return part
    return [type(part).__name__, *(_encoded(getattr(part, field.name)) for field in dataclasses.fields(part))]


def _decoded(part: Any) -> Any:
    if type(part) is not list:
        return part
    parts = [item if type(item) is not list else _decoded(item) for item in part[1:]]
    return tuple(parts) if part[0] == 0 else _CLASSES[part[0]](*parts)
