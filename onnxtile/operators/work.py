"""The work of a node: the types of the rules that count it, and those that many operators share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from onnxtile.operators.node_view import NodeView, NotApplicable
from onnxtile.system.dataclass import dataclass

Counted = TypeVar("Counted")


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


def _applied(count: Callable[[NodeView], Counted], view: NodeView) -> Counted:
    """Return what a rule counts. Raises NotApplicable also where ranks or attributes do not fit the operator."""
    try:
        return count(view)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise NotApplicable(f"the operands or attributes of this {view.operator} do not fit the operator") from error


@dataclass(frozen=True)
class Products:
    """The rule of an operator that sums products, or may do so."""

    count: Callable[[NodeView], OperationCount]

    def __call__(self, view: NodeView) -> OperationCount:
        """Return the work of a node. Raises NotApplicable where it is not known."""
        return _applied(self.count, view)


@dataclass(frozen=True)
class Operations:
    """The rule of an operator that sums no products, and so has no MACs at any size: it returns all its operations."""

    count: Callable[[NodeView], int]

    def __call__(self, view: NodeView) -> OperationCount:
        """Return the work of a node; it says why the operations are not known where they are not."""
        try:
            return OperationCount(0, others=_applied(self.count, view))
        except NotApplicable as error:
            return OperationCount(0, why=str(error))


Work: TypeAlias = Products | Operations


def each(operations: int) -> Operations:
    """Return the rule of so many operations for each element of the result."""
    return Operations(lambda view: operations * view.elements())


def _unknown(_view: NodeView) -> int:
    raise NotApplicable("")


NOTHING = Operations(lambda _view: 0)
"""The work of an operator that moves, selects or converts elements, and computes none."""
NO_PRODUCTS = Operations(_unknown)
"""The work of an operator that multiplies no matrices, and whose other operations are not known."""
