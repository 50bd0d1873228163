"""Operators that sum products: of matrices, convolutions, and their kin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NoReturn

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks, links_of, sliding
from onnxtile.operators.row import (
    NO_PRODUCTS,
    Family,
    Folding,
    Left,
    OperationCount,
    Operator,
    Products,
    QuantisedPort,
    without,
)


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


def along_summed(view: NodeView, place: int, axis: int) -> AxisLinks:
    """MatMul: a part of the axis over which products are summed makes a part of the sums."""
    left, right = view.operand(0), view.operand(1)
    if len(left) < 2 or len(right) < 2:
        raise NotApplicable("it multiplies a vector")
    summed = (len(left) - 1, len(right) - 2)
    if axis != summed[place]:
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
        *_PRODUCT.rows("Einsum", reads=reasons.ANY_SUM, work=Products(einsum_work), contraction=Left("")),
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
