"""The table of operators and its rows: all that the package knows of each, each cell filled, or with the reason why not.

Rows are those of `onnxtile.operators.families`. Other distributions add rows by entry points of the group "onnxtile.families".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import onnx_ir as ir

from onnxtile.operators.node_view import KnownConstants, KnownShapes, NodeView, NotApplicable, operator_name
from onnxtile.operators.reads import AxisLinks, AxisRule, FoldRule
from onnxtile.operators.saves import Saves
from onnxtile.operators.takes import OperandRule
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OnnxtileError
from onnxtile.system.registry import discover


class No(NamedTuple):
    """The reason why an operator lacks a cell, and its source: where it is written, or what shows it."""

    reason: str
    source: str


class Left(NamedTuple):
    """An operator with products of matrices that `tile` leaves, and lists in its report; `why` may be empty."""

    why: str


Over: TypeAlias = frozenset[int] | None
"""The places of the operands that a result may be written over; None for any operand."""
FIRST: Over = frozenset({0})
ANY: Over = None

SharedBytes: TypeAlias = Literal["", "view", "cut", "join"]
"""How results share bytes with operands: as the whole first operand, as parts of it, or with the operands as parts of the result."""

Movement: TypeAlias = Literal["", "renames", "permutes", "selects", "joins", "repeats", "pads", "converts"]
"""What an operator does to the elements of its first operand, where it computes none.

"renames": only the axes change, elements keep their order. "permutes": each element is in the result once. "selects": some of them are.
"joins": those of all operands are. "repeats": each may be there several times. "pads": there are others around them. "converts": each is
there in another element type.
"""

ALL_OPERANDS = range(1 << 16)
"""The places of all operands, for an operator whose result has as many elements as these decide."""


class SizeNumbers(NamedTuple):
    """How an operator computes with the numbers of sizes and shapes.

    A `monotone` operator makes nothing larger where an operand gets smaller, but for the operands at `falling`, where it is the reverse.
    The further operands of one that is `selecting` say which elements are meant: an interval says nothing of that.
    """

    monotone: bool = True
    falling: frozenset[int] = frozenset()
    selecting: bool = False


RISING, SELECTING, COMPUTED = SizeNumbers(), SizeNumbers(selecting=True), SizeNumbers(monotone=False)


class ShapeGrowth(NamedTuple):
    """The operands with whose numbers the shape of the result grows (`by`) and shrinks, and the operand that is a step."""

    by: int
    shrinks_by: int | None = None
    step: int | None = None


class Folding(NamedTuple):
    """How an operator that reduces an axis is computed part by part: `join` is the operator that puts the results of two parts together.

    `reads` has the part of each operand that a part of the axis needs.
    """

    join: str
    reads: FoldRule


class QuantisedPort(NamedTuple):
    """Where a node has a quantised tensor, its scale and its zero point: places among its inputs, or with `is_made` of the tensor among
    its outputs. `axis` is that of several scales; scales that the node computes, and zero points that it has not, have no place."""

    tensor: int
    scale: int | None
    zero_point: int | None
    is_made: bool = False
    axis: int | None = None


@dataclass(frozen=True)
class FloatMeaning:
    """The float operator that an operator on quantised tensors stands for.

    `operands` are the places of its operands, `scaled` those of them that a scale and a zero point follow. All other inputs are scales
    and zero points. From the place `repeated` on, all triples are operands. `columns` is the place of the operand that may have a scale
    for each element of an axis, and the number of that axis (see `axis_of`). `dropped` are attributes that the float operator lacks.
    `result` are the places of the scale and the zero point of the result; None for an operator that sums integers, and has neither.
    """

    op_type: str
    operands: tuple[int, ...] = ()
    scaled: frozenset[int] = frozenset()
    repeated: int | None = None
    columns: tuple[int, int] | None = None
    dropped: frozenset[str] = frozenset()
    result: tuple[int, int] | None = (0, 1)

    def places(self, node: ir.Node) -> Sequence[int]:
        """Return the places of the operands of `node`."""
        return self.operands if self.repeated is None else range(self.repeated, len(node.inputs), 3)

    def is_scaled(self, index: int) -> bool:
        """Return whether a scale and a zero point follow the operand at `index`."""
        return self.repeated is not None or index in self.scaled

    def axis_of(self, node: ir.Node, index: int) -> int | None:
        """Return the axis of the operand of `node` at `index` along which it may have several scales; None where it has one."""
        if self.columns is None or index != self.columns[0]:
            return None
        return 0 if self.columns[1] == 1 and node.attributes.get_int("transB", 0) != 0 else self.columns[1]

    def ports(self, node: ir.Node) -> tuple[QuantisedPort, ...]:
        """Return where `node` reads and makes quantised tensors."""
        if self.result is None:
            return ()
        read = (
            QuantisedPort(index, index + 1, index + 2, axis=self.axis_of(node, index))
            for index in self.places(node)
            if self.is_scaled(index)
        )
        return (*read, QuantisedPort(0, *self.result, is_made=True))


NOT_STANDARD = No("gradients are known of the operators of ONNX alone", "onnxtile/inspection/training.py")


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What an operator is. The cells without a default must be filled, or say why not."""

    name: str = ""
    """The operator, with its domain where that is not the standard one: `Conv`, `com.microsoft::FusedConv`."""
    over: Over | No
    """The operands that the result may be written over, where shapes and element sizes are equal and no later node reads them."""
    over_each: bool = False
    """Whether each of several results may be written over them; of other operators with several results none may."""
    reads: AxisRule | No
    """The range of each operand that a range of the result needs, axis by axis: fit cuts by it."""
    folds: Folding | None = None
    """How the result is put together from parts of an axis that is reduced; None where it is not."""
    work: Work | No
    """The multiply-accumulates and the other operations of a node."""
    saves: Saves | No = NOT_STANDARD
    """The values that the gradient of a node is computed from."""
    slides: bool = False
    """Whether windows slide along the axes after the channels."""
    same: SharedBytes = ""
    moves: Movement = ""
    state: Mapping[int, int] = field(default_factory=dict)
    """By output that is the next value of a state, the operand that holds the value before."""
    state_grows: bool = False
    """Whether the next value may be longer than the one before, which it begins with."""
    state_over: bool = False
    """Whether the next value may be written over the one before by the definition of the operator."""
    shaped_by: Collection[int] = ()
    """The operands on whose elements the shape of the result depends."""
    set_by: Collection[int] = ()
    """The further operands that say what is computed, as attributes do: an axis, a diagonal, a part of an image."""
    grows: ShapeGrowth | None = None
    numbers: SizeNumbers | None = None
    """How sizes are computed; None for an operator that no computation of sizes needs."""
    takes: Mapping[int, OperandRule] = field(default_factory=dict)
    """By operand, what random numbers it may be given."""
    draws: bool = False
    """Whether it draws random numbers."""
    trains_by: int | None = None
    """The operand that says whether it trains, of an operator that draws random numbers only then."""
    quantised: FloatMeaning | No | None = None
    """What an operator on quantised tensors means in floats."""
    ports: tuple[QuantisedPort, ...] = ()
    """The quantised tensors of an operator without a float meaning."""
    bits: str = ""
    """The attribute with the bits of a weight, of an operator on weights that are packed into bytes."""
    factors: tuple[int, int] | None = None
    """The operands that its products multiply."""
    contraction: Left | No | None = None
    """Why `tile` does not cut an operator with products; None for one that has none, or a rule in onnxtile/tiling/operators."""
    truths: bool = False
    """Whether its results are truth values."""
    commutes: bool = False
    """Whether its operands may change places."""

    @property
    def is_standard(self) -> bool:
        """Whether it is an operator of ONNX's standard domain."""
        return "::" not in self.name

    def rows(self, names: str, *, domain: str = "", **cells: Any) -> tuple[Operator, ...]:
        """Return this row for each of `names`, which spaces separate, with other `cells`. Raises TypeError.

        Without a `domain`, they are of that which the name of this row has before "::", or of the standard one.
        """
        prefix = f"{domain}::" if domain else self.name
        unknown = cells.keys() - vars(self).keys()
        if unknown:
            raise TypeError(f"an operator has no cell {min(unknown)!r}")
        return tuple(self._with({**cells, "name": prefix + name}) for name in names.split())

    def _with(self, cells: Mapping[str, Any]) -> Operator:
        """Return this row with other `cells`: there are 400 rows, and `replace` takes ten times as long."""
        row = object.__new__(Operator)
        vars(row).update(vars(self), **cells)
        return row


def without(names: str, no: No, *, domain: str = "", **reasons: No) -> tuple[Operator, ...]:
    """Return rows that have `no` in each cell that must be filled, or the reason among `reasons` for that cell."""
    row = Operator(over=no, reads=no, work=no, saves=NOT_STANDARD if domain else no)
    return row.rows(names, domain=domain, **reasons)


CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
"""Operators that run bodies on tensors, and hand out what these leave."""


@dataclass(frozen=True)
class Family:
    """The rows of operators of one kind."""

    name: str
    operators: tuple[Operator, ...]


# The work of a node: the types of the rules that count it, and those that many operators share.


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


# The table of operators: a row by name or by node, and what rules of rows say of a node.


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


MATRIX_PRODUCTS = frozenset({"Gemm", "MatMul"})
"""Products of two matrices; in a quantised model, what its products of integers stand for."""


def multiplies_matrices(node: ir.Node) -> bool:
    """Return whether `node` is a product of two matrices, of floats or of integers."""
    row = operator_of(node)
    meaning = row.quantised if row is not None and isinstance(row.quantised, FloatMeaning) else node
    return row is not None and meaning.op_type in MATRIX_PRODUCTS


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
