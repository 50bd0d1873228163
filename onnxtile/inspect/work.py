"""The work of an operator in multiply-accumulates, by rules that are found by their existence in `onnxtile.inspect.macs`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import onnx_ir as ir

from onnxtile.model.shapes import Shapes
from onnxtile.registry import discover


class NotKnown(Exception):
    """The work of an operator cannot be known without running it; the message says why."""


@dataclass(frozen=True)
class Count:
    """Multiply-accumulates (MACs), and the additions of a bias, which are no MACs."""

    macs: int
    additions: int = 0


@dataclass(frozen=True)
class Site:
    """One node as a rule sees it: sizes of inputs and outputs, and attributes. Raises NotKnown for a size nobody knows."""

    node: ir.Node
    shapes: Shapes

    def has(self, position: int) -> bool:
        """Tell whether the input at `position` is given."""
        return position < len(self.node.inputs) and self.node.inputs[position] is not None

    def input(self, position: int) -> tuple[int, ...]:
        """Return the sizes of an input."""
        if not self.has(position):
            raise NotKnown(f"{self.node.op_type} has no input {position}")
        return self._sizes(self.node.inputs[position])

    def output(self, position: int = 0) -> tuple[int, ...]:
        """Return the sizes of an output."""
        return self._sizes(self.node.outputs[position])

    def elements(self, position: int = 0) -> int:
        """Return how many elements an output has."""
        return math.prod(self.output(position))

    def number(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number."""
        attribute = self.node.attributes.get(name)
        if attribute is not None:
            return attribute.as_int()
        if default is None:
            raise NotKnown(f"{self.node.op_type} does not give {name!r}")
        return default

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        return self.node.attributes.get_string(name, default)

    def _sizes(self, value: ir.Value | None) -> tuple[int, ...]:
        sizes = None if value is None else self.shapes.sizes(value)
        if sizes is None:
            raise NotKnown(f"the shape of {value.name if value is not None else ''!r} is not known")
        return sizes


@dataclass(frozen=True)
class Rule:
    """How the work of a family of operators is counted. Operators outside the standard domain are written `domain::Type`."""

    name: str
    operators: frozenset[str]
    count: Callable[[Site], Count]


Operator: TypeAlias = str

_STANDARD = {"", "ai.onnx", "ai.onnx.ml"}
"""Domains whose operators are known one and all: those without a rule multiply no matrices."""


def operator_name(node: ir.Node) -> Operator:
    """Return the operator of `node` as results name it: with its domain where that is not the standard one."""
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}::{node.op_type}"


def work_of(node: ir.Node, shapes: Shapes) -> Count:
    """Return the work of one node that calls no function and has no bodies. Raises NotKnown.

    Only products that are summed count as MACs; element-wise arithmetic, normalisation and pooling do not.
    """
    rule = _rules().get(operator_name(node))
    if rule is not None:
        return rule.count(Site(node, shapes))
    if node.domain in _STANDARD:
        return Count(0)
    raise NotKnown(f"nothing is known of the operator {operator_name(node)}")


@cache
def _rules() -> dict[Operator, Rule]:
    rules = discover("onnxtile.inspect.macs", Rule).values()
    return {operator: rule for rule in rules for operator in rule.operators}
