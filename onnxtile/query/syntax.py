"""The parts of a parsed query: clauses of nodes, edges, blocks and quantifiers, each with its span in the text.

The language is Eclipse Aidge's graph query language (https://eclipse.dev/aidge, "Graph matching"), with expressions as tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, TypeAlias

from onnxtile.system.dataclass import dataclass

Span: TypeAlias = tuple[int, int]
"""A half-open range of characters of the query's text, counted from 0."""

ANY_NODE = "."
PRODUCER = "Producer"


@dataclass(frozen=True)
class Number:
    """A literal number of a test.

    `value` is the number.
    """

    value: int | float


@dataclass(frozen=True)
class Text:
    """A literal string of a test.

    `value` is the text without quotes.
    """

    value: str


@dataclass(frozen=True)
class Name:
    """A name in a test: an attribute of the node, or one of the test language's own words (`value`, `shape`, `true` ...).

    `span` is its place in the query, in characters from 0.
    """

    value: str
    span: Span


@dataclass(frozen=True)
class ElementOf:
    """`base[position]`: an element of a list-valued attribute, shape, input or output; positions count from the end below 0.

    `base` is the list, `position` the index, `span` the place in the query.
    """

    base: Expression
    position: int
    span: Span


@dataclass(frozen=True)
class PropertyOf:
    """`base.name`: a property (shape, rank, dtype, value) of an input or output.

    `base` is the input or output, `name` the property, `span` the place in the query.
    """

    base: Expression
    name: str
    span: Span


@dataclass(frozen=True)
class ListOf:
    """A literal list of a test.

    `items` are its elements.
    """

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Comparison:
    """`left operator right`; ≈ is equality within the precision of the element type.

    `left` and `right` are the two sides, `operator` is between them, `span` the place in the query.
    """

    left: Expression
    operator: Literal["==", "!=", "<", "<=", ">", ">=", "≈", "in"]
    right: Expression
    span: Span


@dataclass(frozen=True)
class Not:
    """The negation of a test.

    `operand` is the test.
    """

    operand: Expression


@dataclass(frozen=True)
class Logic:
    """`and` or `or` between tests, evaluated from the left as far as needed.

    `operator` joins the tests in `operands`.
    """

    operator: Literal["and", "or"]
    operands: tuple[Expression, ...]


Expression: TypeAlias = Number | Text | Name | ElementOf | PropertyOf | ListOf | Comparison | Not | Logic


TRUTHS = {"true": True, "false": False}
"""The names in an expression that are truth values."""


def names_in(expression: Expression) -> Iterator[Name]:
    """Yield the names in `expression` that stand by themselves or start a reference, in order, without truth values."""
    todo = [expression]
    while todo:
        one = todo.pop()
        if isinstance(one, Name) and one.value not in TRUTHS:
            yield one
        todo += reversed(_parts(one))


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
    right to `input` of the left. Over an `exclusive` edge (`-`) the output goes nowhere else. `forward` says the direction, `span` is the
    place in the query.
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
    """One node: its type (or `.` for any), its anchor and its test. One that is only `looked_at` stays outside the match.

    `type` is an operator, `anchor` a name or None, `test` an expression or None. `repeat` is its quantifier, `span` its place in the query.
    """

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
    """`$`: over the edge before it there is no further node.

    `span` is its place in the query, in characters from 0.
    """

    span: Span


@dataclass(frozen=True)
class QueryBlock:
    """A part in parentheses, which a quantifier can repeat.

    `body` is the part, `repeat` the quantifier, `span` the place in the query.
    """

    body: Clause
    repeat: Repeat
    span: Span


@dataclass(frozen=True)
class Sequence:
    """Items joined by edges; `edges[i]` leads from `items[i]` to `items[i + 1]`.

    `items` are nodes or blocks, `edges` join them, `span` is the place in the query.
    """

    items: tuple[Item, ...]
    edges: tuple[Edge, ...]
    span: Span


@dataclass(frozen=True)
class Parallel:
    """Branches that all start where the edge before the block leads from; all must match.

    `branches` are these parts, `span` is the place in the query.
    """

    branches: tuple[Clause, ...]
    span: Span


@dataclass(frozen=True)
class Alternative:
    """Branches of which one must match; each that does makes a match of its own.

    `branches` are these parts, `span` is the place in the query.
    """

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
