"""The language of queries: the parts of a parsed query, each with its span in the text, and its parser.

The language is Eclipse Aidge's graph query language (https://eclipse.dev/aidge, "Graph matching"), with expressions as tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Literal, TypeAlias, cast

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import QueryError

Span: TypeAlias = tuple[int, int]
"""A half-open range of characters of the query's text, counted from 0."""

ANY_NODE = "."
PRODUCER = "Producer"


@dataclass(frozen=True)
class Number:
    """A literal number of a test."""

    value: int | float


@dataclass(frozen=True)
class Text:
    """A literal string of a test."""

    value: str


@dataclass(frozen=True)
class Name:
    """A name in a test: an attribute of the node, or one of the test language's own words (`value`, `shape`, `true` ...)."""

    value: str
    span: Span


@dataclass(frozen=True)
class ElementOf:
    """`base[position]`: an element of a list-valued attribute, shape, input or output; positions count from the end below 0."""

    base: Expression
    position: int
    span: Span


@dataclass(frozen=True)
class PropertyOf:
    """`base.name`: a property (shape, rank, dtype, value) of an input or output."""

    base: Expression
    name: str
    span: Span


@dataclass(frozen=True)
class ListOf:
    """A literal list of a test."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Comparison:
    """`left operator right`; ≈ is equality within the precision of the element type."""

    left: Expression
    operator: Literal["==", "!=", "<", "<=", ">", ">=", "≈", "in"]
    right: Expression
    span: Span


@dataclass(frozen=True)
class Not:
    """The negation of a test."""

    operand: Expression


@dataclass(frozen=True)
class Logic:
    """`and` or `or` between tests, evaluated from the left as far as needed."""

    operator: Literal["and", "or"]
    operands: tuple[Expression, ...]


Expression: TypeAlias = Number | Text | Name | ElementOf | PropertyOf | ListOf | Comparison | Not | Logic


TRUTHS = {"true": True, "false": False}
"""The names in an expression that are truth values."""


def names_in(expression: Expression) -> Iterator[Name]:
    """Yield the names in `expression` that stand by themselves or start a reference, in order, without truth values."""
    todo = [expression]
    while todo:
        part = todo.pop()
        if isinstance(part, Name) and part.value not in TRUTHS:
            yield part
        todo += reversed(_parts(part))


def _parts(expression: Expression) -> tuple[Expression, ...]:
    """Return the expressions right inside `expression`."""
    match expression:
        case ElementOf() | PropertyOf():
            return (expression.base,)
        case Comparison():
            return (expression.left, expression.right)
        case Not():
            return (expression.operand,)
        case ListOf():
            return expression.items
        case Logic():
            return expression.operands
    return ()


@dataclass(frozen=True)
class Edge:
    """From one node of a sequence to the next. `output` and `input` are positions, None for any.

    A forward edge leads from `output` of the node on the left to `input` of the node on the right, a backward edge from `output` of the
    right to `input` of the left. Over an `exclusive` edge (`-`) the output goes nowhere else.
    """

    forward: bool
    output: int | None
    input: int | None
    exclusive: bool
    span: Span


@dataclass(frozen=True)
class Repeat:
    """How often an item may stand: at least `least` times, at most `most` times (None: no limit)."""

    least: int
    most: int | None


ONCE = Repeat(1, 1)


@dataclass(frozen=True)
class Node:
    """One node: its type (or `.` for any), its anchor and its test. One that is only `looked_at` stays outside the match."""

    type: str
    anchor: str | None
    test: Expression | None
    repeat: Repeat
    span: Span
    looked_at: bool = False

    @property
    def key(self) -> str | None:
        """The anchor with its type, which together say which node is meant: `Sub#1`; None without an anchor."""
        return None if self.anchor is None else f"{self.type}#{self.anchor}"


@dataclass(frozen=True)
class End:
    """`$`: over the edge before it there is no further node."""

    span: Span


@dataclass(frozen=True)
class QueryBlock:
    """A part in parentheses, which a quantifier can repeat."""

    body: Clause
    repeat: Repeat
    span: Span


@dataclass(frozen=True)
class Sequence:
    """Items joined by edges; `edges[i]` leads from `items[i]` to `items[i + 1]`."""

    items: tuple[Item, ...]
    edges: tuple[Edge, ...]
    span: Span


@dataclass(frozen=True)
class Parallel:
    """Branches that all start where the edge before the block leads from; all must match."""

    branches: tuple[Clause, ...]
    span: Span


@dataclass(frozen=True)
class Alternative:
    """Branches of which one must match; each that does makes a match of its own."""

    branches: tuple[Clause, ...]
    span: Span


Item: TypeAlias = Node | End | QueryBlock
Clause: TypeAlias = Node | End | QueryBlock | Sequence | Parallel | Alternative


@dataclass(frozen=True)
class Query:
    """A whole query: clauses that must all match around one root, the first node of the first clause.

    `text` is the query as written, `clauses` are its parts between semicolons.
    """

    text: str
    clauses: tuple[Clause, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of all clauses in the order of the text."""
        return tuple(node for clause in self.clauses for node in nodes_of(clause))

    @property
    def needed(self) -> Iterator[tuple[str, ...]]:
        """The types of which every match has a node, in the order of the text: see `needed_types`."""
        for number, clause in enumerate(self.clauses):
            yield from needed_types(clause, at_root=number == 0)


def nodes_of(clause: Clause) -> Iterator[Node]:
    """Yield the nodes of a clause in the order of the text."""
    match clause:
        case Node():
            yield clause
        case QueryBlock():
            yield from nodes_of(clause.body)
        case Sequence():
            for item in clause.items:
                yield from nodes_of(item)
        case Parallel() | Alternative():
            for branch in clause.branches:
                yield from nodes_of(branch)
        case End():
            return


def needed_types(clause: Clause, *, at_root: bool = False) -> Iterator[tuple[str, ...]]:
    """Yield the types of which every match of `clause` has a node: one type, or several of which it has one.

    Where a match begins, `at_root`, parallel branches are alternatives.
    """
    match clause:
        case Node() | QueryBlock() if clause.repeat.least == 0:
            return
        case Node():
            yield (clause.type,)
        case QueryBlock():
            yield from needed_types(clause.body, at_root=at_root)
        case Sequence():
            for number, item in enumerate(clause.items):
                yield from needed_types(item, at_root=at_root and number == 0)
        case Parallel() if not at_root:
            for branch in clause.branches:
                yield from needed_types(branch)
        case Parallel() | Alternative():
            types = [next(needed_types(branch, at_root=at_root), ()) for branch in clause.branches]
            if all(types):
                yield tuple(dict.fromkeys(type_ for first in types for type_ in first))


# From the text of a query to its clauses, with errors that show where and what was expected.
#
# The grammar, in which white space is free; `start` is a query, `test` a condition over anchors too:
#
#     start:       clause (";" clause)* [";"]
#     clause:      item (edge item)*
#     item:        node | "$" | "(" body ")" [quantifier]
#     node:        ["@"] (TYPE | ".") ["#" [NAME]] ["[" test "]"] [quantifier]
#     body:        clause | clause ("&" clause)+ | clause ("|" clause)+
#     quantifier:  "?" | "*" | "+" | "{" COUNT "}"
#     test:        all_of ("or" all_of)*
#     all_of:      negation ("and" negation)*
#     negation:    "not" negation | operand [COMPARE operand]
#     operand:     NUMBER | STRING | reference | "[" [operand ("," operand)*] "]" | "(" test ")"
#     reference:   NAME | reference "[" POSITION "]" | reference "." NAME


_MAX_LENGTH = 20_000
_MAX_DEPTH = 50
_MAX_NESTED = 200
"""The most levels of `not`, of lists and of references, which what works on a test recursively can bear."""
_MAX_DIGITS = 9
_MAX_INT64_DIGITS = 20

_DIGITS, _LETTERS = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
_SPELLINGS = {
    "a backward edge such as '<-'": ("<", r"<\s*(?:\d+|\*)?(?:\s*-\s*(?:\d+|\*))?\s*[-~]"),
    "a forward edge such as '->'": ("-~", r"[-~](?:\s*(?:\d+|\*)\s*-)?\s*(?:\d+|\*)?\s*>"),
    "a number": (f"{_DIGITS}+-.", r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"),
    "an attribute's name": (_LETTERS, r"(?!(?:and|or|not|in)\b)[A-Za-z_]\w*"),
    "an operator name": (_LETTERS, r"(?:[A-Za-z_][\w.]*::)?[A-Za-z_]\w*"),
    "a string": ("\"'", r"\"[^\"\n]*\"|'[^'\n]*'"),
    "an anchor such as '#1'": ("#", r"#(?:\s*\w+)?"),
    "a position": (f"{_DIGITS}-", r"-?\d+"),
    "'and'": ("a", r"and\b"),
    "'not'": ("n", r"not\b"),
    "a comparison such as '=='": ("=!<>≈~i", r"==|!=|<=|>=|<|>|≈|~=|in\b"),
    "'or'": ("o", r"or\b"),
}
"""What may stand in a query beside single signs, as a message names it: the characters it may begin with, and a regular expression.

Of a text that may not stand where it does, the message shows the first that fits.
"""
_BACKWARD, _FORWARD, _NUMBER, _NAME, _TYPE, _STRING, _ANCHOR, _POSITION, _AND, _NOT, _COMPARE, _OR = _SPELLINGS
_SPACE = r"[ \t\f\r\n]*"
_TOKENS = {token: re.compile(f"({expression}){_SPACE}") for token, (_, expression) in _SPELLINGS.items()}
"""Each with the space after it."""
_SIGN = re.compile(f"(.){_SPACE}")
_FIRST = {token: frozenset(starts) for token, (starts, _) in _SPELLINGS.items()}
_FIRST |= {f"'{sign}'": frozenset(sign) for sign in "&.,${@([?+}]);*|"}
_COUNT = re.compile(rf"(\d+){_SPACE}")
_PARENTHESES = re.compile("[()]")
_REPEATS = {"'?'": Repeat(0, 1), "'*'": Repeat(0, None), "'+'": Repeat(1, None)}


# What the text of a query shows without a parse, which takes forty times as long: a model without one of its operators needs none.

_ASIDE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|#\s*\w*")
"""Strings and anchors."""
_TEST = re.compile(r"\[[^\[\]]*\]")
_BLOCK = re.compile(r"\([^()]*\)")
_TYPED = re.compile(rf"({_SPELLINGS[_TYPE][1]})\s*([?*]?)")


def named_operators(text: str) -> frozenset[str]:
    """Return the names of the operators that stand for a node of the query `text`."""
    return frozenset(name for name, _ in _TYPED.findall(_without(_TEST, _ASIDE.sub("", text))))


def certain_operators(text: str) -> frozenset[str]:
    """Return the names of operators of which every match of the query `text` has a node: those outside blocks that must be there."""
    operators = _TYPED.findall(_without(_BLOCK, _without(_TEST, _ASIDE.sub("", text))))
    return frozenset(name for name, optional in operators if not optional) - {PRODUCER}


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Return `text` without what fits `pattern`, from the innermost to the outermost."""
    count = 1
    while count:
        text, count = pattern.subn("", text)
    return text


def parse(text: str) -> Query:
    """Return the query that `text` means. Raises QueryError with the line, a caret and what was expected."""
    return Query(text, _QueryParser(text).start())


def parse_condition(text: str) -> Expression:
    """Return the expression over anchors that `text` means. Raises QueryError."""
    return _QueryParser(text).condition()


class _QueryParser:
    """Reads a text from the left, one token ahead: each method reads one rule of the grammar and returns what it means.

    `_position` is where the next token starts, and `_end` where the last one ended. `_tried` are the tokens that were looked for there.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _MAX_LENGTH:
            raise QueryError(f"this is longer than {_MAX_LENGTH:,} characters", text, (_MAX_LENGTH, _MAX_LENGTH + 1))
        _limit_blocks(text)
        self._text = text
        self._end = 0
        self._depth = 0
        self._tried: list[str] = []
        self._position = len(text) - len(text.lstrip(" \t\f\r\n"))

    def start(self) -> tuple[Clause, ...]:
        clauses = [self._clause()]
        while self._take("';'") and not self._is_over():
            clauses.append(self._clause())
        self._require_end()
        return tuple(clauses)

    def condition(self) -> Expression:
        test = self._test()
        self._require_end()
        return test

    # Tokens

    def _take(self, token: str) -> str:
        """Return the text of `token` where it comes next, and step over it; "" where it does not."""
        if self._text[self._position : self._position + 1] in _FIRST[token]:
            return self._matching(_TOKENS.get(token, _SIGN), token)
        self._tried.append(token)
        return ""

    def _take_further(self, token: str) -> str:
        """Do the same for what a node may have besides: a message about a text that is not understood does not list it."""
        starts = self._text[self._position : self._position + 1] in _FIRST[token]
        return self._take(token) if starts and _TOKENS.get(token, _SIGN).match(self._text, self._position) else ""

    def _matching(self, pattern: re.Pattern[str], token: str) -> str:
        match = pattern.match(self._text, self._position)
        if match is None:
            self._tried.append(token)
            return ""
        self._end, self._position = match.end(1), match.end()
        self._tried.clear()
        return match[1]

    def _require(self, token: str) -> str:
        return self._take(token) or self._fail()

    def _is_over(self) -> bool:
        self._tried.append("the end")
        return self._position == len(self._text)

    def _require_end(self) -> None:
        if not self._is_over():
            self._fail()

    def _fail(self) -> Any:
        """Raise QueryError for what stands at the next token."""
        start = self._position
        if start == len(self._text):
            got, stop = "the query ends here", start + 1
        else:
            fits = (pattern.match(self._text, start) for pattern in _TOKENS.values())
            token = next((fit[1] for fit in fits if fit), self._text[start])
            got, stop = f"{token!r} cannot stand here", start + len(token)
        expected = sorted(set(self._tried))
        words = expected[0] if len(expected) == 1 else f"{', '.join(expected[:-1])} or {expected[-1]}"
        raise QueryError(f"{got}; expected {words}", self._text, (start, stop))

    def _integer(self, text: str, span: Span) -> int:
        if len(text) > _MAX_DIGITS:
            raise QueryError("this number is too large", self._text, span)
        return int(text)

    # Clauses

    def _clause(self) -> Clause:
        start = self._position
        items, edges = [self._item()], []
        while (edge := self._edge()) is not None:
            edges.append(edge)
            items.append(self._item())
        return Sequence(tuple(items), tuple(edges), (start, self._end)) if edges else items[0]

    def _item(self) -> Any:
        start = self._position
        if self._take("'('"):
            body = self._body()
            self._require("')'")
            repeat = self._quantifier()
            return QueryBlock(body, repeat, (start, self._end))
        if self._take("'$'"):
            return End((start, self._end))
        looked_at = self._take("'@'")
        type_ = self._take(_TYPE) or self._require("'.'")
        anchor = self._take_further(_ANCHOR)
        test = None
        if self._take_further("'['"):
            test = self._test()
            self._require("']'")
        repeat = self._quantifier()
        return Node(type_, anchor[1:].strip() if anchor else None, test, repeat, (start, self._end), bool(looked_at))

    def _body(self) -> Any:
        start = self._position
        branches = [self._clause()]
        for sign, kind in (("'&'", Parallel), ("'|'", Alternative)):
            if self._take(sign):
                branches.append(self._clause())
                while self._take(sign):
                    branches.append(self._clause())
                return kind(tuple(branches), (start, self._end))
        return branches[0]

    def _quantifier(self) -> Repeat:
        start = self._position
        for sign, repeat in _REPEATS.items():
            if self._take_further(sign):
                return repeat
        if not self._take_further("'{'"):
            return ONCE
        count = self._matching(_COUNT, "a number") or self._fail()
        self._require("'}'")
        span = (start, self._end)
        most = self._integer(count, span)
        if most < 1:
            raise QueryError("a number of times starts at 1", self._text, span)
        return Repeat(1, most)

    def _edge(self) -> Edge | None:
        start = self._position
        forward = self._take(_FORWARD)
        token = forward or self._take(_BACKWARD)
        if not token:
            return None
        span = (start, self._end)
        # Forward `-OUT-IN>` or `-IN>`, backward `<IN-OUT-` or `<IN-`: strip the arrow, then read it in its direction.
        first, dash, second = re.sub(r"\s", "", token)[1:-1].partition("-")
        source, target = (first if dash else "", second if dash else first) if forward else (second, first)
        return Edge(bool(forward), self._slot(source, span), self._slot(target, span), "~" not in token, span)

    def _slot(self, text: str, span: Span) -> int | None:
        if text == "*":
            return None
        return self._integer(text, span) if text else 0

    # Tests

    def _test(self) -> Expression:
        operands = [self._all_of()]
        while self._take(_OR):
            operands.append(self._all_of())
        return operands[0] if len(operands) == 1 else Logic("or", tuple(operands))

    def _all_of(self) -> Expression:
        operands = [self._negation()]
        while self._take(_AND):
            operands.append(self._negation())
        return operands[0] if len(operands) == 1 else Logic("and", tuple(operands))

    def _negation(self) -> Expression:
        start = self._position
        if self._take(_NOT):
            self._deeper(start)
            operand = self._negation()
            self._depth -= 1
            return Not(operand)
        left = self._operand()
        operator = self._take(_COMPARE)
        if not operator:
            return left
        right = self._operand()
        sign = cast("Any", "≈" if operator == "~=" else operator)
        return Comparison(left, sign, right, (start, self._end))

    def _operand(self) -> Expression:
        start = self._position
        if self._take("'('"):
            test = self._test()
            self._require("')'")
            return test
        if self._take("'['"):
            self._deeper(start)
            items = self._items()
            self._depth -= 1
            return ListOf(items)
        if number := self._take(_NUMBER):
            whole = re.fullmatch(r"[-+]?\d+", number) and len(number) <= _MAX_INT64_DIGITS
            return Number(int(number) if whole else float(number))
        if string := self._take(_STRING):
            return Text(string[1:-1])
        return self._reference()

    def _items(self) -> tuple[Expression, ...]:
        if self._take("']'"):
            return ()
        items = [self._operand()]
        while self._take("','"):
            items.append(self._operand())
        self._require("']'")
        return tuple(items)

    def _reference(self) -> Expression:
        start, depth = self._position, self._depth
        name = self._require(_NAME)
        reference: Expression = Name(name, (start, self._end))
        while True:
            if self._take("'['"):
                position = self._require(_POSITION)
                self._require("']'")
                span = (start, self._end)
                reference = ElementOf(reference, self._integer(position, span), span)
            elif self._take("'.'"):
                reference = PropertyOf(reference, self._require(_NAME), (start, self._end))
            else:
                self._depth = depth
                return reference
            self._deeper(start)

    def _deeper(self, start: int) -> None:
        self._depth += 1
        if self._depth > _MAX_NESTED:
            raise QueryError("this is nested too deeply", self._text, (start, self._end))


def _limit_blocks(text: str) -> None:
    depth = 0
    for parenthesis in _PARENTHESES.finditer(text):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth > _MAX_DEPTH:
            raise QueryError(f"blocks are nested deeper than {_MAX_DEPTH}", text, parenthesis.span())
