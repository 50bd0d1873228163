"""match: list where a query matches; pattern new: write the pattern for chosen nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from onnxtile.common_options import ModelArgument, ReportOptions, Source, WatchOptions
from onnxtile.declare import values
from onnxtile.declare.verb import WRITING, Option, Positional, Verb
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import invalid
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


@dataclass(frozen=True)
class DraftOptions(WatchOptions):
    """The options of `draft_pattern`."""

    model: ModelArgument
    nodes: Annotated[str | Sequence[str], Positional("NODES", "names of nodes", values.TEXTS)]
    name: Annotated[str, Option("name of the meta-op", "NAME")] = "MyMetaOp"


@dataclass(frozen=True, kw_only=True)
class PatternNewCommand(ReportOptions):
    """Write the pattern for chosen nodes.

    Examples:
        onnxtile pattern new --from model.onnx --nodes Sigmoid_1,Mul_2 --name SiLU -o silu.toml
    """

    model: Annotated[Source, Option("model that has the nodes", "MODEL", ("--from",), kind=values.SOURCE)]
    nodes: Annotated[str, Option("names of the nodes, with commas between", "A,B,C")]
    name: Annotated[str, Option("name of the meta-op", "NAME")] = "MyMetaOp"
    output: Annotated[str | None, Option("output file", "FILE.toml", ("-o", "--output"), WRITING, default="stdout")] = (
        None
    )

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(name.strip() for name in self.nodes.split(",") if name.strip())


def _require(options: PatternNewCommand) -> None:
    if not options.node_names:
        raise invalid(
            "nodes", options.nodes, reason="this names no node", hint="onnxtile inspect MODEL lists all nodes"
        )


PATTERN_NEW = Verb(
    "pattern new", PatternNewCommand, late("onnxtile.verbs.flows.match:run_pattern_new"), require=_require
)
