"""Plan a model with copies between two memories."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.declare import values
from onnxtile.model.constants import Constants
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.errors import NAME_ONLY, UsageError, invalid

if TYPE_CHECKING:
    from onnxtile.planning.model_plan import PlanSettings
    from onnxtile.planning.result import PlanResult
    from onnxtile.shapes.opened_calls import Unfolded
    from onnxtile.verbs.options.plan import PlanOptions


def require_movement(options: PlanOptions) -> None:
    """Raise UsageError for options of a movement that make no sense together."""
    if options.movement == "none":
        _require_none(options)
        return
    capacities = options.capacities
    if not isinstance(capacities, dict) or len(capacities) != 2:
        raise UsageError(
            "{movement} needs the capacities of two memories, the fast one first",
            hint="give --capacity sram=256KiB --capacity dram=8MiB",
            given={"movement": NAME_ONLY},
        )
    if options.has_ranges:
        raise UsageError(
            "{movement} is planned for one size of each dimension, not for a range",
            hint="give one size, the largest",
            given={"movement": NAME_ONLY},
        )
    slow = list(capacities)[1]
    for name in options.bandwidth or {}:
        if name != slow:
            reason = f"the slow memory is {slow!r}" if name in capacities else f"no memory is named {name!r}"
            raise invalid("bandwidth", name, reason=reason, hint=f"write {slow}=8GB/s")
    if options.macs_per_second is not None and not options.bandwidth:
        raise UsageError(
            "{macs_per_second} is for the time beside the copies, which needs {bandwidth}",
            hint=f"add the bandwidth: {slow}=8GB/s",
            given={"macs_per_second": NAME_ONLY, "bandwidth": NAME_ONLY},
        )


def _require_none(options: PlanOptions) -> None:
    for name in ("bandwidth", "macs_per_second"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"{{{name}}} is for plans with copies between memories",
                hint="add {movement}, or leave {" + name + "} out",
                given={name: NAME_ONLY, "movement": "activations"},
            )


def plan_moved(
    planned: ir.Model, known: Shapes, settings: PlanSettings, options: PlanOptions
) -> tuple[ir.Model, Unfolded, PlanResult]:
    """Return a copy of `planned` with copies between memories, the same with its calls open, and its plan."""
    from onnxtile.planning.movement.plan import Speeds, plan_with_movement

    rates = list(values.read_rates(options.bandwidth or {}).values())
    macs = None if options.macs_per_second is None else values.read_speed(options.macs_per_second)
    speeds = Speeds(rates[0], macs) if rates else None
    wants_weights = options.movement == "weights"
    moved = plan_with_movement(planned, known, Constants(planned), settings, weights=wants_weights, speeds=speeds)
    return moved.model, moved.opened, moved.result
