"""Lowerings of products: a fully connected layer on a matrix, and products of integers."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.fusion.lower.lowering import (
    WITH_DOUBLE,
    Argument,
    CallSite,
    Lowering,
    NotLowered,
    OperatorSite,
    Replacement,
    definition,
    inlined,
    known_dims,
    operand_of,
    require_operator,
    require_type,
    settings,
    value_of,
)
from onnxtile.fusion.operator_lowerings import DYNAMIC_QUANTIZE_MATMUL, MATMUL_INTEGER_TO_FLOAT
from onnxtile.operators.node_view import MICROSOFT
from onnxtile.system.dataclass import dataclass

_SINCE = {"Gemm": 7, "Reshape": 5, "MatMul": 1, "Add": 7}


class Linear(Lowering):
    """https://onnx.ai/onnx/operators/onnx__Gemm.html; of more than two axes no operator takes a product and a bias: two do."""

    name = "Linear"

    def to_onnx(self, site: CallSite) -> Replacement:
        """Return Gemm-13, the Gemm that it is, or the product and the sum."""
        operators = [node.op_type for node in site.function if node.op_type != "Constant"]
        if "Gemm" in operators:
            return inlined(site, _SINCE, main=operators.index("Gemm"))
        x, weight, bias = require_operator(
            site, lambda *inputs: definition("Gemm", 7, inputs), "its body is not one product and a bias", count=3
        )
        require_type("Gemm", x, WITH_DOUBLE)
        columns = known_dims(weight)[-1]
        matrices = len(known_dims(x)) == 2 and len(known_dims(weight)) == 2
        if not matrices or known_dims(bias) not in {(columns,), (1, columns)} or columns is None:
            return inlined(site, _SINCE, main=operators.index("MatMul"))
        return Replacement.one("Gemm", (value_of(x), value_of(weight), value_of(bias)), since=7)


LINEAR = Linear()


# Products of quantised tensors that are scaled to floats, as dynamic quantisation writes them.


@dataclass(frozen=True)
class IntegerProduct:
    """bias + a_scale · b_scale · ((a - a_zero) ∘ (b - b_zero)), where `node` is ∘: MatMulInteger or ConvInteger.

    `a` has the first operand, its scale and its zero point; one operand alone is quantised by a DynamicQuantizeLinear in the body.
    """

    node: ir.Node
    a: tuple[Argument | None, ...]
    b: Argument
    b_scale: Argument
    b_zero: Argument | None
    bias: Argument | None

    @property
    def operands(self) -> tuple[Argument | None, ...]:
        """The operands as those of DynamicQuantizeMatMul or MatMulIntegerToFloat."""
        if len(self.a) == 1:
            return (*self.a, self.b, self.b_scale, self.b_zero, self.bias)
        a, a_scale, a_zero = self.a
        return (a, self.b, a_scale, self.b_scale, a_zero, self.b_zero, self.bias)

    def require_columns(self) -> None:
        """Raise NotLowered unless b is a matrix whose scale, zero point and bias fit."""
        dims = known_dims(self.b)
        columns = dims[-1]
        if len(dims) != 2 or not isinstance(columns, int):
            raise NotLowered("its second operand must be a matrix of known size")
        for argument in (self.b_scale, self.b_zero):
            if argument is not None and known_dims(argument) not in {(), (1,), (columns,)}:
                raise NotLowered("a scale or a zero point of its weight is neither one number nor one for each column")
        if self.bias is not None and known_dims(self.bias) != (columns,):
            raise NotLowered("its bias does not have one element for each column")


def read_integer_product(site: CallSite) -> IntegerProduct:
    """Return what the body of `site` computes. Raises NotLowered unless the body scales a product of integers."""
    top, bias = _maker(site.function.outputs[0], "Mul", "Add"), None
    if top.op_type == "Add":
        makers = [(_maker_or_none(value, "Mul"), value) for value in top.inputs]
        at = next((index for index, (maker, _) in enumerate(makers) if maker is not None), None)
        if at is None:
            raise NotLowered("its Add adds no bias")
        top, bias = _maker(top.inputs[at], "Mul"), _argument(site, top.inputs[1 - at])
    inner = {maker.op_type: maker for value in top.inputs if value is not None and (maker := value.producer())}
    if inner.keys() != {"Cast", "Mul"}:
        raise NotLowered("its body is not a product of integers and scales")
    cast, scales = inner["Cast"], inner["Mul"]
    product = _maker(cast.inputs[0], "MatMulInteger", "ConvInteger")
    if cast.attributes["to"].as_int() != ir.DataType.FLOAT.value or len(site.function.outputs) != 1:
        raise NotLowered("its body must scale a product of integers to float32")
    zeros = [*product.inputs[2:], None, None][:2]
    quantise = product.inputs[0].producer() if product.inputs[0] is not None else None
    b, b_zero = _argument(site, product.inputs[1]), _optional(site, zeros[1])
    if quantise is None:
        first, a_zero = _argument(site, product.inputs[0]), _optional(site, zeros[0])
        a_scale, b_scale = _ordered(first, *(_argument(site, value) for value in scales.inputs))
        return IntegerProduct(product, (first, a_scale, a_zero), b, b_scale, b_zero, bias)
    others = [value for value in scales.inputs if value is not quantise.outputs[1]]
    if quantise.op_type != "DynamicQuantizeLinear" or zeros[0] is not quantise.outputs[2] or len(others) != 1:
        raise NotLowered("its operand is not scaled as it was quantised")
    source, b_scale = _argument(site, quantise.inputs[0]), _argument(site, others[0])
    return IntegerProduct(product, (source,), b, b_scale, b_zero, bias)


def _ordered(a: Argument, first: Argument, second: Argument) -> tuple[Argument, Argument]:
    """Return two scales, that of `a` first. Raises NotLowered where neither is known to be."""
    maker = None if a.value is None else a.value.producer()
    for mine, other in ((first, second), (second, first)):
        is_scale = maker is not None and len(maker.outputs) > 1 and mine.value is maker.outputs[1]
        if (is_scale or (other.constant and not mine.constant)) and known_dims(mine) in {(), (1,)}:
            return mine, other
    raise NotLowered("it is not known which of its scales is that of its first operand")


def _maker_or_none(value: ir.Value | None, *operators: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.op_type in operators else None


def _maker(value: ir.Value | None, *operators: str) -> ir.Node:
    """Return the node of one of `operators` that makes `value`. Raises NotLowered."""
    node = _maker_or_none(value, *operators)
    if node is None:
        raise NotLowered(f"its body has no {' or '.join(operators)} where one was expected")
    return node


def _argument(site: CallSite, value: ir.Value | None) -> Argument:
    """Return the input of the call, or the constant, that `value` is. Raises NotLowered."""
    if value is None or value not in site.known:
        raise NotLowered("an operand of its product is computed in it")
    return site.known[value]


def _optional(site: CallSite, value: ir.Value | None) -> Argument | None:
    return None if value is None else _argument(site, value)


class IntegerProductLowering(Lowering):
    """DynamicQuantizeMatMul and MatMulIntegerToFloat of onnxruntime's docs/ContribOperators.md; a float product of what is dequantised."""

    def __init__(self, name: str) -> None:
        self.name = name

    def to_onnx(self, site: CallSite) -> Replacement:
        """Raise NotLowered: the standard has no operator for it."""
        raise NotLowered(f"no standard operator means {site.function.name}")

    def to_ort(self, site: CallSite) -> Replacement:
        """Return onnxruntime's operator for the product."""
        product = read_integer_product(site)
        if product.node.op_type != "MatMulInteger":
            raise NotLowered("onnxruntime has no operator for a convolution of integers to floats")
        product.require_columns()
        operator = "DynamicQuantizeMatMul" if len(product.a) == 1 else "MatMulIntegerToFloat"
        operands = product.operands if product.bias is not None else product.operands[:-1]
        return Replacement.one(operator, tuple(map(operand_of, operands)), since=1, domain=MICROSOFT)

    def to_qdq(self, site: CallSite) -> Replacement:
        """Return the product of two DequantizeLinear nodes: float32 holds what the integers are, but for the rounding of its sums."""
        product = read_integer_product(site)
        is_matrix, axis = product.node.op_type == "MatMulInteger", None
        if known_dims(product.b_scale) not in {(), (1,)}:
            if not is_matrix:
                raise NotLowered("its weight has several scales")
            product.require_columns()
            axis = 1
        operands = tuple(operand or Argument(None, None, None) for operand in product.operands)
        dequantising = DYNAMIC_QUANTIZE_MATMUL if len(product.a) == 1 else MATMUL_INTEGER_TO_FLOAT
        written = OperatorSite(product.node, operands, site.results, site.facts)
        return dequantising.dequantised(written, "MatMul" if is_matrix else "Conv", settings(product.node), axis)


DYNAMIC_MATMUL = IntegerProductLowering("DynamicMatMul")
INTEGER_CONV = IntegerProductLowering("IntegerConv")
INTEGER_MATMUL = IntegerProductLowering("IntegerMatMul")
