"""onnxtile prepares ONNX models for constrained hardware: it fuses, tiles and plans them, and proves each result by running it.

Each name is imported when it is first used, so that `import onnxtile` takes no time. Nor is a standard module imported before: until
the command handles Ctrl-C, an interrupt would print a traceback.
"""

TYPE_CHECKING = False
"""A type checker takes it as True. The one of the module typing would be an import."""

if TYPE_CHECKING:
    from typing import Any

    from onnxtile.api import (
        Explanation,
        FitCurve,
        FittedModel,
        FuseResult,
        Inspection,
        MatchResult,
        OptionNames,
        PatternDraft,
        PlannedModel,
        Source,
        TiledModel,
        Trace,
        UnfuseResult,
        check_plan,
        draft_pattern,
        explain,
        fit,
        fit_curve,
        fuse,
        inspect,
        match,
        option_names,
        plan,
        plan_problem,
        plan_tflite,
        save,
        tile,
        trace,
        unfuse,
        verify,
    )
    from onnxtile.errors import (
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
    from onnxtile.fusion.pattern import Pattern
    from onnxtile.planning.proof.published.audit import Audit
    from onnxtile.planning.result import PlanResult
    from onnxtile.result import VerbResult
    from onnxtile.run_limits import RunLimits
    from onnxtile.tiling.limits import Limits
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
    **dict.fromkeys(_ERRORS, "onnxtile.errors"),
    "Audit": "onnxtile.planning.proof.published.audit",
    "Limits": "onnxtile.tiling.limits",
    "Pattern": "onnxtile.fusion.pattern",
    "PlanResult": "onnxtile.planning.result",
    "RunLimits": "onnxtile.run_limits",
    "VerbResult": "onnxtile.result",
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
