"""Operators that compute no element: between equal scales they take stored tensors as they are."""

from __future__ import annotations

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    StoredTensor,
    clamped,
    on_stored,
    require_alone,
    scale_pair,
)
from onnxtile.fusion.lower.lowering import (
    Argument,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    settings,
)
from onnxtile.operators.node_view import MICROSOFT
from onnxtile.operators.table import movement_of


def moves(island: IslandSite, inputs: tuple[Operand, ...], *, since: int) -> Replacement:
    """Return the first operator of the island on stored tensors. Raises NotLowered where more is computed."""
    require_alone(island)
    node = island.first
    step = NewNode(node.op_type, inputs, settings(node), since=since, outputs=len(node.outputs))
    return Replacement((step,), tuple(Made(0, output.output) for output, _ in island.results))


_KEEPING = frozenset({"renames", "permutes", "repeats"})
"""What operators do that leave out no element."""


class MovedIsland(IslandLowering):
    """The operator itself on what is stored, which its results are stored as, too: q -> x -> q gives back each element.

    `since` is the version that takes integers of 8 bits.
    """

    def __init__(self, name: str, since: int) -> None:
        self.name = name
        self._since = since

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return the operator on the stored tensor; one that keeps all elements of a float is QuantizeLinear before the operator."""
        if isinstance(island.source(0), Argument) and movement_of(island.first) in _KEEPING:
            return self._quantised_before(island)
        first = island.stored(0)
        if any(rule is None for _, rule in island.results):
            raise NotLowered("its result is not quantised")
        if not all(rule is not None and first.rule.same_as(rule) for _, rule in island.results):
            raise NotLowered("its operand and its result have different scales")
        return moves(island, (first.operand, *self._others(island)), since=self._since)

    def _quantised_before(self, island: IslandSite) -> Replacement:
        """Return the operator on the float, quantised: an element is stored alike wherever it is, and is fewer bytes to move."""
        source, rule = island.source(0), island.result
        assert isinstance(source, Argument)
        if source.value is None or not rule.is_whole:
            raise NotLowered("its operand is no tensor, or its result has a scale for each channel")
        quantised = NewNode("QuantizeLinear", (source.value, *scale_pair(rule)), since=10)
        moved = moves(island, (Made(0), *self._others(island)), since=self._since).steps[0]
        return Replacement((quantised, moved), (Made(1),), main=1)

    def _others(self, island: IslandSite) -> tuple[Operand, ...]:
        others = island.steps[0].sources[1:]
        if any(isinstance(source, StoredTensor) for source in others):
            raise NotLowered("an operand besides the first is quantised")
        known = tuple(source.value if isinstance(source, Argument) else None for source in others)
        if any(value is None and source is not None for value, source in zip(known, others, strict=True)):
            raise NotLowered("an operand is computed in it")
        return known


DEPTH_TO_SPACE = MovedIsland("DepthToSpace", 1)
EXPAND = MovedIsland("Expand", 8)
FLATTEN = MovedIsland("Flatten", 9)
GATHER = MovedIsland("Gather", 1)
IDENTITY = MovedIsland("Identity", 1)
MAX_POOL = MovedIsland("MaxPool", 12)
RESHAPE = MovedIsland("Reshape", 5)
SLICE = MovedIsland("Slice", 10)
SPACE_TO_DEPTH = MovedIsland("SpaceToDepth", 1)
SPLIT = MovedIsland("Split", 2)
SQUEEZE = MovedIsland("Squeeze", 1)
TILE = MovedIsland("Tile", 6)
TRANSPOSE = MovedIsland("Transpose", 1)
UNSQUEEZE = MovedIsland("Unsqueeze", 1)


# A concatenation of tensors that are stored with scales of their own.


class ConcatIsland(IslandLowering):
    """QLinearConcat of onnxruntime's docs/ContribOperators.md; between equal scales Concat."""

    name = "Concat"

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return Concat-4 on the stored tensors, where all are stored alike."""
        operands = [island.stored(index) for index in range(len(island.steps[0].sources))]
        if not all(tensor.rule.same_as(island.result) for tensor in operands):
            raise NotLowered("its operands and its result have different scales")
        return moves(island, tuple(tensor.operand for tensor in operands), since=4)

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return Concat-4, or QLinearConcat where scales differ."""
        operands = [island.stored(index) for index in range(len(island.steps[0].sources))]
        if all(tensor.rule.same_as(island.result) for tensor in operands):
            return self.to_onnx(island)
        return clamped(island, on_stored(island, f"{MICROSOFT}::QLinearConcat", settings(island.first)))


CONCAT = ConcatIsland()


# A stored image in another size, of which each element is one of the image's.


class ResizeIsland(MovedIsland):
    """Resize to the nearest element; other modes compute elements between."""

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return Resize-11 on the stored tensor."""
        mode = island.first.attributes.get_string("mode", "nearest")
        if (
            mode != "nearest"
            or island.first.attributes.get_string("coordinate_transformation_mode", "") == "tf_crop_and_resize"
        ):
            raise NotLowered(f"its mode is {mode}, which computes elements between those of the image, or crops it")
        return super().to_onnx(island)


RESIZE = ResizeIsland("Resize", 11)
