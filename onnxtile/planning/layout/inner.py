"""The bodies that are planned inside the arena of the graph around them."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from onnxtile.model.body_shapes import CONTROL_FLOW
from onnxtile.model.unfold import inside_of
from onnxtile.model.walk import bodies_of
from onnxtile.planning.layout.aliases.find import LayoutFacts


def bodies(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[str | None, ir.Graph]]:
    """Yield the planned bodies of `node` with the name of the attribute; None is the body of the function that it calls."""
    inside = inside_of(node)
    if inside is not None:
        yield None, inside
        return
    if node.op_type == "Scan" and facts.opset() < 9:
        return  # such a Scan runs over a batch, as one kernel
    if node.op_type in CONTROL_FLOW and facts.is_standard(node):
        yield from ((body.attribute, body.graph) for body in bodies_of(node) if body.position is None)
