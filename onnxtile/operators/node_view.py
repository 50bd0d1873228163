"""A node as the rules of operators see it: its operands, results and attributes, with their sizes and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol, TypeAlias

import onnx_ir as ir

from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators (its docs/ContribOperators.md)."""
STANDARD = frozenset({"", "ai.onnx"})
"""The names of the domain of ONNX's operators."""

Dim: TypeAlias = int | str | None
"""A size in elements, the symbols of a size known only when the model runs, or None where nothing is known."""
Dims: TypeAlias = tuple[Dim, ...]
"""The sizes of a tensor."""


def operator_name(node: ir.Node) -> str:
    """Return the operator of `node` as rows and results name it: with its domain where that is not the standard one."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def given_input(node: ir.Node, index: int) -> ir.Value | None:
    """Return input `index` of `node`; None where it is missing."""
    return node.inputs[index] if index < len(node.inputs) else None


class ReasonCode(StrEnum):
    """The kind of reason why a node is left as it is: scripts compare it, people read the sentence."""

    UNSUPPORTED = "unsupported"
    """No rule covers the operator, or this form of it."""
    ELEMENT_TYPE = "element_type"
    """The rule, or a limit, is not for this element type."""
    UNKNOWN_SIZE = "unknown_size"
    """A size or an element type is not known."""
    OPSET = "opset"
    """The opset of the model, or of a function, lacks what the rule writes."""
    WITHIN_LIMITS = "within_limits"
    """No limit asks for it."""
    OVER_LIMITS = "over_limits"
    """No way meets the limits."""
    NOT_REQUESTED = "not_requested"
    """The options leave it out."""
    GONE = "gone"
    """Another rewrite took it out of the model."""


class NotApplicable(Exception):
    """The reason why a rule of an operator does not apply to a node; one line for the user, and its code.

    `bind` has the options that give the size which is missing; empty where none does.
    """

    def __init__(self, reason: str, code: ReasonCode = ReasonCode.UNSUPPORTED, *, bind: str = "") -> None:
        super().__init__(reason)
        self.code = code
        self.bind = bind


class KnownShapes(Protocol):
    """Element types and sizes of values (onnxtile.shapes.resolve.Shapes)."""

    def sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the sizes in elements; None where one of them is not known."""

    def dtype(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type; None where it is not known."""


class KnownConstants(Protocol):
    """Which values are constant, and the elements of each (onnxtile.model.constants.Constants)."""

    def __contains__(self, value: ir.Value | None) -> bool: ...

    def array(self, value: ir.Value) -> Array:
        """Return the elements of a constant value, which must not be written to."""


class NoConstants:
    """No constants, as inside a function, whose weights are its inputs."""

    def __contains__(self, value: ir.Value | None) -> bool:
        return False

    def array(self, value: ir.Value) -> Array:
        """Raise KeyError."""
        raise KeyError(value.name)


@dataclass(frozen=True)
class NodeView:
    """A node with what is known of it. A size that nobody knows raises NotApplicable; `opset` is that of the standard operators."""

    node: ir.Node
    shapes: KnownShapes
    constants: KnownConstants = NoConstants()
    opset: int = 0

    @property
    def operator(self) -> str:
        """The operator's name, with its domain where that is not the standard one."""
        return operator_name(self.node)

    @property
    def inputs(self) -> Sequence[ir.Value | None]:
        """The operands by their places."""
        return self.node.inputs

    @property
    def has_several_results(self) -> bool:
        """Whether more than one result is used."""
        return sum(bool(value.name) for value in self.node.outputs) > 1

    def has(self, index: int) -> bool:
        """Return whether the operand at `index` is given."""
        return given_input(self.node, index) is not None

    def sizes(self, index: int) -> tuple[int, ...] | None:
        """Return the sizes of the operand at `index`; None where it is not given or its sizes are not known."""
        value = given_input(self.node, index)
        return None if value is None else self.shapes.sizes(value)

    def operand(self, index: int) -> tuple[int, ...]:
        """Return the sizes of the operand at `index`. Raises NotApplicable where they are not known."""
        if not self.has(index):
            raise NotApplicable(f"{self.node.op_type} has no input {index}")
        return self._known(self.inputs[index])

    def output(self, index: int = 0) -> tuple[int, ...]:
        """Return the sizes of a result. Raises NotApplicable where they are not known."""
        return self._known(self.node.outputs[index])

    @property
    def result(self) -> tuple[int, ...]:
        """The sizes of the first result. Raises NotApplicable where they are not known."""
        return self.output()

    def elements(self, index: int = 0) -> int:
        """Return the number of elements of a result."""
        return math.prod(self.output(index))

    def read(self, index: int = 0) -> int:
        """Return the number of elements of an operand."""
        return math.prod(self.operand(index))

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an attribute with one whole number. Raises NotApplicable where it is missing and has no default."""
        attribute = self.node.attributes.get(name)
        if attribute is not None:
            return attribute.as_int()
        if default is None:
            raise NotApplicable(f"{self.node.op_type} does not give {name!r}")
        return default

    def ints(self, name: str, default: Sequence[int]) -> list[int]:
        """Return an attribute with whole numbers."""
        return list(self.node.attributes.get_ints(name, list(default)) or default)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        return self.node.attributes.get_string(name, default)

    def numbers(self, index: int) -> list[float] | None:
        """Return the elements of the constant operand at `index`; None where it is not given.

        Raises NotApplicable for one that is computed.
        """
        value = given_input(self.node, index)
        if value is None:
            return None
        if value not in self.constants:
            raise NotApplicable("an operand that sets its sizes is computed at run time")
        numbers = self.constants.array(value).ravel()
        # The largest whole number, the end of many slices, is no float.
        return list(map(int if numbers.dtype.kind in "iu" else float, numbers))

    def _known(self, value: ir.Value | None) -> tuple[int, ...]:
        sizes = None if value is None else self.shapes.sizes(value)
        if sizes is None:
            raise NotApplicable(f"the shape of {value.name if value is not None else ''!r} is not known")
        return sizes
