"""Operators on quantised tensors, as the plain operators that they are apart from scales and zero points.

QLinearConv and its kin (https://onnx.ai/onnx/operators/onnx__QLinearConv.html), and those of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from onnxtile.fitting.axis_links import AxisLink, AxisLinks, OperatorFacts, Uncut
from onnxtile.model.quantising import OWN_DOMAINS

_PLACES: dict[str, tuple[str, Sequence[int]]] = {
    "ConvInteger": ("Conv", (0, 1)),
    "MatMulInteger": ("MatMul", (0, 1)),
    "QGemm": ("Gemm", (0, 3, 6)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearAveragePool": ("AveragePool", (0,)),
    "QLinearConcat": ("Concat", range(2, 1 << 10, 3)),
    "QLinearConv": ("Conv", (0, 3, 8)),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,)),
    "QLinearLeakyRelu": ("LeakyRelu", (0,)),
    "QLinearMatMul": ("MatMul", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
    "QLinearReduceMean": ("ReduceMean", (0,)),
    "QLinearSigmoid": ("Sigmoid", (0,)),
    "QLinearSoftmax": ("Softmax", (0,)),
    "QLinearWhere": ("Where", (0, 1, 4)),
}
"""The plain operator of each, and the places of its operands."""


@dataclass(frozen=True)
class QuantisedFacts(OperatorFacts):
    """The facts of a node as those of the plain operator `plain_type`, whose operands are those at `places` of the node."""

    plain_type: str = ""
    places: tuple[int, ...] = ()

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The operands of the plain operator."""
        return [self.node.inputs[place] for place in self.places]

    def spread(self, plain: AxisLinks) -> AxisLinks:
        """Return the links of all operands of the node, from those of the plain operator. Raises Uncut for scales that do not follow."""
        found: list[AxisLink | None] = [None] * len(self.node.inputs)
        for place, link in zip(self.places, plain, strict=True):
            found[place] = link
        for place, value in enumerate(self.node.inputs):
            sizes = () if value is None or place in self.places else self.shapes.sizes(value)
            if sizes is not None and prod(sizes) == 1:
                continue
            owner = max((one for one in self.places if one < place), default=place)
            if found[owner] is None:
                continue
            if self.node.op_type != "QLinearConv" or owner != self.places[1]:
                raise Uncut("it has several scales for an operand that is cut")
            found[place] = AxisLink(0)
        return tuple(found)


def quantised_facts(facts: OperatorFacts) -> QuantisedFacts | None:
    """Return the facts of a quantised operator as those of the plain one; None for others. Raises Uncut for channels behind columns."""
    node = facts.node
    if node.op_type not in _PLACES or node.domain not in OWN_DOMAINS:
        return None
    if facts.integer("channels_last", 0):
        raise Uncut("its channels are behind its columns")
    plain, places = _PLACES[node.op_type]
    opset = facts.integer("opset", facts.opset)
    given = tuple(place for place in places if place < len(node.inputs))
    return QuantisedFacts(node, facts.shapes, facts.constants, opset, plain, given)
