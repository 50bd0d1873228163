"""Products of quantised tensors that are scaled to floats, as dynamic quantisation writes them."""

from __future__ import annotations

from onnxtile.fusion.lowering import (
    ORT_DOMAIN,
    CallSite,
    Lowering,
    Made,
    NewNode,
    NotLowered,
    Operand,
    Replacement,
    known_dims,
    operand_of,
)
from onnxtile.fusion.lowering_driver.inline import settings
from onnxtile.fusion.proofs.integers import IntegerProduct, dequantised, read_integer_product


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
        b, b_scale, b_zero = (operand_of(one) for one in (product.b, product.b_scale, product.b_zero))
        bias = () if product.bias is None else (operand_of(product.bias),)
        if product.source is not None:
            inputs: tuple[Operand, ...] = (operand_of(product.source), b, b_scale, b_zero, *bias)
            return Replacement.one("DynamicQuantizeMatMul", inputs, since=1, domain=ORT_DOMAIN)
        a, a_scale, a_zero = (operand_of(one) for one in (product.a, product.a_scale, product.a_zero))
        inputs = (a, b, a_scale, b_scale, a_zero, b_zero, *bias)
        return Replacement.one("MatMulIntegerToFloat", inputs, since=1, domain=ORT_DOMAIN)

    def to_qdq(self, site: CallSite) -> Replacement:
        """Return the product of two DequantizeLinear nodes: float32 holds what the integers are, but for the rounding of its sums."""
        product = read_integer_product(site)
        axis = _axis(product)
        steps: list[NewNode] = []
        a: tuple[Operand, ...] = tuple(operand_of(one) for one in (product.a, product.a_scale, product.a_zero))
        if product.source is not None:
            steps.append(NewNode("DynamicQuantizeLinear", (operand_of(product.source),), since=11, outputs=3))
            a = (Made(0, 0), Made(0, 1), Made(0, 2))
        b = tuple(operand_of(one) for one in (product.b, product.b_scale, product.b_zero))
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
