"""pattern new: write the pattern for chosen nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from onnxtile.common_options import ModelArgument, ReportOptions, Source, WatchOptions
from onnxtile.declare import values
from onnxtile.declare.option import WRITING, Option, Positional, declared, narrowed
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.system.errors import invalid

if TYPE_CHECKING:
    from onnxtile.verbs.flows.drafting import PatternDraft


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


@declared(DraftOptions)
def draft_pattern(options: DraftOptions) -> PatternDraft:
    """Write the query for the nodes called `nodes` (a node without a name is called by its first output).

    Raises UsageError where a node is not there, or they are not connected.
    """
    from onnxtile.verbs.flows import drafting

    return drafting.draft_pattern(options)


def _named(options: PatternNewCommand) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.nodes.split(",") if part.strip())


def _require(options: PatternNewCommand) -> None:
    if not _named(options):
        raise invalid("nodes", options.nodes, reason="this names no node", hint="onnxtile match MODEL . lists them all")


def _run(options: PatternNewCommand) -> Outcome:
    from onnxtile.verbs.flows import drafting

    draft = drafting.draft_pattern(narrowed(DraftOptions, options, nodes=_named(options)))
    note = f"the query matches {draft.matches} times in {options.model}"
    return Outcome(draft, "", text=draft.text, note=note)


PATTERN_NEW = Verb("pattern new", PatternNewCommand, _run, require=_require)
