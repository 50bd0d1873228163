"""The work of an operator in multiply-accumulates and FLOPs. Each module in `onnxtile.inspection.macs` holds one rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, TypeVar

import onnx_ir as ir

from onnxtile.model.shapes import Shapes
from onnxtile.registry import discover


class NotKnown(Exception):
    """The work of an operator cannot be known without running it; the message says why."""


@dataclass(frozen=True)
class OperationCount:
    """Multiply-accumulates (MACs), the additions of a bias, and all other operations (None where their number is not known)."""

    macs: int
    additions: int = 0
    others: int | None = None
    why: str = ""
    """Why they are not known, where a rule says so."""

    @property
    def flops(self) -> int | None:
        """All operations, two for each MAC; None where their number is not known."""
        return None if self.others is None else 2 * self.macs + self.additions + self.others


@dataclass(frozen=True)
class CountedNode:
    """One node as a rule sees it: sizes of inputs and outputs, and attributes. Raises NotKnown for a size nobody knows."""

    node: ir.Node
    shapes: Shapes

    @property
    def operator(self) -> str:
        """The operator's name, with its domain where that is not the standard one."""
        return operator_name(self.node)

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

    def read(self, position: int = 0) -> int:
        """Return how many elements an input has."""
        return math.prod(self.input(position))

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
    count: Callable[[CountedNode], OperationCount]


@dataclass(frozen=True)
class FlopRule:
    """How the operations of operators are counted that sum no products, and so have no MACs at any size."""

    name: str
    operators: frozenset[str]
    count: Callable[[CountedNode], int]


Operator: TypeAlias = str
Counted = TypeVar("Counted")

_STANDARD = {"", "ai.onnx", "ai.onnx.ml"}
"""Domains whose operators are known one and all: those without a rule multiply no matrices."""


def operator_name(node: ir.Node) -> Operator:
    """Return the operator of `node` as results name it: with its domain where that is not the standard one."""
    return node.op_type if node.domain in {"", "ai.onnx"} else f"{node.domain}::{node.op_type}"


def work_of(node: ir.Node, shapes: Shapes) -> OperationCount:
    """Return the work of one node that calls no function and has no bodies. Raises NotKnown.

    Only products that are summed count as MACs; element-wise arithmetic, normalisation and pooling have FLOPs alone.
    """
    rule, site = _rules().get(operator_name(node)), CountedNode(node, shapes)
    if isinstance(rule, Rule):
        return _counted(rule.count, site)
    if rule is not None:
        return _without_products(rule, site)
    if node.domain in _STANDARD:
        return OperationCount(0)
    raise NotKnown(f"no rule counts the operator {operator_name(node)}")


def _counted(count: Callable[[CountedNode], Counted], site: CountedNode) -> Counted:
    """Return the count of a rule. Raises NotKnown also where ranks or attributes do not fit the operator."""
    try:
        return count(site)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise NotKnown(f"the operands or attributes of this {site.operator} do not fit the operator") from error


def _without_products(rule: FlopRule, site: CountedNode) -> OperationCount:
    try:
        return OperationCount(0, others=_counted(rule.count, site))
    except NotKnown as error:
        return OperationCount(0, why=str(error))


@cache
def _rules() -> dict[Operator, Rule | FlopRule]:
    rules: dict[str, Rule | FlopRule] = discover("onnxtile.inspection.macs", Rule, FlopRule)
    return {operator: rule for rule in rules.values() for operator in rule.operators}
