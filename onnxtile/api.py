"""The library's face: each verb takes a path, a ModelProto or an onnx_ir.Model and returns a typed result.

The caller's model is never changed. Nothing is printed; `progress` receives the name of each stage of long work. Each name is
imported when it is first used, so that no verb waits for the imports of another.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtile.inspection.summary import Inspection
    from onnxtile.inspection.trace import Trace
    from onnxtile.model.load import Source
    from onnxtile.system.progress import Progress, silent
    from onnxtile.verbs.fit import fit, fit_curve
    from onnxtile.verbs.flows.explaining import Explanation, PartialMatch
    from onnxtile.verbs.flows.fitted_model import FitCurve, FittedModel
    from onnxtile.verbs.flows.fusing import chosen_patterns
    from onnxtile.verbs.flows.patterns import MatchResult, OptionNames, PatternDraft, option_names
    from onnxtile.verbs.flows.results import FuseResult, PlannedModel, TiledModel, UnfuseResult
    from onnxtile.verbs.flows.stage import BoundDims, InputShapes, save
    from onnxtile.verbs.fuse import explain, fuse
    from onnxtile.verbs.inspect import inspect, trace
    from onnxtile.verbs.match import match
    from onnxtile.verbs.pattern_new import draft_pattern
    from onnxtile.verbs.plan import check_plan, plan, plan_problem, plan_tflite
    from onnxtile.verbs.tile import tile
    from onnxtile.verbs.unfuse import unfuse
    from onnxtile.verbs.verify import verify


__all__ = [
    "BoundDims",
    "Explanation",
    "FitCurve",
    "FittedModel",
    "FuseResult",
    "InputShapes",
    "Inspection",
    "MatchResult",
    "OptionNames",
    "PartialMatch",
    "PatternDraft",
    "PlannedModel",
    "Progress",
    "Source",
    "TiledModel",
    "Trace",
    "UnfuseResult",
    "check_plan",
    "chosen_patterns",
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
    "silent",
    "tile",
    "trace",
    "unfuse",
    "verify",
]

_HOMES = {
    "onnxtile.inspection.summary": ("Inspection",),
    "onnxtile.inspection.trace": ("Trace",),
    "onnxtile.model.load": ("Source",),
    "onnxtile.verbs.flows.patterns": (
        "PatternDraft",
        "OptionNames",
        "option_names",
        "MatchResult",
    ),
    "onnxtile.verbs.fit": (
        "fit",
        "fit_curve",
    ),
    "onnxtile.verbs.flows.explaining": (
        "Explanation",
        "PartialMatch",
    ),
    "onnxtile.verbs.flows.fitting": ("FitCurve",),
    "onnxtile.verbs.flows.fitted_model": ("FittedModel",),
    "onnxtile.verbs.flows.fusing": (
        "FuseResult",
        "chosen_patterns",
        "UnfuseResult",
    ),
    "onnxtile.verbs.flows.planning": ("PlannedModel",),
    "onnxtile.verbs.flows.stage": (
        "BoundDims",
        "InputShapes",
        "save",
    ),
    "onnxtile.system.progress": ("Progress", "silent"),
    "onnxtile.verbs.flows.tiling": ("TiledModel",),
    "onnxtile.verbs.fuse": (
        "explain",
        "fuse",
    ),
    "onnxtile.verbs.inspect": (
        "inspect",
        "trace",
    ),
    "onnxtile.verbs.match": ("match",),
    "onnxtile.verbs.pattern_new": ("draft_pattern",),
    "onnxtile.verbs.plan": (
        "check_plan",
        "plan",
        "plan_problem",
        "plan_tflite",
    ),
    "onnxtile.verbs.tile": ("tile",),
    "onnxtile.verbs.unfuse": ("unfuse",),
    "onnxtile.verbs.verify": ("verify",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name, f"onnxtile.verbs.{name}")
    if name not in _HOME_OF and (name.startswith("_") or importlib.util.find_spec(home) is None):
        raise AttributeError(f"module 'onnxtile.api' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found
