"""match: list where a query matches."""

from __future__ import annotations

from typing import Annotated

from onnxtile.common_options import ModelArgument, ReportOptions, WatchOptions
from onnxtile.declare import values
from onnxtile.declare.option import Positional
from onnxtile.declare.verb import Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.registry import late


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


MATCH = Verb("match", MatchCommand, late("onnxtile.verbs.flows.match:run_match"))
