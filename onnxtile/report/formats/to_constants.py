"""The block of constants as bytes: weights and other constants at the offsets that the plan and its C header give them."""

from __future__ import annotations

from onnxtile.report.format import Format, PlanDocument, PlanJson, RenderOptions
from onnxtile.system.errors import UsageError


def _write(plan: PlanJson, _options: RenderOptions) -> bytes:
    if not isinstance(plan, PlanDocument):
        raise UsageError(
            "a plan alone does not hold the bytes of constants", hint="plan a model, and emit this file with it"
        )
    return plan.constants()


FORMAT = Format("constants", ".bin", _write, "the bytes of the constants, at the offsets of the C header")
