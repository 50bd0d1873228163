"""Lowerings of products: a fully connected layer on a matrix, and products of integers."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from onnxtile.fusion.lower.definition import definition, require_operator
from onnxtile.fusion.lower.lowering import (
    FLOATS,
    ORT_DOMAIN,
    Argument,
    CallSite,
    Lowering,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    held,
    inlined,
    known_dims,
    operand_of,
    require_type,
    settings,
    value_of,
)
from onnxtile.system.dataclass import dataclass

_TYPES = FLOATS | {ir.DataType.DOUBLE}
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
        require_type("Gemm", x, _TYPES)
        columns = known_dims(weight)[-1]
        matrices = len(known_dims(x)) == 2 and len(known_dims(weight)) == 2
        if not matrices or known_dims(bias) not in {(columns,), (1, columns)} or columns is None:
            return inlined(site, _SINCE, main=operators.index("MatMul"))
        return Replacement.one("Gemm", (value_of(x), value_of(weight), value_of(bias)), since=7)


LINEAR = Linear()


# Products of quantised tensors that are scaled to floats, as dynamic quantisation writes them.

# Reading of products of integers that are scaled to floats: what dynamic quantisation writes.


@dataclass(frozen=True)
class IntegerProduct:
    """bias + a_scale · b_scale · ((a - a_zero) ∘ (b - b_zero)), where `node` is ∘: MatMulInteger or ConvInteger.

    Where `source` is given, a, its scale and its zero point are the results of a DynamicQuantizeLinear of it.
    """

    node: ir.Node
    source: Argument | None
    a: Argument | None
    a_scale: Argument | None
    a_zero: Argument | None
    b: Argument
    b_scale: Argument
    b_zero: Argument | None
    bias: Argument | None

    def require_columns(self) -> int:
        """Return the number of columns of b, a matrix, whose scale and zero point fit. Raises NotLowered."""
        dims = known_dims(self.b)
        columns = dims[-1]
        if len(dims) != 2 or not isinstance(columns, int):
            raise NotLowered("its second operand must be a matrix of known size")
        for argument in (self.b_scale, self.b_zero):
            if argument is not None and known_dims(argument) not in {(), (1,), (columns,)}:
                raise NotLowered("a scale or a zero point of its weight is neither one number nor one for each column")
        if self.bias is not None and known_dims(self.bias) != (columns,):
            raise NotLowered("its bias has not one element for each column")
        return columns


def read_integer_product(site: CallSite) -> IntegerProduct:
    """Return what the body of `site` computes. Raises NotLowered unless the body scales a product of integers."""
    reader = _ProductReader(site)
    top = reader.maker(site.function.outputs[0], "Mul", "Add")
    bias = None
    if top.op_type == "Add":
        top, bias = reader.split(top, lambda node: node.op_type == "Mul")
    cast, scales = reader.inner_pair(top)
    product = reader.maker(cast.inputs[0], "MatMulInteger", "ConvInteger")
    if cast.attributes["to"].as_int() != ir.DataType.FLOAT.value or len(site.function.outputs) != 1:
        raise NotLowered("its body must scale a product of integers to float32")
    zeros = [*product.inputs[2:], None, None][:2]
    quantise = product.inputs[0].producer() if product.inputs[0] is not None else None
    b, b_zero = reader.argument(product.inputs[1]), reader.optional(zeros[1])
    if quantise is None:
        a, a_zero = reader.argument(product.inputs[0]), reader.optional(zeros[0])
        a_scale, b_scale = _ordered(a, *(reader.argument(value) for value in scales.inputs))
        return IntegerProduct(product, None, a, a_scale, a_zero, b, b_scale, b_zero, bias)
    others = [value for value in scales.inputs if value is not quantise.outputs[1]]
    if quantise.op_type != "DynamicQuantizeLinear" or zeros[0] is not quantise.outputs[2] or len(others) != 1:
        raise NotLowered("its operand is not scaled as it was quantised")
    source, b_scale = reader.argument(quantise.inputs[0]), reader.argument(others[0])
    return IntegerProduct(product, source, None, None, None, b, b_scale, b_zero, bias)


def _ordered(a: Argument, first: Argument, second: Argument) -> tuple[Argument, Argument]:
    """Return two scales, that of `a` first. Raises NotLowered where neither is known to be."""
    maker = None if a.value is None else a.value.producer()
    for mine, other in ((first, second), (second, first)):
        is_scale = maker is not None and len(maker.outputs) > 1 and mine.value is maker.outputs[1]
        if (is_scale or (other.constant and not mine.constant)) and known_dims(mine) in {(), (1,)}:
            return mine, other
    raise NotLowered("it is not known which of its scales is that of its first operand")


class _ProductReader:
    def __init__(self, site: CallSite) -> None:
        self._known = dict(zip(site.function.inputs, site.arguments, strict=True))
        self._known |= {node.outputs[0]: held(node) for node in site.function if node.op_type == "Constant"}

    def maker(self, value: ir.Value | None, *operators: str) -> ir.Node:
        """Return the node of one of `operators` that makes `value`. Raises NotLowered."""
        node = None if value is None else value.producer()
        if node is None or node.op_type not in operators:
            raise NotLowered(f"its body has no {' or '.join(operators)} where one was expected")
        return node

    def argument(self, value: ir.Value | None) -> Argument:
        """Return the input of the call that `value` is. Raises NotLowered."""
        if value is None or value not in self._known:
            raise NotLowered("an operand of its product is computed in it")
        return self._known[value]

    def optional(self, value: ir.Value | None) -> Argument | None:
        """Return the input of the call that `value` is, None where it is left out. Raises NotLowered."""
        return None if value is None else self.argument(value)

    def split(self, node: ir.Node, inner: Callable[[ir.Node], bool]) -> tuple[ir.Node, Argument]:
        """Return the operand of `node` that an `inner` node makes, and the other one. Raises NotLowered."""
        for operand, other in (node.inputs, tuple(node.inputs)[::-1]):
            maker = None if operand is None else operand.producer()
            if maker is not None and inner(maker):
                return maker, self.argument(other)
        raise NotLowered(f"its {node.op_type} adds no bias")

    def inner_pair(self, node: ir.Node) -> tuple[ir.Node, ir.Node]:
        """Return the Cast and the Mul of scales that `node` multiplies. Raises NotLowered."""
        makers = {maker.op_type: maker for value in node.inputs if value is not None and (maker := value.producer())}
        if makers.keys() != {"Cast", "Mul"}:
            raise NotLowered("its body is no product of integers and scales")
        return makers["Cast"], makers["Mul"]


def dequantised(tensor: Operand, scale: Operand, zero: Operand, *, axis: int | None = None) -> NewNode:
    """Return the DequantizeLinear of a stored tensor; `axis` is that of a scale with several elements."""
    inputs = (tensor, scale) if zero is None else (tensor, scale, zero)
    return NewNode("DequantizeLinear", inputs, {} if axis is None else {"axis": axis}, since=10 if axis is None else 13)


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
        b, b_scale, b_zero = (operand_of(argument) for argument in (product.b, product.b_scale, product.b_zero))
        bias = () if product.bias is None else (operand_of(product.bias),)
        if product.source is not None:
            inputs: tuple[Operand, ...] = (operand_of(product.source), b, b_scale, b_zero, *bias)
            return Replacement.one("DynamicQuantizeMatMul", inputs, since=1, domain=ORT_DOMAIN)
        a, a_scale, a_zero = (operand_of(argument) for argument in (product.a, product.a_scale, product.a_zero))
        inputs = (a, b, a_scale, b_scale, a_zero, b_zero, *bias)
        return Replacement.one("MatMulIntegerToFloat", inputs, since=1, domain=ORT_DOMAIN)

    def to_qdq(self, site: CallSite) -> Replacement:
        """Return the product of two DequantizeLinear nodes: float32 holds what the integers are, but for the rounding of its sums."""
        product = read_integer_product(site)
        axis = _axis(product)
        steps: list[NewNode] = []
        a: tuple[Operand, ...] = tuple(
            operand_of(argument) for argument in (product.a, product.a_scale, product.a_zero)
        )
        if product.source is not None:
            steps.append(NewNode("DynamicQuantizeLinear", (operand_of(product.source),), since=11, outputs=3))
            a = (Made(0, 0), Made(0, 1), Made(0, 2))
        b = tuple(operand_of(argument) for argument in (product.b, product.b_scale, product.b_zero))
        steps += [dequantised(*a), dequantised(*b, axis=axis)]
        operator = "MatMul" if product.node.op_type == "MatMulInteger" else "Conv"
        main = len(steps)
        steps.append(NewNode(operator, (Made(main - 2), Made(main - 1)), settings(product.node), since=1))
        if product.bias is not None:
            steps.append(NewNode("Add", (Made(main), operand_of(product.bias)), since=7))
        return Replacement(tuple(steps), (Made(len(steps) - 1),), main)


def _axis(product: IntegerProduct) -> int | None:
    """Return the axis of the weight along which its scales lie, None for one scale. Raises NotLowered."""
    if known_dims(product.b_scale) in {(), (1,)}:
        return None
    if product.node.op_type != "MatMulInteger":
        raise NotLowered("its weight has several scales")
    product.require_columns()
    return 1


DYNAMIC_MATMUL = IntegerProductLowering("DynamicMatMul")
INTEGER_CONV = IntegerProductLowering("IntegerConv")
INTEGER_MATMUL = IntegerProductLowering("IntegerMatMul")
