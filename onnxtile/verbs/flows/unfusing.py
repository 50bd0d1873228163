"""Undo what fuse did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

from onnxtile.fusion.unfuse import Unfused
from onnxtile.fusion.unfuse import unfuse as unfuse_graph
from onnxtile.model.load import load
from onnxtile.model.validity import check
from onnxtile.planning.annotate import clear_plan
from onnxtile.verbs.flows.chain import RewrittenModel, file_of, verified
from onnxtile.verbs.flows.stage import agreeing
from onnxtile.verification.rounding import compare
from onnxtile.verification.trials import Verdict

if TYPE_CHECKING:
    from onnxtile.verbs.unfuse import UnfuseOptions


@dataclass(frozen=True, repr=False)
class UnfuseResult(RewrittenModel):
    """The model as it was before fuse, and how many calls were undone."""

    verb: ClassVar[str] = "unfuse"

    model: ir.Model
    unfused: Unfused
    verdict: Verdict | None

    @property
    def summary(self) -> str:
        """How many calls were undone."""
        return f"{sum(self.unfused.calls.values()):,} calls undone, {verified(self.verdict)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `unfuse`."""
        return {**self.unfused.to_dict(), "verdict": self.verdict and self.verdict.to_dict()}


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
