"""match: list where a query matches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from onnxtile.common_options import ModelArgument, ReportOptions, WatchOptions
from onnxtile.declare import values
from onnxtile.declare.option import Positional, declared
from onnxtile.declare.verb import Outcome, Verb

if TYPE_CHECKING:
    from onnxtile.verbs.flows.matching import MatchResult


@dataclass(frozen=True)
class MatchOptions(WatchOptions):
    """The options of `match`."""

    model: ModelArgument
    query: Annotated[str, Positional("QUERY", "a graph query", values.TEXT)]


@dataclass(frozen=True)
class MatchCommand(ReportOptions, MatchOptions):
    """List where a query matches; exit 1 when nowhere.

    Examples:
        onnxtile match model.onnx 'MatMul-*>Add'
        onnxtile match model.onnx 'Conv[group == 1]->Relu' --json -
    """


@declared(MatchOptions)
def match(options: MatchOptions) -> MatchResult:
    """Return where `query` matches in `model`; matches may overlap. Raises ModelError and QueryError."""
    from onnxtile.verbs.flows import matching

    return matching.match(options)


def _run(options: MatchOptions) -> Outcome:
    from onnxtile.verbs.flows import matching

    result = matching.match(options)
    return Outcome(result, "match", reason=None if result.matches else "no match")


MATCH = Verb("match", MatchCommand, _run)
