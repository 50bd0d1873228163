"""The lowerings of quantised islands, by family of their operators; each is found by its existence."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxtile.fusion.lower.island_lowering import (
    IslandLowering,
    IslandOperand,
    IslandSite,
    StoredTensor,
    clamped,
    elements_of,
    limits,
    on_stored,
    product_by_blocks,
    real_elements,
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
from onnxtile.operators.node_view import MICROSOFT, Dims
from onnxtile.operators.table import movement_of

# Islands of element-wise operators: functions of one stored tensor, sums, products, quotients, means and choices.


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


# Operators that compute no element: between equal scales they take stored tensors as they are.


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


# Islands of products: of stored tensors, or of floats and a weight that is stored in blocks; convolutions and
# attention.


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
