"""Islands of element-wise operators: functions of one stored tensor, sums, products, quotients, means and choices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandSite,
    clamped,
    elements_of,
    limits,
    on_stored,
    real_elements,
    require_alike,
    scale_pair,
    stored_triple,
)
from onnxtile.fusion.lower.lowering import (
    Argument,
    Literal,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    Setting,
    settings,
)
from onnxtile.operators.node_view import MICROSOFT


class StoredIsland(IslandLowering):
    """QLinearSigmoid, QLinearAdd, QLinearAveragePool, QLinearWhere ... of onnxruntime's docs/ContribOperators.md.

    `operator` has the `attributes`, and takes `count` operands.
    """

    def __init__(self, name: str, operator: str, *attributes: str, count: int = 1) -> None:
        self.name = name
        self._operator = operator
        self._attributes = frozenset(attributes)
        self._count = count

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return the operator of onnxruntime."""
        if len(island.steps[0].sources) != self._count:
            raise NotLowered(f"{self._operator} takes {self._count} operands")
        given = settings(island.first)
        unknown = sorted(given.keys() - self._attributes)
        if unknown:
            raise NotLowered(f"{self._operator} has no attribute {unknown[0]}")
        return clamped(island, on_stored(island, f"{MICROSOFT}::{self._operator}", self.attributes(island, given)))

    def attributes(self, island: IslandSite, given: dict[str, Setting]) -> dict[str, Setting]:  # noqa: ARG002 - of others
        """Return the attributes of the operator from those of the first operator of the island. Raises NotLowered."""
        return given


class SoftmaxIsland(StoredIsland):
    """QLinearSoftmax, which says the opset by which it reads its axis."""

    def attributes(self, island: IslandSite, given: dict[str, Setting]) -> dict[str, Setting]:
        """Return the axis and the opset."""
        x, result = island.stored(0), island.result
        if 1.0 / result.number + result.zero > limits(result.dtype)[1] + 1:
            raise NotLowered("its result is stored up to less than 1, and QLinearSoftmax does not saturate")
        if x.dims is not None and x.dims[-1] == 1:
            raise NotLowered("its softmax is of one element, of which QLinearSoftmax makes 0")
        opset = island.site.function.opset_imports.get("", 1)
        return {"axis": 1 if opset < 13 else -1, **given, "opset": opset}


class ReduceMeanIsland(StoredIsland):
    """QLinearGlobalAveragePool, where the mean is taken over all axes after the channels."""

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearGlobalAveragePool."""
        axes, rank = _axes(island), len(island.stored(0).dims or ())
        spatial = rank >= 3 and sorted(axis % rank for axis in axes) == list(range(2, rank))
        if not spatial or not island.first.attributes.get_int("keepdims", 1):
            raise NotLowered("its mean is not over all axes after the channels, which stay as axes of length 1")
        return clamped(island, on_stored(island, f"{MICROSOFT}::{self._operator}"))


def _axes(island: IslandSite) -> tuple[int, ...]:
    given = island.first.attributes.get_ints("axes")
    if given is not None:
        return tuple(given)
    source = island.source(1)
    if not isinstance(source, Argument):
        raise NotLowered("the axes of its mean are not known")
    return tuple(int(axis) for axis in elements_of(source, island.site.facts).ravel())


ADD = StoredIsland("Add", "QLinearAdd", count=2)
AVERAGE_POOL = StoredIsland(
    "AveragePool",
    "QLinearAveragePool",
    *("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"),
)
GLOBAL_AVERAGE_POOL = StoredIsland("GlobalAveragePool", "QLinearGlobalAveragePool")
LEAKY_RELU = StoredIsland("LeakyRelu", "QLinearLeakyRelu", "alpha")
MUL = StoredIsland("Mul", "QLinearMul", count=2)
REDUCE_MEAN = ReduceMeanIsland("ReduceMean", "QLinearGlobalAveragePool")
SIGMOID = StoredIsland("Sigmoid", "QLinearSigmoid")
SOFTMAX = SoftmaxIsland("Softmax", "QLinearSoftmax", "axis")
SUM = StoredIsland("Sum", "QLinearAdd", count=2)
WHERE = StoredIsland("Where", "QLinearWhere", count=3)


class SubIsland(IslandLowering):
    """A difference: QLinearAdd of the first operand and the second with the other sign.

    Of the bits of a stored element and of its zero point, the complement stands for the negative number: ~q - ~z = z - q.
    """

    name = "Sub"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return BitwiseNot and QLinearAdd."""
        a, b, result = island.stored(0), island.stored(1), island.result
        require_alike(a.rule, b.rule, result)
        stored, scale, _ = stored_triple(b)
        assert b.rule.zeros is not None
        zero = Literal(~b.rule.zeros.astype(b.rule.dtype.numpy()), b.rule.dtype, "zero_point")
        complement = NewNode("BitwiseNot", (stored,), since=18)
        inputs = (*stored_triple(a), Made(0), scale, zero, *scale_pair(result))
        return clamped(island, complement, NewNode("QLinearAdd", inputs, domain=MICROSOFT), main=1)


SUB = SubIsland()


# A stored tensor divided by a number.


class DivIsland(IslandLowering):
    """QLinearMul of onnxruntime's docs/ContribOperators.md by the reciprocal, which is stored as 1 with the reciprocal as its scale."""

    name = "Div"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearMul."""
        x, result = island.stored(0), island.result
        require_alike(x.rule, result)
        divisor = real_elements(island, island.source(1))
        is_number = divisor.size == 1 and divisor.ndim <= len(x.dims or ())
        if not is_number or not np.isfinite(divisor).all() or not divisor.all():
            raise NotLowered("it is not divided by one constant number")
        reciprocal = np.float32(1.0) / divisor.astype(np.float32).reshape(())
        if reciprocal < 0:
            raise NotLowered("it is divided by a negative number, and no scale is negative")
        dtype = result.dtype
        factor = (
            Literal(np.ones((), dtype.numpy()), dtype, "one"),
            Literal(np.asarray(reciprocal), ir.DataType.FLOAT, "reciprocal"),
            Literal(np.zeros((), dtype.numpy()), dtype, "zero_point"),
        )
        inputs = (*stored_triple(x), *factor, *scale_pair(result))
        return clamped(island, NewNode("QLinearMul", inputs, domain=MICROSOFT))


DIV = DivIsland()


# HardSigmoid of a stored tensor.


class HardSigmoidIsland(IslandLowering):
    """max(0, min(1, α x + β)): QLinearAdd of onnxruntime's docs/ContribOperators.md, of x with its scale times α, and of β."""

    name = "HardSigmoid"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearAdd, and Clip where the result can be stored beyond 0 or 1."""
        x, result = island.stored(0), island.result
        require_alike(x.rule, result)
        alpha, beta = (
            island.first.attributes.get_float(key, default) for key, default in (("alpha", 0.2), ("beta", 0.5))
        )
        if alpha <= 0.0:
            raise NotLowered("its alpha is not positive, and no scale is zero or negative")
        stored, _, zero = stored_triple(x)
        scale = Literal(np.asarray(x.rule.number * alpha, np.float32), ir.DataType.FLOAT, "scale")
        inputs = (stored, scale, zero, *_one_element(beta, x.rule.dtype), *scale_pair(result))
        return clamped(island, NewNode("QLinearAdd", inputs, domain=MICROSOFT), within=(0.0, 1.0))


def _one_element(number: float, dtype: ir.DataType) -> tuple[Operand, Operand, Operand]:
    """Return `number` as one element stored as `dtype`, its scale and its zero point."""
    return (
        Literal(np.asarray(int(number > 0), dtype.numpy()), dtype, "element"),
        Literal(np.asarray(abs(number) or 1.0, np.float32), ir.DataType.FLOAT, "scale"),
        Literal(np.asarray(int(number < 0), dtype.numpy()), dtype, "zero_point"),
    )


HARD_SIGMOID = HardSigmoidIsland()
