"""pattern new: write the pattern for chosen nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxtile.declare.option import declared, narrowed
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.system.errors import invalid
from onnxtile.verbs.options.pattern_new import DraftOptions, PatternNewCommand

if TYPE_CHECKING:
    from onnxtile.verbs.flows.patterns import PatternDraft


@declared(DraftOptions)
def draft_pattern(options: DraftOptions) -> PatternDraft:
    """Write the query for the nodes called `nodes` (a node without a name is called by its first output).

    Raises UsageError where a node is not there, or they are not connected.
    """
    from onnxtile.verbs.flows import patterns as drafting

    return drafting.draft_pattern(options)


def _named(options: PatternNewCommand) -> tuple[str, ...]:
    return tuple(part.strip() for part in options.nodes.split(",") if part.strip())


def _require(options: PatternNewCommand) -> None:
    if not _named(options):
        raise invalid("nodes", options.nodes, reason="this names no node", hint="onnxtile match MODEL . lists them all")


def _run(options: PatternNewCommand) -> Outcome:
    from onnxtile.verbs.flows import patterns as drafting

    draft = drafting.draft_pattern(narrowed(DraftOptions, options, nodes=_named(options)))
    note = f"the query matches {draft.matches} times in {options.model}"
    return Outcome(draft, "", text=draft.text, note=note)


PATTERN_NEW = Verb("pattern new", PatternNewCommand, _run, require=_require)
