"""The work of models in multiply-accumulates and FLOPs, node by node. The rules of operators are in `onnxtile.operators`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import NoReturn

import onnx_ir as ir

from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeFormula, SizeRanges, is_at_least
from onnxtile.model.functions import inline_calls
from onnxtile.model.topology import bodies_of, has_body, nodes_in
from onnxtile.operators.node_view import NotApplicable, operator_name
from onnxtile.operators.table import work_of
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import first_cause

# Number of runs of the bodies of a node, where the graph determines it.


def repetitions(node: ir.Node, shapes: Shapes, constants: Constants) -> dict[str, int] | None:
    """Return how often each body of `node` runs, by its attribute; None where only a run can tell.

    A Scan runs once for each slice of what it scans, a Loop as often as its trip count says where that is constant and nothing ends it
    before, an If whose condition is constant one of its branches.
    """
    if node.domain:
        return None
    match node.op_type:
        case "Scan":
            count = _slices(node, shapes)
        case "Loop":
            count = _trips(node, constants)
        case "If":
            taken = _constant(node.inputs[0], constants)
            return None if taken is None else {"then_branch": int(taken != 0), "else_branch": int(taken == 0)}
        case _:
            count = None
    return None if count is None else {"body": count}


def _slices(node: ir.Node, shapes: Shapes) -> int | None:
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    # Scan-8 has a batch axis, and lengths that are data.
    if not scanned or "directions" in node.attributes:
        return None
    value = node.inputs[-scanned]
    sizes = None if value is None else shapes.sizes(value)
    axis = (node.attributes.get_ints("scan_input_axes", None) or [0])[0]
    return sizes[axis] if sizes and -len(sizes) <= axis < len(sizes) else None


def _trips(node: ir.Node, constants: Constants) -> int | None:
    trips, first = (*node.inputs, None, None)[:2]
    body = node.attributes["body"].as_graph()
    if trips is None or (first is not None and _constant(first, constants) != 1):
        return None
    going_on: ir.Value | None = body.outputs[0]
    while going_on is not None and (producer := going_on.producer()) is not None and producer.op_type == "Identity":
        going_on = producer.inputs[0]
    if going_on is not body.inputs[1] and _constant(going_on, constants) != 1:
        return None
    count = _constant(trips, constants)
    return None if count is None else max(count, 0)


def _constant(value: ir.Value | None, constants: Constants) -> int | None:
    """Return the number that a constant of one element holds."""
    if value is None or value not in constants:
        return None
    array = constants.array(value)
    return int(array.ravel()[0]) if array.size == 1 else None


# Sizes of a graph with open dimensions, for the rules that count work: they compute with formulas as with numbers.


@dataclass(frozen=True, eq=False)
class SymbolicSize:
    """A size that depends on dimensions with a range; what it is compared with decides, or raises TypeError where both are possible."""

    formula: SizeFormula
    ranges: SizeRanges

    def __add__(self, other: SymbolicSize | int) -> SymbolicSize:
        """Return the sum."""
        return self._with(self.formula + formula_of(other))

    def __sub__(self, other: SymbolicSize | int) -> SymbolicSize:
        """Return the difference."""
        return self._with(self.formula - formula_of(other))

    def __rsub__(self, other: int) -> SymbolicSize:
        """Return the difference."""
        return self._with(-self.formula + other)

    def __mul__(self, other: SymbolicSize | int) -> SymbolicSize:
        """Return the product."""
        return self._with(self.formula * formula_of(other))

    def __neg__(self) -> SymbolicSize:
        """Return the negative."""
        return self._with(-self.formula)

    def __floordiv__(self, divisor: int) -> SymbolicSize:
        """Return the quotient by a number, rounded down. Raises TypeError for a formula, ValueError for a number below 1."""
        if not isinstance(divisor, int):
            raise TypeError("a size is divided by a number")
        return self._with(self.formula // divisor)

    __radd__ = __add__
    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        """Return whether both are equal at all sizes, or at none."""
        if not isinstance(other, SymbolicSize | int):
            return NotImplemented
        low, high = (self.formula - formula_of(other)).limits(self.ranges)
        return low == high == 0 or (low <= 0 <= high and self._undecided())

    def __lt__(self, other: SymbolicSize | int) -> bool:
        """Return whether it is smaller at all sizes, or at none."""
        theirs = formula_of(other)
        if is_at_least(self.formula, theirs, self.ranges):
            return False
        return is_at_least(theirs, self.formula + 1, self.ranges) or self._undecided()

    def __gt__(self, other: SymbolicSize | int) -> bool:
        """Return whether it is larger at all sizes, or at none."""
        return (-self) < -other

    def __bool__(self) -> bool:
        """Return whether it is other than 0 at some size: as a count, it is then not left out."""
        return self.formula.limits(self.ranges) != (0, 0)

    __hash__ = None  # type: ignore[assignment]

    def _with(self, formula: SizeFormula) -> SymbolicSize:
        return SymbolicSize(formula, self.ranges)

    def _undecided(self) -> NoReturn:
        raise TypeError("the sizes decide")


def largest(size: SymbolicSize | int) -> int:
    """Return the size, or its upper bound over the ranges."""
    return size.formula.limits(size.ranges)[1] if isinstance(size, SymbolicSize) else size


def formula_of(size: SymbolicSize | int) -> SizeFormula:
    """Return the size as a formula."""
    return SizeFormula.number(size) if isinstance(size, int) else size.formula


# The work of every node of a model. The work of a call is the work of the function's body at the shapes of the call.

_CALL = "onnxtile.call"
"""On a node of the copy in which calls are written out: the place of its call. It is never saved."""


@dataclass(frozen=True)
class NodeWork:
    """Multiply-accumulates of a node, additions of biases and FLOPs, by operator, and why its work is not known where it is not.

    `uncounted` is why FLOPs are not known of which the MACs may be. `macs`, `additions` and `flops` have numbers by operator. `unknown` is
    a sentence, empty where the work is known.
    """

    macs: Mapping[str, int] = field(default_factory=dict)
    additions: Mapping[str, int] = field(default_factory=dict)
    unknown: str = ""
    flops: Mapping[str, int] = field(default_factory=dict)
    uncounted: str = ""

    @property
    def total(self) -> int | None:
        """All MACs of the node; None where they are not known."""
        return None if self.unknown else sum(self.macs.values())

    @property
    def operations(self) -> int | None:
        """All FLOPs of the node; None where they are not known."""
        return None if self.why_uncounted else sum(self.flops.values())

    @property
    def bias_additions(self) -> int:
        """All additions of biases of the node."""
        return sum(self.additions.values())

    @property
    def why_uncounted(self) -> str:
        """Why the FLOPs are not known; empty where they are."""
        return self.unknown or self.uncounted

    def times(self, count: int) -> NodeWork:
        """Return the work of `count` such nodes."""
        macs, additions, flops = (
            {op: count * n for op, n in counts.items()} for counts in (self.macs, self.additions, self.flops)
        )
        return NodeWork(macs, additions, self.unknown, flops, self.uncounted)


def works(
    model: ir.Model, shapes: Shapes, constants: Constants, infer: Callable[[ir.Model], Shapes] = resolve
) -> dict[ir.Node, NodeWork]:
    """Return the work of each node of all graphs of `model`, which stays as it is; what only makes constants has none.

    Nodes of bodies (If, Loop, Scan) have the work of one pass; the node that has the bodies has that of all passes, where the graph tells
    how many there are. `infer` returns the shapes of a copy in which calls are written out.
    """
    return _works(model, shapes, constants, _calls(model, infer))


def _works(
    model: ir.Model, shapes: Shapes, constants: Constants, calls: Mapping[ir.Node, NodeWork]
) -> dict[ir.Node, NodeWork]:
    works: dict[ir.Node, NodeWork] = {}
    # A body stands before the node that has it once the order is turned round.
    for node in reversed(list(nodes_in(model.graph))):
        if node in calls:
            works[node] = calls[node]
        elif has_body(node) and bodies_of(node):
            works[node] = _of_bodies(node, works, repetitions(node, shapes, constants))
        else:
            works[node] = _of_node(node, shapes, constants)
    return works


def makes_constants(node: ir.Node, constants: Constants) -> bool:
    """Return whether `node` makes constants, and nothing else."""
    for value in node.outputs:
        if value not in constants:
            return False
    return bool(node.outputs)


def _of_node(node: ir.Node, shapes: Shapes, constants: Constants) -> NodeWork:
    if makes_constants(node, constants):
        return NodeWork()
    try:
        count = work_of(node, shapes)
    except NotApplicable as error:
        return NodeWork(unknown=str(error))
    op = operator_name(node)
    why = "" if count.flops is not None else count.why or f"no rule counts the FLOPs of {op} as it is used here"
    return NodeWork(
        {op: count.macs} if count.macs else {},
        {op: count.additions} if count.additions else {},
        flops={op: count.flops} if count.flops else {},
        uncounted=why,
    )


def _of_bodies(node: ir.Node, works: Mapping[ir.Node, NodeWork], times: Mapping[str, int] | None) -> NodeWork:
    """Return the work of all passes of the bodies of `node`, which run as often as `times` says, by the attribute's name."""
    inner = {body.key: _sum([works[inner_node] for inner_node in body.graph]) for body in bodies_of(node)}
    if times is None:
        reason = "the number of runs of its bodies is known only in a run"
        no_products, no_flops = (
            all(count is not None and not count for count in counts)
            for counts in zip(*((work.total, work.operations) for work in inner.values()), strict=True)
        )
        return NodeWork(unknown="" if no_products else reason, uncounted="" if no_flops else reason)
    return _sum([work.times(times[name]) for name, work in inner.items() if times[name]])


def _calls(model: ir.Model, infer: Callable[[ir.Model], Shapes]) -> dict[ir.Node, NodeWork]:
    """Return the work of each call of a local function, found by writing the bodies in the calls' places in a copy."""
    if not model.functions:
        return {}
    originals = list(nodes_in(model.graph))
    positions = [position for position, node in enumerate(originals) if node.op_identifier() in model.functions]
    if not positions:
        return {}
    copy = model.clone()
    nodes = list(nodes_in(copy.graph))
    for position in positions:
        nodes[position].metadata_props[_CALL] = str(position)
    refusal = write_out_calls(copy)
    if refusal:
        return {
            originals[position]: NodeWork(unknown=f"its function cannot be inlined: {refusal}")
            for position in positions
        }
    costs = _works(copy, infer(copy), Constants(copy), {})
    parts: dict[int, list[NodeWork]] = {position: [] for position in positions}
    for node in _outermost(copy.graph):
        parts[int(node.metadata_props[_CALL])].append(costs[node])
    return {originals[position]: _sum(works) for position, works in parts.items()}


def _outermost(graph: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes that came from calls; what is in their bodies is theirs."""
    for node in graph:
        if _CALL in node.metadata_props:
            yield node
            continue
        for body in bodies_of(node):
            yield from _outermost(body.graph)


def write_out_calls(model: ir.Model, wanted: Callable[[ir.Function], bool] | None = None) -> str:
    """Put the bodies of the `wanted` local functions in the places of their calls. Return why that cannot be; then `model` is used up."""
    try:
        inline_calls(model, wanted)
    except (ValueError, ir.passes.PassError) as error:
        return first_cause(error)
    return ""


def _sum(parts: list[NodeWork]) -> NodeWork:
    unknown, uncounted = (
        next(filter(None, reasons), "")
        for reasons in ((part.unknown for part in parts), (part.uncounted for part in parts))
    )
    macs, additions, flops = (
        add_up(counts)
        for counts in (
            (part.macs for part in parts),
            (part.additions for part in parts),
            (part.flops for part in parts),
        )
    )
    return NodeWork(macs, additions, unknown, flops, uncounted)


def add_up(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of `counts` by operator, the largest first."""
    total: dict[str, int] = {}
    for count in counts:
        for operator, number in count.items():
            total[operator] = total.get(operator, 0) + number
    return dict(sorted(total.items(), key=lambda item: -largest(item[1])))
