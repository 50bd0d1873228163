"""Pattern files: one TOML file a meta-op, found by its existence."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pydantic

from onnxtile.errors import PatternError, QueryError, UsageError
from onnxtile.query.parse import parse, parse_condition
from onnxtile.query.program import Program, compile_query, nodes_of
from onnxtile.registry import data_folder

LIBRARY = "library"
"""The name of the set that stands in `patterns/` itself; other sets are folders of it."""


class _Variant(pydantic.BaseModel):
    """One way in which exporters write the meta-op."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    query: str
    where: tuple[str, ...] = ()
    note: str = ""


class _File(pydantic.BaseModel):
    """The fields of a pattern file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    name: str = pydantic.Field(pattern=r"^[A-Za-z_]\w*$")
    doc: str = pydantic.Field(min_length=1)
    assumes: tuple[str, ...] = ()
    outputs: int = pydantic.Field(default=1, ge=1)
    after: tuple[str, ...] = ()
    variants: tuple[_Variant, ...] = pydantic.Field(min_length=1)


@dataclass(frozen=True)
class Pattern:
    """A meta-op: its name, what it is, and the queries that find it, tried in order.

    `outputs` is how many results it may have: a match with more, because something outside reads an inner value, is refused. None
    stands for any number. `after` names patterns that come first, beside those whose meta-ops the queries name.
    """

    name: str
    doc: str
    programs: tuple[Program, ...]
    outputs: int | None
    after: tuple[str, ...] = ()

    def needs(self) -> set[str]:
        """Return the names of patterns that come first, if they are there: those in `after`, and all operators of the queries."""
        clauses = (clause for program in self.programs for clause in program.query.clauses)
        return {*self.after, *(node.type for clause in clauses for node in nodes_of(clause))}


def from_file(path: Path) -> Pattern:
    """Return the pattern in a TOML file. Raises PatternError, with the file and the line or field at fault."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise PatternError(f"{path}: no such file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise PatternError(f"{path}: {error}") from None
    try:
        file = _File.model_validate(content)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise PatternError(f"{path}: field {field!r}: {first['msg']}") from None
    programs = tuple(_compiled(variant, f"{path}: variant {i + 1}") for i, variant in enumerate(file.variants))
    return Pattern(file.name, file.doc, programs, file.outputs, file.after)


def from_query(query: str, name: str = "MetaOp") -> Pattern:
    """Return a pattern of one query; its meta-op may have any number of results."""
    return Pattern(name, f"what matches {query}", (compile_query(parse(query)),), None)


def _compiled(variant: _Variant, place: str) -> Program:
    try:
        where = tuple((parse_condition(text), text) for text in variant.where)
        return compile_query(parse(variant.query), where)
    except QueryError as error:
        raise PatternError(f"{place}: {error}", hint=error.hint) from None


def set_names() -> list[str]:
    """Return the names of the pattern sets: the library, and the folders of `patterns/`."""
    return [LIBRARY, *sorted(path.name for path in data_folder("patterns").iterdir() if path.is_dir())]


def pattern_set(name: str = LIBRARY) -> list[Pattern]:
    """Return the patterns of a set, each after those it needs.

    Raises UsageError for an unknown set, PatternError for a file at fault or two patterns of one name.
    """
    if name not in set_names():
        raise UsageError(f"there is no pattern set {name!r}", hint=f"there is {', '.join(set_names())}")
    folder = data_folder("patterns") / ("" if name == LIBRARY else name)
    return in_order(from_file(path) for path in sorted(folder.glob("*.toml")))


def in_order(patterns: Iterable[Pattern]) -> list[Pattern]:
    """Return `patterns` by name, each after those whose meta-ops its queries name. Raises PatternError for two of one name."""
    by_name: dict[str, Pattern] = {}
    for pattern in sorted(patterns, key=lambda p: p.name):
        if by_name.setdefault(pattern.name, pattern) is not pattern:
            raise PatternError(f"two patterns are named {pattern.name!r}")
    ordered: dict[str, Pattern] = {}

    def place(pattern: Pattern, above: tuple[str, ...]) -> None:
        if pattern.name in above:
            raise PatternError(f"the patterns {' and '.join(above)} name each other in a circle")
        for name in sorted(pattern.needs() & by_name.keys() - {pattern.name}):
            if name not in ordered:
                place(by_name[name], (*above, pattern.name))
        ordered[pattern.name] = pattern

    for pattern in by_name.values():
        if pattern.name not in ordered:
            place(pattern, ())
    return list(ordered.values())


def select(names: Iterable[str]) -> list[Pattern]:
    """Return the patterns that `names` say, in that order.

    A name is that of a set, of a pattern of the library, or SET/NAME; or it is a TOML file, or a query. Raises UsageError,
    PatternError or QueryError.
    """
    library: dict[str, Pattern] = {}
    chosen: list[Pattern] = []
    for name in names:
        library = library or {pattern.name: pattern for pattern in pattern_set()}
        if name in library:
            chosen.append(library[name])
        elif name in set_names():
            chosen += pattern_set(name)
        elif name.endswith(".toml"):
            chosen.append(from_file(Path(name)))
        elif name.partition("/")[0] in set_names():
            chosen.append(_of_set(*name.split("/", 1)))
        elif name.isidentifier():
            listed = ", ".join((*library, *set_names()))
            raise UsageError(
                f"there is no pattern {name!r}", hint=f"there is {listed}; a query has an edge, a file ends in .toml"
            )
        else:
            chosen.append(from_query(name))
    return chosen


def _of_set(set_name: str, name: str) -> Pattern:
    patterns = {pattern.name: pattern for pattern in pattern_set(set_name)}
    if name not in patterns:
        raise UsageError(f"the set {set_name!r} has no pattern {name!r}", hint=f"it has {', '.join(patterns)}")
    return patterns[name]
