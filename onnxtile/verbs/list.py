"""list: the names that an option takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar

from onnxtile.common_options import ReportOptions
from onnxtile.declare import values
from onnxtile.declare.verb import Choices, JsonFields, Outcome, Positional, Verb, VerbResult
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import invalid


@dataclass(frozen=True)
class OptionName(JsonFields):
    """One name that an option takes, and a sentence about it.

    `name` is what the option takes, `summary` the sentence.
    """

    name: str
    summary: str


@dataclass(frozen=True, repr=False)
class OptionNames(VerbResult):
    """All names of one kind, with the option that takes them.

    `kind` is what is listed, `option` the option that takes the `names`.
    """

    verb: ClassVar[str] = "list"

    kind: str
    option: str
    names: tuple[OptionName, ...]

    @property
    def summary(self) -> str:
        """How many names of which kind there are."""
        return f"{len(self.names):,} {self.kind} for {self.option}"


def _patterns() -> Iterator[OptionName]:
    from onnxtile.fusion.pattern import LIBRARY, pattern_set, set_names

    for set_name in set_names():
        prefix = "" if set_name == LIBRARY else f"{set_name}/"
        listed = sorted(pattern_set(set_name), key=lambda pattern: pattern.name.casefold())
        yield from (OptionName(f"{prefix}{pattern.name}", pattern.doc) for pattern in listed)


def _planners() -> Iterator[OptionName]:
    from onnxtile.planning.planners import planners

    yield from (OptionName(name, planner.summary) for name, planner in planners().items())


def _orders() -> Iterator[OptionName]:
    from onnxtile.planning.orders import orders

    yield from (OptionName(name, order.summary) for name, order in orders().items())


def _targets() -> Iterator[OptionName]:
    from onnxtile.tiling.limits import descriptions

    yield from (OptionName(name, doc) for name, doc in descriptions().items())


def _formats() -> Iterator[OptionName]:
    from onnxtile.report.format import Format
    from onnxtile.system.registry import discover

    formats = discover("onnxtile.report.formats", Format).values()
    yield from (OptionName(form.suffix, form.summary) for form in sorted(formats, key=lambda form: form.suffix))


_KINDS: dict[str, tuple[str, Callable[[], Iterator[OptionName]]]] = {
    "patterns": ("fuse --pattern", _patterns),
    "planners": ("plan --search", _planners),
    "orders": ("plan --order", _orders),
    "targets": ("--target of tile, plan and fit", _targets),
    "formats": ("plan --emit", _formats),
}

KINDS = tuple(_KINDS)
"""The kinds of names that `option_names` lists."""


def option_names(kind: str) -> OptionNames:
    """Return the names of a `kind` (one of `KINDS`), sorted as the option shows them. Raises UsageError for an unknown kind."""
    if kind not in _KINDS:
        raise invalid("kind", kind, _KINDS)
    option, list_names = _KINDS[kind]
    return OptionNames(kind, option, tuple(list_names()))


@dataclass(frozen=True)
class ListCommand(ReportOptions):
    """List the names that an option takes.

    Examples:
        onnxtile list patterns
        onnxtile list targets --json -
    """

    kind: Annotated[
        str,
        Positional(
            "patterns|planners|orders|targets|formats",
            "the kind of names",
            values.TEXT,
            choices=Choices(also=KINDS),
        ),
    ]


LIST = Verb("list", ListCommand, lambda options: Outcome(option_names(options.kind), "list"))
