"""Operands, bounds and biases of operators that compute on stored tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.island_lowering import (
    EIGHT_BITS,
    STANDARD,
    IslandOperand,
    IslandOutput,
    IslandSite,
    IslandStep,
    QuantisationRule,
    StoredTensor,
    elements_of,
    limits,
)
from onnxtile.fusion.lowering import Argument, Literal, Made, NewNode, NotLowered, Operand, Replacement
from onnxtile.runtime import Array

_MOST_OFF = 0.25
"""Largest error of a rounded bias, in steps of the result."""


def stored_triple(tensor: StoredTensor, *, axis: int | None = None) -> tuple[Operand, Operand, Operand]:
    """Return tensor, scale and zero point as operators of 8 bits take them; scales along `axis` are admitted. Raises NotLowered."""
    return tensor.operand, *scale_pair(tensor.rule, axis=axis, rank=None if tensor.dims is None else len(tensor.dims))


def scale_pair(rule: QuantisationRule, *, axis: int | None = None, rank: int | None = None) -> tuple[Operand, Operand]:
    """Return scale and zero point as operators of 8 bits take them; scales along `axis` of `rank` axes are admitted. Raises NotLowered."""
    if rule.dtype not in EIGHT_BITS:
        raise NotLowered(f"its kernel takes no {rule.dtype.name.lower()}")
    if rule.block:
        raise NotLowered("a tensor has a scale for each block of elements")
    if rule.scales is None or rule.zeros is None:
        raise NotLowered("a scale or a zero point is not constant")
    if rule.scales.dtype != np.float32:
        raise NotLowered("a scale is no float32")
    along = axis is not None and rank is not None and rule.axis % rank == axis % rank
    if rule.scales.size != 1 and not along:
        raise NotLowered("a tensor has a scale for each channel, which the operator does not take there")
    zeros = np.zeros(rule.scales.shape, rule.dtype.numpy())
    zero = rule.zero_point if rule.zero_point is not None else Literal(zeros, rule.dtype, "zero_point")
    return rule.scale, zero


def require_alike(*rules: QuantisationRule) -> None:
    """Raise NotLowered unless all are of one element type."""
    names = dict.fromkeys(rule.dtype.name.lower() for rule in rules)
    if len(names) > 1:
        raise NotLowered(f"its operands and its result are of different types: {' and '.join(names)}")


def require_alone(island: IslandSite) -> None:
    """Raise NotLowered where something follows the first operator."""
    if len(island.steps) > 1:
        raise NotLowered(f"{island.steps[1].node.op_type} follows {island.first.op_type} in it")


def clamped(
    island: IslandSite, *steps: NewNode, main: int = 0, within: tuple[float, float] = (-np.inf, np.inf)
) -> Replacement:
    """Return `steps`, which compute the first operator, and what follows in the island: Relu and Clip with constant bounds.

    The first operator itself has no results beyond the bounds `within`, which `steps` leave to this function.
    Quantisation is monotonic and saturates, so a bound is its stored element, and no operator where that is the end of the type.
    """
    low, high = _bounds(island, within)
    if (low, high) == limits(island.result.dtype):
        return Replacement(steps, (Made(len(steps) - 1),), main, rounds=True)
    dtype = island.result.dtype
    bounds = [Literal(np.asarray(bound, dtype.numpy()), dtype, "bound") for bound in (low, high)]
    clip = NewNode("Clip", (Made(len(steps) - 1), *bounds), since=12)
    return Replacement((*steps, clip), (Made(len(steps)),), main, rounds=True)


def _bounds(island: IslandSite, within: tuple[float, float]) -> tuple[int, int]:
    """Return the lowest and the highest element that the result can be stored as. Raises NotLowered."""
    rule = island.result
    low, high = (rule.stored(bound) for bound in within)
    for place, step in enumerate(island.steps[1:]):
        if not step.sources or step.sources[0] != IslandOutput(place) or step.node.domain not in STANDARD:
            raise NotLowered(f"{step.node.op_type} follows {island.first.op_type} in it")
        least, most = (rule.stored(bound) for bound in _clip(island, step))
        low, high = (min(max(bound, least), most) for bound in (low, high))
    if island.results[0][0] != IslandOutput(len(island.steps) - 1):
        raise NotLowered("its result is not that of its last operator")
    return low, high


def _clip(island: IslandSite, step: IslandStep) -> tuple[float, float]:
    """Return the bounds of a Relu or a Clip. Raises NotLowered."""
    node = step.node
    if node.op_type == "Relu":
        return 0.0, np.inf
    if node.op_type != "Clip":
        raise NotLowered(f"{node.op_type} follows {island.first.op_type} in it")
    given = [node.attributes.get_float("min", -np.inf), node.attributes.get_float("max", np.inf)]
    for place, source in enumerate(step.sources[1:3]):
        if source is not None:
            given[place] = float(real_elements(island, source).ravel()[0])
    return given[0], given[1]


def real_elements(island: IslandSite, source: IslandOperand) -> Array:
    """Return the floats that a constant operand stands for. Raises NotLowered where it is not constant."""
    if isinstance(source, Argument):
        return elements_of(source, island.site)
    if not isinstance(source, StoredTensor):
        raise NotLowered("an operand that must be constant is computed")
    rule, stored = source.rule, source.elements().astype(np.float32)
    if rule.scales is None or rule.zeros is None or rule.block:
        raise NotLowered("an operand has scales that are not constant, or one for each block")
    shape = [1] * stored.ndim
    if rule.scales.size > 1:
        shape[rule.axis % stored.ndim] = rule.scales.size
    dequantised: Array = (
        (stored - rule.zeros.reshape(shape)) * rule.scales.reshape(shape)
        if stored.ndim
        else ((stored - rule.zeros.ravel()[0]) * rule.scales.ravel()[0])
    )
    return dequantised


def stored_bias(island: IslandSite, source: IslandOperand, factors: Sequence[StoredTensor], count: int) -> Operand:
    """Return the bias of a product of `factors` as operators take it: `count` numbers of 32 bits in units of the product.

    Raises NotLowered where it is not constant, or where rounding it to such units changes the result by more than a quarter of a step.
    """
    if source is None:
        return None
    units = np.ones((), np.float64)
    for factor in factors:
        if factor.rule.scales is None:
            raise NotLowered("a scale is not constant")
        units = units * factor.rule.scales.astype(np.float64).ravel()
    if isinstance(source, StoredTensor) and _is_in(source, units, count):
        return source.operand
    real = real_elements(island, source).astype(np.float64)
    if real.size not in {1, count}:
        raise NotLowered(f"its bias has {real.size} elements for {count} channels")
    if units.max() * 0.5 > _MOST_OFF * (np.inf if island.only_result is None else island.result.number):
        raise NotLowered("its bias is not a whole number of units of its product")
    whole = np.broadcast_to(np.rint(real.ravel() / units), (count,))
    if not (np.abs(whole) < 2**31).all():
        raise NotLowered("its bias is too large for 32 bits")
    return Literal(whole.astype(np.int32), ir.DataType.INT32, "bias")


def _is_in(bias: StoredTensor, units: Array, count: int) -> bool:
    """Return whether `bias` is stored in `units`, one element for each channel."""
    rule = bias.rule
    fits = rule.dtype == ir.DataType.INT32 and bias.dims == (count,) and rule.scales is not None
    if not fits or rule.scales is None or rule.zeros is None or rule.zeros.any():
        return False
    return bool(np.allclose(rule.scales.astype(np.float64).ravel(), units, rtol=1e-6, atol=0.0))
