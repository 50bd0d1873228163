"""onnxtile prepares ONNX models for constrained hardware: it fuses, tiles and plans them, and proves each result by running it.

Each name is imported when it is first used, so that `import onnxtile` takes no time. Nor is a standard module imported before: until
the command handles Ctrl-C, an interrupt would print a traceback.
"""

TYPE_CHECKING = False
"""A type checker takes it as True. The one of the module typing would be an import."""

if TYPE_CHECKING:
    from typing import Any

    from onnxtile.check.audit import Audit
    from onnxtile.declare.verb import VerbResult
    from onnxtile.fusion.pattern import Pattern
    from onnxtile.inspection.summary import Inspection
    from onnxtile.inspection.trace import Trace
    from onnxtile.model.load import Source
    from onnxtile.planning.result import PlanResult
    from onnxtile.system.errors import (
        CheckFailed,
        Infeasible,
        Mismatch,
        ModelError,
        ModelWarning,
        OnnxtileError,
        OverLimit,
        PatternError,
        QueryError,
        UsageError,
    )
    from onnxtile.system.limits import RunLimits
    from onnxtile.tiling.limits import Limits
    from onnxtile.verbs.fit import fit, fit_curve
    from onnxtile.verbs.flows.explaining import Explanation
    from onnxtile.verbs.flows.fitted_model import FitCurve, FittedModel
    from onnxtile.verbs.flows.patterns import MatchResult, OptionNames, PatternDraft, option_names
    from onnxtile.verbs.flows.results import FuseResult, PlannedModel, TiledModel, UnfuseResult
    from onnxtile.verbs.flows.stage import save
    from onnxtile.verbs.fuse import explain, fuse
    from onnxtile.verbs.inspect import inspect, trace
    from onnxtile.verbs.match import match
    from onnxtile.verbs.pattern_new import draft_pattern
    from onnxtile.verbs.plan import check_plan, plan, plan_problem, plan_tflite
    from onnxtile.verbs.tile import tile
    from onnxtile.verbs.unfuse import unfuse
    from onnxtile.verbs.verify import verify
    from onnxtile.verification.trials import Verdict

    __version__: str

__all__ = [
    "Audit",
    "CheckFailed",
    "Explanation",
    "FitCurve",
    "FittedModel",
    "FuseResult",
    "Infeasible",
    "Inspection",
    "Limits",
    "MatchResult",
    "Mismatch",
    "ModelError",
    "ModelWarning",
    "OnnxtileError",
    "OptionNames",
    "OverLimit",
    "Pattern",
    "PatternDraft",
    "PatternError",
    "PlanResult",
    "PlannedModel",
    "QueryError",
    "RunLimits",
    "Source",
    "TiledModel",
    "Trace",
    "UnfuseResult",
    "UsageError",
    "VerbResult",
    "Verdict",
    "__version__",
    "check_plan",
    "draft_pattern",
    "explain",
    "fit",
    "fit_curve",
    "fuse",
    "inspect",
    "match",
    "option_names",
    "plan",
    "plan_problem",
    "plan_tflite",
    "save",
    "tile",
    "trace",
    "unfuse",
    "verify",
]

_ERRORS = (
    *("CheckFailed", "Infeasible", "Mismatch", "ModelError", "ModelWarning", "OnnxtileError", "OverLimit"),
    *("PatternError", "QueryError", "UsageError"),
)
_PLACES = {
    **dict.fromkeys(_ERRORS, "onnxtile.system.errors"),
    "Audit": "onnxtile.check.audit",
    "Limits": "onnxtile.tiling.limits",
    "Pattern": "onnxtile.fusion.pattern",
    "PlanResult": "onnxtile.planning.result",
    "RunLimits": "onnxtile.system.limits",
    "VerbResult": "onnxtile.declare.verb",
    "Verdict": "onnxtile.verification.trials",
}
"""The modules of those names that `onnxtile.api` does not have."""


def __getattr__(name: str) -> "Any":
    import importlib.util

    if name == "__version__":
        return _version()
    if name not in __all__ and (name.startswith("_") or importlib.util.find_spec(f"onnxtile.verbs.{name}") is None):
        raise AttributeError(f"module 'onnxtile' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES.get(name, "onnxtile.api")), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("onnxtile")
    except PackageNotFoundError:
        raise AttributeError("onnxtile runs from its sources, where it is not installed: it has no version") from None
