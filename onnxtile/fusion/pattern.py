"""A pattern: a meta-op and the queries that find it, from a TOML file or from the text of a query."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from onnxtile.fusion.island_rule import IslandRule
from onnxtile.query.language import ANY_NODE, Node, Span
from onnxtile.query.program import Program
from onnxtile.shapes.size_rule import SizeRule
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import PatternError, QueryError, UsageError, caret, invalid, unknown
from onnxtile.system.registry import contributed_folders, data_folder
from onnxtile.system.toml_file import Location, TomlFile, line_of, read

if TYPE_CHECKING:
    from onnxtile.fusion.pattern_file import DeclaredLowering, TargetName


# Fragments: parts of queries that the variants of a pattern file share, each written once and named in braces: `{chain}`.

_REFERENCE = re.compile(r"\{\s*([A-Za-z_]\w*)\s*\}")
_MAX_LENGTH = 100_000
"""Characters of a query with all fragments in place; the parser takes less."""


@dataclass(frozen=True)
class _Piece:
    """Characters of an expanded text, and their source: the text itself (None) or a fragment, from `start` on."""

    text: str
    fragment: str | None
    start: int


@dataclass(frozen=True)
class Expanded:
    """A query or condition with its fragments in place."""

    pieces: tuple[_Piece, ...]

    @property
    def text(self) -> str:
        """The text that is parsed."""
        return "".join(piece.text for piece in self.pieces)

    def origin(self, span: Span) -> tuple[str | None, Span]:
        """Return the fragment in which a span of the text begins (None: no fragment), and the span there, cut at its end."""
        end = 0
        for piece in self.pieces:
            begin, end = end, end + len(piece.text)
            if span[0] < end:
                break
        start = piece.start + span[0] - begin
        return piece.fragment, (start, piece.start + min(span[1], max(end, span[0] + 1)) - begin)


def expanded(text: str, fragments: Mapping[str, str]) -> Expanded:
    """Return `text` with the `fragments` it names, and those that these name, in place.

    Raises PatternError for an unknown fragment, for one that contains itself, and where the text becomes too long.
    """
    pieces: list[_Piece] = []
    length = 0
    for piece in _pieces(text, fragments):
        length += len(piece.text) + 1  # an empty piece takes time as well
        if length > _MAX_LENGTH:
            raise PatternError(f"with its fragments this is longer than {_MAX_LENGTH:,} characters")
        pieces.append(piece)
    return Expanded(tuple(pieces) or (_Piece("", None, 0),))


def _pieces(text: str, fragments: Mapping[str, str]) -> Iterator[_Piece]:
    """Yield the pieces of `text` in order. Fragments may name one another in any depth, so that what is open stands in a table."""
    open_: dict[str | None, tuple[str, int]] = {None: (text, 0)}
    while open_:
        name, (text, done) = open_.popitem()
        reference = _REFERENCE.search(text, done)
        yield _Piece(text[done : None if reference is None else reference.start()], name, done)
        if reference is None:
            continue
        inner = reference[1]
        open_[name] = text, reference.end()
        if inner not in fragments:
            error = unknown("fragment", inner, fragments)
            raise PatternError(error.message, hint=error.hint if fragments else "name it in a table [fragments]")
        if inner in open_:
            above = " > ".join(filter(None, (*open_, inner)))
            raise PatternError(f"the fragment {inner!r} contains itself: {above}")
        open_[inner] = fragments[inner], 0


EVERY_NODE = "*"
"""In `in_place`: the operands of every node."""


@dataclass(frozen=True)
class Pattern:
    """A meta-op: its name, what it is, and the queries that find it, tried in order.

    `outputs` is how many results it may have: a match with more, because something outside reads an inner value, is refused. None
    stands for any number. `after` names patterns that come first, beside those whose meta-ops the queries name. `in_place` are the
    anchors of the nodes over whose operands the meta-op's kernel may write its results, "*" for all nodes. The kernel promises to read each
    element, or each row that it normalises, as a whole before it writes it. `workspace` says how many bytes the kernel needs beside its
    operands and results, of which `inputs` and `outputs` are those of the meta-op. `lowering` is the operator that the file says it is,
    if any. `file` is None where the pattern comes from no file. With an `island` it has no queries: its sites are quantised operators.
    `operators` are queries of single nodes that do the work of the whole meta-op: a model with these has nothing to fuse there.

    `name` is that of the meta-op, `doc` the sentence about it, `programs` the queries as they are run.
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
    operators: tuple[Program, ...] = ()

    def needs(self) -> set[str]:
        """Return the names of patterns that come first, if they are there: those in `after`, and all operators of the queries."""
        return set(self.after).union(*(program.named for program in self.programs))

    @property
    def place(self) -> str:
        """Where the pattern gets its name: "path:line", or the query."""
        return self.doc if self.file is None else self.file.place(("name",))

    @property
    def is_shipped(self) -> bool:
        """Whether the pattern is one of the library: tests compile its queries, and look up the names in them."""
        return self.file is not None and self.file.path.is_relative_to(data_folder("patterns"))

    @contextmanager
    def located(self, variant: int) -> Iterator[None]:
        """Turn a QueryError about a variant (counted from 0) into a PatternError that names file and line, where there is a file."""
        with _located(self.file, variant):
            yield


def from_file(path: Path) -> Pattern:
    """Return the pattern in a TOML file. Raises PatternError, with the file, the line and, where there is one, the field at fault."""
    if path.is_relative_to(data_folder("patterns")):
        return _shipped(path, path.stat().st_mtime_ns)
    from onnxtile.fusion.pattern_file import PatternFile

    source = read(path, PatternError)
    source.validated(PatternFile)
    return compiled(_pattern_in(source))


@cache
def _shipped(path: Path, _edited: int) -> Pattern:
    """Return the pattern in a file of the library, read once in a process unless the file is edited.

    Its queries are compiled when a model has their operators.
    """
    return _pattern_in(read(path, PatternError))


def compiled(pattern: Pattern) -> Pattern:
    """Return `pattern`, all of whose queries are compiled. Raises QueryError; PatternError with the place, where the pattern has a file."""
    for i, program in enumerate(pattern.programs):
        with pattern.located(i):
            _require_telling(program)
            _require_anchors(pattern, program)
    for i, program in enumerate(pattern.operators):
        _require_one_node(pattern, i, program)
    return pattern


def _pattern_in(source: TomlFile) -> Pattern:
    """Return the pattern of a file that fulfils the schema. Raises PatternError."""
    file = source.content
    in_place, outputs = tuple(file.get("in_place", ())), file.get("outputs", 1)
    programs = []
    for i, variant in enumerate(file.get("variants", ())):
        query, *where = _expanded_texts(variant, file.get("fragments", {}), source, i)
        programs.append(Program(query, tuple(where)))
    island = {name: frozenset(operators) for name, operators in file.get("island", {}).items()}
    return Pattern(
        file["name"],
        file["doc"],
        tuple(programs),
        outputs,
        tuple(file.get("after", ())),
        source,
        in_place,
        _size_rule(file["workspace"], source) if "workspace" in file else None,
        _lowering(source) if "lower" in file else None,
        IslandRule(**island) if island else None,
        tuple(map(Program, file.get("operators", ()))),
    )


def _require_one_node(pattern: Pattern, number: int, program: Program) -> None:
    """Raise PatternError where a query of an operator that does the work of the whole meta-op is not a single node."""
    assert pattern.file is not None
    place = f"{pattern.file.place(('operators', number))}: operators"
    try:
        is_one = len(program.query.clauses) == 1 and isinstance(program.query.clauses[0], Node) and program.instructions
    except QueryError as error:
        raise PatternError(f"{place}: {error.message}", hint=error.hint) from None
    if not is_one:
        raise PatternError(f"{place}: {program.text!r} is not one node")


def _expanded_texts(
    variant: Mapping[str, Any], fragments: Mapping[str, str], source: TomlFile, position: int
) -> Iterator[str]:
    """Yield the query and the conditions of a variant with their fragments in place. Raises PatternError."""
    for location, text in _texts(variant["query"], variant.get("where", ()), position):
        try:
            yield expanded(text, fragments).text
        except PatternError as error:
            prefix = source.place(location)
            raise PatternError(f"{prefix}: variant {position + 1}: {error.message}", hint=error.hint) from None


def _texts(query: str, where: Sequence[str], position: int) -> list[tuple[Location, str]]:
    """Return the texts of the variant at `position`, each with its location in the file."""
    variant = ("variants", position)
    return [((*variant, "query"), query), *(((*variant, "where", i), text) for i, text in enumerate(where))]


def _lowering(source: TomlFile) -> DeclaredLowering | None:
    from onnxtile.fusion.pattern_file import Declared, checked  # few files declare an operator

    file = source.content
    kinds: dict[TargetName, Declared] = {kind: Declared(**table) for kind, table in file["lower"].items()}
    return checked(file["name"], kinds, file.get("outputs", 1), source)


def _size_rule(text: str, source: TomlFile) -> SizeRule:
    try:
        return SizeRule(text)
    except UsageError as error:
        raise PatternError(f"{source.place(('workspace',))}: workspace: {error.message}", hint=error.hint) from error


def _require_anchors(pattern: Pattern, program: Program) -> None:
    known = {node.anchor for node in program.query.nodes}
    for i, name in enumerate(pattern.in_place):
        if pattern.file is not None and name != EVERY_NODE and name not in known:
            prefix = pattern.file.place(("in_place", i))
            raise PatternError(f"{prefix}: in_place: unknown anchor {name!r} in the query {program.text.strip()!r}")


def from_query(query: str, name: str = "MetaOp") -> Pattern:
    """Return a pattern of one query; its meta-op may have any number of results. Raises QueryError."""
    return compiled(Pattern(name, f"what matches {query}", (Program(query),), None))


def _require_telling(program: Program) -> None:
    """Compile `program`. Raises QueryError where all its nodes may be anything: every part of a model is such a meta-op."""
    nodes = program.query.nodes
    asks = program.instructions and any(node.type != ANY_NODE or node.test is not None for node in nodes)
    if not asks and not program.where:
        hint = "name an operator, or say in brackets what a node is, as .[rank == 4]"
        raise QueryError("this matches everything", program.text, (0, len(program.text)), hint=hint)


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


# The pattern library, its sets, and the choice among patterns: one TOML file a meta-op, found by its existence.

LIBRARY = "library"
"""The name of the set in `patterns/` itself; other sets are its subfolders, and packages of others."""


def set_names() -> list[str]:
    """Return the names of the pattern sets: the library, the folders of `patterns/`, and the sets of other distributions."""
    return list(_folders())


def _folders() -> dict[str, Path]:
    """Return the folder of each pattern set. Raises PatternError where a set of another distribution has a name that is taken."""
    library = data_folder("patterns")
    folders = {LIBRARY: library, **{path.name: path for path in sorted(library.iterdir()) if path.is_dir()}}
    others = contributed_folders("onnxtile.patterns")
    for name in sorted(folders.keys() & others.keys()):
        raise PatternError(
            f"{others[name]}: the name {name!r} of this pattern set is taken", hint="rename its entry point"
        )
    return {**folders, **others}


def pattern_set(name: str = LIBRARY) -> list[Pattern]:
    """Return the patterns of a set, each after those it needs.

    Raises UsageError for an unknown set, PatternError for a file at fault or two patterns of one name.
    """
    folders = _folders()
    if name not in folders:
        raise unknown("pattern set", name, folders)
    return in_order(sorted(map(from_file, sorted(folders[name].glob("*.toml"))), key=lambda pattern: pattern.name))


def in_order(patterns: Iterable[Pattern]) -> list[Pattern]:
    """Return `patterns` as they stand, but each after those that its `after` and its queries name.

    Raises PatternError for two of one name, and for patterns that name each other in a circle.
    """
    listed = require_distinct(patterns)
    named: dict[str, list[Pattern]] = {}
    for pattern in listed:
        named.setdefault(pattern.name, []).append(pattern)
    ordered: dict[int, Pattern] = {}
    for pattern in listed:
        _place(pattern, named, ordered)
    return list(ordered.values())


def _place(pattern: Pattern, named: Mapping[str, Sequence[Pattern]], ordered: dict[int, Pattern]) -> None:
    """Put into `ordered` what `pattern` comes after, and then `pattern` itself, each known by its identity."""
    above = {pattern.name: _before(pattern, named, ordered)}
    stack = [pattern]
    while stack:
        following = next(above[stack[-1].name], None)
        if following is None:
            done = stack.pop()
            del above[done.name]
            ordered.setdefault(id(done), done)
        elif following.name in above:
            raise _circle(list(above), following.name)
        else:
            above[following.name] = _before(following, named, ordered)
            stack.append(following)


def _before(pattern: Pattern, named: Mapping[str, Sequence[Pattern]], ordered: Container[int]) -> Iterator[Pattern]:
    """Yield the patterns that come before `pattern` and have no place yet; what has its name needs no place before it."""
    for name in sorted(pattern.needs() & named.keys() - {pattern.name}):
        yield from (other for other in named[name] if id(other) not in ordered)


def _circle(above: Sequence[str], name: str) -> PatternError:
    names = " > ".join((*above[above.index(name) :], name))
    return PatternError(f"patterns come after each other in a circle: {names}", hint="leave one of them out")


def require_distinct(patterns: Iterable[Pattern]) -> list[Pattern]:
    """Return `patterns`. Raises PatternError where the files of two give the same name to their meta-ops."""
    listed = list(patterns)
    seen: dict[str, Pattern] = {}
    for pattern in listed:
        first = seen.setdefault(pattern.name, pattern)
        if first.file is not None and pattern.file is not None and first.file.path != pattern.file.path:
            raise PatternError(f"{pattern.place}: the name {pattern.name!r} is taken: {first.place} gives it as well")
    return listed


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
            raise unknown("pattern", name, (*library, *set_names()))
        else:
            chosen.append(from_query(name))
    return chosen


def _of_set(set_name: str, name: str) -> Pattern:
    patterns = {pattern.name: pattern for pattern in pattern_set(set_name)}
    if name not in patterns:
        raise unknown(f"pattern of the set {set_name!r}:", name, patterns)
    return patterns[name]


# The patterns that an option names.

Patterns: TypeAlias = str | Iterable[str | tuple[str, str] | Pattern]
"""A pattern or several: names, sets, .toml files, queries, (name, query) pairs."""
_PRODUCTS = "QuantisedProduct"
_NAMED = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)
"""A query with the name of its meta-op before it."""


def chosen_patterns(patterns: Patterns, lower: str = "none") -> list[Pattern]:
    """Return the patterns that `patterns` name, each after those it needs; where they name none, those for `lower` by default.

    Raises PatternError, QueryError, UsageError.
    """
    chosen: list[Pattern] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        chosen += [pattern] if isinstance(pattern, Pattern) else _selected(pattern)
    ordered = in_order(chosen) or _default_patterns(lower)
    return ordered if lower == "none" else [_in_operators(pattern) for pattern in ordered]


def _in_operators(pattern: Pattern) -> Pattern:
    """Return `pattern` without islands of whole attention: both of its products are lowered by themselves."""
    rule = pattern.island
    return pattern if rule is None else replace(pattern, island=replace(rule, attention=frozenset()))


def _default_patterns(lower: str) -> list[Pattern]:
    """Return the library, and what quantised models need besides.

    Of onnxruntime's operators those of products with quantised weights come first: no part of one shall be in a larger meta-op.
    """
    if lower == "onnx":
        return pattern_set()
    if lower == "qdq":
        return pattern_set("dynamic")
    quantised = pattern_set("quantised")
    if lower == "none":
        return [*pattern_set(), *quantised]
    products = [
        replace(pattern, name=_PRODUCTS, island=replace(pattern.island, products=frozenset({"Gemm", "MatMul"})))
        for pattern in quantised
        if pattern.island is not None
    ]
    return [*pattern_set("dynamic"), *products, *pattern_set(), *quantised]


def _selected(pattern: str | tuple[str, str]) -> list[Pattern]:
    """Return the patterns that a text stands for; NAME=QUERY and (NAME, QUERY) name the meta-op of a query."""
    if isinstance(pattern, str):
        named = _NAMED.fullmatch(pattern)
        if named is None:
            return select([pattern])
        pattern = named[1], named[2]
    name, query = pattern
    if not name.isidentifier():
        raise invalid("patterns", name, reason="the name of a meta-op is an identifier")
    return [from_query(query, name)]


def pattern_names() -> list[str]:
    """Return the names of all sets of patterns, and of the patterns of the library."""
    return sorted({*set_names(), *(pattern.name for pattern in pattern_set())})
