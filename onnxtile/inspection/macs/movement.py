"""Operators that move, select or convert elements, and compute none."""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, FlopRule, NotKnown

_NAMES = (
    *("BitCast", "Cast", "CastLike", "CenterCropPad", "Compress", "Concat", "ConcatFromSequence", "Constant"),
    *("ConstantOfShape", "DepthToSpace", "Expand", "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND"),
    *("Identity", "MaxUnpool", "OneHot", "Optional", "OptionalGetElement", "OptionalHasElement", "Pad", "Reshape"),
    *("ReverseSequence", "Scatter", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase"),
    *("SequenceInsert", "SequenceLength", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "SplitToSequence"),
    *("Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
    *(f"com.microsoft::{name}" for name in ("ExpandDims", "GatherND", "Pad", "Trilu")),
)


def _count(_site: CountedNode) -> int:
    return 0


def _count_scatter(site: CountedNode) -> int:
    """Count one operation for each update that is reduced with the element in its place."""
    return 0 if site.text("reduction", "none") == "none" else site.read(2)


def _count_dropout(site: CountedNode) -> int:
    """Count nothing where the node copies its input: only one with a third input can be in training mode."""
    if site.has(2):
        raise NotKnown("the training mode of Dropout is known only in a run")
    return 0


RULE = FlopRule("movement", frozenset(_NAMES), _count)
SCATTER = FlopRule("scatter", frozenset({"ScatterElements", "ScatterND"}), _count_scatter)
DROPOUT = FlopRule("dropout", frozenset({"Dropout"}), _count_dropout)
