"""Rules that say how many bytes a node needs beside its operands and results: `inputs[0].bytes`, `4 * outputs[0].shape[1] + 256`.

The language is a small part of Python's, read as a syntax tree and never run. It has whole numbers, + - * //, max and min.
An input or output of the node has `bytes`, a `size` in elements, a `rank`, and `shape[i]`. `inside` are the bytes that the nodes of a
meta-op need.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping

import onnx_ir as ir

from onnxtile.model.topology import node_id
from onnxtile.shapes.resolve import Shapes, tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_FUNCTIONS: Mapping[str, Callable[..., int]] = {"max": max, "min": min}
_INSIDE = "inside"
_FIELDS = ("bytes", "size", "rank", "shape")
_LONGEST = 500  # a longer one may nest deeper than Python reads
_HINT = "whole numbers, + - * //, max(), min(), inside, and inputs[0].bytes, .size, .rank, .shape[1], or outputs[0]"


@dataclass(frozen=True)
class SizeRule:
    """A rule, as it is written. Raises UsageError where it cannot be read.

    `text` is the rule.
    """

    text: str

    def __post_init__(self) -> None:
        _require_readable(_tree(self.text), self.text)

    def bytes(self, node: ir.Node, shapes: Shapes, inside: Callable[[ir.Node], int] | None = None) -> int:
        """Return the bytes that the rule gives for `node`; `inside` tells those that its own nodes need, or raises LookupError.

        Raises ModelError where `node` has no such input or output or no inside, a shape is not known, or the bytes would be negative.
        """
        try:
            size = _value(_FilledRule(node, inside).visit(_tree(self.text)), node, shapes)
        except (ArithmeticError, LookupError) as error:
            raise ModelError(f"the workspace {self.text!r} of the node {node_id(node)!r}: {error}") from error
        if size < 0:
            raise ModelError(f"the workspace {self.text!r} of the node {node_id(node)!r} is negative: {size}")
        return size


class _FilledRule(ast.NodeTransformer):
    """Puts a number in the place of the name `inside`."""

    def __init__(self, node: ir.Node, inside: Callable[[ir.Node], int] | None) -> None:
        self._node = node
        self._inside = inside

    def visit_Name(self, name: ast.Name) -> ast.expr:
        if name.id != _INSIDE:
            return name
        if self._inside is None:
            raise LookupError("nothing is known of its inside")
        return ast.Constant(self._inside(self._node))


def _tree(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise UsageError(f"not a number of bytes: a rule of {len(text)} characters", hint=f"at most {_LONGEST}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"not a number of bytes: {text!r}", hint=_HINT) from error


def _require_readable(tree: ast.expr, text: str) -> None:
    todo = [tree]
    while todo:
        match todo.pop():
            case ast.Name(id="inside"):
                pass
            case ast.Constant() as number if _whole(number) is not None:
                pass
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                todo += [left, right]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS and arguments:
                todo += arguments
            case ast.Attribute(value=value, attr=field) if field in _FIELDS[:-1] and _operand(value):
                pass
            case ast.Subscript(value=ast.Attribute(value=value, attr="shape"), slice=at) if _whole(at) is not None:
                todo += [] if _operand(value) else [value]
            case _:
                raise UsageError(f"not a number of bytes: {text!r}", hint=_HINT)


def _operand(tree: ast.expr) -> tuple[str, int] | None:
    """Return the tensor that `inputs[0]` or `outputs[1]` names."""
    if not isinstance(tree, ast.Subscript) or not isinstance(tree.value, ast.Name):
        return None
    at = _whole(tree.slice)
    return (tree.value.id, at) if tree.value.id in {"inputs", "outputs"} and at is not None else None


def _whole(tree: ast.expr) -> int | None:
    negative = isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub)
    inner = tree.operand if isinstance(tree, ast.UnaryOp) and negative else tree
    if not isinstance(inner, ast.Constant) or type(inner.value) is not int:
        return None
    return -inner.value if negative else inner.value


def _value(tree: ast.expr, node: ir.Node, shapes: Shapes) -> int:
    match tree:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp():
            return _OPERATORS[type(tree.op)](_value(tree.left, node, shapes), _value(tree.right, node, shapes))
        case ast.Call(func=ast.Name(id=name)):
            return _FUNCTIONS[name](*(_value(argument, node, shapes) for argument in tree.args))
        case ast.Attribute():
            return _property(_tensor(tree.value, node), tree.attr, shapes)
        case ast.Subscript(value=ast.Attribute(value=value)):
            return _sizes(_tensor(value, node), shapes)[_whole(tree.slice) or 0]
    raise AssertionError(f"{ast.dump(tree)} has been read")


def _tensor(tree: ast.expr, node: ir.Node) -> ir.Value:
    named = _operand(tree)
    assert named is not None
    values = node.inputs if named[0] == "inputs" else node.outputs
    value = values[named[1]] if -len(values) <= named[1] < len(values) else None
    if value is None:
        raise LookupError(f"it has no {named[0]}[{named[1]}]")
    return value


def _property(value: ir.Value, field: str, shapes: Shapes) -> int:
    sizes = _sizes(value, shapes)
    if field == "bytes":
        size = tensor_bytes(value, shapes)
        if size is None:
            raise LookupError(f"{value.name!r} has no fixed bytes")
        return size
    return len(sizes) if field == "rank" else math.prod(sizes)


def _sizes(value: ir.Value, shapes: Shapes) -> tuple[int, ...]:
    sizes = shapes.sizes(value)
    if sizes is None:
        raise LookupError(f"the shape of {value.name!r} is not known")
    return sizes
