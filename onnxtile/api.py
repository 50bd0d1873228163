"""The library's face: each verb takes a path, a ModelProto or an onnx_ir.Model and returns a typed result.

The caller's model is never changed. Nothing is printed; `progress` receives the name of each stage of long work. Each name is
imported when it is first used, so that no verb waits for the imports of another.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnxtile.inspection.summary import Inspection
    from onnxtile.inspection.trace import Trace
    from onnxtile.model.load import Source
    from onnxtile.verbs.checking import check_plan
    from onnxtile.verbs.comparing import Comparing, verify
    from onnxtile.verbs.drafting import PatternDraft, draft_pattern
    from onnxtile.verbs.explaining import Attempt, Explanation, explain
    from onnxtile.verbs.fusing import FuseResult, chosen_patterns, fuse
    from onnxtile.verbs.inspecting import inspect
    from onnxtile.verbs.listing import OptionNames, option_names
    from onnxtile.verbs.matching import MatchResult, match
    from onnxtile.verbs.placing import plan_problem
    from onnxtile.verbs.planning import PlannedModel, plan
    from onnxtile.verbs.saving import save
    from onnxtile.verbs.stage import Dims, InputShapes, Progress, silent
    from onnxtile.verbs.tiling import TiledModel, tile
    from onnxtile.verbs.tracing import trace
    from onnxtile.verbs.unfusing import UnfuseResult, unfuse

__all__ = [
    "Attempt",
    "Comparing",
    "Dims",
    "Explanation",
    "FuseResult",
    "InputShapes",
    "Inspection",
    "MatchResult",
    "OptionNames",
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
    "fuse",
    "inspect",
    "match",
    "option_names",
    "plan",
    "plan_problem",
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
    "onnxtile.verbs.checking": ("check_plan",),
    "onnxtile.verbs.comparing": ("Comparing", "verify"),
    "onnxtile.verbs.drafting": ("PatternDraft", "draft_pattern"),
    "onnxtile.verbs.explaining": ("Attempt", "Explanation", "explain"),
    "onnxtile.verbs.fusing": ("FuseResult", "chosen_patterns", "fuse"),
    "onnxtile.verbs.inspecting": ("inspect",),
    "onnxtile.verbs.listing": ("OptionNames", "option_names"),
    "onnxtile.verbs.matching": ("MatchResult", "match"),
    "onnxtile.verbs.placing": ("plan_problem",),
    "onnxtile.verbs.planning": ("PlannedModel", "plan"),
    "onnxtile.verbs.saving": ("save",),
    "onnxtile.verbs.stage": ("Dims", "InputShapes", "Progress", "silent"),
    "onnxtile.verbs.tiling": ("TiledModel", "tile"),
    "onnxtile.verbs.tracing": ("trace",),
    "onnxtile.verbs.unfusing": ("UnfuseResult", "unfuse"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'onnxtile.api' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = found
    return found
