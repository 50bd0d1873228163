"""Operators on quantised tensors, as the plain operators that they are apart from scales and zero points.

QLinearConv and its kin (https://onnx.ai/onnx/operators/onnx__QLinearConv.html), and those of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from onnxtile.fitting.axis_links import AxisLink, AxisLinks, OperatorFacts, Uncut
from onnxtile.model.quantising import FLOAT_MEANINGS, OWN_DOMAINS, FloatMeaning

_SUMS = {"ConvInteger": FloatMeaning("Conv", (0, 1)), "MatMulInteger": FloatMeaning("MatMul", (0, 1))}
"""Operators whose zero points stand behind all operands."""


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
    plain = {**FLOAT_MEANINGS, **_SUMS}.get(node.op_type)
    if plain is None or node.domain not in OWN_DOMAINS:
        return None
    if facts.integer("channels_last", 0):
        raise Uncut("its channels are behind its columns")
    opset = facts.integer("opset", facts.opset)
    given = tuple(place for place in plain.places(node) if place < len(node.inputs))
    return QuantisedFacts(node, facts.shapes, facts.constants, opset, plain.op_type, given)
