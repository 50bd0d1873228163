"""The public API: each verb takes a path, a ModelProto or an onnx_ir.Model and returns a typed result.

The caller's model is never changed. Nothing is printed; `progress` receives the name of each stage of long work. Each name is
imported when it is first used, so that no verb waits for the imports of another.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtile.check.audit import Audit as Audit
    from onnxtile.declare.layout_rules import LayoutTable as LayoutTable
    from onnxtile.declare.verb import VerbResult as VerbResult
    from onnxtile.fusion.pattern import Pattern as Pattern
    from onnxtile.inspection.summary import Inspection as Inspection
    from onnxtile.inspection.trace import Trace as Trace
    from onnxtile.model.load import Source as Source
    from onnxtile.pipeline.run import RunResult as RunResult
    from onnxtile.pipeline.run import run as run
    from onnxtile.planning.result import PlanResult as PlanResult
    from onnxtile.system.errors import CheckFailed as CheckFailed
    from onnxtile.system.errors import Infeasible as Infeasible
    from onnxtile.system.errors import Mismatch as Mismatch
    from onnxtile.system.errors import ModelError as ModelError
    from onnxtile.system.errors import ModelWarning as ModelWarning
    from onnxtile.system.errors import OnnxtileError as OnnxtileError
    from onnxtile.system.errors import OverLimit as OverLimit
    from onnxtile.system.errors import PatternError as PatternError
    from onnxtile.system.errors import QueryError as QueryError
    from onnxtile.system.errors import UsageError as UsageError
    from onnxtile.system.long_work import Progress as Progress
    from onnxtile.system.long_work import RunLimits as RunLimits
    from onnxtile.tiling.limits import Limits as Limits
    from onnxtile.verbs.flows.check_plan import check_plan as check_plan
    from onnxtile.verbs.flows.fit import fit as fit
    from onnxtile.verbs.flows.fit import fit_curve as fit_curve
    from onnxtile.verbs.flows.fuse import fuse as fuse
    from onnxtile.verbs.flows.fuse import unfuse as unfuse
    from onnxtile.verbs.flows.inspect import inspect as inspect
    from onnxtile.verbs.flows.inspect import trace as trace
    from onnxtile.verbs.flows.match import Explanation as Explanation
    from onnxtile.verbs.flows.match import MatchResult as MatchResult
    from onnxtile.verbs.flows.match import PatternDraft as PatternDraft
    from onnxtile.verbs.flows.match import draft_pattern as draft_pattern
    from onnxtile.verbs.flows.match import explain as explain
    from onnxtile.verbs.flows.match import match as match
    from onnxtile.verbs.flows.other_formats import plan_problem as plan_problem
    from onnxtile.verbs.flows.other_formats import plan_tflite as plan_tflite
    from onnxtile.verbs.flows.plan import plan as plan
    from onnxtile.verbs.flows.results import FitCurve as FitCurve
    from onnxtile.verbs.flows.results import FittedModel as FittedModel
    from onnxtile.verbs.flows.results import FuseResult as FuseResult
    from onnxtile.verbs.flows.results import PlannedModel as PlannedModel
    from onnxtile.verbs.flows.results import TiledModel as TiledModel
    from onnxtile.verbs.flows.results import UnfuseResult as UnfuseResult
    from onnxtile.verbs.flows.results import save as save
    from onnxtile.verbs.flows.tile import tile as tile
    from onnxtile.verbs.flows.verify import verify as verify
    from onnxtile.verbs.list import OptionNames as OptionNames
    from onnxtile.verbs.list import option_names as option_names
    from onnxtile.verification.trials import Verdict as Verdict

_HOMES = {
    "onnxtile.check.audit": ("Audit",),
    "onnxtile.declare.layout_rules": ("LayoutTable",),
    "onnxtile.declare.verb": ("VerbResult",),
    "onnxtile.fusion.pattern": ("Pattern",),
    "onnxtile.inspection.summary": ("Inspection",),
    "onnxtile.inspection.trace": ("Trace",),
    "onnxtile.model.load": ("Source",),
    "onnxtile.pipeline.run": ("run", "RunResult"),
    "onnxtile.planning.result": ("PlanResult",),
    "onnxtile.system.errors": (
        *("CheckFailed", "Infeasible", "Mismatch", "ModelError", "ModelWarning", "OnnxtileError", "OverLimit"),
        *("PatternError", "QueryError", "UsageError"),
    ),
    "onnxtile.system.long_work": ("Progress", "RunLimits"),
    "onnxtile.tiling.limits": ("Limits",),
    "onnxtile.verbs.flows.check_plan": ("check_plan",),
    "onnxtile.verbs.flows.fit": ("fit", "fit_curve"),
    "onnxtile.verbs.flows.fuse": ("fuse", "unfuse"),
    "onnxtile.verbs.flows.inspect": ("inspect", "trace"),
    "onnxtile.verbs.flows.match": ("Explanation", "MatchResult", "PatternDraft", "draft_pattern", "explain", "match"),
    "onnxtile.verbs.flows.other_formats": ("plan_problem", "plan_tflite"),
    "onnxtile.verbs.flows.plan": ("plan",),
    "onnxtile.verbs.flows.results": (
        *("FitCurve", "FittedModel", "FuseResult", "PlannedModel", "TiledModel", "UnfuseResult", "save"),
    ),
    "onnxtile.verbs.flows.tile": ("tile",),
    "onnxtile.verbs.flows.verify": ("verify",),
    "onnxtile.verbs.list": ("OptionNames", "option_names"),
    "onnxtile.verification.trials": ("Verdict",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted(_HOME_OF)
    home = _HOME_OF.get(name, f"onnxtile.verbs.{name}")
    if name not in _HOME_OF and (name.startswith("_") or importlib.util.find_spec(home) is None):
        raise AttributeError(f"module 'onnxtile' has no attribute {name!r}")
    from onnxtile.declare.verb import described

    value = described(getattr(importlib.import_module(home), name))
    globals()[name] = value
    return value
