"""Operators that sum products: of matrices, convolutions, and their kin; and operators on quantised tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NoReturn

import onnx_ir as ir

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, links_of, sliding
from onnxtile.operators.table import (
    FIRST,
    NO_PRODUCTS,
    Family,
    FloatMeaning,
    Folding,
    Left,
    No,
    OperationCount,
    Operations,
    Operator,
    Products,
    QuantisedPort,
    operator_of,
    operators,
    without,
)
from onnxtile.system.dataclass import dataclass


def convolved(view: NodeView, axis: int) -> AxisLinks:
    """Conv: rows and columns read windows; its channels come from filters."""
    kernel, groups = view.operand(1), view.integer("group", 1)
    has_bias = len(view.inputs) > 2
    if axis == 1:
        depthwise = groups > 1 and kernel[0] == groups and kernel[1] == 1
        if groups > 1 and not depthwise:
            raise NotApplicable("its groups have several channels")
        bias = (AxisLink(0),) if has_bias else ()
        return (AxisLink(1) if depthwise else None, AxisLink(0), *bias)
    if axis == 0:
        return links_of(view, AxisLink(0))
    return links_of(view, AxisLink(axis, sliding(view, axis, kernel[2:])))


def conv_transposed(view: NodeView, axis: int) -> AxisLinks:
    """ConvTranspose: rows and columns read what is scattered to them."""
    if axis == 1:
        raise NotApplicable("its output channels are not cut")
    if axis == 0:
        return links_of(view, AxisLink(0))
    return links_of(view, AxisLink(axis, sliding(view, axis, view.operand(1)[2:], transposed=True)))


def multiplied(view: NodeView, axis: int) -> AxisLinks:
    """MatMul: rows come from the left operand, columns from the right one, batches from both."""
    left, right, rank = view.operand(0), view.operand(1), len(view.result)
    if len(left) < 2 or len(right) < 2:
        raise NotApplicable("it multiplies a vector")
    if axis == rank - 1:
        return (None, AxisLink(len(right) - 1))
    if axis == rank - 2:
        return (AxisLink(len(left) - 2), None)
    links = []
    for sizes in (left, right):
        operand_axis = axis - rank + len(sizes)
        links.append(AxisLink(operand_axis) if operand_axis >= 0 and sizes[operand_axis] > 1 else None)
    return tuple(links)


def along_summed(view: NodeView, position: int, axis: int) -> AxisLinks:
    """MatMul: a part of the axis over which products are summed makes a part of the sums."""
    left, right = view.operand(0), view.operand(1)
    if len(left) < 2 or len(right) < 2:
        raise NotApplicable("it multiplies a vector")
    summed = (len(left) - 1, len(right) - 2)
    if axis != summed[position]:
        raise NotApplicable("it does not sum over this axis")
    return links_of(view, *map(AxisLink, summed))


def gemm_links(view: NodeView, axis: int) -> AxisLinks:
    """Gemm: rows come from A, columns from B."""
    index = axis  # rows come from A, columns from B
    turned = view.integer("transA" if index == 0 else "transB", 0)
    factors: list[AxisLink | None] = [None, None]
    factors[index] = AxisLink(1 - axis if turned else axis)
    sizes = view.sizes(2)
    if sizes is None:
        return links_of(view, *factors)
    operand_axis = axis - 2 + len(sizes)
    return (*factors, AxisLink(operand_axis) if operand_axis >= 0 and sizes[operand_axis] > 1 else None)


_CONVOLUTION_BIAS = {"QLinearConv": 8, "ConvInteger": None, "DeformConv": 3}


def convolution_work(view: NodeView) -> OperationCount:
    """Count the elements of a kernel over the channels of a group for each element of the result."""
    op = view.node.op_type
    weight = view.operand(3 if op == "QLinearConv" else 1)
    if view.node.domain == "" and op != "CausalConvWithState":
        _require_channels(view, weight)
    elements, bias = view.elements(), _CONVOLUTION_BIAS.get(op, 2)
    additions = elements if bias is not None and view.has(bias) else 0
    # The weight is (channels out, channels in / groups, kernel ...), channels last where the name says NHWC.
    return OperationCount(
        elements * math.prod(weight[1:]), additions, 0 if view.operator in {"Conv", "ConvInteger"} else None
    )


def _require_channels(view: NodeView, weight: tuple[int, ...]) -> None:
    given, wanted = view.operand(0)[1], weight[1] * view.integer("group", 1)
    if given != wanted:
        raise NotApplicable(f"its weights are for {wanted:,} channels, and its input has {given:,}")


def transposed_work(view: NodeView) -> OperationCount:
    """Count the kernel of every output channel for each element of the operand, also where padding cuts it off."""
    # The weight is (channels in, channels out / groups, kernel ...).
    return OperationCount(view.read() * math.prod(view.operand(1)[1:]), view.elements() if view.has(2) else 0, 0)


_PLAIN_PRODUCTS = {"MatMul", "MatMulInteger", "MatMulInteger16"}


_MATMUL_BIAS = {"MatMulIntegerToFloat": 6, "DynamicQuantizeMatMul": 4}


def matmul_work(view: NodeView) -> OperationCount:
    """Count K products for each element of the result."""
    left = view.operand(0)
    inner = left[-2] if view.integer("transA", 0) and len(left) > 1 else left[-1]
    elements, bias = view.elements(), _MATMUL_BIAS.get(view.node.op_type)
    additions = elements if bias is not None and view.has(bias) else 0
    return OperationCount(elements * inner, additions, 0 if view.node.op_type in _PLAIN_PRODUCTS else None)


def packed_work(view: NodeView) -> OperationCount:
    """Count a product whose right operand is packed: its sizes are attributes. Each weight is dequantised once."""
    elements, inner = view.elements(), view.integer("K")
    zero = 1 if view.has(3) else 0
    others = inner * view.integer("N") * (1 + zero) if view.node.op_type == "MatMulNBits" else None
    return OperationCount(elements * inner, elements if view.has(5) else 0, others)


def grid_work(view: NodeView) -> OperationCount:
    """Count the places of AffineGrid: each is a product of a matrix with coordinates and a one."""
    return OperationCount(view.elements() * view.operand(0)[-1])


_GEMM_BIAS = {"QGemm": 6}


def gemm_work(view: NodeView) -> OperationCount:
    """Count K products for each element of the result, and the bias C."""
    rows, columns = view.operand(0)
    inner = rows if view.integer("transA", 0) else columns
    elements = view.elements()
    bias = view.has(_GEMM_BIAS.get(view.node.op_type, 2))
    return OperationCount(
        elements * inner, elements if bias else 0, _scaled(view, bias) if view.operator == "Gemm" else None
    )


def _scaled(view: NodeView, bias: bool) -> int:
    """Return the products with alpha and beta, where they are not 1."""
    alpha, beta = (view.node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    return view.elements() * ((alpha != 1) + (bias and beta != 1))


def einsum_links(view: NodeView, axis: int) -> AxisLinks:
    """Einsum: rows along an index come from each operand that has this index."""
    left, arrow, right = view.text("equation", "").replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in left:
        raise NotApplicable("its equation does not name every axis")
    index = right[axis]
    if any(term.count(index) > 1 for term in terms):
        raise NotApplicable("it reads a diagonal along this axis")
    places = (term.find(index) for term in terms)
    return tuple(
        None if place < 0 or view.operand(position)[place] == 1 else AxisLink(place)
        for position, place in enumerate(places)
    )


def einsum_work(view: NodeView) -> OperationCount:
    """Count a product for each combination of all indices, where any index is summed."""
    equation = view.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) > 2:
        raise NotApplicable("the work of an Einsum of more than two operands depends on their order")
    sizes: dict[str, int] = {}
    for position, term in enumerate(terms):
        _bind(term, view.operand(position), sizes)
    named = left.replace("...", "")
    kept = right if arrow else "".join(index for index in named if named.count(index) == 1)
    summed = any(index not in kept for index in sizes if index.isalpha())
    combined = math.prod(sizes.values())
    if len(terms) > 1 and summed:
        return OperationCount(combined, others=0)
    # Products that nothing sums, or sums without a product.
    return OperationCount(0, others=combined if len(terms) > 1 or summed else 0)


def _bind(term: str, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Note the size of each index of `term`; those of an ellipsis are counted from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if hidden < 0 or (hidden > 0 and not dots):
        raise NotApplicable(f"the Einsum term {term!r} does not fit its operand of rank {len(shape)}")
    indices = [*before, *(str(distance) for distance in range(hidden, 0, -1)), *after]
    for index, size in zip(indices, shape, strict=True):
        sizes[index] = max(size, sizes.get(index, 1))


def linear_model_work(view: NodeView) -> OperationCount:
    """Count each row times every coefficient."""
    rows = math.prod(view.operand(0)[:-1])
    coefficients = view.node.attributes.get_floats("coefficients", [])
    intercepts = view.node.attributes.get_floats("intercepts", None) or ()
    return OperationCount(rows * len(coefficients), rows * len(intercepts))


def not_counted(view: NodeView) -> NoReturn:
    """Raise NotApplicable: a Fourier transform or a support vector machine has an algorithm of its own."""
    raise NotApplicable(f"the number of products of {view.node.op_type} depends on its algorithm")


_EXPERT_PRODUCTS = {"MoE": ((2, 3), (4, 5), (6, 7)), "QMoE": ((2, 4), (5, 7), (8, 10))}
"""By operator, the places of the weights of each product, and of its bias."""


def expert_work(view: NodeView) -> OperationCount:
    """Count MoE and QMoE: weights are (experts, rows, columns), of QMoE several to a byte; `k` experts see each row."""
    routed = math.prod(view.operand(0)[:-1]) * view.integer("k", 1)
    held = 8 // view.integer("expert_weight_bits", 4) if view.node.op_type == "QMoE" else 1
    macs = additions = 0
    for weights, bias in _EXPERT_PRODUCTS[view.node.op_type]:
        if view.has(weights):
            macs += routed * math.prod(view.operand(weights)[1:]) * held
            additions += routed * view.operand(bias)[1] if view.has(bias) else 0
    return OperationCount(macs, additions)


_PRODUCT = Operator(
    over=reasons.SUM, reads=multiplied, work=Products(matmul_work), saves=saves.other_factor, factors=(0, 1)
)
_SUMMING = Operator(over=reasons.SUM, reads=reasons.OPTIMISED, work=Products(matmul_work))
_OF_RUNTIME = replace(_SUMMING, name=f"{MICROSOFT}::")

FAMILY = Family(
    "products",
    (
        *_SUMMING.rows(
            "AffineGrid",
            over=reasons.OTHER_SIZE,
            reads=reasons.FEW_NUMBERS,
            work=Products(grid_work),
            saves=saves.nothing,
            shaped_by=(1,),
            takes={1: takes.grid_shape},
            contraction=reasons.NARROW,
        ),
        *_SUMMING.rows(
            "CausalConvWithState",
            reads=reasons.STEPS,
            work=Products(convolution_work),
            saves=reasons.FRAMEWORKS_DIFFER,
            contraction=reasons.STEP_BY_STEP,
        ),
        *_PRODUCT.rows("Conv", reads=convolved, slides=True, work=Products(convolution_work)),
        *_PRODUCT.rows("ConvTranspose", reads=conv_transposed, slides=True, work=Products(transposed_work)),
        *_SUMMING.rows(
            "DFT",
            reads=reasons.WHOLE_AXES,
            work=Products(not_counted),
            saves=saves.nothing,
            shaped_by=(1, 2),
            contraction=reasons.OWN_ALGORITHM,
        ),
        *_PRODUCT.rows("DeformConv", reads=reasons.ANY_ELEMENT, work=Products(convolution_work), contraction=Left("")),
        *_SUMMING.rows(
            "Det",
            over=reasons.OTHER_SIZE,
            reads=reasons.WHOLE_AXES,
            work=reasons.NO_FORMULA,
            saves=saves.first_and_result,
        ),
        *_PRODUCT.rows("Einsum", reads=einsum_links, work=Products(einsum_work), contraction=Left("")),
        *_PRODUCT.rows("Gemm", over=frozenset({2}), reads=gemm_links, work=Products(gemm_work)),
        *_PRODUCT.rows("MatMul", folds=Folding("Add", along_summed)),
        *_PRODUCT.rows(
            "STFT",
            reads=reasons.WHOLE_AXES,
            work=Products(not_counted),
            shaped_by=(1, 3),
            takes={1: takes.always(2), 3: takes.always(2)},
            contraction=reasons.OWN_ALGORITHM,
            factors=None,
        ),
        *_SUMMING.rows(
            "LinearClassifier LinearRegressor",
            domain="ai.onnx.ml",
            over=reasons.CLASSICAL,
            reads=reasons.CLASSICAL,
            work=Products(linear_model_work),
            contraction=reasons.CLASSICAL,
        ),
        *_SUMMING.rows(
            "SVMClassifier SVMRegressor",
            domain="ai.onnx.ml",
            over=reasons.CLASSICAL,
            reads=reasons.CLASSICAL,
            work=Products(not_counted),
            contraction=reasons.OWN_ALGORITHM,
        ),
        *_SUMMING.rows(
            "Conv",
            domain="com.microsoft.nchwc",
            over=reasons.NO_KERNEL,
            reads=reasons.NO_KERNEL,
            work=Products(convolution_work),
            contraction=reasons.WRITTEN_BY_OPTIMISER,
        ),
        *without("CDist", reasons.OTHER_SIZE, domain=MICROSOFT, reads=reasons.WHOLE_AXES, work=reasons.NOT_COUNTED),
        *without(
            "CausalConvWithState VarlenCausalConvWithState",
            reasons.SUM,
            domain=MICROSOFT,
            reads=reasons.STEPS,
            work=reasons.NOT_COUNTED,
        ),
        *_OF_RUNTIME.rows("ConvTransposeWithDynamicPads", work=reasons.NOT_COUNTED, shaped_by=(2,)),
        *_OF_RUNTIME.rows(
            "DynamicQuantizeMatMul",
            reads=reasons.WHOLE_SCALE,
            ports=(QuantisedPort(1, 2, 3, axis=-1),),
            factors=(0, 1),
            contraction=Left(""),
        ),
        *_OF_RUNTIME.rows(
            "FusedConv", over=frozenset({3}), work=Products(convolution_work), factors=(0, 1), contraction=Left("")
        ),
        *_OF_RUNTIME.rows(
            "FusedGemm", over=frozenset({2}), work=Products(gemm_work), factors=(0, 1), contraction=Left("")
        ),
        *_OF_RUNTIME.rows("FusedMatMul", factors=(0, 1), contraction=Left("")),
        *_OF_RUNTIME.rows(
            "GemmFloat8",
            over=reasons.NO_KERNEL,
            reads=reasons.NO_KERNEL,
            work=Products(gemm_work),
            contraction=reasons.PACKED,
        ),
        *without(
            "HyperConnectionPostMix MatMulFpQ4 SparseToDenseMatMul",
            reasons.SUM,
            domain=MICROSOFT,
            reads=reasons.OPTIMISED,
            work=reasons.NOT_COUNTED,
        ),
        *without(
            "HyperConnectionPreMix",
            reasons.OTHER_SIZE,
            domain=MICROSOFT,
            reads=reasons.OPTIMISED,
            work=reasons.NOT_COUNTED,
        ),
        *_OF_RUNTIME.rows("Inverse", reads=reasons.WHOLE_AXES, work=NO_PRODUCTS),
        *_OF_RUNTIME.rows("MatMulBnb4", work=Products(packed_work), contraction=reasons.PACKED),
        *_OF_RUNTIME.rows("MatMulInteger16 TransposeMatMul", contraction=reasons.WRITTEN_BY_OPTIMISER),
        *_OF_RUNTIME.rows(
            "MatMulIntegerToFloat",
            ports=(QuantisedPort(0, 2, 4), QuantisedPort(1, 3, 5, axis=-1)),
            factors=(0, 1),
            contraction=Left(""),
        ),
        *_OF_RUNTIME.rows(
            "MatMulNBits", work=Products(packed_work), ports=(QuantisedPort(1, 2, 3, axis=1),), set_by=(4,), bits="bits"
        ),
        *_OF_RUNTIME.rows(
            "MoE", reads=reasons.LOWERED, work=Products(expert_work), factors=(0, 2), contraction=reasons.ROUTED
        ),
        *without(
            "MoEGroupRouter", reasons.OTHER_SIZE, domain=MICROSOFT, reads=reasons.LOWERED, work=reasons.COMPARISONS
        ),
        *_OF_RUNTIME.rows(
            "NhwcFusedConv",
            over=reasons.NO_KERNEL,
            reads=reasons.NO_KERNEL,
            work=Products(convolution_work),
            contraction=reasons.WRITTEN_BY_OPTIMISER,
        ),
        *_OF_RUNTIME.rows(
            "QMoE",
            reads=reasons.LOWERED,
            work=Products(expert_work),
            ports=tuple(QuantisedPort(2 + 3 * n, 3 + 3 * n, 11 + n, axis=2) for n in range(3)),
            bits="expert_weight_bits",
            contraction=reasons.ROUTED,
        ),
    ),
)


# Operators that quantise, and those that compute on quantised tensors, as the float operators that they are.


@dataclass(frozen=True)
class QuantisedView(NodeView):
    """A node as the float operator that it means, whose operands are those at `places` of the node."""

    places: tuple[int, ...] = ()

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The operands of the float operator."""
        return [self.node.inputs[index] for index in self.places]


def as_float(view: NodeView, axis: int) -> AxisLinks:
    """An operator on quantised tensors reads what its float operator reads, with the scales along the same axis."""
    row = operator_of(view.node)
    assert row is not None and isinstance(row.quantised, FloatMeaning)
    if view.integer("channels_last", 0):
        raise NotApplicable("its channels are after its columns")
    places = tuple(index for index in row.quantised.places(view.node) if index < len(view.node.inputs))
    opset = view.integer("opset", view.opset)
    plain = QuantisedView(view.node, view.shapes, view.constants, opset, places)
    rule = operators()[row.quantised.op_type].reads
    assert not isinstance(rule, No)
    return _with_scales(plain, rule(plain, axis))


def _with_scales(view: QuantisedView, plain: AxisLinks) -> AxisLinks:
    """Return the links of all operands of the node. Raises NotApplicable for scales that do not follow."""
    links: list[AxisLink | None] = [None] * len(view.node.inputs)
    for index, link in zip(view.places, plain, strict=True):
        links[index] = link
    for index, value in enumerate(view.node.inputs):
        sizes = () if value is None or index in view.places else view.shapes.sizes(value)
        if sizes is not None and prod(sizes) == 1:
            continue
        owner = max((other for other in view.places if other < index), default=index)
        if links[owner] is None:
            continue
        if view.node.op_type != "QLinearConv" or owner != view.places[1]:
            raise NotApplicable("it has several scales for an operand that is cut")
        links[index] = AxisLink(0)
    return tuple(links)


def along_scales(view: NodeView, axis: int) -> AxisLinks:
    """QuantizeLinear and DequantizeLinear: scales lie along one axis, or are one."""
    scale = view.operand(1)
    if prod(scale) > 1 and (view.integer("block_size", 0) or len(scale) != 1):
        raise NotApplicable("it has a scale for each block")
    per_axis = prod(scale) > 1 and view.integer("axis", 1) % len(view.result) == axis
    return (AxisLink(axis), *(AxisLink(0) if per_axis else None for _ in view.inputs[1:]))


def quantisation_operations(view: NodeView) -> int:
    """Count scale, rounding and two bounds to quantise, the scale alone to undo it, and in both the zero point where there is one."""
    operations = 1 if view.node.op_type == "DequantizeLinear" else 4
    return view.elements() * (operations + view.has(2))


def _unary(op_type: str, *dropped: str) -> FloatMeaning:
    return FloatMeaning(op_type, (0,), frozenset({0}), dropped=frozenset(dropped), result=(3, 4))


def _binary(op_type: str, columns: tuple[int, int] | None = None) -> FloatMeaning:
    return FloatMeaning(op_type, (0, 3), frozenset({0, 3}), columns=columns, result=(6, 7))


_BYTES_OF_RUNTIME = Operator(name=f"{MICROSOFT}::", over=reasons.SUM, reads=as_float, work=NO_PRODUCTS)
_INTEGER = Operator(over=reasons.SUM, reads=as_float, work=Products(matmul_work), saves=saves.stops)
_SCALING = Operator(
    over=FIRST, reads=along_scales, work=Operations(quantisation_operations), takes={1: takes.between(0.01, 1)}
)

QUANTISED = Family(
    "quantised",
    (
        *_INTEGER.rows(
            "ConvInteger",
            work=Products(convolution_work),
            takes={3: takes.always(0)},
            quantised=FloatMeaning("Conv", (0, 1), result=None),
            factors=(0, 1),
        ),
        *_SCALING.rows("DequantizeLinear", saves=saves.nothing, ports=(QuantisedPort(0, 1, 2, axis=1),)),
        *_INTEGER.rows(
            "DynamicQuantizeLinear",
            over=reasons.OTHER_SIZE,
            reads=reasons.WHOLE_SCALE,
            work=reasons.NO_FORMULA,
            ports=(QuantisedPort(0, None, None, is_made=True),),
        ),
        *_INTEGER.rows(
            "MatMulInteger",
            quantised=FloatMeaning("MatMul", (0, 1), result=None),
            factors=(0, 1),
            folds=Folding("Add", along_summed),
        ),
        *_INTEGER.rows(
            "QLinearConv",
            work=Products(convolution_work),
            quantised=FloatMeaning("Conv", (0, 3, 8), frozenset({0, 3}), columns=(3, 0), result=(6, 7)),
            factors=(0, 3),
        ),
        *_INTEGER.rows("QLinearMatMul", quantised=_binary("MatMul", (3, -1)), factors=(0, 3)),
        *_SCALING.rows("QuantizeLinear", saves=saves.nothing, ports=(QuantisedPort(0, 1, 2, is_made=True, axis=1),)),
        *_SCALING.rows("DequantizeLinear", domain=MICROSOFT, ports=(QuantisedPort(0, 1, 2, axis=1),)),
        *_BYTES_OF_RUNTIME.rows(
            "QGemm",
            work=Products(gemm_work),
            quantised=FloatMeaning("Gemm", (0, 3, 6), frozenset({0, 3}), columns=(3, 1), result=(7, 8)),
            factors=(0, 3),
        ),
        *_BYTES_OF_RUNTIME.rows("QLinearAdd", over=frozenset({0, 3}), quantised=_binary("Add")),
        *_BYTES_OF_RUNTIME.rows(
            "QLinearAveragePool", over=reasons.WINDOW, quantised=_unary("AveragePool", "channels_last")
        ),
        *_BYTES_OF_RUNTIME.rows("QLinearConcat", over=reasons.MOVED, quantised=FloatMeaning("Concat", repeated=2)),
        *_BYTES_OF_RUNTIME.rows(
            "QLinearConv",
            work=Products(convolution_work),
            quantised=FloatMeaning("Conv", (0, 3, 8), frozenset({0, 3}), columns=(3, 0), result=(6, 7)),
            factors=(0, 3),
            contraction=Left("the QLinearConv of ONNX is cut"),
        ),
        *_BYTES_OF_RUNTIME.rows(
            "QLinearGlobalAveragePool", over=reasons.SMALLER, quantised=_unary("GlobalAveragePool", "channels_last")
        ),
        *_BYTES_OF_RUNTIME.rows("QLinearLeakyRelu", over=FIRST, quantised=_unary("LeakyRelu")),
        *_BYTES_OF_RUNTIME.rows("QLinearMul", over=frozenset({0, 3}), quantised=_binary("Mul")),
        *_BYTES_OF_RUNTIME.rows("QLinearReduceMean", over=reasons.NO_KERNEL, quantised=_unary("ReduceMean")),
        *_BYTES_OF_RUNTIME.rows("QLinearSigmoid", over=FIRST, quantised=_unary("Sigmoid")),
        *_BYTES_OF_RUNTIME.rows("QLinearSoftmax", over=FIRST, quantised=_unary("Softmax", "opset")),
        *_BYTES_OF_RUNTIME.rows(
            "QLinearWhere",
            over=frozenset({1, 4}),
            quantised=FloatMeaning("Where", (0, 1, 4), frozenset({1, 4}), result=(7, 8)),
        ),
        *_SCALING.rows("QuantizeLinear", domain=MICROSOFT, ports=(QuantisedPort(0, 1, 2, is_made=True, axis=1),)),
    ),
)
