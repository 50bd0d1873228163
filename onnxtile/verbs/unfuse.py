"""unfuse: undo fuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.verbs.options.unfuse import UnfuseCommand, UnfuseOptions

if TYPE_CHECKING:
    from onnxtile.verbs.flows.results import UnfuseResult


@declared(UnfuseOptions)
def unfuse(options: UnfuseOptions) -> UnfuseResult:
    """Undo all that fuse did to `model`, and take the marks of a plan off.

    Raises UsageError where there is nothing to undo, ModelError, Mismatch.
    """
    from onnxtile.verbs.flows import fusing as unfusing

    return unfusing.unfuse(options)


def _run(options: UnfuseOptions) -> Outcome:
    from onnxtile.verbs.flows import fusing as unfusing

    result = unfusing.unfuse(options)
    return Outcome(result, "unfuse", result.model)


UNFUSE = Verb("unfuse", UnfuseCommand, _run, UnfuseOptions, writes=lambda _options: "unfused")
