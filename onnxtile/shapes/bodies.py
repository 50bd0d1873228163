"""Bodies of If, Loop and Scan: the shapes in them, and of what these nodes hand out; and which shapes depend on the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxtile.model.known import numeric
from onnxtile.model.topology import bodies_of, nodes_inside, values_in
from onnxtile.operators.node_view import Dim, Dims
from onnxtile.operators.table import operator_of
from onnxtile.shapes.formulas import SizeFormulas
from onnxtile.system.runtime import Array

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
    if any(node.inputs[index] in elements for index in shape_operands(node)):
        return node
    return None


def shape_operands(node: ir.Node) -> list[int]:
    """Return the places of the inputs of `node` on whose elements the shape of its output depends; none for unknown domains."""
    row = operator_of(node)
    return [] if row is None else [index for index in range(len(node.inputs)) if index in row.shaped_by]


# Shapes inside the bodies of If, Loop and Scan, and of what these nodes hand out.
#
# Engines of shape inference stop where a body's input has no declared shape: what a loop carries may change its shape from one run of the
# body to the next. Here the body is visited with the shapes of the first run. Dimensions that its outputs change are then unknown, and the
# body is visited again, until its outputs have the shapes of its inputs.


class KnownTensors(ABC):
    """What is known of the values of a model so far, and a way to learn more: element types, dimensions, and few numbers.

    Of a number whose bounds alone are known, `_numbers` has the most and `_least` the least. `_lists` are short lists of sizes, `_news` the
    values of which more is known than at first.
    """

    def __init__(
        self, dtypes: Mapping[ir.Value, ir.DataType], dims: Mapping[ir.Value, Dims], news: Iterable[ir.Value]
    ) -> None:
        self._known_before = dims
        self.dtypes = dict(dtypes)
        self.dims = dict(dims)
        self.never: dict[ir.Value, str] = {}
        self._least: dict[ir.Value, Array] = {}
        self._numbers: dict[ir.Value, Array] = {}
        self._lists: dict[ir.Value, SizeFormulas] = {}
        self._news: set[ir.Value] = set(news)

    @abstractmethod
    def visit(self, body: ir.Graph) -> None:
        """Learn what the nodes of `body` make, in order."""

    def dims_of(self, value: ir.Value) -> Dims | None:
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
            self._lists.pop(value, None)
            self.never.pop(value, None)
            self._news.discard(value)
            if value in self._known_before:
                self.dims[value] = self._known_before[value]
            else:
                self.dims.pop(value, None)

    def note(self, value: ir.Value, dtype: ir.DataType | None, dims: Dims | None) -> None:
        """Add to what is known of `value`; a number stays what it was.

        Inference that does not know which branch is taken may have the wrong rank, too, where it knows no size.
        """
        if dims is not None:
            before = self.dims.get(value) or (None,) * len(dims)
            if len(before) != len(dims) and self._numeric(value) is None:
                before = (None,) * len(dims)
            if len(before) == len(dims):
                merged = tuple(b if isinstance(b, int) or f is None else f for b, f in zip(before, dims, strict=True))
                if merged != self.dims.get(value):
                    self._news.add(value)
                self.dims[value] = merged
        if dtype is not None and dtype != ir.DataType.UNDEFINED and value not in self.dtypes:
            self.dtypes[value] = dtype

    def _has_open(self, values: Iterable[ir.Value]) -> bool:
        """Return whether a size of one of `values` that have names is not known."""
        for value in values:  # noqa: SIM110 - asked of the results of each node, and `any` takes thrice as long
            if numeric(self.dims.get(value)) is None and value.name:
                return True
        return False

    def _numeric(self, value: ir.Value) -> tuple[int, ...] | None:
        """Return the sizes of `value` where all are numbers."""
        return numeric(self.dims.get(value))


def follow(node: ir.Node, table: KnownTensors) -> None:
    """Note the shapes in the bodies of `node`, an If, Loop or Scan, and those of its outputs."""
    {"If": _follow_if, "Loop": _follow_loop, "Scan": _follow_scan}[node.op_type](node, table)


def _follow_if(node: ir.Node, table: KnownTensors) -> None:
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
    for index, value in enumerate(node.outputs if ending else ()):
        _note_common(table, value, [branch.outputs[index] for branch in ending])


def _follow_loop(node: ir.Node, table: KnownTensors) -> None:
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
        dims = table.dims_of(inside)
        table.note(value, table.type_of(inside), None if dims is None else (trips, *dims))


def _follow_scan(node: ir.Node, table: KnownTensors) -> None:
    body, scanned = _body(node, "body"), node.attributes.get_int("num_scan_inputs", 0)
    if body is None or len(body.inputs) != len(node.inputs):
        return
    states = len(node.inputs) - scanned
    axes = list(node.attributes.get_ints("scan_input_axes", [0] * scanned))
    length: Dim = None
    for given, inside, axis in zip(node.inputs[states:], body.inputs[states:], axes, strict=True):
        dims = table.dims_of(given) if given is not None else None
        if given is None or not dims:
            continue
        length = dims[axis] if length is None or isinstance(dims[axis], int) else length
        at = axis % len(dims)
        table.note(inside, table.type_of(given), (*dims[:at], *dims[at + 1 :]))
    carried = list(zip(node.inputs[:states], body.inputs[:states], body.outputs[:states], strict=True))
    _settle(body, carried, table)
    for (_, inside, handed_on), value in zip(carried, node.outputs, strict=False):
        _note_common(table, value, [inside, handed_on])
    handed_out = body.outputs[states:]
    axes = list(node.attributes.get_ints("scan_output_axes", [0] * len(handed_out)))
    for inside, value, axis in zip(handed_out, node.outputs[states:], axes, strict=True):
        dims = table.dims_of(inside)
        if dims is not None:
            at = axis % (len(dims) + 1)
            table.note(value, table.type_of(inside), (*dims[:at], length, *dims[at:]))


def _settle(body: ir.Graph, carried: Sequence[tuple[ir.Value | None, ir.Value, ir.Value]], table: KnownTensors) -> None:
    """Visit `body` with the shapes that its node reads, then with fewer known dimensions, until its outputs have those of its inputs."""
    wanted = [table.dims_of(given) if given is not None else None for given, _, _ in carried]
    given_in = set(body.inputs)
    inner_values = (value for value in values_in(body) if value not in given_in)
    inner = [*(inside for _, inside, _ in carried), *inner_values]
    for _ in range(1 + sum(len(dims) for dims in wanted if dims)):
        for (given, inside, _), dims in zip(carried, wanted, strict=True):
            table.note(inside, table.type_of(given) if given is not None else None, dims)
        table.visit(body)
        common = [_common(table.dims_of(inside), table.dims_of(out)) for _, inside, out in carried]
        if all(table.dims_of(inside) == dims for (_, inside, _), dims in zip(carried, common, strict=True)):
            return
        table.forget(inner)
        wanted = common


def _trips(node: ir.Node, body: ir.Graph, table: KnownTensors) -> int | None:
    """Return how often the body of a Loop runs, where nothing but a known number ends it."""
    most, condition = node.inputs[0], node.inputs[1]
    limit = None if most is None else table.number(most)
    starts = True if condition is None else table.number(condition)
    if limit is None or starts is None or np.size(limit) != 1 or not _goes_on(body, table):
        return None
    return max(0, int(np.asarray(limit).reshape(()))) if np.all(starts) else 0


def _goes_on(body: ir.Graph, table: KnownTensors) -> bool:
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


def _note_common(table: KnownTensors, value: ir.Value, sources: Sequence[ir.Value]) -> None:
    dims = table.dims_of(sources[0])
    for other in sources[1:]:
        dims = _common(dims, table.dims_of(other))
    dtype = next((type_ for source in sources if (type_ := table.type_of(source)) is not None), None)
    table.note(value, dtype, dims)


def _common(left: Dims | None, right: Dims | None) -> Dims | None:
    """Return the dimensions that are equal in both; None for the others."""
    if left is None or right is None or len(left) != len(right):
        return None
    return tuple(a if a == b else None for a, b in zip(left, right, strict=True))


def _body(node: ir.Node, name: str) -> ir.Graph | None:
    attribute = node.attributes.get(name)
    return None if attribute is None or attribute.is_ref() else attribute.as_graph()


def made_inside(node: ir.Node) -> list[ir.Value]:
    """Return the values of the bodies of `node`, at any depth, and their inputs."""
    return [value for body in bodies_of(node) for value in values_in(body.graph)]
