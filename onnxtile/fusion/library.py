"""The pattern library, its sets, and the choice among patterns: one TOML file a meta-op, found by its existence."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from onnxtile.fusion.pattern import Pattern, from_file, from_query
from onnxtile.system.errors import PatternError, unknown
from onnxtile.system.registry import contributed_folders, data_folder

__all__ = ["LIBRARY", "Pattern", "from_file", "from_query", "in_order", "pattern_set", "select", "set_names"]

LIBRARY = "library"
"""The name of the set in `patterns/` itself; other sets are its subfolders, and packages of others."""


def set_names() -> list[str]:
    """Return the names of the pattern sets: the library, the folders of `patterns/`, and the sets of other distributions."""
    return list(_folders())


def _folders() -> dict[str, Path]:
    """Return the folder of each pattern set. Raises PatternError where a set of another distribution has a name that is taken."""
    library = data_folder("patterns")
    own = {LIBRARY: library, **{path.name: path for path in sorted(library.iterdir()) if path.is_dir()}}
    others = contributed_folders("onnxtile.patterns")
    for name in sorted(own.keys() & others.keys()):
        raise PatternError(
            f"{others[name]}: the name {name!r} of this pattern set is taken", hint="rename its entry point"
        )
    return {**own, **others}


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
