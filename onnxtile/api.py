"""The library's face: each verb takes a path, a ModelProto or an onnx_ir.Model and returns a typed result.

The caller's model is never changed. Nothing is printed; `progress` hears the name of each stage of long work.
"""

from onnxtile.inspect.summary import Inspection
from onnxtile.inspect.trace import Trace
from onnxtile.model.load import Source
from onnxtile.verbs.comparing import Comparing, verify
from onnxtile.verbs.drafting import PatternDraft, draft_pattern
from onnxtile.verbs.explaining import Attempt, Explanation, explain
from onnxtile.verbs.fusing import FuseResult, chosen_patterns, fuse
from onnxtile.verbs.inspecting import inspect
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
    "PatternDraft",
    "PlannedModel",
    "Progress",
    "Source",
    "TiledModel",
    "Trace",
    "UnfuseResult",
    "chosen_patterns",
    "draft_pattern",
    "explain",
    "fuse",
    "inspect",
    "match",
    "plan",
    "plan_problem",
    "save",
    "silent",
    "tile",
    "trace",
    "unfuse",
    "verify",
]
