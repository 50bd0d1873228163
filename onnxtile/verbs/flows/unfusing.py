"""Undo what fuse did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxtile.fusion.unfuse import unfuse as unfuse_graph
from onnxtile.model.load import load
from onnxtile.model.validity import check
from onnxtile.planning.annotate import clear_plan
from onnxtile.verbs.flows.results import UnfuseResult, file_of
from onnxtile.verbs.flows.stage import agreeing
from onnxtile.verification.rounding import compare

if TYPE_CHECKING:
    from onnxtile.verbs.options.unfuse import UnfuseOptions


def unfuse(options: UnfuseOptions) -> UnfuseResult:
    """Undo fuse as `onnxtile.unfuse` says."""
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
