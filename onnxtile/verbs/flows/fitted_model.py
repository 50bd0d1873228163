"""The result of fit: the model, its plan, its costs before and after, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

from onnxtile.arena.run import ArenaVerdict
from onnxtile.declare.verb import VerbResult
from onnxtile.fitting.result import FitStep, ModelCost, Obstacle
from onnxtile.planning.result import PlanResult
from onnxtile.report.format import PlanDocument
from onnxtile.shapes.opened_calls import Unfolded
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.results import RewrittenModel, verified
from onnxtile.verification.trials import Verdict

if TYPE_CHECKING:
    from onnxtile.firmware.build import Firmware
    from onnxtile.tiling.result import TileResult


@dataclass(frozen=True)
class ModelPlan:
    """The plan of a model, and the model as it was planned: quantised islands are kernels, and calls of functions are open."""

    opened: Unfolded
    plan: PlanResult
    firmware: Firmware | None = None

    @property
    def document(self) -> PlanDocument:
        """The JSON of the plan, from which every format can be written."""
        from onnxtile.planning.annotate import constant_block

        made = self.firmware
        firmware = None if made is None else made.files
        return PlanDocument(
            self.plan.to_dict(), lambda: constant_block(self.opened.model, self.plan), firmware=firmware
        )

    def run(self, progress: Progress) -> ArenaVerdict:
        """Run the model inside its arena and outside it, and compare every tensor bit for bit."""
        from onnxtile.arena.run import arena_run

        opened = self.opened
        return arena_run(opened.model, self.plan, opened.shapes, opened.constants, progress=progress)


@dataclass(frozen=True, repr=False)
class FittedModel(RewrittenModel):
    """The model that fits, its plan, its costs before and after, and the steps that were taken.

    The model holds the plan as metadata, as `plan` writes it; a model with quantised islands does not. Where nothing fits, `model` and
    `after` are those of the smallest arena that was reached, and `blocked_by` says what is in the way. `verdict` is that of the runs of
    both models, `arena_verdict` that of the run inside the arena; both are None where verification was off, or nothing fits.
    `tiled` is the result of tiling the pieces within limits; None where none were given. `curve`
    is the trade of which this model is one point; None where it was not asked for.
    """

    verb: ClassVar[str] = "fit"

    model: ir.Model
    planned_before: ModelPlan
    planned: ModelPlan
    memory: tuple[str, int] | None
    before: ModelCost
    after: ModelCost
    steps: tuple[FitStep, ...]
    blocked_by: Obstacle | None
    verdict: Verdict | None
    arena_verdict: ArenaVerdict | None
    tiled: TileResult | None = None
    curve: FitCurve | None = None

    @property
    def fits(self) -> bool:
        """Whether the arena is within the capacity, if one was given."""
        return self.memory is None or self.after.arena <= self.memory[1]

    @property
    def reason(self) -> str | None:
        """The reason why nothing fits, in a line; None where it fits."""
        if self.fits or self.memory is None:
            return None
        name, size = self.memory
        blocked = self.blocked_by
        more = " ..." if blocked and len(blocked.tensors) > 3 else ""
        where = f"; while {blocked.kernel} runs, {', '.join(blocked.tensors[:3])}{more} live" if blocked else ""
        ended = "; the bound of the search ended it" if blocked and blocked.search == "bound" else ""
        gaps = self.after.arena - blocked.peak if blocked else 0
        beside = f", beside gaps of {gaps:,} bytes" if gaps else ""
        reached = f"the smallest arena reached is {self.after.arena:,} bytes{where}{beside}{ended}"
        return f"nothing fits {name} of {size:,} bytes: {reached}"

    @property
    def summary(self) -> str:
        """The arena before and after, and what that cost."""
        extra = (self.after.macs - self.before.macs) / max(self.before.macs, 1)
        sizes = f"arena {self.before.arena:,} to {self.after.arena:,} bytes"
        return f"{sizes}, {extra:+.1%} MACs, {self.after.nodes:,} nodes, {verified(self.verdict)}"

    @property
    def _movement(self) -> dict[str, Any]:
        """The bytes copied between two memories, without the single copies; nothing for one memory."""
        movement = self.planned.plan.movement
        if movement is None:
            return {}
        keys = ("fast", "slow", "bytes", "forced", "lower_bound", "bound")
        return {"movement": {**{key: getattr(movement, key) for key in keys}, "copies": len(movement.copies)}}

    @property
    def documents(self) -> dict[str, PlanDocument]:
        """The JSON of the plans `before` and `after`, from which every format can be written."""
        return {"before": self.planned_before.document, "after": self.planned.document}

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `fit`."""
        return {
            "capacity": self.memory and {"name": self.memory[0], "bytes": self.memory[1]},
            "fits": self.fits,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            **self._movement,
            "steps": [step.to_dict() for step in self.steps],
            "tiled": self.tiled and self.tiled.to_dict(),
            "curve": self.curve and self.curve.to_dict()["curve"],
            **({} if self.planned.firmware is None else {"firmware": self.planned.firmware.to_dict()}),
            "blocked_by": self.blocked_by and self.blocked_by.to_dict(),
            "verdict": self.verdict
            and {**self.verdict.to_dict(), "arena": self.arena_verdict and self.arena_verdict.to_dict()},
        }


@dataclass(frozen=True)
class CurvePoint:
    """The costs of the model as it is within one arena. `estimated`: the arena is the peak of the search, and no plan was made."""

    cost: ModelCost
    estimated: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**self.cost.to_dict(), "estimated": self.estimated}


@dataclass(frozen=True, repr=False)
class FitCurve(VerbResult):
    """The points of the trade, from the model as it is to the smallest arena within the budget; `write` draws them."""

    verb: ClassVar[str] = "curve"

    points: tuple[CurvePoint, ...]

    @property
    def summary(self) -> str:
        """The arenas of the first and the last point."""
        first, last = self.points[0].cost, self.points[-1].cost
        return f"{len(self.points):,} points, arena {first.arena:,} to {last.arena:,} bytes"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the curve."""
        return {"curve": [point.to_dict() for point in self.points]}
