"""The certificate of a plan, which the scripts check_*.py in onnxtile/check accept: no plan takes fewer bytes."""

from __future__ import annotations

from onnxtile.report.format import Format, PlanDocument, PlanJson, RenderOptions
from onnxtile.system.errors import UsageError
from onnxtile.system.text import as_json


def _write(plan: PlanJson, _options: RenderOptions) -> bytes:
    if not plan["schedule"]:
        from onnxtile.check.certificate import problem_certificate

        return as_json(problem_certificate(plan)).encode()
    if not isinstance(plan, PlanDocument) or plan.certificate is None:
        raise UsageError(
            "a plan alone does not hold the graph that a certificate is about",
            hint="plan a model, and emit this file with it",
        )
    return as_json(plan.certificate()).encode()


FORMAT = Format(
    "certificate",
    ".certificate.json",
    _write,
    "the proof that no plan takes, or copies, fewer bytes, for a checker of its own",
)
