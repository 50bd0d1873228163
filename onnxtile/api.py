"""The library's face: each verb takes a path, a ModelProto or an onnx_ir.Model and returns a typed result.

The caller's model is never changed. Nothing is printed; `progress` hears the name of each stage of long work.
"""

from onnxtile.inspect.summary import Inspection
from onnxtile.model.load import Source
from onnxtile.verbs.comparing import verify
from onnxtile.verbs.drafting import PatternDraft, draft_pattern
from onnxtile.verbs.explaining import Attempt, Explanation, explain
from onnxtile.verbs.fusing import FuseResult, fuse
from onnxtile.verbs.inspecting import inspect
from onnxtile.verbs.matching import MatchResult, match
from onnxtile.verbs.planning import PlannedModel, plan
from onnxtile.verbs.saving import save
from onnxtile.verbs.stage import Dims, InputShapes, Progress
from onnxtile.verbs.tiling import TiledModel, tile
from onnxtile.verbs.unfusing import UnfuseResult, unfuse

__all__ = [
    "Attempt",
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
    "UnfuseResult",
    "draft_pattern",
    "explain",
    "fuse",
    "inspect",
    "match",
    "plan",
    "save",
    "tile",
    "unfuse",
    "verify",
]
