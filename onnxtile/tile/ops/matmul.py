"""MatMul of matrices and vectors."""

from __future__ import annotations

import onnx_ir as ir

from onnxtile.tile.product import Facts, NotTiled, Operand, Product, Tileable, require_fit, required_input


class MatMul(Tileable):
    """https://onnx.ai/onnx/operators/onnx__MatMul.html, which multiplies as numpy.matmul does."""

    name = "MatMul"

    def restate(self, node: ir.Node, facts: Facts) -> Product:
        """Return the product. A vector on the left is one row, on the right one column, and the result lacks that axis."""
        a, b = required_input(node, 0), required_input(node, 1)
        dims_a, dims_b = facts.sizes(a), facts.sizes(b)
        if not dims_a or not dims_b:
            raise NotTiled("an operand is a scalar")
        if len(dims_a) > 2 or len(dims_b) > 2:
            raise NotTiled(f"a batched product, {_times(dims_a)} by {_times(dims_b)}")
        rows, columns = dims_a[:-1], dims_b[1:]
        return require_fit(
            Product(
                a=Operand(a, dims_a, (0, 1) if rows else (None, 0), transposed=False, constant=a in facts.constants),
                b=Operand(b, dims_b, (0, 1) if columns else (0, None), transposed=False, constant=b in facts.constants),
                dims=rows + columns,
                axes=(0 if rows else None, len(rows) if columns else None),
                dtype=facts.dtype(a),
            )
        )


def _times(dims: tuple[int, ...]) -> str:
    return "×".join(map(str, dims))


MATMUL = MatMul()
