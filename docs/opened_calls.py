"""The proof of lowerings that open a call: the nodes that they write are those of the file, so nothing depends on shapes."""

from __future__ import annotations

import onnx
import onnx_ir as ir

import onnxtile

_SKIP = """
<ir_version: 10, opset_import: ["" : 23]>
skip (float[batch, tokens, 8] x, float[batch, tokens, 8] residual, float[8] scale, float[8] bias)
    => (float[batch, tokens, 8] y) {
    sum = Add(x, residual)
    y = NORM <axis = -1, epsilon = 0.001> (sum, scale)
}
"""
NORMS = {
    "SkipRMSNorm": _SKIP.replace("NORM", "RMSNormalization"),
    "SkipLayerNorm": _SKIP.replace("NORM", "LayerNormalization").replace("scale)\n}", "scale, bias)\n}"),
}
"""By pattern, a model that it matches whole, with open sizes."""


def is_opened(pattern: str) -> bool:
    """Prove that the lowered call of a pattern is the nodes of its body: operators, attributes, operands and results, but for names."""
    model = onnx.parser.parse_model(NORMS[pattern])
    fused = onnxtile.fuse(model, [pattern], lower="onnx", verify=False)
    met = fused.to_dict()["patterns"][0]["fused"]
    return met == 1 and _nodes(ir.to_proto(fused.model)) == _nodes(model)


def _nodes(model: onnx.ModelProto) -> list[bytes]:
    """Return the nodes of a model without their names; values that are made inside have the number of the first use as names."""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    numbers: dict[str, str] = {}
    nodes = []
    for node in model.graph.node:
        read, made = (
            [n if n in kept else numbers.setdefault(n, str(len(numbers))) for n in names]
            for names in (node.input, node.output)
        )
        plain = onnx.NodeProto(op_type=node.op_type, input=read, output=made, attribute=node.attribute)
        nodes.append(plain.SerializeToString(deterministic=True))
    return nodes
