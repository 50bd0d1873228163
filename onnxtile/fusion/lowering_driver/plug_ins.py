"""The plug-ins that lower for one target, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.island_lowering import STANDARD, IslandLowering, read_island
from onnxtile.fusion.library import Pattern
from onnxtile.fusion.lowering import CallSite, Lowering, NotLowered, Replacement, Target
from onnxtile.fusion.operator_lowering import OperatorLowering, OperatorSite
from onnxtile.registry import discover


@dataclass(frozen=True)
class PlugIns:
    """What lowers for `target`: calls by meta-op, quantised islands by their first operator, nodes by operator."""

    target: Target
    calls: Mapping[str, Lowering]
    islands: Mapping[str, IslandLowering]
    operators: Mapping[str, OperatorLowering]

    @staticmethod
    def found(target: Target, patterns: Iterable[Pattern]) -> PlugIns:
        """Return the plug-ins of onnxtile and of others, and what `patterns` declare."""
        calls = discover("onnxtile.fusion.lowerings", Lowering)  # type: ignore[type-abstract]
        declared = {pattern.name: pattern.lowering for pattern in patterns if pattern.lowering is not None}
        islands = discover("onnxtile.fusion.island_lowerings", IslandLowering)  # type: ignore[type-abstract]
        operators = discover("onnxtile.fusion.operator_lowerings", OperatorLowering)  # type: ignore[type-abstract]
        return PlugIns(target, {**calls, **declared}, islands, operators if target is Target.QDQ else {})

    def takes(self, node: ir.Node) -> bool:
        """Return whether `node`, which is no call, may be lowered."""
        return operator_name(node) in self.operators

    def of_operator(self, site: OperatorSite) -> Replacement:
        """Return what a node becomes. Raises NotLowered."""
        return self.operators[operator_name(site.node)].to_qdq(site)

    def of_call(self, site: CallSite) -> Replacement:
        """Return what a call becomes. Raises NotLowered."""
        meta_op = site.function.metadata_props.get(keys.META_OP, site.function.name)
        plug_in = self.calls.get(meta_op)
        if plug_in is not None:
            return plug_in.lowered(site, self.target)
        if keys.ISLAND in site.function.metadata_props:
            return self._of_island(site)
        raise NotLowered(f"no operator is known that means {meta_op}")

    def _of_island(self, site: CallSite) -> Replacement:
        if self.target is Target.QDQ:
            raise NotLowered("it is quantised with QuantizeLinear and DequantizeLinear already")
        island = read_island(site)
        name = operator_name(island.first)
        plug_in = self.islands.get(name)
        if plug_in is None:
            raise NotLowered(f"no operator is known that means {name} on quantised operands")
        return plug_in.to_ort(island) if self.target is Target.ORT else plug_in.to_onnx(island)


def operator_name(node: ir.Node) -> str:
    """Return the name of an operator: with its domain before it and two colons where that is not the standard's."""
    return node.op_type if node.domain in STANDARD else f"{node.domain}::{node.op_type}"
