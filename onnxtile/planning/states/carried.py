"""The carried values of a Loop or Scan: inputs and outputs of its body that are one state of the iterations."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.states.state_pair import STRUCTURE, StatePair


def carried(node: ir.Node, body: ir.Graph, facts: LayoutFacts) -> tuple[StatePair, ...]:
    """Return the carried values of `node` with this `body` that have one type and one shape of known size in all iterations."""
    if not facts.is_standard(node):
        return ()
    inputs, outputs = list(body.inputs), list(body.outputs)
    if node.op_type == "Loop":
        pairs = list(zip(inputs[2:], outputs[1:], strict=False))
    elif node.op_type == "Scan":
        count = len(inputs) - node.attributes.get_int("num_scan_inputs", 0)
        pairs = list(zip(inputs[:count], outputs[:count], strict=False))
    else:
        return ()
    uses = Counter(outputs)
    alone = ((before, after) for before, after in pairs if uses[after] == 1 and _is_made_in(body, after))
    return tuple(StatePair(one, other, source=STRUCTURE) for one, other in alone if _is_one_size(one, other, facts))


def _is_made_in(body: ir.Graph, value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.graph is body


def _is_one_size(before: ir.Value, after: ir.Value, facts: LayoutFacts) -> bool:
    shapes = facts.shapes
    if before in facts.constants or after in facts.constants or shapes.dtype(before) != shapes.dtype(after):
        return False
    if tensor_bytes(before, shapes) is None or shapes.sizes(before) != shapes.sizes(after):
        return False
    is_bound = shapes.is_bound(before) or shapes.is_bound(after)
    formulas = shapes.formulas(before), shapes.formulas(after)
    return not is_bound or (formulas[0] is not None and formulas[0] == formulas[1])
