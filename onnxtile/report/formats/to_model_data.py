"""What a plan has together with its model: the certificate that no plan takes fewer bytes, the block of constants, and a program in C.

The scripts check_*.py in onnxtile/check accept a certificate. Constants lie at the offsets that the plan and its C header give them.
A program is FILE.c and, beside it, FILE.h, and the weights where they are in a file of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from onnxtile.report.format import Format, PlanExport, PlanJson, RenderOptions
from onnxtile.system.errors import UsageError
from onnxtile.system.text import as_json

_HINT = "plan a model, and emit this file with it"


def _certificate(plan: PlanJson, _options: RenderOptions) -> bytes:
    if not plan["schedule"]:
        from onnxtile.check.certificate import problem_certificate

        return as_json(problem_certificate(plan)).encode()
    if not isinstance(plan, PlanExport) or plan.certificate is None:
        raise UsageError("a plan alone does not hold the graph that a certificate is about", hint=_HINT)
    return as_json(plan.certificate()).encode()


def _constants(plan: PlanJson, _options: RenderOptions) -> bytes:
    if not isinstance(plan, PlanExport):
        raise UsageError("a plan alone does not hold the bytes of constants", hint=_HINT)
    return plan.constants()


CERTIFICATE = Format(
    "certificate",
    ".certificate.json",
    _certificate,
    "the proof that no plan takes fewer bytes, for a checker of its own",
)
CONSTANTS = Format("constants", ".bin", _constants, "the bytes of the constants, at the offsets of the C header")


def _files(plan: PlanJson, options: RenderOptions) -> Mapping[str, bytes]:
    if not isinstance(plan, PlanExport) or plan.firmware is None:
        raise UsageError("a plan alone does not hold the kernels of a program in C", hint=_HINT)
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
