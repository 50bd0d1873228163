"""Shapes that a model computes: the few numbers of shape arithmetic are computed too, node by node, and nothing larger.

Engines of shape inference carry such numbers through some operators and lose them at others (Where, Equal, ConstantOfShape,
ScatterND ...), and with them the sizes of all that follows. Here they are computed by onnx's reference implementation, and handed to onnx's
inference of one node at a time. No activation is computed, whatever its size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnxtile.model.constants import constant_tensor
from onnxtile.model.known import NOTHING, Dim, Dims, Known
from onnxtile.model.submodel import assembled, tensor_type
from onnxtile.model.topology import bodies_of, nodes_inside, values_in
from onnxtile.operators.row import CONTROL_FLOW, ShapeGrowth
from onnxtile.operators.table import operator_of, operators
from onnxtile.shapes.contributed import KnownOperand, contributed_operators, results
from onnxtile.system.process import collector_paused
from onnxtile.system.runtime import Array

# Interval arithmetic: the operators of shape arithmetic on numbers whose lowest and highest value alone are known.
#
# An operator that nothing makes larger where an operand gets smaller has its least result from the least operands, and its most from the
# most; where it falls with an operand (the second of Sub), from the most of that one. Booleans count as 0 and 1.

Interval: TypeAlias = tuple[Array, Array]
"""The least and the most that each element may be."""

Evaluate: TypeAlias = Callable[[Sequence[Array | None]], Sequence[Array]]
"""Computes the results of an operator from its operands."""


def interval_results(operator: str, operands: Sequence[Interval | None], evaluate: Evaluate) -> list[Interval] | None:
    """Return the least and the most of each result of `operator`; None where nothing is known of them."""
    given = [operand for operand in operands if operand is not None]
    if operator == "Equal":
        return [_equal(*given)]
    if operator == "Where":
        return [_where(*given)]
    row = operators().get(operator)
    numbers = None if row is None else row.numbers
    if numbers is None or not numbers.monotone:
        return None
    if numbers.selecting and not all(_is_known(operand) for operand in given[1:]):
        return None
    if operator == "Range" and not (_is_known(given[0]) and _is_known(given[2])):
        return None
    if operator in {"Div", "Mul", "ReduceProd"} and any((least < 0).any() for least, _ in given):
        return None
    if operator == "Div" and (given[1][0] <= 0).any():
        return None
    ends = [[None if o is None else o[end ^ (i in numbers.falling)] for i, o in enumerate(operands)] for end in (0, 1)]
    least, most = (evaluate(end) for end in ends)
    pairs = [_pair(low, high) for low, high in zip(least, most, strict=False)]
    return [pair for pair in pairs if pair is not None] if len(least) == len(most) and None not in pairs else None


def keeps_its_sign(operand: Interval) -> bool:
    """Return whether no element may be negative and also positive or 0: a place in an axis is counted from one of its ends."""
    least, most = operand
    return bool(((least >= 0) | (most < 0)).all())


def _is_known(operand: Interval) -> bool:
    return bool(np.array_equal(*operand))


def _pair(low: Array, high: Array) -> Interval | None:
    """Return the interval of results; where there may be fewer elements, those that are not there count as 0."""
    if low.shape == high.shape:
        return low, high
    return (np.zeros_like(high), high) if (high >= 0).all() else None


def _equal(a: Interval, b: Interval) -> Interval:
    return (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0]), (a[0] <= b[1]) & (b[0] <= a[1])


def _where(chosen: Interval, a: Interval, b: Interval) -> Interval:
    never, always = ~chosen[1].astype(bool), chosen[0].astype(bool)
    low, high = np.minimum(a[0], b[0]), np.maximum(a[1], b[1])
    least = np.where(always, a[0], np.where(never, b[0], low))
    return least, np.where(always, a[1], np.where(never, b[1], high))


# Shapes that depend on the data: sample runs cannot determine them, however many agree.

_FROM_SHAPE = {"Shape", "Size", "SequenceLength"}


def data_dependent(model: ir.Model) -> dict[ir.Value, ir.Node]:
    """Return the values of the main graph whose shape depends on the elements of its inputs, each with the operator where that begins.

    An operator of an unknown domain is taken to have an output shape that depends on its inputs' shapes alone, a function
    likewise; runs on different samples are what would show otherwise.
    """
    elements = {value: True for value in model.graph.inputs if not value.is_initializer()}
    shapes: dict[ir.Value, ir.Node] = {}
    for node in model.graph:
        cause = _cause(node, elements, shapes)
        if cause is not None:
            shapes.update(dict.fromkeys(node.outputs, cause))
        if node.op_type in _FROM_SHAPE:
            live = cause is not None
        else:
            live = cause is not None or any(value in elements for value in _operands(node))
        if live:
            elements.update(dict.fromkeys(node.outputs, True))
    return shapes


def _operands(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of `node`, with the outer values that its bodies use."""
    operands = [value for value in node.inputs if value is not None]
    operands += (value for inner in nodes_inside(node) for value in inner.inputs if value is not None)
    return operands


def _cause(node: ir.Node, elements: dict[ir.Value, bool], shapes: dict[ir.Value, ir.Node]) -> ir.Node | None:
    for value in _operands(node):
        if value in shapes:
            return shapes[value]
    if any(node.inputs[place] in elements for place in shape_operands(node)):
        return node
    return None


def shape_operands(node: ir.Node) -> list[int]:
    """Return the places of the inputs of `node` on whose elements the shape of its output depends; none for unknown domains."""
    row = operator_of(node)
    return [] if row is None else [place for place in range(len(node.inputs)) if place in row.shaped_by]


# Shapes inside the bodies of If, Loop and Scan, and of what these nodes hand out.
#
# Engines of shape inference stop where a body's input has no declared shape: what a loop carries may change its shape from one run of the
# body to the next. Here the body is gone through with the shapes of the first run; where it hands on others, the dimensions that change are
# given up, until the body hands on what it was given.


class Table(Protocol):
    """What is known so far, and a way to learn more."""

    def of(self, value: ir.Value) -> Dims | None:
        """Return the dimensions of `value`, as far as they are known."""
        ...

    def type_of(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type of `value`."""
        ...

    def number(self, value: ir.Value) -> Array | None:
        """Return the elements of `value`, where it is one of few known numbers."""
        ...

    def why_never(self, values: Iterable[ir.Value]) -> str | None:
        """Return why no run comes to make one of `values`; None where one may make them all."""
        ...

    def lose(self, values: Iterable[ir.Value], reason: str) -> None:
        """Note that no run comes to make `values`."""
        ...

    def note(self, value: ir.Value, dtype: ir.DataType | None, dims: Dims | None) -> None:
        """Add to what is known of `value`."""
        ...

    def forget(self, values: Iterable[ir.Value]) -> None:
        """Go back to what was known of `values` before."""
        ...

    def visit(self, body: ir.Graph) -> None:
        """Learn what the nodes of `body` make, in order."""
        ...


def after_loops(model: ir.Model) -> set[ir.Value]:
    """Return the values computed by Loops of `model`, in their bodies too, and all values that depend on them.

    onnx-shape-inference takes it that a loop carries one shape, and runs as often as it may: both need not be so.
    """
    found: set[ir.Value] = set()
    _spread(model.graph, found)
    return found


def _spread(graph: ir.Graph, found: set[ir.Value]) -> None:
    for node in graph:
        if (node.op_type == "Loop" and node.domain in _STANDARD) or not found.isdisjoint(v for v in node.inputs if v):
            found.update((*node.outputs, *made_inside(node)))
            continue
        for body in bodies_of(node):
            _spread(body.graph, found)
            if not found.isdisjoint(body.graph.outputs):
                found.update(node.outputs)


def follow(node: ir.Node, table: Table) -> None:
    """Note the shapes in the bodies of `node`, an If, Loop or Scan, and those of its outputs."""
    {"If": _follow_if, "Loop": _follow_loop, "Scan": _follow_scan}[node.op_type](node, table)


_STANDARD = frozenset({"", "ai.onnx"})


def _follow_if(node: ir.Node, table: Table) -> None:
    branches = [_body(node, name) for name in ("then_branch", "else_branch")]
    if None in branches:
        return
    for branch in branches:
        assert branch is not None
        table.visit(branch)
    condition = table.number(node.inputs[0]) if node.inputs[0] is not None else None
    taken = branches if condition is None else [branches[0 if condition.all() else 1]]
    ending = [branch for branch in taken if branch is not None and table.why_never(branch.outputs) is None]
    if not ending:
        table.lose(
            node.outputs, next(filter(None, (table.why_never(branch.outputs) for branch in taken if branch)), "")
        )
    for place, value in enumerate(node.outputs if ending else ()):
        _note_common(table, value, [branch.outputs[place] for branch in ending])


def _follow_loop(node: ir.Node, table: Table) -> None:
    body = _body(node, "body")
    if body is None or len(body.inputs) < 2 or len(node.inputs) < 2:
        return
    table.note(body.inputs[0], ir.DataType.INT64, ())
    table.note(body.inputs[1], ir.DataType.BOOL, ())
    carried = list(zip(node.inputs[2:], body.inputs[2:], body.outputs[1:], node.outputs, strict=False))
    _settle(body, [(given, inside, handed_on) for given, inside, handed_on, _ in carried], table)
    for _, inside, handed_on, value in carried:
        _note_common(table, value, [inside, handed_on])
    trips = _trips(node, body, table)
    for inside, value in zip(body.outputs[1 + len(carried) :], node.outputs[len(carried) :], strict=False):
        dims = table.of(inside)
        table.note(value, table.type_of(inside), None if dims is None else (trips, *dims))


def _follow_scan(node: ir.Node, table: Table) -> None:
    body, scanned = _body(node, "body"), node.attributes.get_int("num_scan_inputs", 0)
    if body is None or len(body.inputs) != len(node.inputs):
        return
    states = len(node.inputs) - scanned
    axes = list(node.attributes.get_ints("scan_input_axes", [0] * scanned))
    length: Dim = None
    for given, inside, axis in zip(node.inputs[states:], body.inputs[states:], axes, strict=True):
        dims = table.of(given) if given is not None else None
        if given is None or not dims:
            continue
        length = dims[axis] if isinstance(dims[axis], int) else length
        at = axis % len(dims)
        table.note(inside, table.type_of(given), (*dims[:at], *dims[at + 1 :]))
    carried = list(zip(node.inputs[:states], body.inputs[:states], body.outputs[:states], strict=True))
    _settle(body, carried, table)
    for (_, inside, handed_on), value in zip(carried, node.outputs, strict=False):
        _note_common(table, value, [inside, handed_on])
    handed_out = body.outputs[states:]
    axes = list(node.attributes.get_ints("scan_output_axes", [0] * len(handed_out)))
    for inside, value, axis in zip(handed_out, node.outputs[states:], axes, strict=True):
        dims = table.of(inside)
        if dims is not None:
            at = axis % (len(dims) + 1)
            table.note(value, table.type_of(inside), (*dims[:at], length, *dims[at:]))


def _settle(body: ir.Graph, carried: Sequence[tuple[ir.Value | None, ir.Value, ir.Value]], table: Table) -> None:
    """Visit `body` with what it is given first, then with fewer dimensions known, until it hands on what it was given."""
    wanted = [table.of(given) if given is not None else None for given, _, _ in carried]
    given_in = set(body.inputs)
    made = (value for value in values_in(body) if value not in given_in)
    inner = [*(inside for _, inside, _ in carried), *made]
    for _ in range(1 + sum(len(dims) for dims in wanted if dims)):
        for (given, inside, _), dims in zip(carried, wanted, strict=True):
            table.note(inside, table.type_of(given) if given is not None else None, dims)
        table.visit(body)
        found = [_common(table.of(inside), table.of(out)) for _, inside, out in carried]
        if all(table.of(inside) == dims for (_, inside, _), dims in zip(carried, found, strict=True)):
            return
        table.forget(inner)
        wanted = found


def _trips(node: ir.Node, body: ir.Graph, table: Table) -> int | None:
    """Return how often the body of a Loop runs, where nothing but a known number ends it."""
    most, condition = node.inputs[0], node.inputs[1]
    limit = None if most is None else table.number(most)
    starts = True if condition is None else table.number(condition)
    if limit is None or starts is None or np.size(limit) != 1 or not _goes_on(body, table):
        return None
    return max(0, int(np.asarray(limit).reshape(()))) if np.all(starts) else 0


def _goes_on(body: ir.Graph, table: Table) -> bool:
    """Return whether `body` hands on the condition that it was given, or true."""
    value: ir.Value | None = body.outputs[0]
    while value is not None and value is not body.inputs[1]:
        known = table.number(value)
        if known is not None:
            return bool(known.all())
        maker = value.producer()
        if maker is None or maker.op_type not in {"Identity", "Cast"}:
            return False
        value = maker.inputs[0]
    return value is not None


def _note_common(table: Table, value: ir.Value, made: Sequence[ir.Value]) -> None:
    dims = table.of(made[0])
    for other in made[1:]:
        dims = _common(dims, table.of(other))
    dtype = next((found for one in made if (found := table.type_of(one)) is not None), None)
    table.note(value, dtype, dims)


def _common(one: Dims | None, other: Dims | None) -> Dims | None:
    """Return the dimensions that are equal in both; None for the others."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))


def _body(node: ir.Node, name: str) -> ir.Graph | None:
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute.as_graph()


def made_inside(node: ir.Node) -> list[ir.Value]:
    """Return the values of the bodies of `node`, at any depth, and their inputs."""
    return [value for body in bodies_of(node) for value in values_in(body.graph)]


_MOST = 4096
"""Elements of the largest tensor that is computed."""


class Propagation:
    """Carries numbers and shapes forward through a model and the bodies in it; `dtypes` and `dims` say what is known before.

    Of the values `news` the engines of shape inference did not know. Those in `upper` are not larger than it says on the axes
    named there; of the numbers that follow the least and the most are known (model.intervals), and of shapes the largest.
    """

    def __init__(
        self,
        model: ir.Model,
        dtypes: Mapping[ir.Value, ir.DataType],
        dims: Mapping[ir.Value, Dims],
        news: Iterable[ir.Value] = (),
        upper: Mapping[ir.Value, Collection[int]] | None = None,
    ) -> None:
        self._model = model
        self._known_before = dims
        self.dtypes = dict(dtypes)
        self.dims = dict(dims)
        self.never: dict[ir.Value, str] = {}
        self.upper = set(upper or ())
        self._open = dict(upper or {})
        self._least: dict[ir.Value, Array] = {}
        self._numbers: dict[ir.Value, Array] = {}
        self._news: set[ir.Value] = set(news)
        self._opsets = model.graph.opset_imports
        self._functions: list[onnx.FunctionProto] | None = None
        self._contributed = contributed_operators(model)

    @collector_paused()
    def run(self) -> None:
        """Visit every node in order; those in a loop until the shapes that it carries are settled."""
        self.visit(self._model.graph)

    def visit(self, body: ir.Graph) -> None:
        """Visit the nodes of `body` once, in order."""
        for value in body.initializers.values():
            self._hold(value, value.const_value)
        for node in body:
            self._visit(node)

    def of(self, value: ir.Value) -> Dims | None:
        """Return the dimensions of `value`, as far as they are known."""
        return self.dims.get(value)

    def type_of(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type of `value`."""
        return self.dtypes.get(value)

    def number(self, value: ir.Value) -> Array | None:
        """Return the elements of `value`, where it is one of few known numbers; the most that they may be, but a truth is sure."""
        known = self._numbers.get(value)
        return None if known is not None and known.dtype == bool and value in self._least else known

    def why_never(self, values: Iterable[ir.Value]) -> str | None:
        """Return why no run comes to make one of `values`; None where one may make them all."""
        return next((self.never[value] for value in values if value in self.never), None)

    def lose(self, values: Iterable[ir.Value], reason: str) -> None:
        """Note that no run comes to make `values`."""
        self.never.update(dict.fromkeys(values, reason))

    def forget(self, values: Iterable[ir.Value]) -> None:
        """Go back to what was known of `values` before."""
        for value in values:
            self._numbers.pop(value, None)
            self._least.pop(value, None)
            self.never.pop(value, None)
            self._news.discard(value)
            if value in self._known_before:
                self.dims[value] = self._known_before[value]
            else:
                self.dims.pop(value, None)

    def _visit(self, node: ir.Node) -> None:
        standard = node.domain in {"", "ai.onnx"}
        lost = self.why_never(value for value in node.inputs if value is not None)
        if lost is not None:
            self.lose((*node.outputs, *made_inside(node)), lost)
            return
        open_ = [value for value in node.outputs if self._sizes(value) is None]
        if standard and node.op_type in CONTROL_FLOW:
            if self._depends_on_bounds(node):
                self.upper.update(value for body in bodies_of(node) for value in body.graph.inputs)
            follow(node, self)
        elif not self._is_bent(node):
            self._visit_kernel(node, standard)
        if self._depends_on_bounds(node):
            self.upper.update(value for value in open_ if self._sizes(value) is not None)

    def _depends_on_bounds(self, node: ir.Node) -> bool:
        read = (*node.inputs, *(value for body in bodies_of(node) for value in body.graph.outputs))
        return any(value in self.upper or value in self._least for value in read)

    def _is_bent(self, node: ir.Node) -> bool:
        """Return whether the shape of the output of `node` might get larger where a bound is not reached."""
        loose = {place for place, value in enumerate(node.inputs) if value in self._least}
        if not loose or node.op_type in {"Shape", "Size"}:
            return False
        if node.domain not in {"", "ai.onnx"}:
            return True
        deciding, growth = loose.intersection(shape_operands(node)), _growth(node)
        if growth is None or not deciding:
            return bool(deciding)
        return bool(deciding - {growth.by, growth.shrinks_by}) or not self._counts_up(node, growth, deciding)

    def _counts_up(self, node: ir.Node, growth: ShapeGrowth, places: Iterable[int]) -> bool:
        """Return whether a Range or Slice counts up, and the numbers at `places` from one end of an axis."""
        if growth.step is None:
            return True
        step = node.inputs[growth.step] if len(node.inputs) > growth.step else None
        rises = step is None or (step in self._numbers and bool((self._interval(step)[0] > 0).all()))
        return rises and all(keeps_its_sign(self._interval(node.inputs[place])) for place in places)

    def _visit_kernel(self, node: ir.Node, standard: bool) -> None:
        if standard and node.op_type == "Constant":
            self._hold(node.outputs[0], constant_tensor(node))
        elif standard and node.op_type in {"Shape", "Size"}:
            self._measure(node)
        else:
            # Where nothing is new, the engines have said what there is to say; of onnxruntime's operators only one of them can.
            new = node.graph is not self._model.graph or self._is_contributed(node)
            new = new or any(value in self._news for value in node.inputs)
            if new and any(value.name and self._sizes(value) is None for value in node.outputs):
                self._infer(node)
            if standard and _computes_sizes(node) and self._is_small(node):
                self._compute(node)

    def _hold(self, value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
        if tensor is not None and tensor.size <= _MOST and tensor.dtype != ir.DataType.STRING:
            self._numbers[value] = tensor.numpy()

    def _measure(self, node: ir.Node) -> None:
        sizes = None if node.inputs[0] is None else self._sizes(node.inputs[0])
        if sizes is None:
            return
        self._learn(node.outputs[0], _measured(node, sizes))
        if node.inputs[0] in self.upper:
            open_ = self._open.get(node.inputs[0], range(len(sizes)))
            self._least[node.outputs[0]] = _measured(node, [0 if i in open_ else n for i, n in enumerate(sizes)])

    def _learn(self, value: ir.Value, array: Array) -> None:
        self._numbers[value] = array
        self.dims[value] = array.shape
        self._news.add(value)

    def _sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        dims = self.dims.get(value)
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            return None
        return tuple(int(dim) for dim in dims if dim is not None)

    def _is_small(self, node: ir.Node) -> bool:
        """Tell whether all inputs of `node` are known numbers, and its outputs are few."""
        if not all(value is None or value in self._numbers for value in node.inputs):
            return False
        # How many places NonZero finds, no inference says: no more than there are.
        counted = node.op_type == "NonZero"
        sizes = [self._sizes(value) for value in (node.inputs if counted else node.outputs) if value is not None]
        return all(size is not None and math.prod(size) <= _MOST for size in sizes)

    def _compute(self, node: ir.Node) -> None:
        if any(value in self._least for value in node.inputs):
            self._compute_intervals(node)
            return
        made = self._evaluate(node, [None if value is None else self._numbers[value] for value in node.inputs])
        for value, array in zip(node.outputs, made, strict=False):
            self._learn(value, array)

    def _compute_intervals(self, node: ir.Node) -> None:
        operands = [None if value is None else self._interval(value) for value in node.inputs]
        found = interval_results(node.op_type, operands, lambda numbers: self._evaluate(node, numbers))
        for value, (least, most) in zip(node.outputs, found or (), strict=False):
            self._learn(value, most)
            if not np.array_equal(least, most):
                self._least[value] = least

    def _interval(self, value: ir.Value | None) -> Interval:
        assert value is not None
        most = self._numbers[value]
        return self._least.get(value, most), most

    def _evaluate(self, node: ir.Node, numbers: Sequence[Array | None]) -> list[Array]:
        """Return the outputs of `node` on `numbers`, one array for each input; an empty list where it cannot be computed."""
        proto, names = _with_names(node)
        given = zip(node.inputs, numbers, strict=True)
        feeds = {names[value]: array for value, array in given if value is not None and array is not None}
        made = _evaluated(self._one_node(proto, {}), feeds)
        return [np.asarray(one) for one in made] if all(isinstance(m, np.ndarray | np.generic) for m in made) else []

    def _infer(self, node: ir.Node) -> None:
        """Note what onnx infers for the outputs of `node` from the shapes of its inputs and from known numbers."""
        if self._is_contributed(node):
            self._ask(node)
            return
        proto, names = _with_names(node)
        typed = {names[value]: value for value in dict.fromkeys(node.inputs) if value is not None}
        model = self._one_node(proto, typed)
        found = _inferred(model)
        if found is None:
            return
        if node.graph is not self._model.graph and self._fails(node, model):
            reason = f"never made: {node.op_type} {node.name or ''}".rstrip() + " cannot run on tensors of these shapes"
            self.lose(node.outputs, reason)
            return
        sure = (_inferred(self._one_node(proto, typed, sure=True)) or {}) if self._depends_on_bounds(node) else None
        for value in node.outputs:
            known = found.get(names.get(value, ""), NOTHING)
            if known.dims is not None:
                if sure is not None:
                    self._note_open(value, sure.get(names[value], NOTHING).dims, len(known.dims))
                self.note(value, known.dtype, known.dims)

    def _is_contributed(self, node: ir.Node) -> bool:
        return (node.domain, node.op_type) in self._contributed

    def _ask(self, node: ir.Node) -> None:
        """Note what onnxruntime infers for the outputs of `node`, an operator of its own."""
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        for value, known in zip(node.outputs, results(node, operands, self._model.graph.opset_imports), strict=True):
            self.note(value, known.dtype, known.dims)

    def _operand(self, value: ir.Value) -> KnownOperand:
        return KnownOperand(self.dtypes.get(value), self.dims.get(value), self._numbers.get(value))

    def _note_open(self, value: ir.Value, sure: Dims | None, rank: int) -> None:
        """Note on which axes `value` may be smaller than its bound: where neither inference without bounds knows it, nor `sure`."""
        tables = [dims for dims in (self.dims.get(value), sure) if dims is not None and len(dims) == rank]
        self._open[value] = {axis for axis in range(rank) if not any(isinstance(dims[axis], int) for dims in tables)}

    def _fails(self, node: ir.Node, model: onnx.ModelProto) -> bool:
        """Return whether onnx finds the sizes of the inputs of `node` (alone in `model`) to be wrong: a branch that a run never takes."""
        if not all(value is None or self._sizes(value) is not None for value in node.inputs):
            return False
        try:
            onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError as error:
            return "ShapeInferenceError" in str(error)
        return False

    def note(self, value: ir.Value, dtype: ir.DataType | None, dims: Dims | None) -> None:
        """Add to what is known of `value`; a number stays what it was.

        Engines that do not know which branch is taken may have the wrong rank, too, where they know no size.
        """
        if dims is not None:
            before = self.dims.get(value) or (None,) * len(dims)
            if len(before) != len(dims) and self._sizes(value) is None:
                before = (None,) * len(dims)
            if len(before) == len(dims):
                merged = tuple(b if isinstance(b, int) or f is None else f for b, f in zip(before, dims, strict=True))
                if merged != self.dims.get(value):
                    self._news.add(value)
                self.dims[value] = merged
        if dtype is not None and dtype != ir.DataType.UNDEFINED and value not in self.dtypes:
            self.dtypes[value] = dtype

    def _one_node(self, node: onnx.NodeProto, typed: Mapping[str, ir.Value], *, sure: bool = False) -> onnx.ModelProto:
        """Return a model of `node` alone; `typed` inputs have their shapes, and their numbers where these are known.

        With `sure`, only what is the same whether bounds are reached or not.
        """
        held = {n: v for n, v in typed.items() if v in self._numbers and not (sure and v in self._least)}
        growth = _growth(node)
        least = "" if growth is None or growth.shrinks_by is None else (*node.input, "", "")[growth.shrinks_by]
        constants = [numpy_helper.from_array(self._interval(v)[0 if n == least else 1], n) for n, v in held.items()]
        inputs: dict[str, onnx.TypeProto | None] = {
            name: self._type(value, sure=sure) for name, value in typed.items() if name not in held
        }
        if not typed:
            inputs = {name: None for name in node.input if name}
        outputs = [name for name in node.output if name]
        functions = self._called(node)
        return assembled([node], inputs, outputs, self._opsets, constants=constants, functions=functions)

    def _type(self, value: ir.Value, *, sure: bool) -> onnx.TypeProto:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return ir.serde.serialize_type(value.type)
        dtype, dims = self.dtypes.get(value), self.dims.get(value)
        if sure and dims is not None and value in self.upper:
            open_ = self._open.get(value, range(len(dims)))
            dims = tuple(None if axis in open_ else dim for axis, dim in enumerate(dims))
        return tensor_type(dtype, dims)

    def _called(self, node: onnx.NodeProto) -> Iterator[onnx.FunctionProto]:
        if (node.domain, node.op_type, node.overload) not in self._model.functions:
            return
        if self._functions is None:
            self._functions = [ir.serde.serialize_function(one) for one in self._model.functions.values()]
        yield from self._functions


def _inferred(model: onnx.ModelProto) -> dict[str, Known] | None:
    """Return onnx's inferred types of the outputs of `model`, which has one node, by name; None where inference fails."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    found = {}
    for info in inferred.graph.output:
        tensor = info.type.tensor_type
        if tensor.HasField("shape"):
            sizes = (dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
            dims = tuple(None if size is None or size < 0 else size for size in sizes)
            found[info.name] = Known(ir.DataType(tensor.elem_type) if tensor.elem_type else None, dims)
    return found


def _growth(node: ir.Node | onnx.NodeProto) -> ShapeGrowth | None:
    row = operators().get(node.op_type)
    return None if row is None else row.grows


def _computes_sizes(node: ir.Node) -> bool:
    row = operator_of(node)
    return row is not None and row.numbers is not None


def _measured(node: ir.Node, sizes: Sequence[int]) -> Array:
    """Return the output of `node`, a Shape or a Size, for a tensor of these `sizes`."""
    end = node.attributes.get("end")
    part = sizes[node.attributes.get_int("start", 0) : None if end is None else end.as_int()]
    return np.asarray(math.prod(sizes) if node.op_type == "Size" else part, np.int64)


def _with_names(node: ir.Node) -> tuple[onnx.NodeProto, dict[ir.Value, str]]:
    """Return `node` with names of its own for what it reads and makes, and these names."""
    proto = ir.serde.serialize_node(node)
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    return proto, {value: value.name or "" for value in values}


def _evaluated(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
    """Return the results of onnx's reference implementation; an empty list where it fails."""
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = ReferenceEvaluator(model).run(None, dict(feeds))
    except (ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return []
    return list(made) if isinstance(made, list) else []
