"""The table of operators: a row by name or by node, and what rules of rows say of a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import onnx_ir as ir

from onnxtile.operators.node_view import KnownConstants, KnownShapes, NodeView, NotApplicable, operator_name
from onnxtile.operators.reads import AxisLinks
from onnxtile.operators.row import Family, FloatMeaning, Folding, Movement, No, OperationCount, Operator, SharedBytes
from onnxtile.system.errors import OnnxtileError
from onnxtile.system.registry import discover

_COUNTED = {"", "ai.onnx.ml"}
"""Domains whose operators are known one and all: those without a rule multiply no matrices."""


@cache
def operators() -> dict[str, Operator]:
    """Return the row of each operator by its name. Raises OnnxtileError where two families have one operator."""
    rows: dict[str, Operator] = {}
    for family in discover("onnxtile.operators.families", Family).values():
        for row in family.operators:
            if rows.setdefault(row.name, row) is not row:
                raise OnnxtileError(
                    f"two rows, one of them in the family {family.name!r}, are of the operator {row.name!r}"
                )
    return rows


def operator_of(node: ir.Node) -> Operator | None:
    """Return the row of the operator of `node`; None for one without a row, such as a local function."""
    return operators().get(operator_name(node))


@cache
def names_where(fits: Callable[[Operator], bool]) -> frozenset[str]:
    """Return the names of the operators whose rows fit."""
    return frozenset(row.name for row in operators().values() if fits(row))


def quantised_form(node: ir.Node) -> FloatMeaning | None:
    """Return what an operator on quantised tensors means in floats; None for others, also for one that sums integers."""
    row = operator_of(node)
    meaning = None if row is None or isinstance(row.quantised, No) else row.quantised
    return None if meaning is None or meaning.result is None else meaning


def axis_links(view: NodeView, axis: int) -> AxisLinks:
    """Return the link of each operand along `axis` of the first result. Raises NotApplicable with the reason where it cannot be cut."""
    if draws(view.node, view.opset, view.constants):
        raise NotApplicable("it draws random numbers")
    row = operator_of(view.node)
    if row is None or isinstance(row.reads, No):
        raise NotApplicable(f"{view.operator.replace('::', '.')} has no rule for cutting")
    if not 0 <= axis < len(view.result):
        raise NotApplicable("its result does not have this axis")
    return row.reads(view, axis)


def folding_of(node: ir.Node) -> Folding | None:
    """Return how `node` is computed from parts of an axis that it reduces; None where its operator has no such rule."""
    row = operator_of(node)
    return None if row is None else row.folds


def work_of(node: ir.Node, shapes: KnownShapes) -> OperationCount:
    """Return the work of one node that calls no function and has no bodies. Raises NotApplicable where its MACs are not known.

    Only products that are summed count as MACs; element-wise arithmetic, normalisation and pooling have FLOPs alone.
    """
    row = operator_of(node)
    if row is not None and not isinstance(row.work, No):
        return row.work(NodeView(node, shapes))
    if node.domain in _COUNTED:
        return OperationCount(0)
    raise NotApplicable(f"no rule counts the operator {operator_name(node)}")


def factors_of(node: ir.Node) -> tuple[int, int] | None:
    """Return the places of the operands that `node` multiplies, a weight last; None where it multiplies no two operands."""
    row = operator_of(node)
    return None if row is None else row.factors


def movement_of(node: ir.Node) -> Movement:
    """Return what the operator of `node` does to the elements of its first operand; empty where it computes, or has no row."""
    row = operator_of(node)
    return "" if row is None else row.moves


def sharing_of(node: ir.Node) -> SharedBytes:
    """Return how results of `node` share bytes with operands; empty where they do not."""
    row = operator_of(node)
    return "" if row is None else row.same


def slides(node: ir.Node) -> bool:
    """Return whether windows slide along the axes after the channels; so they do where those of its float operator do."""
    row = operator_of(node)
    if row is None:
        return False
    return row.slides or (isinstance(row.quantised, FloatMeaning) and operators()[row.quantised.op_type].slides)


_IS_TEST = 7
"""The first opset in which a Dropout has no attribute `is_test`. From it on, training is said by an input, which opset 12 adds."""


def may_draw(node: ir.Node) -> bool:
    """Return whether the operator of `node` draws random numbers, at least while it trains."""
    row = operator_of(node)
    return row is not None and row.draws


def draws(node: ir.Node, opset: int, constants: KnownConstants) -> bool:
    """Return whether `node` itself draws random numbers, or may; a Dropout whose training mode is a constant False does not.

    `opset` is the version of the standard operators where the node stands.
    """
    row = operator_of(node)
    if row is None or not row.draws:
        return False
    if row.trains_by is None:
        return True
    if row.is_standard and opset < _IS_TEST:
        return node.attributes.get_int("is_test", 0) != 1
    training = node.inputs[row.trains_by] if row.trains_by < len(node.inputs) else None
    if training is None:
        return False
    return training not in constants or bool(constants.array(training).any())
