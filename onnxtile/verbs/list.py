"""list: the names that an option takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from onnxtile.common_options import ReportOptions
from onnxtile.declare import values
from onnxtile.declare.option import Choices, Positional
from onnxtile.declare.verb import Outcome, Verb


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
            choices=Choices("onnxtile.verbs.flows.patterns:KINDS"),
        ),
    ]


def _run(options: ListCommand) -> Outcome:
    from onnxtile.verbs.flows import patterns as listing

    return Outcome(listing.option_names(options.kind), "list")


LIST = Verb("list", ListCommand, _run)
