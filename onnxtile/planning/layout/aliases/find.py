"""Finds the aliases that a model allows: results that may share bytes with an operand, by the table in aliases.lawful.

The table is the authority; a run inside the arena is evidence. A result is a view where the ONNX specification gives it the same elements
in the same order and of the same type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import onnx_ir as ir

from onnxtile import keys
from onnxtile.inspection.work import operator_name
from onnxtile.model.constants import Constants
from onnxtile.model.dims import free_inputs
from onnxtile.model.draws import RandomNodes
from onnxtile.model.shapes import Shapes
from onnxtile.model.unbound import Unbound
from onnxtile.planning.layout.aliases.lawful import CUTS, IN_PLACE, JOINS, SEVERAL_RESULTS, VIEWS
from onnxtile.planning.layout.aliases.moving import Move, joins_quantised, quantised_move, standard_move
from onnxtile.planning.layout.aliases.state_aliases import over_states
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.non_tensors import containers

_STANDARD = {"", "ai.onnx"}


@dataclass(frozen=True)
class Alias:
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
    _lawful: dict[ir.Node, tuple[Alias, ...]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def unbound(self) -> Unbound:
        """The unbound dimensions of the model's inputs."""
        return Unbound.of(free_inputs(self.model))

    @cached_property
    def containers(self) -> dict[ir.Value, ir.TypeProtocol]:
        """The values of all graphs that are no tensors, with their types."""
        return containers(self.model, self.shapes)

    @cached_property
    def random(self) -> RandomNodes:
        """The nodes that draw random numbers."""
        return RandomNodes(self.model, self.constants)

    def lawful(self, node: ir.Node) -> tuple[Alias, ...]:
        """Return all aliases of outputs of `node`, found once for all orders."""
        if node not in self._lawful:
            self._lawful[node] = (*aliases(node, self), *overwrites(node, self))
        return self._lawful[node]

    def root(self, value: ir.Value) -> ir.Value:
        """Return the tensor that `value` is a view of, through any number of views; `value` itself where it is none."""
        while (maker := value.producer()) is not None:
            found = next((alias.source for alias in views(maker, self) if alias.value is value), None)
            if found is None:
                return value
            value = found
        return value

    def opset(self) -> int:
        """Return the version of the standard operators."""
        imports = self.model.graph.opset_imports
        return imports.get("", imports.get("ai.onnx", 1))

    def is_standard(self, node: ir.Node) -> bool:
        """Return whether `node` is an operator of the ONNX specification."""
        return node.domain in _STANDARD and node.op_identifier() not in self.model.functions

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
    is_view = node.op_type in VIEWS or (node.op_type in JOINS and len(node.inputs) == 1)
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
    if any(facts.shapes.is_bound(value) for value in (*node.inputs, *node.outputs) if value is not None):
        # The start of a part is known only in a run, apart from that of the first operand of a Concat.
        yield from _first_joined(moved, facts)
        return
    if moved.op_type in JOINS:
        yield from _joined(moved, facts)
    elif moved.op_type in CUTS:
        cuts = dict(_split(moved, facts)) if moved.op_type == "Split" else cut_starts(node, facts)
        for value, starts in cuts.items():
            at = _bytes_before(moved.operands[0], value, starts, facts)
            if at is not None and value.name:
                yield Alias(value, moved.operands[0], "cut", at)


def _moved(node: ir.Node, facts: LayoutFacts) -> Move | None:
    if facts.is_standard(node):
        return standard_move(node)
    return quantised_move(node, facts.model) or joins_quantised(node, facts.model, facts.constants)


def cut_starts(node: ir.Node, facts: LayoutFacts) -> dict[ir.Value, list[int]]:
    """Return the start of each result of a Split or Slice in its operand, on each axis; empty where it is not known."""
    if node.op_type not in CUTS or not facts.is_standard(node) or not node.inputs or node.inputs[0] is None:
        return {}
    moved = standard_move(node)
    if moved is None:
        return {}
    return dict(_split(moved, facts) if node.op_type == "Split" else sliced(node, facts))


def overwrites(node: ir.Node, facts: LayoutFacts) -> Iterator[Alias]:
    """Yield the in-place aliases of `node`: results that may be written over an operand that no later node reads.

    A view writes nothing, so a Cast to its own type has none.
    """
    allowed = () if any(views(node, facts)) else overwritable(node, facts)
    forbidden = {v for place, v in enumerate(node.inputs) if place not in allowed}
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
    name = operator_name(node)
    if name not in IN_PLACE or not _is_plain(node, name, facts):
        return ()
    allowed = IN_PLACE[name]
    return range(len(node.inputs)) if allowed is None else allowed


def _is_plain(node: ir.Node, name: str, facts: LayoutFacts) -> bool:
    """Return whether `node` has one result, or several that may share, and its attributes choose the form that is in the table."""
    if name not in SEVERAL_RESULTS and ([v for v in node.outputs if v.name] != [*node.outputs[:1]]):
        return False
    if name == "Gelu":
        return node.attributes.get_string("approximate", "none") == "none"
    if name == "BatchNormalization":
        if facts.opset() < 7:
            return node.attributes.get_int("is_test", 0) == 1
        return node.attributes.get_int("training_mode", 0) == 0
    return True


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
    if not any(facts.shapes.is_bound(value) for value in (*operands, *node.outputs)):
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
        starts = [start if place == axis else 0 for place in range(len(sizes))]
        at = _bytes_before(result, operand, starts, facts)
        if at is not None:
            yield Alias(result, operand, "join", -at)
        start += length[axis]


def _first_joined(moved: Move, facts: LayoutFacts) -> Iterator[Alias]:
    """Yield the alias of the first operand of a Concat, where all sizes before the joined axis are 1: it starts the result at any size.

    The only operand of a Concat is the whole result.
    """
    operand, result = moved.operands[0], moved.results[0]
    if moved.op_type not in JOINS or operand is None or not result.name:
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
        yield value, [start if place == axis else 0 for place in range(len(sizes))]


def sliced(node: ir.Node, facts: LayoutFacts) -> Iterator[tuple[ir.Value, list[int]]]:
    """Yield the result of a Slice whose steps are all 1, with its start on each axis."""
    assert node.inputs[0] is not None
    sizes = facts.shapes.sizes(node.inputs[0])
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
