"""The planned model as C to run: FILE.c and, beside it, FILE.h, and the weights where they are in a file of their own.

The model is needed for that, so a plan alone does not hold it.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxtile.report.format import Format, PlanExport, PlanJson, RenderOptions
from onnxtile.system.errors import UsageError


def _files(plan: PlanJson, options: RenderOptions) -> Mapping[str, bytes]:
    if not isinstance(plan, PlanExport) or plan.firmware is None:
        raise UsageError(
            "a plan alone does not hold the kernels of a program in C", hint="plan a model, and emit this file with it"
        )
    return plan.firmware(options.title)


def _code(plan: PlanJson, options: RenderOptions) -> bytes:
    return _files(plan, options)[".c"]


C = Format(
    "c",
    ".c",
    _code,
    "a program in C that runs the model at the planned addresses, with a header (needs the extra c)",
    beside=(".h", ".weights.bin"),
    write_beside=lambda plan, options: {name: data for name, data in _files(plan, options).items() if name != ".c"},
)
