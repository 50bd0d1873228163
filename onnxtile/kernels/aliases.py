"""Finds the aliases that a model allows: results that may share bytes with an operand, by the rows of operators.

The rows are the authority; a run inside the arena is evidence. A result is a view where the ONNX specification gives it the same elements
in the same order and of the same type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate, product
from math import prod
from operator import mul
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxtile.kernels.kernel_graph import ByteSpan
from onnxtile.model import keys
from onnxtile.model.binding import Unbound, free_inputs
from onnxtile.model.constants import Constants
from onnxtile.model.node_kinds import RandomNodes, dequantises, quantises
from onnxtile.model.opset import opset_of
from onnxtile.model.topology import all_nodes, dependencies, is_read_outside, main_graphs
from onnxtile.operators.families.movement import slice_ranges
from onnxtile.operators.node_view import NodeView, NotApplicable, given_input
from onnxtile.operators.table import CONTROL_FLOW, No, Operator, operator_of, sharing_of
from onnxtile.shapes.infer import inferred_types
from onnxtile.shapes.resolve import Shapes, tensor_bytes
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError

# Whether results may share bytes with operands is said by the rows of operators (`over`, `same`, `state`).
#
# The planner and fit use these; the check of plans has its own table. Every operator that may write over an operand has also been run with
# its output at the address of that operand in onnxruntime's CPU kernels: repeatedly, in several shapes, alignments and element types, on
# one thread and on two (tests/planning/test_in_place.py). Passing there is not enough, since one kernel may use scratch memory where
# another does not. Failing is: Hardmax, CumSum, the tanh form of Gelu and onnxruntime's FastGelu and QuickGelu read elements that they have
# overwritten.

# Nodes that only join or cut tensors: also a quantised island, and a QLinearConcat, whose scales are all equal.

_AXIS = {"Concat": 1, "Slice": 0, "Split": 0}
"""The axis where the attribute is missing."""


@dataclass(frozen=True)
class Move:
    """A Concat, Split or Slice of `operands`, of which a Split or Slice reads the first alone, along `axis`."""

    op_type: str
    operands: Sequence[ir.Value | None]
    results: Sequence[ir.Value]
    axis: int


def standard_move(node: ir.Node) -> Move | None:
    """Return what `node`, of the ONNX specification, moves; None for an operator that computes."""
    if node.op_type not in _AXIS or not node.inputs or not node.outputs:
        return None
    return Move(node.op_type, node.inputs, node.outputs, node.attributes.get_int("axis", _AXIS[node.op_type]))


def quantised_move(call: ir.Node, model: ir.Model) -> Move | None:
    """Return what `call` moves, a quantised island that fuse marked as a view; None for any other call."""
    function = model.functions.get(call.op_identifier())
    if function is None or keys.VIEW not in function.metadata_props:
        return None
    inner = next((node for node in function if not quantises(node) and not dequantises(node)), None)
    moved = None if inner is None else standard_move(inner)
    if moved is None:
        return None
    operand_of = dict(zip(function.inputs, call.inputs, strict=False))
    result_of = dict(zip(function.outputs, call.outputs, strict=False))
    makers = [None if value is None else value.producer() for value in moved.operands]
    stored = [None if maker is None or not dequantises(maker) else maker.inputs[0] for maker in makers]
    operands = [None if value is None else operand_of.get(value) for value in stored]
    readers = [next(iter(value.consumers()), None) for value in moved.results]
    results = [result_of.get(reader.outputs[0]) for reader in readers if reader is not None and quantises(reader)]
    known = tuple(value for value in results if value is not None)
    return Move(moved.op_type, operands, known, moved.axis) if len(known) == len(moved.results) else None


def joins_quantised(node: ir.Node, model: ir.Model, constants: Constants) -> Move | None:
    """Return what `node`, a QLinearConcat of operands quantised as its result, joins; None for any other node."""
    is_join = node.op_type == "QLinearConcat" and node.domain == "com.microsoft"
    if not is_join or node.op_identifier() in model.functions or len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        return None
    written = _numbers(node.inputs[:2], constants)
    read = [_numbers(node.inputs[start : start + 2], constants) for start in range(3, len(node.inputs), 3)]
    if written is None or any(numbers != written for numbers in read):
        return None
    return Move("Concat", node.inputs[2::3], node.outputs, node.attributes.get_int("axis", _AXIS["Concat"]))


def _numbers(pair: Sequence[ir.Value | None], constants: Constants) -> tuple[float, int] | None:
    """Return the scale and the zero point of `pair` where both are known, and the scale is finite and no subnormal."""
    if any(value is None or value not in constants for value in pair):
        return None
    scale, zero = (constants.array(value) for value in pair if value is not None)
    if scale.size != 1 or zero.size != 1 or not math.isfinite(scale.item()):
        return None
    return (float(scale.item()), int(zero.item())) if scale.item() > float(np.finfo(np.float32).tiny) else None


# Operators that make the next value of a state of its value before, by output and operand.


def operands_of_state(node: ir.Node, *, is_standard: bool) -> Mapping[int, int]:
    """Return the operands of `node` that results are the next value of, by the number of the output."""
    row = operator_of(node)
    return row.state if row is not None and row.is_standard == is_standard else {}


# Aliases of states: a result that an operator writes over the operand that holds the value before, where both are one state.


def over_states(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Yield each result of `node` with the operand that it may be written over, because both are one state of the graph.

    The result may be longer along one axis. Views between these and the input and output of the graph make no difference. The results of
    bodies are moved out of them when these have ended, and have read what they capture.
    """
    if not facts.states or node.op_identifier() in facts.model.functions:
        return
    pairs = _captured(node) if node.op_type in CONTROL_FLOW and facts.is_standard(node) else _appended(node, facts)
    for result, operand in pairs:
        if result.name and facts.states.get(facts.root(operand)) is result and _holds(result, operand, facts):
            yield result, operand


def _captured(node: ir.Node) -> Iterator[tuple[ir.Value, ir.Value]]:
    read = tuple(dict.fromkeys(dependencies(node)))
    return ((result, operand) for result in node.outputs for operand in read)


def _appended(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[ir.Value, ir.Value]]:
    row = operator_of(node)
    if row is None or not row.state_over:
        return
    for output, index in operands_of_state(node, is_standard=facts.is_standard(node)).items():
        operand = given_input(node, index)
        if operand is not None and output < len(node.outputs) and sum(value is operand for value in node.inputs) == 1:
            yield node.outputs[output], operand


def _holds(result: ir.Value, operand: ir.Value, facts: LayoutFacts) -> bool:
    """Return whether both have known bytes of one type, and `result` has at least those of `operand`."""
    sizes = [tensor_bytes(value, facts.shapes) for value in (operand, result)]
    dtype = facts.shapes.dtype(result)
    if None in sizes or dtype is None or dtype.bitwidth < 8 or dtype != facts.shapes.dtype(operand):
        return False
    return (sizes[0] or 0) <= (sizes[1] or 0)


# Values that are not tensors: sequences, optionals and sparse tensors have no fixed bytes.


def containers(model: ir.Model, shapes: Shapes) -> dict[ir.Value, ir.TypeProtocol]:
    """Return the type of each value that is a sequence, an optional or a sparse tensor.

    A type that is missing in the file comes from onnx's type inference; a value that this does not know either is left out. Other
    engines treat an optional as the tensor in it, so for a model with optionals onnx infers every type.
    """
    graphs = [list(_values(graph)) for graph in main_graphs(model)]
    types_of = {value: value.type for values in graphs for value in values if _is_container(value.type)}
    wraps = any(node.op_type == "Optional" for node in all_nodes(model)) or _gives_optional(model)
    untold = [
        {value.name or "": value for value in values if value.type is None and (wraps or shapes.dtype(value) is None)}
        for values in graphs
    ]
    if any(untold):
        # A body may have the names of another.
        for open_, types in zip(untold, inferred_types(model), strict=False):
            types_of.update({open_[name]: type_ for name, type_ in types.items() if name in open_})
    return {value: type_ for value, type_ in types_of.items() if type_ is not None}


def _gives_optional(model: ir.Model) -> bool:
    return any(isinstance(value.type, ir.OptionalType) for value in model.graph.inputs)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def _is_container(type_: ir.TypeProtocol | None) -> bool:
    return type_ is not None and not isinstance(type_, ir.TensorType)


def kind_name(type_: ir.TypeProtocol) -> str:
    """Return the name of a type for a message: "sequence", "optional", "sparse tensor"."""
    name = type(type_).__name__.removesuffix("Type")
    return "sparse tensor" if name == "SparseTensor" else name.lower()


class Alias(NamedTuple):
    """`value` may share bytes with `source`, an operand of the node that makes it, by `rule`: "view", "in place", "cut" or "join".

    `at` is the start of `value` in bytes after the start of `source`. It is negative for the result of a Concat and its later operands.
    """

    value: ir.Value
    source: ir.Value
    rule: str
    at: int = 0


@dataclass(frozen=True)
class LayoutFacts:
    """A model with the facts that aliases depend on: shapes, element types, and constants.

    `states` has by each input that is a state the tensor that its output is a view of, or the output itself. `spread` are the tensors whose
    rows lie further apart in the bytes of a state than they are long, at lengths below the largest.
    """

    model: ir.Model
    shapes: Shapes
    constants: Constants
    states: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    spread: Collection[ir.Value] = ()
    read: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The kernels of each scope of the model, as `from_onnx` has read them."""
    _lawful: dict[ir.Node, tuple[Alias, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def unbound(self) -> Unbound:
        """The unbound dimensions of the model's inputs."""
        return Unbound.from_inputs(free_inputs(self.model))

    @cached_property
    def containers(self) -> dict[ir.Value, ir.TypeProtocol]:
        """The values of all graphs that are no tensors, with their types."""
        return containers(self.model, self.shapes)

    @cached_property
    def random(self) -> RandomNodes:
        """The nodes that draw random numbers."""
        return RandomNodes(self.model, self.constants)

    @cached_property
    def streams(self) -> dict[ir.Value, InputStream]:
        """The inputs of the model that come row by row. Raises UsageError where one is read otherwise."""
        return streams_of(self.model, self.shapes, self.constants)

    def lawful(self, node: ir.Node) -> tuple[Alias, ...]:
        """Return all aliases of outputs of `node`, found once for all orders; none of rows that come from outside."""
        if node not in self._lawful:
            comes = not node.inputs or node.inputs[0] in self.streams
            self._lawful[node] = () if comes else (*aliases(node, self), *overwrites(node, self))
        return self._lawful[node]

    def root(self, value: ir.Value) -> ir.Value:
        """Return the tensor that `value` is a view of, through any number of views; `value` itself where it is none."""
        while (maker := value.producer()) is not None:
            source = next((alias.source for alias in views(maker, self) if alias.value is value), None)
            if source is None:
                return value
            value = source
        return value

    def opset(self) -> int:
        """Return the version of the standard operators."""
        return opset_of(self.model)

    def is_standard(self, node: ir.Node) -> bool:
        """Return whether `node` is an operator of the ONNX specification."""
        return not node.domain and node.op_identifier() not in self.model.functions

    def same_bytes(self, a: ir.Value, b: ir.Value) -> bool:
        """Return whether both have one element type and one size, and both are known."""
        dtype, size = self.shapes.dtype(a), tensor_bytes(a, self.shapes)
        return size is not None and dtype == self.shapes.dtype(b) and size == tensor_bytes(b, self.shapes)

    def whole_numbers(self, value: ir.Value | None) -> list[int] | None:
        """Return the elements of the constant `value`; None for a value that is not constant."""
        if value not in self.constants or value is None:
            return None
        return [int(number) for number in self.constants.array(value).ravel()]


def aliases(node: ir.Node, facts: LayoutFacts) -> Iterator[Alias]:
    """Yield the views and parts of `node`: if the plan keeps all of them, the node need not run."""
    yield from views(node, facts)
    yield from parts(node, facts)


def views(node: ir.Node, facts: LayoutFacts) -> Iterator[Alias]:
    """Yield the alias of an output that is a whole operand with another shape, also of a meta-op that fuse marked as a view."""
    function = facts.model.functions.get(node.op_identifier())
    if function is not None and keys.VIEW in function.metadata_props and node.inputs[0] is not None:
        is_whole = node.inputs[0] not in facts.spread or node.outputs[0] in facts.spread
        if is_whole and facts.same_bytes(node.outputs[0], node.inputs[0]):
            yield Alias(node.outputs[0], node.inputs[0], "view")
        return
    sharing = sharing_of(node)
    is_view = sharing == "view" or (sharing == "join" and len(node.inputs) == 1)
    if not is_view or not facts.is_standard(node) or not node.inputs or not node.outputs:
        return
    if node in facts.random:
        return
    source, value = node.inputs[0], node.outputs[0]
    if source is None or not value.name or not facts.same_bytes(value, source):
        return
    if source not in facts.spread or value in facts.spread:
        yield Alias(value, source, "view")


def parts(node: ir.Node, facts: LayoutFacts) -> Iterator[Alias]:
    """Yield the aliases of results of Split and Slice, and of operands of Concat, whose bytes are contiguous in the whole."""
    moved = _moved(node, facts)
    if moved is None or moved.operands[0] is None:
        return
    if facts.spread and not {*moved.operands, *moved.results}.isdisjoint(facts.spread):
        return  # the rows are not contiguous
    if facts.shapes.has_bound((*node.inputs, *node.outputs)):
        # The start of a part is known only in a run, apart from that of the first operand of a Concat.
        yield from _first_joined(moved, facts)
        return
    if moved.op_type == "Concat":
        yield from _joined(moved, facts)
    else:
        for value, starts in _split(moved, facts) if moved.op_type == "Split" else sliced(node, facts):
            at = _bytes_before(moved.operands[0], value, starts, facts)
            if at is not None and value.name:
                yield Alias(value, moved.operands[0], "cut", at)


def _moved(node: ir.Node, facts: LayoutFacts) -> Move | None:
    if facts.is_standard(node):
        return standard_move(node)
    return quantised_move(node, facts.model) or joins_quantised(node, facts.model, facts.constants)


def spans_read(node: ir.Node, value: ir.Value, facts: LayoutFacts) -> tuple[ByteSpan, ...] | None:
    """Return the bytes of `value` that `node` reads; None for all of them.

    A Slice or Split reads only the bytes of its results, where these are contiguous. So does a Slice whose result is a few runs of bytes,
    such as rows of the planes of a coloured image.
    """
    if sharing_of(node) != "cut" or not facts.is_standard(node):
        return None
    if [index for index, operand in enumerate(node.inputs) if operand is value] != [0]:
        return None
    cuts = [alias for alias in facts.lawful(node) if alias.rule == "cut"]
    if {alias.value for alias in cuts} != {result for result in node.outputs if result.name}:
        return _runs_read(node, value, facts) if node.op_type == "Slice" else None
    return tuple(ByteSpan(alias.at, alias.at + (tensor_bytes(alias.value, facts.shapes) or 0)) for alias in cuts)


MOST_RUNS = 4
"""Runs of bytes of which a Slice reads no others, at most."""


def _runs_read(node: ir.Node, whole: ir.Value, facts: LayoutFacts) -> tuple[ByteSpan, ...] | None:
    """Return the bytes of `whole` that a Slice reads, as up to `MOST_RUNS` runs of equal length; None where they are more, or not known."""
    known = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if any(value in facts.spread for value in known) or facts.shapes.has_bound(known):
        return None
    for part, starts in sliced(node, facts):
        outer, inner, dtype = facts.shapes.sizes(whole), facts.shapes.sizes(part), facts.shapes.dtype(whole)
        if outer is None or inner is None or dtype is None or dtype.bitwidth < 8 or not all(inner):
            continue
        cut = max((axis for axis, pair in enumerate(zip(outer, inner, strict=True)) if pair[0] != pair[1]), default=0)
        if math.prod(inner[:cut]) > MOST_RUNS:
            continue
        strides = [math.prod(outer[axis + 1 :]) * dtype.bitwidth // 8 for axis in range(cut + 1)]
        corners = product(*(range(start, start + length) for start, length in zip(starts, inner[:cut], strict=False)))
        begins = [sum(map(mul, (*corner, starts[cut]), strides)) for corner in corners]
        return tuple(ByteSpan(begin, begin + inner[cut] * strides[cut]) for begin in begins)
    return None


def overwrites(node: ir.Node, facts: LayoutFacts) -> Iterator[Alias]:
    """Yield the in-place aliases of `node`: results that may be written over an operand that no later node reads.

    A view writes nothing, so a Cast to its own type has none.
    """
    allowed = overwritable(node, facts)
    if allowed and not any(views(node, facts)):
        forbidden = {v for index, v in enumerate(node.inputs) if index not in allowed}
        sure = _sure_of_size(node, allowed, facts)
        for source in dict.fromkeys(v for v in node.inputs if v is not None and v not in forbidden):
            for value in (v for v in node.outputs if v.name):
                if _same_elements(value, source, facts) and (source in sure or _same_formulas(value, source, facts)):
                    yield Alias(value, source, "in place")
    yield from (Alias(value, source, "in place") for value, source in over_states(node, facts))


def overwritable(node: ir.Node, facts: LayoutFacts) -> Collection[int]:
    """Return the indices of the operands that results of `node` may be written over; the pattern declares those of a meta-op."""
    function = facts.model.functions.get(node.op_identifier())
    if function is not None:
        declared = function.metadata_props.get(keys.IN_PLACE, "")
        return json.loads(declared) if declared else ()
    row = operator_of(node)
    if row is None or isinstance(row.over, No) or not _is_plain(node, row, facts):
        return ()
    return range(len(node.inputs)) if row.over is None else row.over


def _is_plain(node: ir.Node, row: Operator, facts: LayoutFacts) -> bool:
    """Return whether `node` has one result, or several that may share, and is of the form in the table by attributes and element type."""
    if not row.over_each and ([v for v in node.outputs if v.name] != [*node.outputs[:1]]):
        return False
    if row.name == "BatchNormalization":
        if facts.opset() < 7:
            return node.attributes.get_int("is_test", 0) == 1
        return node.attributes.get_int("training_mode", 0) == 0
    # The kernel of doubles reads its operand again for each result.
    return (
        row.name != "LogSoftmax" or node.inputs[0] is None or facts.shapes.dtype(node.inputs[0]) != ir.DataType.DOUBLE
    )


def _same_elements(a: ir.Value, b: ir.Value, facts: LayoutFacts) -> bool:
    first, second = facts.shapes.dtype(a), facts.shapes.dtype(b)
    sizes = facts.shapes.sizes(a)
    if first is None or second is None or sizes is None:
        return False
    if tensor_bytes(a, facts.shapes) is None or ir.DataType.STRING in {first, second}:
        return False
    return first.bitwidth == second.bitwidth >= 8 and sizes == facts.shapes.sizes(b)


def _same_formulas(value: ir.Value, source: ir.Value, facts: LayoutFacts) -> bool:
    """Return whether both have one size at all sizes of the dimensions, because its formulas are equal."""
    formulas = facts.shapes.formulas(value)
    return formulas is not None and formulas == facts.shapes.formulas(source)


def _sure_of_size(node: ir.Node, allowed: Collection[int], facts: LayoutFacts) -> Collection[ir.Value]:
    """Return the operands that have the size of the results in every run. Two sizes with one bound may differ, and one be broadcast.

    A result that may be written over operand 0 only has its shape. Operands of one element never change the shape of a result.
    """
    operands = frozenset(v for v in node.inputs if v is not None)
    if not facts.shapes.has_bound((*operands, *node.outputs)):
        return operands
    if not facts.is_standard(node):
        return ()
    larger = frozenset(v for v in operands if not _is_single(v, facts))
    if set(allowed) == {0} or not larger:
        return operands
    return larger if len(larger) == 1 else ()


def _is_single(value: ir.Value, facts: LayoutFacts) -> bool:
    sizes = facts.shapes.sizes(value)
    return sizes is not None and set(sizes) <= {1} and not facts.shapes.is_bound(value)


def _joined(moved: Move, facts: LayoutFacts) -> Iterator[Alias]:
    result = moved.results[0]
    sizes = facts.shapes.sizes(result)
    lengths = [facts.shapes.sizes(v) if v is not None else None for v in moved.operands]
    axis = moved.axis
    if sizes is None or not -len(sizes) <= axis < len(sizes) or not result.name:
        return
    axis %= len(sizes)
    start = 0
    for operand, length in zip(moved.operands, lengths, strict=True):
        if operand is None or length is None or len(length) != len(sizes):
            return
        starts = [start if number == axis else 0 for number in range(len(sizes))]
        at = _bytes_before(result, operand, starts, facts)
        if at is not None:
            yield Alias(result, operand, "join", -at)
        start += length[axis]


def _first_joined(moved: Move, facts: LayoutFacts) -> Iterator[Alias]:
    """Yield the alias of the first operand of a Concat, where all sizes before the joined axis are 1: it starts the result at any size.

    The only operand of a Concat is the whole result.
    """
    operand, result = moved.operands[0], moved.results[0]
    if moved.op_type != "Concat" or operand is None or not result.name:
        return
    outer, inner, dtype = facts.shapes.sizes(result), facts.shapes.sizes(operand), facts.shapes.dtype(result)
    if outer is None or inner is None or len(inner) != len(outer) or not -len(outer) <= moved.axis < len(outer):
        return
    is_typed = dtype is not None and dtype == facts.shapes.dtype(operand) and dtype.bitwidth >= 8
    is_row = len(moved.operands) == 1 or set(outer[: moved.axis % len(outer)]) <= {1}
    if is_typed and is_row and tensor_bytes(operand, facts.shapes):
        yield Alias(result, operand, "join")


def _split(moved: Move, facts: LayoutFacts) -> Iterator[tuple[ir.Value, list[int]]]:
    """Yield each result of a Split with its start on each axis. Results without a name count with their length, too."""
    assert moved.operands[0] is not None
    sizes = facts.shapes.sizes(moved.operands[0])
    axis = moved.axis
    if sizes is None or not -len(sizes) <= axis < len(sizes):
        return
    axis %= len(sizes)
    lengths = []
    for value in moved.results:
        length = facts.shapes.sizes(value)
        if length is None or len(length) != len(sizes):
            return
        lengths.append(length[axis])
    if sum(lengths) != sizes[axis]:
        return
    for value, start in zip(moved.results, accumulate([0, *lengths]), strict=False):
        yield value, [start if number == axis else 0 for number in range(len(sizes))]


def sliced(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[ir.Value, list[int]]]:
    """Yield the result of a Slice whose steps are all 1, with its start on each axis; nothing of an island that slices."""
    sizes = facts.shapes.sizes(node.inputs[0]) if node.inputs[0] is not None and facts.is_standard(node) else None
    bounds = _slice_bounds(node, facts)
    if sizes is None or bounds is None:
        return
    first, axes, steps = bounds
    if len(first) != len(axes) or any(step != 1 for step in steps):
        return
    starts = [0] * len(sizes)
    for start, axis in zip(first, axes, strict=True):
        if not -len(sizes) <= axis < len(sizes):
            return
        length = sizes[axis]
        starts[axis] = min(max(start + length if start < 0 else start, 0), length)
    yield node.outputs[0], starts


def _slice_bounds(node: ir.Node, facts: LayoutFacts) -> tuple[list[int], list[int], list[int]] | None:
    """Return starts, axes and steps: inputs from opset 10 on, attributes before. None where they are not constant."""
    if facts.opset() < 10:
        first = list(node.attributes.get_ints("starts", []))
        return first, list(node.attributes.get_ints("axes", range(len(first)))), []
    given = [*node.inputs, None, None, None]
    starts = facts.whole_numbers(given[1])
    if starts is None:
        return None
    axes = facts.whole_numbers(given[3]) if given[3] is not None else list(range(len(starts)))
    steps = facts.whole_numbers(given[4]) if given[4] is not None else []
    return None if axes is None or steps is None else (starts, axes, steps)


def _bytes_before(whole: ir.Value, part: ir.Value, starts: Sequence[int], facts: LayoutFacts) -> int | None:
    """Return the start of the box `part` in `whole`, in bytes; None where its bytes are not contiguous, or it has none.

    They are contiguous if, after the first axis on which the box is longer than 1, it covers all axes completely.
    """
    outer, inner, dtype = facts.shapes.sizes(whole), facts.shapes.sizes(part), facts.shapes.dtype(whole)
    if outer is None or inner is None or dtype is None or dtype != facts.shapes.dtype(part) or len(outer) != len(inner):
        return None
    if tensor_bytes(part, facts.shapes) in {None, 0} or dtype.bitwidth < 8:
        return None
    cut = next((axis for axis, length in enumerate(inner) if length != 1), len(inner))
    if outer[cut + 1 :] != inner[cut + 1 :]:
        return None
    return sum(start * math.prod(outer[axis + 1 :]) for axis, start in enumerate(starts)) * dtype.bitwidth // 8


# Inputs that come row by row: Slices read them in order, each row once, into memory of the run. The whole input is in no memory.


@dataclass(frozen=True)
class StreamRead:
    """A Slice that reads `count` rows of an input, from the row `first` on."""

    node: ir.Node
    first: int
    count: int


@dataclass(frozen=True)
class InputStream:
    """An input whose `rows` along an `axis` come one after the other, `row_bytes` each, and what reads them, in their order."""

    input: ir.Value
    axis: int
    rows: int
    row_bytes: int
    reads: tuple[StreamRead, ...]


def streams_of(model: ir.Model, shapes: Shapes, constants: Constants) -> dict[ir.Value, InputStream]:
    """Return the inputs of a model whose metadata say that they come row by row.

    Raises UsageError where one is read otherwise: not by Slices of consecutive rows, or a row twice, or after a later one.
    """
    marked = [value for value in model.graph.inputs if keys.STREAM in value.metadata_props]
    return {value: _stream(value, model, shapes, constants) for value in marked}


def _stream(value: ir.Value, model: ir.Model, shapes: Shapes, constants: Constants) -> InputStream:
    sizes, dtype = shapes.sizes(value), shapes.dtype(value)
    axis = value.metadata_props[keys.STREAM]
    if sizes is None or dtype is None or dtype.bitwidth < 8:
        raise UsageError(f"{value.name!r} cannot come row by row: the bytes of its rows are not known")
    if not axis.isdecimal() or int(axis) >= len(sizes):
        raise UsageError(f"{value.name!r} cannot come row by row: it has no axis {axis!r}", hint=_HINT)
    places = {node: position for position, node in enumerate(model.graph)}
    if is_read_outside(value, places):
        raise UsageError(f"{value.name!r} cannot come row by row: a body reads it, or it is an output", hint=_HINT)
    readers = sorted({use.node for use in value.uses()}, key=places.__getitem__)
    views = [NodeView(node, shapes, constants, opset_of(model)) for node in readers]
    reads = tuple(_reads(value, views, int(axis)))
    rows = sizes[int(axis)]
    return InputStream(value, int(axis), rows, prod(sizes) // max(rows, 1) * (dtype.bitwidth // 8), reads)


_HINT = "onnxtile fit with --io INPUT=rows writes such a model"


def _reads(value: ir.Value, readers: list[NodeView], axis: int) -> Iterator[StreamRead]:
    """Yield what reads the rows of an input, in the order of the nodes. Raises UsageError for another order."""
    end = 0
    for view in readers:
        node, rows = view.node, _rows_read(value, view, axis)
        if rows is None:
            raise UsageError(
                f"{value.name!r} cannot come row by row: {node.name!r} reads it and is not a Slice of its rows",
                hint=_HINT,
            )
        if rows[0] < end:
            raise UsageError(
                f"{value.name!r} cannot come row by row: {node.name!r} reads row {rows[0]}, which was read before",
                hint=_HINT,
            )
        end = rows[1]
        yield StreamRead(node, rows[0], rows[1] - rows[0])


def _rows_read(value: ir.Value, view: NodeView, axis: int) -> tuple[int, int] | None:
    """Return the first row that a Slice reads, and the one after the last; None for any other node."""
    if view.operator != "Slice" or list(view.inputs).count(value) != 1:
        return None
    try:
        cut, sizes, result = slice_ranges(view), view.operand(0), view.result
    except NotApplicable:
        return None
    range_ = cut.get(axis)
    others = all(
        size == size_read for at, (size, size_read) in enumerate(zip(sizes, result, strict=True)) if at != axis
    )
    if range_ is None or any(cut_range.step != 1 for cut_range in cut.values()) or not others or not result[axis]:
        return None
    start = min(max(range_.start + sizes[axis] if range_.start < 0 else range_.start, 0), sizes[axis])
    return start, start + result[axis]
