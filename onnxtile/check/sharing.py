"""Tensors that may share bytes: results of a node and its operands, by the definition of the operator, and the ends of a state.

It needs `graph.py` and `operators.py` beside it: the check of plans and the scripts of certificates have one definition.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, product
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING or __package__:
    import onnxtile.check.operators as table
    from onnxtile.check.graph import Graph, GraphNode, Value
else:
    import operators as table
    from graph import Graph, GraphNode, Value


@dataclass(frozen=True, eq=False, repr=False)
class SharedStates:
    """`next_states` has the output by the input of each state. Rows of `spread` tensors are further apart than they are long.

    Of these it has the number of rows, and the bytes from one to the next.
    """

    next_states: dict[Value, Value] = field(default_factory=dict)
    spread: Mapping[Value, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False, repr=False)
class Link:
    """`result` may lie `at` bytes after the start of `operand`: as a "view" or "part" of it, "joined" of it, or written "over" it.

    A view, a part, or a joined operand holds the bytes of the operand: nothing is written there.
    """

    result: Value
    operand: Value
    rule: str
    at: int = 0

    @property
    def holds(self) -> bool:
        """Whether both hold the same bytes."""
        return self.rule != "over"


def links(node: GraphNode, states: SharedStates) -> Iterator[Link]:
    """Yield every way in which `node` may share bytes."""
    if not node.inputs or not node.outputs:
        return
    yield from held(node, states)
    yield from written_over(node)
    yield from _appended(node, states)


def held(node: GraphNode, states: SharedStates) -> Iterator[Link]:
    """Yield the ways in which a result of `node` has the bytes of an operand, or a part of them.

    Rows that are further apart than they are long are no part of a contiguous tensor, only of a view with these rows. Rows of an input that
    comes row by row have bytes of their own.
    """
    if any(value is not None and value.is_streamed for value in node.inputs):
        return
    for link in _contiguous(node):
        spread = [value in states.spread for value in (link.operand, link.result)]
        if not any(spread) or (all(spread) and link.rule == "view"):
            yield link


def any_open(values: Iterable[Value | None]) -> bool:
    """Return whether one of `values` may be smaller in a run than its shape says."""
    return any(value is not None and value.is_open for value in values)


def _contiguous(node: GraphNode) -> Iterator[Link]:
    """Yield what `held` yields where all tensors are contiguous."""
    boxes = boxes_of(node)
    if boxes is None or boxes.operands[0] is None or not boxes.results:
        return
    if boxes.operator == "Reshape":
        yield from _seen(boxes.results[0], boxes.operands[0])
        return
    if boxes.operator in table.JOINS and len(boxes.operands) == 1 and node.is_standard:
        yield from _seen(boxes.results[0], boxes.operands[0])
    if any_open((*node.inputs, *node.outputs)):
        yield from _first_joined(boxes)  # where other boxes start is known only in a run
    elif boxes.operator in table.JOINS:
        yield from _joined(boxes)
    else:
        corners = _sliced(node) if boxes.operator == "Slice" else _split(boxes)
        yield from _parts(boxes.operands[0], corners)


@dataclass(frozen=True, eq=False, repr=False)
class Boxes:
    """A Concat of `operands`, a Split or Slice of the first of them along `axis`, or another shape of it ("Reshape")."""

    operator: str
    operands: tuple[Value | None, ...]
    results: tuple[Value, ...]
    axis: int = 0


def boxes_of(node: GraphNode, *, unsure: bool = False) -> Boxes | None:
    """Return how `node` moves elements without a change of their order; None where it computes, or moves them otherwise.

    Constants that decide it and whose numbers are not known speak against it, or, with `unsure`, for it.
    """
    if node.function is not None:
        return _boxes_of_quantised(node, unsure=unsure)
    if node.domain == "com.microsoft" and node.op_type == "QLinearConcat":
        return _boxes_of_joined(node, unsure=unsure)
    if not node.is_standard or not node.inputs:
        return None
    operator = node.op_type
    if operator in table.SAME_ELEMENTS:
        is_kept = operator != "Dropout" or not _may_drop(node, unsure=unsure)
        return Boxes("Reshape", tuple(node.inputs[:1]), tuple(node.outputs[:1])) if is_kept else None
    if operator not in table.TAKES_PARTS | table.JOINS:
        return None
    axis = node.number("axis", 1 if operator in table.JOINS else 0)
    return Boxes(operator, tuple(node.inputs), tuple(node.outputs), axis)


# Whether a meta-op only joins or cuts quantised tensors, or gives one another shape, read from its body and the numbers of its scales.

_EIGHT_BITS = frozenset({onnx.TensorProto.INT8, onnx.TensorProto.UINT8})
_LEAST_SCALE = 2.0**-126
"""The smallest normal float32: of a subnormal scale a quotient may round to another step."""
_RESHAPING = table.SAME_ELEMENTS - {"Cast", "CastLike", "Dropout"}
_QUANTISING = frozenset({"DequantizeLinear", "QuantizeLinear"})


def _boxes_of_quantised(node: GraphNode, *, unsure: bool) -> Boxes | None:
    """Return the operands and results that the meta-op `node` joins, cuts or reshapes: dequantised before, quantised as they were after.

    Quotient and product of one normal scale differ by less than half a step from the whole number, so every element comes back.
    """
    assert node.function is not None
    inside = node.function.graph
    if len(inside.inputs) != len(node.inputs) or len(inside.outputs) != len(node.outputs):
        return None
    between = [inner for inner in inside.nodes if inner.op_type not in _QUANTISING]
    moving = between[0] if between else None
    if len(between) > 1 or (moving is not None and moving.domain not in table.STANDARD):
        return None
    operator = "Reshape" if moving is None or moving.op_type in _RESHAPING else moving.op_type
    if operator not in table.JOINS | {"Reshape", "Split"}:
        return None
    if moving is None:
        first = [inner for inner in inside.nodes if inner.op_type == "DequantizeLinear"]
        results_inside = [inner.outputs[0] for inner in first]
    else:
        read = moving.inputs if operator in table.JOINS else moving.inputs[:1]
        first = [value.maker for value in read if value is not None and value.maker is not None]
        results_inside = moving.outputs if len(first) == len(read) else []
    last = [
        user for value in results_inside for user in [inner for inner in inside.nodes if inner.inputs[0] is value][:1]
    ]
    if not last or len(last) != len(results_inside) or len(inside.nodes) != len({*first, *last, *between}):
        return None
    if operator == "Reshape" and (len(first) != 1 or first[0].inputs[0] is not inside.inputs[0]):
        return None
    if any(inner.op_type != "DequantizeLinear" for inner in first) or any(
        inner.op_type != "QuantizeLinear" for inner in last
    ):
        return None
    given = dict(zip(inside.inputs, node.inputs, strict=True))
    results = dict(zip(inside.outputs, node.outputs, strict=True))
    if any(inner.inputs[0] not in given for inner in first) or any(inner.outputs[0] not in results for inner in last):
        return None
    if not all(_are_alike(inner, other, given, unsure=unsure) for inner in first for other in last):
        return None
    operands = tuple(given[inner.inputs[0]] for inner in first if inner.inputs[0] is not None)
    axis = 0 if moving is None else moving.number("axis", 1 if operator in table.JOINS else 0)
    return Boxes(operator, operands, tuple(results[inner.outputs[0]] for inner in last), axis)


def _are_alike(first: GraphNode, last: GraphNode, operands: Mapping[Value, Value | None], *, unsure: bool) -> bool:
    """Return whether both have one scale and one zero point, known numbers, for the whole tensor."""
    if len(first.inputs) != 3 or len(last.inputs) != 3:
        return False
    values = []
    for inner in (*first.inputs[1:], *last.inputs[1:]):
        value = None if inner is None else operands.get(inner)
        if value is None or not _is_single(value, unsure=unsure):
            return False
        values.append(value)
    scale, zero, other_scale, other_zero = values
    same_types = scale.dtype == other_scale.dtype and zero.dtype == other_zero.dtype and zero.dtype in _EIGHT_BITS
    pairs = [_scale_and_zero(scale, zero), _scale_and_zero(other_scale, other_zero)]
    return same_types and (unsure if None in pairs else pairs[0] == pairs[1])


def _is_single(value: Value, *, unsure: bool) -> bool:
    """Return whether `value` is a constant of one element, whose number is known unless `unsure`."""
    is_known = value.numbers is not None or unsure
    return value.is_constant and is_known and math.prod(value.shape or ()) == 1


def _boxes_of_joined(node: GraphNode, *, unsure: bool) -> Boxes | None:
    """Return the operands that `node`, a QLinearConcat of onnxruntime, joins where each is quantised as the result is.

    Its inputs are the scale and the zero point of the result, then an operand, its scale and its zero point, and so on.
    """
    scales, zeros = [*node.inputs[0:1], *node.inputs[3::3]], [*node.inputs[1:2], *node.inputs[4::3]]
    operands = node.inputs[2::3]
    if not len(scales) == len(zeros) == len(operands) + 1:
        return None
    ends = list(zip(scales, zeros, strict=True))
    if any(operand is None or not _is_single(operand, unsure=unsure) for pair in ends for operand in pair):
        return None
    pairs = {_scale_and_zero(scale, zero) for scale, zero in ends if scale is not None and zero is not None}
    if len(pairs) > 1 or (None in pairs and not unsure):
        return None
    return Boxes("Concat", tuple(operands), (node.outputs[0],), node.number("axis", 1))


def _scale_and_zero(scale: Value, zero: Value) -> tuple[float, int] | None:
    """Return the numbers of a scale and a zero point; None where they are not known, or the scale is not normal."""
    factor, origin = scale.numbers or (), zero.numbers or ()
    if len(factor) != 1 or len(origin) != 1 or not _LEAST_SCALE <= factor[0] < math.inf:
        return None
    return float(factor[0]), int(origin[0])


# Where boxes are in a whole.


def _first_joined(boxes: Boxes) -> Iterator[Link]:
    """Yield the first operand of a Concat of data-dependent sizes: it begins the result in every run, if it is one row of it."""
    result, operand = boxes.results[0], boxes.operands[0]
    if boxes.operator not in table.JOINS or operand is None or not result.name:
        return
    sizes, parts = result.shape, operand.shape
    axis = _axis(boxes.axis, sizes)
    if sizes is None or parts is None or axis is None or len(parts) != len(sizes):
        return
    if len(boxes.operands) > 1 and math.prod(sizes[:axis]) > 1:
        return
    if operand.bytes and _is_within(operand, result):
        yield Link(result, operand, "joined")


def _parts(operand: Value, corners: Iterable[tuple[Value, list[int]]]) -> Iterator[Link]:
    for result, corner in corners:
        at = _distance(operand, result, corner)
        if at is not None and result.name:
            yield Link(result, operand, "part", at)


def _seen(result: Value, operand: Value) -> Iterator[Link]:
    if result.name and result.dtype == operand.dtype and result.bytes is not None and result.bytes == operand.bytes:
        yield Link(result, operand, "view")


def _may_drop(node: GraphNode, *, unsure: bool) -> bool:
    """Return whether a Dropout may train: `is_test` says no before opset 7, an input says yes from 12 on."""
    if node.opset < 7:
        return node.number("is_test", 0) != 1
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is None or (unsure and training.is_constant and training.numbers is None):
        return False
    return training.whole_numbers not in ([0], [])


def _joined(boxes: Boxes) -> Iterator[Link]:
    result = boxes.results[0]
    whole = result.shape
    axis = _axis(boxes.axis, whole)
    if whole is None or axis is None or not result.name:
        return
    start = 0
    for operand in boxes.operands:
        sizes = None if operand is None else operand.shape
        if operand is None or sizes is None or len(sizes) != len(whole):
            return
        at = _distance(result, operand, _corner(start, axis, whole))
        if at is not None:
            yield Link(result, operand, "joined", -at)
        start += sizes[axis]


def _sliced(node: GraphNode) -> Iterator[tuple[Value, list[int]]]:
    """Yield the result of a Slice with the indices of its first element in operand 0."""
    whole = None if node.inputs[0] is None else node.inputs[0].shape
    corner = None if whole is None else slice_corner(node, whole)
    if corner is not None:
        yield node.outputs[0], corner


def _split(boxes: Boxes) -> Iterator[tuple[Value, list[int]]]:
    """Yield each result of a Split with the indices of its first element in operand 0."""
    whole = None if boxes.operands[0] is None else boxes.operands[0].shape
    axis = _axis(boxes.axis, whole)
    parts = [value.shape for value in boxes.results]
    if whole is None or axis is None or any(sizes is None or len(sizes) != len(whole) for sizes in parts):
        return
    lengths = [sizes[axis] for sizes in parts if sizes is not None]
    if sum(lengths) != whole[axis]:
        return
    for value, start in zip(boxes.results, accumulate(lengths, initial=0), strict=False):
        yield value, _corner(start, axis, whole)


def _corner(start: int, axis: int, whole: Sequence[int]) -> list[int]:
    return [start if number == axis else 0 for number in range(len(whole))]


def _axis(axis: int, sizes: Sequence[int] | None) -> int | None:
    return None if sizes is None or not -len(sizes) <= axis < len(sizes) else axis % len(sizes)


def slice_corner(node: GraphNode, whole: Sequence[int]) -> list[int] | None:
    """Return the start of a Slice with steps of 1; None for other steps, or where starts, axes or steps are not constant."""
    if node.opset < 10:
        starts = list(node.attributes.get("starts", ()))
        return table.slice_corner(whole, starts, list(node.attributes.get("axes", range(len(starts)))), [])
    operands = [*node.inputs[1:], None, None, None]
    begins = None if operands[0] is None else operands[0].whole_numbers
    if begins is None:
        return None
    axes = list(range(len(begins))) if operands[2] is None else operands[2].whole_numbers
    steps = [] if operands[3] is None else operands[3].whole_numbers
    return table.slice_corner(whole, begins, axes, steps)


def _distance(whole: Value, box: Value, corner: Sequence[int]) -> int | None:
    """Return the start in bytes of the `box` with that first element in `whole`; None where it is not contiguous."""
    outer, inner, bits = whole.shape, box.shape, whole.bits
    if outer is None or inner is None or bits is None or whole.dtype != box.dtype or len(outer) != len(inner):
        return None
    if bits < 8 or any(start + length > size for start, length, size in zip(corner, inner, outer, strict=True)):
        return None
    return table.elements_before(outer, corner) * bits // 8 if table.is_contiguous(outer, inner) else None


MOST_RUNS = 4
"""A Slice of more runs of bytes counts as one that reads its whole operand."""


def runs_read(node: GraphNode) -> list[tuple[int, int]] | None:
    """Return the bytes of operand 0 that a Slice reads, by starts and ends; None where they are more runs, or it is not known which."""
    whole, box = node.inputs[0], node.outputs[0]
    if node.op_type != "Slice" or not node.is_standard or whole is None or any_open((*node.inputs, *node.outputs)):
        return None
    outer, inner, bits = whole.shape, box.shape, whole.bits
    corner = None if outer is None else slice_corner(node, outer)
    if outer is None or inner is None or bits is None or corner is None or bits < 8 or len(outer) != len(inner):
        return None
    # Behind so many first indices, the rest of the box is one run.
    first = next((axis for axis in range(len(outer)) if table.is_contiguous(outer[axis:], inner[axis:])), None)
    if first is None or math.prod(inner[:first]) > MOST_RUNS:
        return None
    length = math.prod(inner[first:]) * bits // 8
    ends = []
    for index in product(*map(range, inner[:first])):
        position = [start + step for start, step in zip(corner, index, strict=False)] + list(corner[first:])
        start = table.elements_before(outer, position) * bits // 8
        ends.append((start, start + length))
    return ends


# Results that are written over operands.


def written_over(node: GraphNode) -> Iterator[Link]:
    """Yield the results that `node` may write over operands which it reads element by element."""
    places = _places_over(node)
    if not places:
        return
    read_elsewhere = {value for index, value in enumerate(node.inputs) if index not in places}
    stable = _stable(node, places)
    for operand in dict.fromkeys(value for value in node.inputs if value is not None):
        if operand in read_elsewhere or operand not in stable:
            continue
        for result in node.outputs:
            if result.name and _is_as_large(result, operand):
                yield Link(result, operand, "over")


def _places_over(node: GraphNode) -> frozenset[int]:
    """Return the indices of the operands that `node` may write over."""
    if node.function is not None:
        return node.over
    is_alone = [value for value in node.outputs if value.name] == [*node.outputs[:1]]
    if not (is_alone or node.operator in table.SUMMING) or not _is_by_element(node):
        return frozenset()
    places = table.places_over(node.domain, node.operator)
    return frozenset(range(len(node.inputs))) if places is None else places


def _is_by_element(node: GraphNode) -> bool:
    """Return whether attributes and element type of `node` choose the form that is in the table."""
    if node.operator == "BatchNormalization":
        name, wanted = ("is_test", 1) if node.opset < 7 else ("training_mode", 0)
        return node.number(name, 0) == wanted
    if node.operator == "LogSoftmax":  # its kernel of doubles reads elements that it has overwritten
        return all(value is None or value.bits != 64 for value in node.inputs)
    return True


def _is_as_large(result: Value, operand: Value) -> bool:
    """Return whether both have one shape, and elements of one size that is whole bytes."""
    bits = result.bits
    return result.shape is not None and result.shape == operand.shape and bits == operand.bits and (bits or 0) >= 8


def _stable(node: GraphNode, places: frozenset[int]) -> frozenset[Value]:
    """Return the operands that have the shape of the result in every run, also with data-dependent sizes, if they have it in one.

    Two sizes with one bound may differ in a run, and one be broadcast to the other. An operand of one element never changes a shape.
    """
    operands = frozenset(value for value in node.inputs if value is not None)
    if not any_open((*node.inputs, *node.outputs)):
        return operands
    if not node.is_standard:
        return frozenset()
    several = frozenset(
        value for value in operands if value.is_open or value.shape is None or math.prod(value.shape) != 1
    )
    if places == {0} or not several:
        return operands
    return several if len(several) == 1 else frozenset()


# Results that begin with a state.


def _appended(node: GraphNode, states: SharedStates) -> Iterator[Link]:
    """Yield the results of `node` that begin with an operand, where both are one state of the model, through views.

    Results of bodies leave them at their end, over a state that the bodies read.
    """
    if not states.next_states or node.function is not None:
        return
    if node.op_type in table.WITH_BODIES and node.is_standard:
        pairs = [(result, operand) for operand in node.reads() for result in node.outputs]
    else:
        places = table.APPENDS.get(node.operator, {}).items()
        inside = [(i, k) for i, k in places if i < len(node.outputs) and k < len(node.inputs)]
        ends = [(node.outputs[i], node.inputs[k]) for i, k in inside]
        pairs = [
            (result, operand) for result, operand in ends if operand is not None and node.inputs.count(operand) == 1
        ]
    for result, operand in pairs:
        after = states.next_states.get(root_of(operand, states))
        is_next = after is not None and result.name and root_of(after, states) is result
        if is_next and _is_within(operand, result):
            yield Link(result, operand, "over")


def root_of(value: Value, states: SharedStates) -> Value:
    """Return the tensor that `value` is a view of, at any depth."""
    seen = value
    while seen.maker is not None:
        views = [link.operand for link in held(seen.maker, states) if link.rule == "view" and link.result is seen]
        if not views:
            break
        seen = views[0]
    return seen


def _is_within(operand: Value, result: Value) -> bool:
    small, large, bits = operand.bytes, result.bytes, operand.bits
    return (
        small is not None
        and large is not None
        and small <= large
        and operand.dtype == result.dtype
        and (bits or 0) >= 8
    )


def carried(node: GraphNode, body: Graph) -> list[tuple[Value, Value]]:
    """Return the inputs and outputs of `body` that are one value of `node`, a Loop or Scan, from turn to turn."""
    if node.domain not in table.STANDARD or node.op_type not in {"Loop", "Scan"}:
        return []
    first = 2 if node.op_type == "Loop" else 0
    count = len(body.inputs) - node.number("num_scan_inputs", 0)
    return list(zip(body.inputs[first:count], body.outputs[first // 2 :], strict=False))


# When each value of a graph is made and read, in the order in which its nodes run.


@dataclass(frozen=True, eq=False, repr=False)
class RunOrder:
    """The nodes of `graph` in the order in which they run, the step of each, and its name in the plan.

    `kept` values must outlive the run, `given` values exist before it. Values `apart` share bytes with nothing in the whole run. The bytes
    of values in `throughout` are held in all steps.
    """

    graph: Graph
    nodes: tuple[GraphNode, ...]
    steps: tuple[int, ...]
    names: tuple[str, ...]
    kept: frozenset[Value]
    given: tuple[Value, ...]
    apart: frozenset[Value] = frozenset()
    throughout: frozenset[Value] = frozenset()

    @cached_property
    def step_of(self) -> dict[GraphNode, int]:
        """The step of each node."""
        return dict(zip(self.nodes, self.steps, strict=True))

    @cached_property
    def name_of(self) -> dict[GraphNode, str]:
        """The name of each node in the plan."""
        return dict(zip(self.nodes, self.names, strict=True))

    @cached_property
    def reads(self) -> dict[GraphNode, tuple[Value, ...]]:
        """The values that each node reads, also in its bodies."""
        return {node: node.reads() for node in self.nodes}

    @cached_property
    def readers(self) -> dict[Value, list[GraphNode]]:
        """The nodes that read each value, in the order in which they run."""
        readers: dict[Value, list[GraphNode]] = {}
        for node, values in self.reads.items():
            for value in values:
                readers.setdefault(value, []).append(node)
        return readers

    @cached_property
    def handed_out(self) -> frozenset[Value]:
        """The outputs of the graph."""
        return frozenset(self.graph.outputs)

    def users(self, value: Value) -> list[GraphNode]:
        """Return the last users of `value`: its readers, or its producer if it has none."""
        maker = value.maker
        return self.readers.get(value) or ([] if maker is None else [maker])

    @property
    def end(self) -> int:
        """The last step; 0 where there is none."""
        return self.steps[-1] if self.steps else 0

    def first(self, value: Value) -> int:
        """Return the first step of the live range of `value`, which this graph makes or is given."""
        maker = value.maker
        return 0 if maker is None or value in self.apart else self.step_of[maker]

    def last(self, value: Value) -> int:
        """Return the last step of the live range of `value`."""
        if value in self.kept | self.apart or (value in self.throughout and value.maker is None):
            return self.end
        readers = self.readers.get(value)
        return self.step_of[readers[-1]] if readers else self.first(value)
