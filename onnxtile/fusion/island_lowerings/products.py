"""Islands of products: of stored tensors, or of floats and a weight that is stored in blocks; convolutions and attention."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandOperand,
    IslandSite,
    StoredTensor,
    clamped,
    on_stored,
    product_by_blocks,
    require_alike,
    require_alone,
    scale_pair,
    stored_bias,
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
    operand_of,
    settings,
)
from onnxtile.model.known import Dims
from onnxtile.operators.node_view import MICROSOFT


class MatMulIsland(IslandLowering):
    """QLinearMatMul of the standard; QGemm, MatMulIntegerToFloat and MatMulNBits of onnxruntime's docs/ContribOperators.md."""

    name = "MatMul"

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return QLinearMatMul-10."""
        return clamped(island, on_stored(island, "QLinearMatMul"))

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearMatMul-10; with a bias QGemm, to floats MatMulIntegerToFloat, with a weight in blocks MatMulNBits."""
        bias, rest = _with_bias(island)
        if not isinstance(island.source(0), StoredTensor):
            return product_by_blocks(rest, island.source(0), island.stored(1), bias)
        if island.only_result is None:
            return _to_float(rest, bias)
        return self.to_onnx(island) if bias is None else quantised_gemm(rest, bias, {"alpha": 1.0})


def quantised_gemm(island: IslandSite, bias: IslandOperand, attributes: dict[str, Setting]) -> Replacement:
    """Return QGemm on the operands of the first operator of `island`, and what follows. Raises NotLowered."""
    a, b = island.stored(0), island.stored(1)
    if a.dims is None or b.dims is None or len(a.dims) < 2 or len(b.dims) != 2:
        raise NotLowered("it has a bias, and its second operand is no matrix, as QGemm takes it")
    along = 0 if attributes.get("transB") else 1
    columns = b.dims[along]
    if not isinstance(columns, int):
        raise NotLowered("the number of its columns is not known")
    added = stored_bias(island, bias, (a, b), columns)
    left, *rest = stored_triple(a)
    lead = () if len(a.dims) == 2 else (_reshaped(left, (None, a.dims[-1])),)
    operands: tuple[Operand, ...] = (Made(0) if lead else left, *rest, *stored_triple(b, axis=along), added)
    trail = () if len(a.dims) == 2 else (_reshaped(Made(1), (*a.dims[:-1], columns)),)
    if island.only_result is None:
        require_alone(island)
        steps = (*lead, NewNode("QGemm", operands, attributes, MICROSOFT), *trail)
        return Replacement(steps, (Made(len(steps) - 1),), len(lead))
    require_alike(a.rule, island.result)
    inputs = (*operands, *scale_pair(island.result))
    return clamped(island, *lead, NewNode("QGemm", inputs, attributes, MICROSOFT), *trail, main=len(lead))


def _reshaped(operand: Operand, dims: Dims) -> NewNode:
    """Return the Reshape to `dims`, of which one may be unknown. Raises NotLowered."""
    sizes = [dim if isinstance(dim, int) else -1 for dim in dims]
    if sizes.count(-1) > 1:
        raise NotLowered("it has a bias, which QGemm takes for matrices, and several of its sizes are not known")
    return NewNode("Reshape", (operand, Literal.ints(*sizes, hint="shape")), since=5)


def _to_float(island: IslandSite, bias: IslandOperand) -> Replacement:
    """Return MatMulIntegerToFloat. Raises NotLowered."""
    require_alone(island)
    a, b = island.stored(0), island.stored(1)
    (left, a_scale, a_zero), (right, b_scale, b_zero) = stored_triple(a), stored_triple(b, axis=-1)
    if b.dims is None or len(b.dims) != 2:
        raise NotLowered("its second operand is no matrix")
    inputs: tuple[Operand, ...] = (left, right, a_scale, b_scale, a_zero, b_zero)
    if bias is not None:
        if not isinstance(bias, Argument) or bias.value is None or bias.dims != (b.dims[1],):
            raise NotLowered("its bias must be a vector of floats")
        inputs = (*inputs, bias.value)
    return Replacement((NewNode("MatMulIntegerToFloat", inputs, domain=MICROSOFT),), (Made(0),))


def _with_bias(island: IslandSite) -> tuple[IslandOperand, IslandSite]:
    """Return the constant that is added to the product, None where there is none, and the island without that Add."""
    if len(island.steps) < 2 or island.steps[1].node.op_type != "Add" or island.steps[1].node.domain:
        return None, island
    others = [source for source in island.steps[1].sources if source != Made(0)]
    if len(others) != 1 or not isinstance(others[0], StoredTensor | Argument):
        return None, island
    return others[0], island.without(1)


MATMUL = MatMulIsland()


# A convolution of stored tensors.


class ConvIsland(IslandLowering):
    """https://onnx.ai/onnx/operators/onnx__QLinearConv.html."""

    name = "Conv"

    def to_onnx(self, island: IslandSite) -> Replacement:
        """Return QLinearConv-10."""
        x, weight = island.stored(0), island.stored(1)
        require_alike(x.rule, island.result)
        bias = stored_bias(island, island.source(2), (x, weight), _channels(weight))
        return clamped(island, on_stored(island, "QLinearConv", settings(island.first), bias=bias))

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QLinearConv-10."""
        return self.to_onnx(island)


def _channels(weight: StoredTensor) -> int:
    count = weight.dims[0] if weight.dims else None
    if not isinstance(count, int):
        raise NotLowered("the number of its channels is not known")
    return count


CONV = ConvIsland()


# A matrix product with a bias, of stored matrices.


class GemmIsland(IslandLowering):
    """QGemm and MatMulNBits of onnxruntime's docs/ContribOperators.md."""

    name = "Gemm"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QGemm; with a weight in blocks MatMulNBits."""
        given = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, **settings(island.first)}
        bias = island.source(2)
        if bias is not None and given["beta"] != 1.0:
            raise NotLowered(f"its bias is multiplied by {given['beta']}, and QGemm multiplies none")
        if bias is not None and given["alpha"] != 1.0:
            raise NotLowered(f"its product is multiplied by {given['alpha']} before its bias is added")
        del given["beta"]
        if isinstance(island.source(0), StoredTensor):
            return quantised_gemm(island, bias, given)
        weight = island.stored(1)
        if given["alpha"] != 1.0 or given["transA"]:
            raise NotLowered("MatMulNBits neither transposes nor multiplies its operand")
        return product_by_blocks(island, island.source(0), weight.transposed() if given["transB"] else weight, bias)


GEMM = GemmIsland()


# Attention with its input projections, of a stored tensor and a stored weight.

_TAKEN = {"num_heads", "unidirectional", "mask_filter_value", "scale", "do_rotary", "past_present_share_buffer"}


class AttentionIsland(IslandLowering):
    """QAttention of onnxruntime's docs/ContribOperators.md, where com.microsoft.Attention has a quantised input and weight."""

    name = "com.microsoft::Attention"

    def to_ort(self, island: IslandSite) -> Replacement:
        """Return QAttention, and QuantizeLinear of its result where that is stored."""
        require_alone(island)
        x, weight, rule = island.stored(0), island.stored(1), island.only_result
        if x.rule.dtype != ir.DataType.UINT8:
            raise NotLowered(f"the input of QAttention is of uint8, not of {x.rule.dtype.name.lower()}")
        given = settings(island.first)
        unknown = sorted(given.keys() - _TAKEN)
        if unknown:
            raise NotLowered(f"QAttention has no attribute {unknown[0]}")
        if any(island.source(index) is not None for index in range(4, len(island.steps[0].sources))):
            raise NotLowered("QAttention takes no past and no bias of the scores here")
        (left, x_scale, x_zero), (right, w_scale, w_zero) = stored_triple(x), stored_triple(weight, axis=-1)
        inputs = (left, right, _float(island, 2), x_scale, w_scale, _float(island, 3), x_zero, w_zero)
        steps = [NewNode("QAttention", inputs, given, MICROSOFT)]
        if rule is None:
            return Replacement(tuple(steps), (Made(0),))
        steps.append(NewNode("QuantizeLinear", (Made(0), *scale_pair(rule)), since=10))
        return Replacement(tuple(steps), (Made(1),), rounds=True)


def _float(island: IslandSite, index: int) -> Operand:
    source = island.source(index)
    if source is None:
        return None
    if not isinstance(source, Argument):
        raise NotLowered("the bias or the mask of its attention is quantised, which QAttention takes as it is")
    return operand_of(source)


ATTENTION = AttentionIsland()
