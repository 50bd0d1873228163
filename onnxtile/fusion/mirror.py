"""Repeats in a quantised model what is fused in its float view."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile.fusion.float_view import FloatView
from onnxtile.fusion.pattern import Pattern
from onnxtile.fusion.quantised_operators import scales_of
from onnxtile.fusion.region import FusedRegion, Refusal
from onnxtile.fusion.through import region_through
from onnxtile.model.constants import Constants


@dataclass(frozen=True)
class Mirror:
    """Repeats in the model what is fused in its float `view`.

    `constants` are those of the model. `contract_region` puts a call in the place of a region of the model, and returns it.
    """

    view: FloatView
    constants: Constants
    contract_region: Callable[[FusedRegion, Pattern, Sequence[int]], ir.Node | Refusal]

    def contract(self, part: FusedRegion, pattern: Pattern, over: Sequence[int]) -> ir.Node | Refusal:
        """Contract in the model what `part` of the view stands for, and what quantises and dequantises between."""
        members = self._originals(part)
        if isinstance(members, Refusal):
            return members
        own = region_through(members, self.constants)
        if isinstance(own, Refusal):
            return own
        if pattern.outputs is not None and len(own.outputs) > pattern.outputs:
            return Refusal("more of its values are read outside, as they are or quantised, than the pattern allows")
        return self.contract_region(own, pattern, over if _are_alike(own, part) else ())

    def note(self, call: ir.Node, made: ir.Node) -> None:
        """Note that `call` of the view stands for `made`, a call in the model."""
        self.view.originals[call] = (made,)

    def _originals(self, part: FusedRegion) -> list[ir.Node] | Refusal:
        """Return the nodes of the model that `part` stands for."""
        members: dict[ir.Node, None] = {}
        for node in part.nodes:
            members |= dict.fromkeys(self.view.originals[node])
        whole = (piece for node in members for piece in self.view.parts.get(node, ()))
        if any(piece not in part.nodes for piece in whole):
            return Refusal("it ends inside an operator")
        return list(members)


def _are_alike(own: FusedRegion, part: FusedRegion) -> bool:
    """Return whether the first inputs of `own` are those of `part`, so that their places say the same; scales come after them."""
    scales = {value for node in own.nodes for value in scales_of(node)}
    operands = [value for value in own.inputs if value not in scales]
    return len(own.nodes) == len(part.nodes) and len(operands) == len(part.inputs)
