"""match: list where a query matches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.verbs.options.match import MatchCommand, MatchOptions

if TYPE_CHECKING:
    from onnxtile.verbs.flows.patterns import MatchResult


@declared(MatchOptions)
def match(options: MatchOptions) -> MatchResult:
    """Return where `query` matches in `model`; matches may overlap. Raises ModelError and QueryError."""
    from onnxtile.verbs.flows import patterns as matching

    return matching.match(options)


def _run(options: MatchOptions) -> Outcome:
    from onnxtile.verbs.flows import patterns as matching

    result = matching.match(options)
    return Outcome(result, "match", reason=None if result.matches else "no match")


MATCH = Verb("match", MatchCommand, _run)
