"""The values that the gradient of an operator reads: the derivative written with as few values as possible.

y = f(x): where f' is a function of y the output is kept (relu, sigmoid, softmax), else the input; a product needs the other operand; what
is linear (sums, views, copies, averages) needs nothing. (A. Griewank, A. Walther, "Evaluating Derivatives", SIAM 2008, chapter 3; the
formulas are those of PyTorch's derivatives.yaml.)
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TypeAlias

import onnx_ir as ir

Saves: TypeAlias = Callable[[ir.Node, Container[ir.Value]], list[ir.Value] | None]
"""Returns what the gradient of a node reads, of which the gradients of some values are wanted; None where nobody knows."""


def _given(node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None]


def nothing(_node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read nothing: the operator is linear."""
    return []


def stops(_node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read nothing: the derivative is zero wherever there is one, as that of whole numbers, truths and texts is."""
    return []


def sequence(_node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read nothing: the result is a sequence, whose element type no shape inference gives."""
    return []


def first(node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read the first operand."""
    return _given(node)[:1]


def result(node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read the first result."""
    return [node.outputs[0]]


def first_and_result(node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read the first operand and the first result."""
    return [_given(node)[0], node.outputs[0]]


def operands(node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read all operands."""
    return _given(node)


def everything(node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read all operands and results."""
    return [*_given(node), *(value for value in node.outputs if value.name)]


def other_factor(node: ir.Node, varying: Container[ir.Value]) -> list[ir.Value] | None:
    """Read the second operand for the gradient of the first, and the reverse."""
    given = _given(node)
    if len(given) < 2:
        return None
    wanted = [given[1]] if given[0] in varying else []
    return [*wanted, given[0]] if given[1] in varying else wanted


def quotient(node: ir.Node, varying: Container[ir.Value]) -> list[ir.Value]:
    """Read the divisor, and the dividend where the gradient of the divisor is wanted."""
    dividend, divisor = _given(node)
    return [dividend, divisor] if divisor in varying else [divisor]


def chosen(index: int) -> Saves:
    """Return the rule of an operator whose gradient goes where the operand at `index` says."""
    return lambda node, _varying: [_given(node)[index]]


def second_result(node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read the second result, the places of the first."""
    return [node.outputs[1]]


def rotation(node: ir.Node, _varying: Container[ir.Value]) -> list[ir.Value]:
    """Read cosines and sines."""
    return _given(node)[1:3]
