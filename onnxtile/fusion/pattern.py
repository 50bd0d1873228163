"""A pattern: a meta-op and the queries that find it, from a TOML file or from the text of a query."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from onnxtile.errors import PatternError, QueryError, UsageError, caret
from onnxtile.fusion.declared_operator import Declared, TargetName
from onnxtile.fusion.fragments import expanded
from onnxtile.fusion.island_rule import IslandRule
from onnxtile.model.size_rule import SizeRule
from onnxtile.query.program import Program, compile_query
from onnxtile.query.stored import StoredQueries
from onnxtile.query.syntax import ANY_NODE, Expression, Query, Span
from onnxtile.registry import data_folder
from onnxtile.toml_file import Location, TomlFile, line_of, read

if TYPE_CHECKING:
    from onnxtile.fusion.lowering_driver.declared import DeclaredLowering

EVERY_NODE = "*"
"""In `in_place`: the operands of every node."""
STORED = "parsed.json"
"""The file of the pattern library that holds its queries parsed."""


class _Variant(pydantic.BaseModel):
    """One way in which exporters write the meta-op."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    query: str
    where: tuple[str, ...] = ()
    note: str = ""


class _PatternFile(pydantic.BaseModel):
    """The fields of a pattern file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str = pydantic.Field(pattern=r"^[A-Za-z_]\w*$")
    doc: str = pydantic.Field(min_length=1)
    assumes: tuple[str, ...] = ()
    outputs: int = pydantic.Field(default=1, ge=1)
    after: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()
    workspace: str | None = None
    lower: dict[TargetName, Declared] = {}
    fragments: dict[str, str] = {}
    variants: tuple[_Variant, ...] = ()
    island: IslandRule | None = None

    @pydantic.model_validator(mode="after")
    def _has_sites(self) -> _PatternFile:
        if bool(self.variants) == (self.island is not None):
            raise ValueError(
                "'variants' is missing" if self.island is None else "a pattern has variants or an island, not both"
            )
        return self


@dataclass(frozen=True)
class Pattern:
    """A meta-op: its name, what it is, and the queries that find it, tried in order.

    `outputs` is how many results it may have: a match with more, because something outside reads an inner value, is refused. None
    stands for any number. `after` names patterns that come first, beside those whose meta-ops the queries name. `in_place` are the
    anchors of the nodes over whose operands the meta-op's kernel may write its results, "*" for all nodes. The kernel promises to read each
    element, or each row that it normalises, as a whole before it writes it. `workspace` says how many bytes the kernel needs beside its
    operands and results, of which `inputs` and `outputs` are those of the meta-op. `lowering` is the operator that the file says it is,
    if any. `file` is None where the pattern comes from no file. With an `island` it has no queries: its sites are quantised operators.
    """

    name: str
    doc: str
    programs: tuple[Program, ...]
    outputs: int | None
    after: tuple[str, ...] = ()
    file: TomlFile | None = None
    in_place: tuple[str, ...] = ()
    workspace: SizeRule | None = None
    lowering: DeclaredLowering | None = None
    island: IslandRule | None = None

    def needs(self) -> set[str]:
        """Return the names of patterns that come first, if they are there: those in `after`, and all operators of the queries."""
        return {*self.after, *(node.type for program in self.programs for node in program.query.nodes)}

    @property
    def place(self) -> str:
        """Where the pattern gets its name: "path:line", or the query."""
        return self.doc if self.file is None else self.file.place(("name",))

    @contextmanager
    def located(self, variant: int) -> Iterator[None]:
        """Turn a QueryError about a variant (counted from 0) into a PatternError that names file and line, where there is a file."""
        with _located(self.file, variant):
            yield


def from_file(path: Path) -> Pattern:
    """Return the pattern in a TOML file. Raises PatternError, with the file, the line and, where there is one, the field at fault."""
    if path.is_relative_to(data_folder("patterns")):
        return _shipped(path, path.stat().st_mtime_ns)
    return _read_pattern(path, None)


@cache
def _shipped(path: Path, _edited: int) -> Pattern:
    """Return the pattern in a file of the library, read once in a process unless the file is edited."""
    return _read_pattern(path, _stored())


def _read_pattern(path: Path, stored: StoredQueries | None) -> Pattern:
    source = read(path, PatternError)
    file = source.validated(_PatternFile)
    programs = []
    for i, variant in enumerate(file.variants):
        with _located(source, i):
            query, *conditions = _expanded_texts(variant, file.fragments, source, i)
            where = tuple((_condition(text, stored), text) for text in conditions)
            programs.append(_telling(compile_query(_query(query, stored), where), conditions=bool(where)))
            _require_anchors(file.in_place, programs[-1], source)
    workspace = None if file.workspace is None else _size_rule(file.workspace, source)
    lowering = _lowering(file, source) if file.lower else None
    return Pattern(
        file.name, file.doc, tuple(programs), file.outputs, file.after, source, file.in_place, workspace, lowering,
        file.island,
    )  # fmt: skip


def texts_of(path: Path) -> list[tuple[str, ...]]:
    """Return the query of each variant of a pattern file, then its conditions, with fragments in place. Raises PatternError."""
    source = read(path, PatternError)
    file = source.validated(_PatternFile)
    return [tuple(_expanded_texts(v, file.fragments, source, i)) for i, v in enumerate(file.variants)]


def _expanded_texts(variant: _Variant, fragments: Mapping[str, str], source: TomlFile, position: int) -> Iterator[str]:
    """Yield the query and the conditions of a variant with their fragments in place. Raises PatternError."""
    for location, text in _texts(variant.query, variant.where, position):
        try:
            yield expanded(text, fragments).text
        except PatternError as error:
            place = source.place(location)
            raise PatternError(f"{place}: variant {position + 1}: {error}", hint=error.hint) from None


def _texts(query: str, where: Sequence[str], position: int) -> list[tuple[Location, str]]:
    """Return the texts of the variant at `position`, each with its location in the file."""
    variant = ("variants", position)
    return [((*variant, "query"), query), *(((*variant, "where", i), text) for i, text in enumerate(where))]


@cache
def _stored() -> StoredQueries:
    return StoredQueries(data_folder("patterns") / STORED)


def _query(text: str, stored: StoredQueries | None = None) -> Query:
    """Return the query that `text` means, from `stored` where it is there. Raises QueryError."""
    known = None if stored is None else stored.query(text)
    if known is not None:
        return known
    from onnxtile.query.parse import parse  # imports lark, which the library's queries do not need

    return parse(text)


def _condition(text: str, stored: StoredQueries | None) -> Expression:
    """Return the condition that `text` means, from `stored` where it is there. Raises QueryError."""
    known = None if stored is None else stored.condition(text)
    if known is not None:
        return known
    from onnxtile.query.parse import parse_condition

    return parse_condition(text)


def _lowering(file: _PatternFile, source: TomlFile) -> DeclaredLowering | None:
    from onnxtile.fusion.lowering_driver.declared import checked  # few files declare an operator

    return checked(file.name, file.lower, file.outputs, source)


def _size_rule(text: str, source: TomlFile) -> SizeRule:
    try:
        return SizeRule(text)
    except UsageError as error:
        raise PatternError(f"{source.place(('workspace',))}: workspace: {error}", hint=error.hint) from error


def _require_anchors(names: tuple[str, ...], program: Program, source: TomlFile) -> None:
    known = {node.anchor for node in program.query.nodes}
    for i, name in enumerate(names):
        if name != EVERY_NODE and name not in known:
            place = source.place(("in_place", i))
            raise PatternError(
                f"{place}: in_place: unknown anchor {name!r} in the query {program.query.text.strip()!r}"
            )


def from_query(query: str, name: str = "MetaOp") -> Pattern:
    """Return a pattern of one query; its meta-op may have any number of results. Raises QueryError."""
    return Pattern(name, f"what matches {query}", (_telling(compile_query(_query(query))),), None)


def _telling(program: Program, *, conditions: bool = False) -> Program:
    """Return `program`. Raises QueryError where all its nodes may be anything: every part of a model is such a meta-op."""
    query = program.query
    nodes = query.nodes
    asks = any(node.type != ANY_NODE or node.test is not None for node in nodes)
    if not asks and not conditions:
        hint = "name an operator, or say in brackets what a node is, as .[rank == 4]"
        raise QueryError("this matches everything", query.text, (0, len(query.text)), hint=hint)
    return program


@contextmanager
def _located(file: TomlFile | None, variant: int) -> Iterator[None]:
    try:
        yield
    except QueryError as error:
        if file is None:
            raise
        location, text, span = _origin(file, variant, error)
        line = _line(file, location, text, span)
        shown = caret(text, span, first=line - text.count("\n", 0, span[0]))
        message = f"{file.path}:{line}: variant {variant + 1}: {error.reason}\n{shown}"
        raise PatternError(message, hint=error.hint) from None


def _origin(file: TomlFile, variant: int, error: QueryError) -> tuple[Location, str, Span]:
    """Return the text of the file at which `error` points, a query, a condition or a fragment, with its location and the span in it."""
    fragments: dict[str, str] = file.content.get("fragments", {})
    content = file.content["variants"][variant]
    for location, text in _texts(content["query"], content.get("where", []), variant):
        known = expanded(text, fragments)
        if known.text == error.text:
            name, span = known.origin(error.span)
            return (location, text, span) if name is None else (("fragments", name), fragments[name], span)
    return ("variants", variant, "query"), error.text, error.span


def _line(file: TomlFile, location: Location, text: str, span: Span) -> int:
    """Return the line of the file in which `span` of the `text` at `location` begins."""
    start = line_of(file.text, location)
    inner = text.count("\n", 0, span[0])
    wanted = re.escape(text.split("\n")[inner].strip())
    # The text may begin on a later line than its key: after three quotes, or in an array.
    lines = enumerate(file.text.splitlines()[start - 1 + inner :], start + inner)
    return next((number for number, line in lines if re.search(rf"(^|['\"\s]){wanted}\s*($|['\"])", line)), start)
