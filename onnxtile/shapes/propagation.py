"""The forward pass over a model: element types, sizes, and the few numbers and formulas of shape arithmetic, node by node.

onnx's inference of a whole model loses sizes at Where, Equal and ScatterND, at sums of names, and after each operator that it lacks. Here
each node is asked alone, with what is known of its operands: the rules of `formulas`, onnx, and onnxruntime for its own operators. Few
numbers are computed, by onnx's reference implementation. No activation is computed, whatever its size.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from onnx_ir._cloner import Cloner  # no published name writes out a call of a function

from onnxtile.model.constants import constant_tensor
from onnxtile.model.formula import SizeFormula, SizeRange, SizeRanges, read_size
from onnxtile.model.known import NOTHING, Known
from onnxtile.model.submodel import assembled, tensor_type
from onnxtile.model.topology import DTYPES, bodies_of, dependencies, has_body, plain_attributes, stored_sizes
from onnxtile.operators.node_view import Dim, Dims, given_input
from onnxtile.operators.table import CONTROL_FLOW, ShapeGrowth, operator_of, operators
from onnxtile.shapes.bodies import KnownTensors, follow, made_inside, shape_operands
from onnxtile.shapes.contributed import KnownOperand, contributed_operators, results
from onnxtile.shapes.formulas import MOST_LISTED, SizeFormulas, SizeOperands, is_whole, result_list, result_sizes
from onnxtile.system.errors import ModelError
from onnxtile.system.interpreter import collector_paused
from onnxtile.system.runtime import Array, Session
from onnxtile.system.text import LARGEST_COUNT

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


_MOST = 4096
"""Elements of the largest tensor that is computed."""


_MOST_ENTERED = 100_000
"""Nodes of all functions together that are visited for each call of their own"""


class Propagation(KnownTensors):
    """Carries sizes and numbers forward through a model and the bodies in it; `dtypes` and `dims` say what is known before.

    Of the values `news` onnx's inference of the whole model did not know. Those in `upper` are not larger than it says on the axes named
    there; of the numbers that follow the least and the most are known, and of shapes the largest. A dimension that is no number is the text
    of a formula of symbols: those of `ranges`, and a name for each size of which nothing is known.
    """

    def __init__(
        self,
        model: ir.Model,
        dtypes: Mapping[ir.Value, ir.DataType],
        dims: Mapping[ir.Value, Dims],
        news: Iterable[ir.Value] = (),
        upper: Mapping[ir.Value, Collection[int]] | None = None,
        ranges: SizeRanges | None = None,
    ) -> None:
        super().__init__(dtypes, dims, news)
        self._model = model
        self.upper = set(upper or ())
        self._open = dict(upper or {})
        self._computed: set[ir.Value] = set()
        self._unread: set[ir.Value] = set()
        self._ranges: dict[str, SizeRange] = {**named_sizes(model), **(ranges or {})}
        self._formulas: dict[str, SizeFormula] = {}
        self._taken = {dim for known in dims.values() for dim in known if isinstance(dim, str)}
        self._fresh = (name for n in count() if (name := f"_d{n}") not in self._taken)
        self._opsets = model.graph.opset_imports
        self._functions: list[onnx.FunctionProto] | None = None
        self._asked: dict[Hashable, list[Known]] = {}
        self._computed_before: dict[Hashable, list[Array]] = {}
        self._wanted: set[ir.Value] | None = None
        self._contributed = contributed_operators(model)
        self._entered = 0
        self._bodies = 0

    @collector_paused()
    def run(self, *, only_sizes: bool = False) -> None:
        """Visit every node in order; those in a loop until the shapes that it carries are settled.

        With `only_sizes`, of the main graph those numbers alone are computed that may decide a size.
        """
        if only_sizes and not self.upper:
            self._wanted = self._deciding()
        if not self.upper:
            self._name_open(self._model.graph.inputs)
        for value in self._model.graph.initializers.values():
            self._hold(value, value.const_value, wanted=self._wanted is None or value in self._wanted)
        for node in self._model.graph:
            self._visit(node)

    def _deciding(self) -> set[ir.Value]:
        """Return the values of the main graph whose elements may decide a size that is not known, or which body runs."""
        deciding: set[ir.Value] = set()
        for node in reversed(self._model.graph):
            row = operator_of(node)
            if row is None or has_body(node) or self._is_contributed(node):
                deciding.update(dependencies(node))
            elif row.numbers is not None and not deciding.isdisjoint(node.outputs):
                deciding.update(value for value in node.inputs if value is not None)
            elif self._has_open(node.outputs):
                places = enumerate(node.inputs)
                deciding.update(v for i, v in places if v is not None and (i in row.shaped_by or i in row.set_by))
        return deciding

    def visit(self, body: ir.Graph) -> None:
        """Visit the nodes of `body` once, in order."""
        self._bodies += 1
        for value in body.initializers.values():
            self._hold(value, value.const_value)
        for node in body:
            self._visit(node)
        self._bodies -= 1

    def sizes(self, value: ir.Value) -> SizeFormulas | None:
        """Return the dimensions of `value` as formulas; None where one is not known."""
        dims = self.dims.get(value)
        if dims is None or None in dims:
            return None
        return tuple(self._formula(dim) for dim in dims if dim is not None)

    # Sizes as formulas, and their texts.

    def _formula(self, dim: int | str) -> SizeFormula:
        """Return a dimension as a formula; one that cannot be read is a symbol of its own."""
        if isinstance(dim, int):
            return SizeFormula.number(dim)
        if dim not in self._formulas:
            formula = read_size(dim, self._ranges)
            if formula is None:
                self._ranges[dim] = (0, LARGEST_COUNT)
                formula = SizeFormula.symbol(dim)
            self._formulas[dim] = formula
        return self._formulas[dim]

    def _dim(self, size: SizeFormula | None) -> Dim:
        if size is None or size.constant is not None:
            return None if size is None else size.constant
        text = str(size)
        self._formulas[text] = size
        return text

    def _name_open(self, values: Iterable[ir.Value]) -> None:
        """Give each size of `values` of which nothing is known a name of its own."""
        for value in values:
            dims = self.dims.get(value)
            if dims is not None and None in dims:
                self.dims[value] = tuple(next(self._fresh) if dim is None else dim for dim in dims)
                self._news.add(value)

    # Nodes.

    def _visit(self, node: ir.Node) -> None:
        standard = not node.domain
        if self.never:
            lost = self.why_never(value for value in node.inputs if value is not None)
            if lost is not None:
                self.lose((*node.outputs, *made_inside(node)), lost)
                return
        open_ = [value for value in node.outputs if self._numeric(value) is None] if self.upper else []
        if standard and node.op_type in CONTROL_FLOW:
            if self._depends_on_bounds(node):
                self.upper.update(value for body in bodies_of(node) for value in body.graph.inputs)
            follow(node, self)
        elif not self._least or not self._may_grow(node):
            self._visit_kernel(node, standard)
        if open_ and self._depends_on_bounds(node):
            self.upper.update(value for value in open_ if self._numeric(value) is not None)
        if not self.upper:
            self._name_open(node.outputs)

    def _depends_on_bounds(self, node: ir.Node) -> bool:
        if not self.upper and not self._least:
            return False
        read = (*node.inputs, *(value for body in bodies_of(node) for value in body.graph.outputs))
        return any(value in self.upper or value in self._least for value in read)

    def _may_grow(self, node: ir.Node) -> bool:
        """Return whether the shape of the output of `node` might get larger where a bound is not reached."""
        loose = {index for index, value in enumerate(node.inputs) if value in self._least}
        if not loose or node.op_type in {"Shape", "Size"}:
            return False
        if node.domain:
            return True
        deciding, growth = loose.intersection(shape_operands(node)), _growth(node)
        if growth is None or not deciding:
            return bool(deciding)
        return bool(deciding - {growth.by, growth.shrinks_by}) or not self._counts_up(node, growth, deciding)

    def _counts_up(self, node: ir.Node, growth: ShapeGrowth, places: Iterable[int]) -> bool:
        """Return whether a Range or Slice counts up, and the numbers at `places` from one end of an axis."""
        if growth.step is None:
            return True
        step = given_input(node, growth.step)
        rises = step is None or (step in self._numbers and bool((self._interval(step)[0] > 0).all()))
        return rises and all(keeps_its_sign(self._interval(node.inputs[index])) for index in places)

    def _visit_kernel(self, node: ir.Node, standard: bool) -> None:
        if standard and node.op_type == "Constant":
            self._hold(node.outputs[0], constant_tensor(node), wanted=self._is_wanted(node))
            return
        if standard and node.op_type in {"Shape", "Size"}:
            self._measure(node)
        elif self._has_open(node.outputs):
            self._find_sizes(node, standard)
        if standard and _computes_sizes(node):
            if self._is_wanted(node):
                self._compute(node)
            elif self._is_small(node):
                self._computed.update(node.outputs)

    def _is_wanted(self, node: ir.Node) -> bool:
        """Return whether numbers that `node` makes may decide a size; those in bodies and functions count as if they did."""
        if self._wanted is None or node.graph is not self._model.graph:
            return True
        return not self._wanted.isdisjoint(node.outputs)

    def _find_sizes(self, node: ir.Node, standard: bool) -> None:
        # Where nothing is new, onnx has said of the whole model what it has to say; of onnxruntime's operators only that can.
        new = self._bodies > 0 or node.graph is not self._model.graph or self._is_contributed(node)
        new = new or any(value in self._news for value in node.inputs)
        if new or all(value is None or self._numeric(value) is not None for value in node.inputs):
            self._infer(node)
        if not self._has_open(node.outputs):
            return
        if standard and not has_body(node) and not self._depends_on_bounds(node):
            result_shapes = result_sizes(self._operands(node))
            for value, sizes in zip(node.outputs, result_shapes or (), strict=False):
                if sizes is not None:
                    self.note(value, None, tuple(map(self._dim, sizes)))
        if node.op_identifier() in self._model.functions and not self._is_contributed(node):
            self._enter(node)

    def _operands(self, node: ir.Node) -> SizeOperands:
        shapes = [None if value is None else self.sizes(value) for value in node.inputs]

        def reals(index: int) -> list[float] | None:
            value = given_input(node, index)
            array = None if value is None or value in self._least else self._numbers.get(value)
            return array.ravel().tolist() if array is not None and array.dtype.kind == "f" else None

        return SizeOperands(node, shapes, lambda index: self._list(node, index), reals, self._unknown, self._ranges)

    def _unknown(self) -> SizeFormula:
        """Return a symbol for a whole number of which nothing is known."""
        name = next(self._fresh)
        self._ranges[name] = (-LARGEST_COUNT, LARGEST_COUNT)
        return SizeFormula.symbol(name)

    def _list(self, node: ir.Node, index: int) -> SizeFormulas | None:
        """Return the elements of an operand that is a short list of whole numbers, or one of them."""
        value = given_input(node, index)
        array = None if value is None or value in self._least else self._numbers.get(value)
        if value is None or array is None:
            return None if value is None else self._lists.get(value)
        is_list = array.size <= MOST_LISTED and array.dtype.kind in "ib"
        return tuple(map(SizeFormula.number, map(int, array.ravel().tolist()))) if is_list else None

    def _enter(self, call: ir.Node) -> None:
        """Learn the sizes of what a local function makes from its nodes, which read the operands of this `call`."""
        function = self._model.functions[call.op_identifier()]
        self._entered += len(function)
        if self._entered > _MOST_ENTERED or all(self._numeric(value) is not None for value in call.outputs):
            return
        stand_ins = [None if value is None else self._stand_in(value) for value in call.inputs]
        nodes, outputs = opened(function, stand_ins, call.attributes)
        around, self._opsets = self._opsets, function.opset_imports
        for node in nodes:
            self._visit(node)
        self._opsets = around
        for value, inner in zip(call.outputs, outputs, strict=False):
            if inner is not None:
                self.note(value, self.dtypes.get(inner), self.dims.get(inner))

    def _stand_in(self, operand: ir.Value) -> ir.Value:
        """Return a value of which all is known that is of `operand`: the nodes of the model must not get another reader."""
        value = ir.Value(name=operand.name, type=operand.type)
        tables: tuple[dict[ir.Value, Any], ...] = (
            self.dtypes,
            self.dims,
            self._numbers,
            self._least,
            self._lists,
            self._open,
        )
        for table in tables:
            if operand in table:
                table[value] = table[operand]
        if operand in self.upper:
            self.upper.add(value)
        return value

    def _hold(self, value: ir.Value, tensor: ir.TensorProtocol | None, *, wanted: bool = True) -> None:
        """Note the elements of a small constant; where they are not `wanted`, only that they are known, which takes a tenth of the time."""
        if tensor is None:
            return
        sizes, dtype = self._numeric(value), self.dtypes.get(value)
        if sizes is None or dtype is None:
            sizes, dtype = stored_sizes(tensor), tensor.dtype
        if math.prod(sizes) <= _MOST and dtype is not ir.DataType.STRING:
            if wanted:
                self._numbers[value] = tensor.numpy()
            else:
                self._unread.add(value)
            if value not in self.dims:
                self.note(value, dtype, sizes)

    def _measure(self, node: ir.Node) -> None:
        sizes = None if node.inputs[0] is None else self._numeric(node.inputs[0])
        if sizes is None:
            elements = result_list(self._operands(node))
            if elements is not None:
                self.note(node.outputs[0], ir.DataType.INT64, () if node.op_type == "Size" else (len(elements),))
                self._hold_list(node.outputs[0], elements, ir.DataType.INT64)
            return
        self._learn(node.outputs[0], _measured(node, sizes))
        if node.inputs[0] in self.upper:
            open_ = self._open.get(node.inputs[0], range(len(sizes)))
            self._least[node.outputs[0]] = _measured(node, [0 if i in open_ else n for i, n in enumerate(sizes)])

    def _learn(self, value: ir.Value, array: Array) -> None:
        self._numbers[value] = array
        self._computed.add(value)
        self.dims[value] = array.shape
        self._news.add(value)

    def _is_small(self, node: ir.Node) -> bool:
        """Tell whether all inputs of `node` are known numbers, and its outputs are few."""
        known = (self._numbers, self._computed, self._unread)
        if not all(value is None or any(value in table for table in known) for value in node.inputs):
            return False
        # How many places NonZero finds, no inference says: no more than there are.
        counted = node.op_type == "NonZero"
        sizes = [self._numeric(value) for value in (node.inputs if counted else node.outputs) if value is not None]
        return all(size is not None and math.prod(size) <= _MOST for size in sizes)

    def _compute(self, node: ir.Node) -> None:
        """Note the elements of what `node` makes of known numbers, or of lists of sizes."""
        if any(value in self._least for value in node.inputs):
            if self._is_small(node):
                self._compute_intervals(node)
            return
        elements, value = None, node.outputs[0]
        dtype = self.dtypes.get(value)
        if len(node.outputs) == 1 and is_whole(dtype):
            elements = result_list(self._operands(node))
        if elements is not None and dtype is not None and self._hold_list(value, elements, dtype):
            return
        if self._is_small(node):
            arrays = self._evaluate(
                node, [None if operand is None else self._numbers[operand] for operand in node.inputs]
            )
            for value, array in zip(node.outputs, arrays, strict=False):
                self._learn(value, array)

    def _hold_list(self, value: ir.Value, elements: SizeFormulas, dtype: ir.DataType) -> bool:
        """Note the elements of `value`, and return whether that is all there is to know of them."""
        numbers = [size.constant for size in elements]
        if None in numbers:
            self._lists[value] = elements
            return True
        sizes = self._numeric(value)
        if sizes is None or math.prod(sizes) != len(numbers):
            return False
        self._learn(value, np.asarray(numbers, dtype.numpy()).reshape(sizes))
        return True

    def _compute_intervals(self, node: ir.Node) -> None:
        operands = [None if value is None else self._interval(value) for value in node.inputs]
        intervals = interval_results(node.op_type, operands, lambda numbers: self._evaluate(node, numbers))
        for value, (least, most) in zip(node.outputs, intervals or (), strict=False):
            self._learn(value, most)
            if not np.array_equal(least, most):
                self._least[value] = least

    def _interval(self, value: ir.Value | None) -> Interval:
        assert value is not None
        most = self._numbers[value]
        return self._least.get(value, most), most

    def _evaluate(self, node: ir.Node, numbers: Sequence[Array | None]) -> list[Array]:
        """Return the outputs of `node` on `numbers`, one array for each input; an empty list where it cannot be computed."""
        attributes = plain_attributes(node)
        called = node.op_identifier() in self._model.functions
        named = tuple(bool(value.name) for value in node.outputs)
        key = (node.op_identifier(), id(self._opsets), attributes, tuple(map(_content, numbers)), named)
        if attributes is None or called:
            return self._evaluated(node, numbers)
        if key not in self._computed_before:
            self._computed_before[key] = self._evaluated(node, numbers)
        return self._computed_before[key]

    def _evaluated(self, node: ir.Node, numbers: Sequence[Array | None]) -> list[Array]:
        """Load `node` into a session, and return what it makes of `numbers`."""
        proto, names = _with_names(node)
        given = zip(node.inputs, numbers, strict=True)
        feeds = {names[value]: array for value, array in given if value is not None and array is not None}
        types = {name: tensor_type(ir.DataType.from_numpy(array.dtype), array.shape) for name, array in feeds.items()}
        outputs = [name for name in proto.output if name]
        return _evaluated(assembled([proto], types, outputs, self._opsets, functions=self._called(proto)), feeds)

    def _infer(self, node: ir.Node) -> None:
        """Note what onnx infers for the outputs of `node` from the shapes of its inputs and from known numbers.

        Raises ModelError where they contradict the operator. In a branch that says that no run takes it.
        """
        if self._is_contributed(node):
            self._ask(node)
            return
        key = self._signature(node)
        results = self._asked.get(key) if key is not None else None
        if results is None:
            results = self._results(node)
            if key is not None and results and all(known.dims is not None for known in results):
                self._asked[key] = results
        for value, known in zip(node.outputs, results, strict=False):
            self.note(value, known.dtype, known.dims)

    def _signature(self, node: ir.Node) -> Hashable | None:
        """Return a key that only nodes with equal results have; None where asking onnx tells sooner."""
        attributes = plain_attributes(node)
        if (
            attributes is None
            or self._bodies
            or self._depends_on_bounds(node)
            or node.op_identifier() in self._model.functions
        ):
            return None
        operands: list[Hashable] = []
        row = operator_of(node)
        for index, value in enumerate(node.inputs):
            number = None if value is None else self._numbers.get(value)
            if number is not None and number.dtype.kind == "f" and row is not None:
                # Of weights, each layer has others; few operators have a result whose sizes depend on them.
                number = number if index in row.shaped_by or index in row.set_by else None
            if value is None or number is not None:
                operands.append(_content(number))
            elif value.type is None or isinstance(value.type, ir.TensorType):
                operands.append((self.dtypes.get(value), self.dims.get(value)))
            else:
                return None
        named = tuple(bool(value.name) for value in node.outputs)
        return node.op_identifier(), id(self._opsets), attributes, tuple(operands), named

    def _results(self, node: ir.Node) -> list[Known]:
        """Return what onnx infers for the outputs of `node`; an empty list where that is nothing. Raises as `_infer`."""
        proto, names = _with_names(node)
        typed = {names[value]: value for value in dict.fromkeys(node.inputs) if value is not None}
        model = self._one_node(proto, typed)
        inferred = _inferred(model)
        if inferred is None:
            return []
        is_said = all(known.dims is not None for known in inferred.values())
        failure = None if is_said and not self._bodies else self._failure(node, model)
        if failure is not None:
            # At sizes that a model cannot run with, the numbers that it computes are wrong: then the result stays open.
            if not self._bodies and not self._computed.isdisjoint(value for value in node.inputs if value is not None):
                return []
            if not self._bodies:
                raise ModelError(f"the shapes contradict each other: {failure}")
            reason = f"never made: {node.op_type} {node.name or ''}".rstrip() + " cannot run on tensors of these shapes"
            self.lose(node.outputs, reason)
            return []
        sure = (_inferred(self._one_node(proto, typed, sure=True)) or {}) if self._depends_on_bounds(node) else None
        shown = {dim for value in node.inputs if value is not None for dim in self.dims.get(value) or ()}
        results = []
        for value in node.outputs:
            known = inferred.get(names.get(value, ""), NOTHING)
            if known.dims is not None and sure is not None:
                self._note_open(value, sure.get(names[value], NOTHING).dims, len(known.dims))
            dims = (
                None
                if known.dims is None
                else tuple(d if isinstance(d, int) or d in shown else None for d in known.dims)
            )
            results.append(Known(known.dtype, dims))
        return results

    def _is_contributed(self, node: ir.Node) -> bool:
        return bool(self._contributed) and (node.domain, node.op_type) in self._contributed

    def _ask(self, node: ir.Node) -> None:
        """Note what onnxruntime infers for the outputs of `node`, an operator of its own."""
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        for value, known in zip(node.outputs, results(node, operands, self._opsets), strict=True):
            self.note(value, known.dtype, known.dims)

    def _operand(self, value: ir.Value) -> KnownOperand:
        return KnownOperand(self.dtypes.get(value), self.dims.get(value), self._numbers.get(value))

    def _note_open(self, value: ir.Value, sure: Dims | None, rank: int) -> None:
        """Note on which axes `value` may be smaller than its bound: where neither inference without bounds knows it, nor `sure`."""
        tables = [dims for dims in (self.dims.get(value), sure) if dims is not None and len(dims) == rank]
        self._open[value] = {axis for axis in range(rank) if not any(isinstance(dims[axis], int) for dims in tables)}

    def _failure(self, node: ir.Node, model: onnx.ModelProto) -> str | None:
        """Return what onnx finds to be wrong with the sizes of the inputs of `node`, alone in `model`; None where it finds nothing."""
        if not all(value is None or self._numeric(value) is not None for value in node.inputs):
            return None
        try:
            onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError as error:
            text = " ".join(str(error).split())
            # Of functions by which onnx defines operators, some are refused for all operands.
            return text if "ShapeInferenceError" in text and text.count("(op_type:") < 2 else None
        return None

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
            self._functions = [ir.serde.serialize_function(function) for function in self._model.functions.values()]
        yield from self._functions


def named_sizes(model: ir.Model) -> dict[str, SizeRange]:
    """Return the names of single dimensions of the inputs of `model`: a size that has a name is at least 1."""
    dims = (dim for value in model.graph.inputs for dim in value.shape or ())
    names = (dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value)
    return {name: (1, LARGEST_COUNT) for name in names if re.fullmatch(r"[A-Za-z_]\w*", name)}


def opened(
    function: ir.Function, operands: Sequence[ir.Value | None], attributes: Mapping[str, ir.Attr]
) -> tuple[list[ir.Node], list[ir.Value | None]]:
    """Return copies of the nodes of `function` that read the `operands` of a call with these attributes, and what its outputs are."""
    given = {a.name: a for a in function.attributes.values() if a.is_ref() or a.value is not None} | dict(attributes)
    read = [*operands, *[None] * (len(function.inputs) - len(operands))]
    copies: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, read, strict=True))
    cloner = Cloner(attr_map=given, value_map=copies, metadata_props={}, resolve_ref_attrs=True)
    nodes = [cloner.clone_node(node) for node in function]
    return nodes, [copies[value] for value in function.outputs]


def _inferred(model: onnx.ModelProto) -> dict[str, Known] | None:
    """Return onnx's inferred types of the outputs of `model`, which has one node, by name; None where inference fails."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    return {info.name: known_of(info.type) for info in inferred.graph.output}


def known_of(type_: onnx.TypeProto) -> Known:
    """Return what a type of onnx says of a tensor; in a branch that no run takes, a size may come out negative."""
    return _known_of(type_.SerializeToString())  # protobuf takes longer to show a type than to write it


@lru_cache(2**12)
def _known_of(written: bytes) -> Known:
    type_ = onnx.TypeProto.FromString(written)
    if not type_.HasField("tensor_type"):
        return NOTHING
    tensor = type_.tensor_type
    dtype = DTYPES[tensor.elem_type] if tensor.elem_type else None
    return Known(dtype, tuple(map(_dim_of, tensor.shape.dim)) if tensor.HasField("shape") else None)


def _dim_of(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    size = dim.dim_value
    if size > 0:
        return size
    return (0 if size == 0 else None) if dim.HasField("dim_value") else dim.dim_param or None


def _content(number: Array | None) -> Hashable:
    """Return a key that only arrays of equal elements have."""
    return None if number is None else (number.dtype, number.shape, number.tobytes())


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
    """Return `node` with a name for each value that it reads and makes, and these names.

    Values of the graph around a call and of the function that is called may have one name.
    """
    proto = ir.serde.serialize_node(node)
    say_default(proto)
    values = dict.fromkeys(value for value in (*node.inputs, *node.outputs) if value is not None and value.name)
    names = {value: value.name or "" for value in values}
    if len(set(names.values())) < len(names):
        names = {value: f"value{number}" for number, value in enumerate(values)}
        for written, used in ((proto.input, node.inputs), (proto.output, node.outputs)):
            written[:] = [names.get(value, "") if value is not None else "" for value in used]
    return proto, names


def say_default(node: onnx.NodeProto) -> None:
    """Write the default of an attribute of which onnx's inference takes another one (in place): an STFT is of real signals."""
    if node.op_type == "STFT" and all(attribute.name != "onesided" for attribute in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _evaluated(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the results of onnxruntime, where it lacks a kernel of onnx's reference implementation; an empty list where both fail."""
    try:
        results = list(Session(model.SerializeToString()).run(feeds).values())
    except ModelError:
        results = _by_reference(model, feeds)
    return results if all(isinstance(result, np.ndarray | np.generic) for result in results) else []


def _by_reference(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator  # takes as long to import as a hundred sessions

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(model).run(None, dict(feeds))
    except (ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return []
    return list(map(np.asarray, results)) if isinstance(results, list) else []
