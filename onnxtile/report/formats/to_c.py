"""The planned model as C to run: FILE.c and, beside it, FILE.h. The model is needed for that, so a plan alone does not hold it."""

from __future__ import annotations

from onnxtile.report.format import Format, PlanDocument, PlanJson, RenderOptions
from onnxtile.system.errors import UsageError


def _file(plan: PlanJson, options: RenderOptions, ending: str) -> bytes:
    if not isinstance(plan, PlanDocument) or plan.firmware is None:
        raise UsageError(
            "a plan alone does not hold the kernels of a program in C", hint="plan a model, and emit this file with it"
        )
    return plan.firmware(options.title)[ending]


def _code(plan: PlanJson, options: RenderOptions) -> bytes:
    return _file(plan, options, ".c")


def _header(plan: PlanJson, options: RenderOptions) -> bytes:
    return _file(plan, options, ".h")


C = Format(
    "c",
    ".c",
    _code,
    "a program in C that runs the model at the planned addresses, with a header (needs the extra c)",
    beside=(".h", _header),
)
