"""Matrix products of any rank: each output element sums K products."""

from __future__ import annotations

from onnxtile.inspection.work import CountedNode, OperationCount, Rule

_PLAIN = {"MatMul", "MatMulInteger", "MatMulInteger16"}
_BIAS = {"MatMulIntegerToFloat": 6, "DynamicQuantizeMatMul": 4}


def _count(site: CountedNode) -> OperationCount:
    left = site.input(0)
    inner = left[-2] if site.number("transA", 0) and len(left) > 1 else left[-1]
    elements, bias = site.elements(), _BIAS.get(site.node.op_type)
    additions = elements if bias is not None and site.has(bias) else 0
    return OperationCount(elements * inner, additions, 0 if site.node.op_type in _PLAIN else None)


def _count_packed(site: CountedNode) -> OperationCount:
    """Count a product whose right operand is packed: its sizes are attributes. Each weight is dequantised once."""
    elements, inner = site.elements(), site.number("K")
    zero = 1 if site.has(3) else 0
    others = inner * site.number("N") * (1 + zero) if site.node.op_type == "MatMulNBits" else None
    return OperationCount(elements * inner, elements if site.has(5) else 0, others)


def _count_grid(site: CountedNode) -> OperationCount:
    """Count the places of AffineGrid: each is a product of a matrix with coordinates and a one."""
    return OperationCount(site.elements() * site.input(0)[-1])


GRID = Rule("affine grid", frozenset({"AffineGrid"}), _count_grid)
RULE = Rule(
    "matmul",
    frozenset(
        {
            *("MatMul", "MatMulInteger", "QLinearMatMul"),
            *("com.microsoft::FusedMatMul", "com.microsoft::TransposeMatMul", "com.microsoft::MatMulInteger16"),
            *("com.microsoft::MatMulIntegerToFloat", "com.microsoft::DynamicQuantizeMatMul"),
        }
    ),
    _count,
)
PACKED = Rule(
    "matmul of packed weights", frozenset({"com.microsoft::MatMulNBits", "com.microsoft::MatMulBnb4"}), _count_packed
)
