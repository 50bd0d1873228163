"""unfuse: undo all that fuse did."""

from __future__ import annotations

from onnxtile.declare.verb import Outcome, declared
from onnxtile.fusion.unfuse import unfuse as unfuse_graph
from onnxtile.model.load import load
from onnxtile.model.topology import clear_plan
from onnxtile.model.validity import check
from onnxtile.verbs.flows.results import UnfuseResult, agreeing, file_of
from onnxtile.verbs.unfuse import UnfuseOptions
from onnxtile.verification.rounding import compare


@declared(UnfuseOptions)
def unfuse(options: UnfuseOptions) -> UnfuseResult:
    """Undo all that fuse did to `model`, and take the marks of a plan off.

    Raises UsageError where there is nothing to undo, ModelError, Mismatch.
    """
    progress = options.progress
    progress("reading the model")
    fused = load(options.model)
    restored = fused.clone()
    unfused = unfuse_graph(restored)
    clear_plan(restored)
    check(restored)
    verdict = None
    if options.verify:
        progress("verifying")
        verdict = agreeing(compare(fused, restored, progress=progress), "the unfused model")
    return UnfuseResult(restored, unfused, verdict, source=file_of(options.model))


def run(options: UnfuseOptions) -> Outcome:
    """Do what the command and the step `unfuse` ask for."""
    result = unfuse.from_options(options)
    return Outcome(result, "unfuse", result.model)
