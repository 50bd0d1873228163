"""Operators that quantise, and those that compute on quantised tensors, as the float operators that they are."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx_ir as ir

from onnxtile.operators import reasons, saves, takes
from onnxtile.operators.families.products import along_summed, convolution_work, gemm_work, matmul_work
from onnxtile.operators.node_view import MICROSOFT, NodeView, NotApplicable
from onnxtile.operators.reads import AxisLink, AxisLinks
from onnxtile.operators.row import (
    FIRST,
    NO_PRODUCTS,
    Family,
    FloatMeaning,
    Folding,
    Left,
    No,
    Operations,
    Operator,
    Products,
    QuantisedPort,
)
from onnxtile.operators.table import operator_of, operators
from onnxtile.system.dataclass import dataclass


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
        raise NotApplicable("its channels are behind its columns")
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


_OF_RUNTIME = Operator(name=f"{MICROSOFT}::", over=reasons.SUM, reads=as_float, work=NO_PRODUCTS)
_INTEGER = Operator(over=reasons.SUM, reads=as_float, work=Products(matmul_work), saves=saves.stops)
_SCALING = Operator(
    over=FIRST, reads=along_scales, work=Operations(quantisation_operations), takes={1: takes.between(0.01, 1)}
)

FAMILY = Family(
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
        *_OF_RUNTIME.rows(
            "QGemm",
            work=Products(gemm_work),
            quantised=FloatMeaning("Gemm", (0, 3, 6), frozenset({0, 3}), columns=(3, 1), result=(7, 8)),
            factors=(0, 3),
        ),
        *_OF_RUNTIME.rows("QLinearAdd", over=frozenset({0, 3}), quantised=_binary("Add")),
        *_OF_RUNTIME.rows("QLinearAveragePool", over=reasons.WINDOW, quantised=_unary("AveragePool", "channels_last")),
        *_OF_RUNTIME.rows("QLinearConcat", over=reasons.MOVED, quantised=FloatMeaning("Concat", repeated=2)),
        *_OF_RUNTIME.rows(
            "QLinearConv",
            work=Products(convolution_work),
            quantised=FloatMeaning("Conv", (0, 3, 8), frozenset({0, 3}), columns=(3, 0), result=(6, 7)),
            factors=(0, 3),
            contraction=Left("the QLinearConv of ONNX is cut"),
        ),
        *_OF_RUNTIME.rows(
            "QLinearGlobalAveragePool", over=reasons.SMALLER, quantised=_unary("GlobalAveragePool", "channels_last")
        ),
        *_OF_RUNTIME.rows("QLinearLeakyRelu", over=FIRST, quantised=_unary("LeakyRelu")),
        *_OF_RUNTIME.rows("QLinearMul", over=frozenset({0, 3}), quantised=_binary("Mul")),
        *_OF_RUNTIME.rows("QLinearReduceMean", over=reasons.NO_KERNEL, quantised=_unary("ReduceMean")),
        *_OF_RUNTIME.rows("QLinearSigmoid", over=FIRST, quantised=_unary("Sigmoid")),
        *_OF_RUNTIME.rows("QLinearSoftmax", over=FIRST, quantised=_unary("Softmax", "opset")),
        *_OF_RUNTIME.rows(
            "QLinearWhere",
            over=frozenset({1, 4}),
            quantised=FloatMeaning("Where", (0, 1, 4), frozenset({1, 4}), result=(7, 8)),
        ),
        *_SCALING.rows("QuantizeLinear", domain=MICROSOFT, ports=(QuantisedPort(0, 1, 2, is_made=True, axis=1),)),
    ),
)
