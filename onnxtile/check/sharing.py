"""Tensors that may share bytes: results of a node and its operands, by the definition of the operator, and the ends of a state."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import onnx_ir as ir

from onnxtile.check.graph import GraphFacts, SizedBuffer, reads
from onnxtile.check.operators import (
    APPENDS,
    CONTRIBUTED_OVER,
    JOINS,
    SAME_ELEMENTS,
    STANDARD,
    SUMMING,
    TAKES_PARTS,
    WITH_BODIES,
    WRITES_OVER,
    elements_before,
    is_contiguous,
    slice_corner,
)
from onnxtile.declare.plan_document import NO_SHAPE, UNSAID, PlanFailure, PlannedBuffer, PlannedState

# Whether a meta-op only joins or cuts quantised tensors, or gives one another shape, read from its body and the numbers of its scales.

_EIGHT_BITS = frozenset({ir.DataType.INT8, ir.DataType.UINT8})
_LEAST_SCALE = 2.0**-126
"""The smallest normal float32: of a subnormal scale a quotient may round to another step."""


@dataclass(frozen=True)
class Boxes:
    """A Concat of `operands`, a Split of the first of them along `axis`, or another shape of it ("Reshape")."""

    operator: str
    operands: tuple[ir.Value | None, ...]
    results: tuple[ir.Value, ...]
    axis: int = 0


_RESHAPING = SAME_ELEMENTS - {"Cast", "CastLike", "Dropout"}


def boxes_of_quantised(node: ir.Node, known: GraphFacts) -> Boxes | None:
    """Return the operands and results that the meta-op `node` joins, cuts or reshapes: dequantised before, quantised as they were after.

    Quotient and product of one normal scale differ by less than half a step from the whole number, so every element comes back.
    """
    function = known.model.functions.get(node.op_identifier())
    if function is None or len(function.inputs) != len(node.inputs) or len(function.outputs) != len(node.outputs):
        return None
    between = [one for one in function if one.op_type not in {"DequantizeLinear", "QuantizeLinear"}]
    moving = between[0] if between else None
    if len(between) > 1 or (moving is not None and moving.domain not in STANDARD):
        return None
    operator = "Reshape" if moving is None or moving.op_type in _RESHAPING else moving.op_type
    if operator not in JOINS | {"Reshape", "Split"}:
        return None
    if moving is None:
        first = [one for one in function if one.op_type == "DequantizeLinear"]
        made = [one.outputs[0] for one in first]
    else:
        read = moving.inputs if operator in JOINS else moving.inputs[:1]
        first = [maker for value in read if value is not None and (maker := value.producer()) is not None]
        made = list(moving.outputs) if len(first) == len(read) else []
    last = [user for value in made for user in [one for one in function if one.inputs[0] is value][:1]]
    if not last or len(last) != len(made) or len(function) != len({*first, *last, *between}):
        return None
    if operator == "Reshape" and (len(first) != 1 or first[0].inputs[0] is not function.inputs[0]):
        return None
    if any(one.op_type != "DequantizeLinear" for one in first) or any(one.op_type != "QuantizeLinear" for one in last):
        return None
    given = dict(zip(function.inputs, node.inputs, strict=True))
    results = dict(zip(function.outputs, node.outputs, strict=True))
    if any(one.inputs[0] not in given for one in first) or any(one.outputs[0] not in results for one in last):
        return None
    if not all(_are_alike(one, other, given, known) for one in first for other in last):
        return None
    operands = tuple(given[one.inputs[0]] for one in first if one.inputs[0] is not None)
    axis = 0 if moving is None else moving.attributes.get_int("axis", 1 if operator in JOINS else 0)
    return Boxes(operator, operands, tuple(results[one.outputs[0]] for one in last), axis)


def boxes_of_joined(node: ir.Node, known: GraphFacts) -> Boxes | None:
    """Return the operands that `node`, a QLinearConcat of onnxruntime, joins where each is quantised as the result is.

    Its inputs are the scale and the zero point of the result, then an operand, its scale and its zero point, and so on.
    """
    if (node.domain, node.op_type) != ("com.microsoft", "QLinearConcat"):
        return None
    scales, zeros, operands = (
        [*node.inputs[0:1], *node.inputs[3::3]],
        [*node.inputs[1:2], *node.inputs[4::3]],
        node.inputs[2::3],
    )
    if node.op_identifier() in known.model.functions or not len(scales) == len(zeros) == len(operands) + 1:
        return None
    pairs = [_scale_and_zero(scale, zero, known) for scale, zero in zip(scales, zeros, strict=True)]
    if pairs[0] is None or any(pair != pairs[0] for pair in pairs):
        return None
    return Boxes("Concat", tuple(operands), (node.outputs[0],), node.attributes.get_int("axis", 1))


def _scale_and_zero(scale: ir.Value | None, zero: ir.Value | None, known: GraphFacts) -> tuple[float, int] | None:
    if scale is None or zero is None or scale not in known.constants or zero not in known.constants:
        return None
    factor, origin = known.constants.array(scale), known.constants.array(zero)
    if factor.size != 1 or origin.size != 1 or not _LEAST_SCALE <= factor.item() < float("inf"):
        return None
    return float(factor.item()), int(origin.item())


def _are_alike(first: ir.Node, last: ir.Node, operands: dict[ir.Value, ir.Value | None], known: GraphFacts) -> bool:
    """Return whether both have one scale and one zero point, known numbers, for the whole tensor."""
    if len(first.inputs) != 3 or len(last.inputs) != 3:
        return False
    arrays = []
    for inner in (*first.inputs[1:], *last.inputs[1:]):
        value = None if inner is None else operands.get(inner)
        if value is None or value not in known.constants or known.constants.array(value).size != 1:
            return False
        arrays.append(known.constants.array(value))
    scale, zero, other_scale, other_zero = (array.ravel()[0] for array in arrays)
    is_same = scale == other_scale and zero == other_zero and arrays[0].dtype == arrays[2].dtype
    same_type = arrays[1].dtype == arrays[3].dtype and ir.DataType.from_numpy(arrays[1].dtype) in _EIGHT_BITS
    return bool(is_same and same_type and _LEAST_SCALE <= float(scale) < float("inf"))


@dataclass(frozen=True)
class Link:
    """`result` may lie `at` bytes behind the start of `operand`: as a "view" or "part" of it, "joined" of it, or written "over" it.

    A view, a part, or a joined operand holds the bytes of the operand: nothing is written there.
    """

    result: ir.Value
    operand: ir.Value
    rule: str
    at: int = 0

    @property
    def holds(self) -> bool:
        """Whether both hold the same bytes."""
        return self.rule != "over"


def links(node: ir.Node, known: GraphFacts) -> Iterator[Link]:
    """Yield every way in which `node` may share bytes."""
    if not node.inputs or not node.outputs:
        return
    yield from held(node, known)
    yield from _written_over(node, known)
    yield from _appended(node, known)


def held(node: ir.Node, known: GraphFacts) -> Iterator[Link]:
    """Yield the ways in which a result of `node` has the bytes of an operand, or a part of them.

    Rows that are further apart than they are long are no part of a contiguous tensor, only of a view with these rows.
    """
    for link in _contiguous(node, known):
        spread = [value in known.spread for value in (link.operand, link.result)]
        if not any(spread) or (all(spread) and link.rule == "view"):
            yield link


def _contiguous(node: ir.Node, known: GraphFacts) -> Iterator[Link]:
    """Yield what `held` yields where all tensors are contiguous."""
    boxes = boxes_of_quantised(node, known) or boxes_of_joined(node, known)
    is_open = known.is_bound((*node.inputs, *node.outputs))
    if boxes is not None and boxes.operator == "Reshape" and boxes.operands[0] is not None:
        yield from _seen(boxes.results[0], boxes.operands[0], known)
    elif is_open:
        yield from _first_joined(node, boxes, known)
    elif boxes is not None:
        yield from _boxes(boxes, known)
    if not known.is_standard(node) or not node.inputs or node.inputs[0] is None or not node.outputs:
        return
    operator = node.op_type
    if operator in JOINS and len(node.inputs) == 1:
        yield from _seen(node.outputs[0], node.inputs[0], known)
    if operator in SAME_ELEMENTS and not (operator == "Dropout" and _may_drop(node, known)):
        yield from _seen(node.outputs[0], node.inputs[0], known)
    elif is_open:
        return  # the start of a box is known only in a run
    elif operator == "Slice":
        yield from _parts(node.inputs[0], _sliced(node, known), known)
    elif operator in TAKES_PARTS | JOINS:
        axis = node.attributes.get_int("axis", 1 if operator in JOINS else 0)
        yield from _boxes(Boxes(operator, tuple(node.inputs), tuple(node.outputs), axis), known)


def _first_joined(node: ir.Node, boxes: Boxes | None, known: GraphFacts) -> Iterator[Link]:
    """Yield the first operand of a Concat of data-dependent sizes: it begins the result in every run, if it is one row of it."""
    if known.is_standard(node) and node.op_type in JOINS and node.inputs and node.outputs:
        boxes = Boxes(node.op_type, tuple(node.inputs), tuple(node.outputs), node.attributes.get_int("axis", 1))
    if boxes is None or boxes.operator not in JOINS or boxes.operands[0] is None or not boxes.results[0].name:
        return
    result, operand = boxes.results[0], boxes.operands[0]
    sizes, parts = known.shapes.sizes(result), known.shapes.sizes(operand)
    axis = _axis(boxes.axis, sizes)
    if sizes is None or parts is None or axis is None or len(parts) != len(sizes):
        return
    if len(boxes.operands) > 1 and math.prod(sizes[:axis]) > 1:
        return
    if known.bytes(operand) and _is_within(operand, result, known):
        yield Link(result, operand, "joined")


def _boxes(boxes: Boxes, known: GraphFacts) -> Iterator[Link]:
    """Yield the operands of a Concat, or the results of a Split, where they are contiguous in the whole."""
    if boxes.operator in JOINS:
        yield from _joined(boxes, known)
    elif boxes.operands[0] is not None:
        yield from _parts(boxes.operands[0], _split(boxes, known), known)


def _parts(operand: ir.Value, corners: Iterable[tuple[ir.Value, list[int]]], known: GraphFacts) -> Iterator[Link]:
    for result, corner in corners:
        at = _distance(operand, result, corner, known)
        if at is not None and result.name:
            yield Link(result, operand, "part", at)


def _seen(result: ir.Value, operand: ir.Value, known: GraphFacts) -> Iterator[Link]:
    size = known.bytes(result)
    has_type = known.shapes.dtype(result) == known.shapes.dtype(operand)
    if result.name and has_type and size is not None and size == known.bytes(operand):
        yield Link(result, operand, "view")


def _may_drop(node: ir.Node, known: GraphFacts) -> bool:
    """Return whether a Dropout may train: `is_test` says no before opset 7, an input says yes from 12 on."""
    if known.opset < 7:
        return node.attributes.get_int("is_test", 0) != 1
    training = node.inputs[2] if len(node.inputs) > 2 else None
    return training is not None and known.numbers(training) not in ([0], [])


def _written_over(node: ir.Node, known: GraphFacts) -> Iterator[Link]:
    places = _places_over(node, known)
    if not places:
        return
    read_elsewhere = {value for place, value in enumerate(node.inputs) if place not in places}
    stable = _stable(node, places, known)
    for operand in dict.fromkeys(value for value in node.inputs if value is not None):
        if operand in read_elsewhere or operand not in stable:
            continue
        for result in node.outputs:
            if result.name and _is_as_large(result, operand, known):
                yield Link(result, operand, "over")


def _appended(node: ir.Node, known: GraphFacts) -> Iterator[Link]:
    """Yield the results of `node` that begin with an operand, where both are one state of the model, through views."""
    if not known.next_states or node.op_identifier() in known.model.functions:
        return
    if node.op_type in WITH_BODIES and known.is_standard(node):
        yield from _left_behind(node, known)
        return
    name = node.op_type if known.is_standard(node) else f"{node.domain}::{node.op_type}"
    for output, index in APPENDS.get(name, {}).items():
        if output >= len(node.outputs) or index >= len(node.inputs):
            continue
        result, operand = node.outputs[output], node.inputs[index]
        if operand is None or not result.name or sum(value is operand for value in node.inputs) > 1:
            continue
        after = known.next_states.get(root_of(operand, known))
        if after is not None and root_of(after, known) is result and _is_within(operand, result, known):
            yield Link(result, operand, "over")


def _left_behind(node: ir.Node, known: GraphFacts) -> Iterator[Link]:
    """Yield the results of bodies, which leave them at their end, over a state that the bodies read: both are one state of the model."""
    for operand in reads(node):
        after = known.next_states.get(root_of(operand, known))
        for result in node.outputs:
            if (
                after is not None
                and result.name
                and root_of(after, known) is result
                and _is_within(operand, result, known)
            ):
                yield Link(result, operand, "over")


def root_of(value: ir.Value, known: GraphFacts) -> ir.Value:
    """Return the tensor that `value` is a view of, at any depth."""
    seen = value
    while (maker := seen.producer()) is not None:
        views = [link.operand for link in held(maker, known) if link.rule == "view" and link.result is seen]
        if not views:
            break
        seen = views[0]
    return seen


def _is_within(operand: ir.Value, result: ir.Value, known: GraphFacts) -> bool:
    small, large, dtype = known.bytes(operand), known.bytes(result), known.shapes.dtype(result)
    if small is None or large is None or dtype is None or dtype != known.shapes.dtype(operand):
        return False
    return small <= large and dtype.bitwidth >= 8


def _places_over(node: ir.Node, known: GraphFacts) -> frozenset[int]:
    """Return the indices of the operands that `node` may write over."""
    is_alone = [value for value in node.outputs if value.name] == [*node.outputs[:1]]
    if node.domain == "com.microsoft" and node.op_identifier() not in known.model.functions:
        return CONTRIBUTED_OVER.get(node.op_type, frozenset()) if is_alone or node.op_type in SUMMING else frozenset()
    if not known.is_standard(node):
        return known.declared_over(node)
    if node.op_type not in WRITES_OVER or not is_alone or not _is_by_element(node, known):
        return frozenset()
    places = WRITES_OVER[node.op_type]
    return frozenset(range(len(node.inputs))) if places is None else places


def _is_by_element(node: ir.Node, known: GraphFacts) -> bool:
    """Return whether the attributes of `node` choose the form that is in the table."""
    if node.op_type == "Gelu":  # kernels of the tanh form read elements that they have written
        return node.attributes.get_string("approximate", "none") == "none"
    if node.op_type == "BatchNormalization":
        name, wanted = ("is_test", 1) if known.opset < 7 else ("training_mode", 0)
        return node.attributes.get_int(name, 0) == wanted
    return True


def _is_as_large(result: ir.Value, operand: ir.Value, known: GraphFacts) -> bool:
    """Return whether both have one shape, and elements of one size that is whole bytes."""
    shapes = known.shapes
    if known.bytes(result) is None or known.bytes(operand) is None or shapes.sizes(result) != shapes.sizes(operand):
        return False
    first, second = shapes.dtype(result), shapes.dtype(operand)
    return first is not None and second is not None and first.bitwidth == second.bitwidth and first.bitwidth >= 8


def _stable(node: ir.Node, places: frozenset[int], known: GraphFacts) -> frozenset[ir.Value]:
    """Return the operands that have the shape of the result in every run, also with data-dependent sizes, if they have it in one.

    Two sizes with one bound may differ in a run, and one be broadcast to the other. An operand of one element never changes a shape.
    """
    operands = frozenset(value for value in node.inputs if value is not None)
    if not known.is_bound((*node.inputs, *node.outputs)):
        return operands
    if not known.is_standard(node):
        return frozenset()
    several = frozenset(value for value in operands if not _is_one_element(value, known))
    if places == {0} or not several:
        return operands
    return several if len(several) == 1 else frozenset()


def _is_one_element(value: ir.Value, known: GraphFacts) -> bool:
    sizes = known.shapes.sizes(value)
    return sizes is not None and math.prod(sizes) == 1 and not known.shapes.is_bound(value)


def _joined(boxes: Boxes, known: GraphFacts) -> Iterator[Link]:
    result = boxes.results[0]
    whole = known.shapes.sizes(result)
    axis = _axis(boxes.axis, whole)
    if whole is None or axis is None or not result.name:
        return
    start = 0
    for operand in boxes.operands:
        sizes = None if operand is None else known.shapes.sizes(operand)
        if operand is None or sizes is None or len(sizes) != len(whole):
            return
        at = _distance(result, operand, [start if place == axis else 0 for place in range(len(whole))], known)
        if at is not None:
            yield Link(result, operand, "joined", -at)
        start += sizes[axis]


def _sliced(node: ir.Node, known: GraphFacts) -> Iterator[tuple[ir.Value, list[int]]]:
    """Yield the result of a Slice with the indices of its first element in operand 0."""
    whole = None if node.inputs[0] is None else known.shapes.sizes(node.inputs[0])
    corner = None if whole is None else _slice_corner(node, whole, known)
    if corner is not None:
        yield node.outputs[0], corner


def _split(boxes: Boxes, known: GraphFacts) -> Iterator[tuple[ir.Value, list[int]]]:
    """Yield each result of a Split with the indices of its first element in operand 0."""
    whole = None if boxes.operands[0] is None else known.shapes.sizes(boxes.operands[0])
    axis = _axis(boxes.axis, whole)
    parts = [known.shapes.sizes(value) for value in boxes.results]
    if whole is None or axis is None or any(sizes is None or len(sizes) != len(whole) for sizes in parts):
        return
    lengths = [sizes[axis] for sizes in parts if sizes is not None]
    if sum(lengths) != whole[axis]:
        return
    for value, start in zip(boxes.results, accumulate(lengths, initial=0), strict=False):
        yield value, [start if place == axis else 0 for place in range(len(whole))]


def _axis(axis: int, sizes: Sequence[int] | None) -> int | None:
    return None if sizes is None or not -len(sizes) <= axis < len(sizes) else axis % len(sizes)


def _slice_corner(node: ir.Node, whole: Sequence[int], known: GraphFacts) -> list[int] | None:
    """Return the start of a Slice with steps of 1; None for other steps, or where starts, axes or steps are not constant."""
    if known.opset < 10:
        starts = [*node.attributes.get_ints("starts", [])]
        axes: list[int] | None = [*node.attributes.get_ints("axes", range(len(starts)))]
        steps: list[int] | None = []
    else:
        given = [*node.inputs[1:], None, None, None]
        found = known.numbers(given[0])
        if found is None:
            return None
        starts = found
        axes = list(range(len(starts))) if given[2] is None else known.numbers(given[2])
        steps = [] if given[3] is None else known.numbers(given[3])
    return slice_corner(whole, starts, axes, steps)


def _distance(whole: ir.Value, box: ir.Value, corner: Sequence[int], known: GraphFacts) -> int | None:
    """Return the start in bytes of the `box` with that first element in `whole`; None where it is not contiguous."""
    outer, inner, dtype = known.shapes.sizes(whole), known.shapes.sizes(box), known.shapes.dtype(whole)
    if outer is None or inner is None or dtype is None or dtype != known.shapes.dtype(box) or len(outer) != len(inner):
        return None
    if known.bytes(box) is None or dtype.bitwidth < 8:
        return None
    if any(start + length > size for start, length, size in zip(corner, inner, outer, strict=True)):
        return None
    return elements_before(outer, corner) * dtype.bitwidth // 8 if is_contiguous(outer, inner) else None


# States: an input and an output that are one tensor, whose bytes nothing else may have in the whole run.
#
# The rows of the plan say where both are. An output at another address than its input is copied there after the run.


@dataclass(frozen=True)
class CheckedStates:
    """The states that a plan keeps: the `inputs` and `outputs` in order, and those of them that hold bytes `throughout` the run."""

    claims: tuple[PlannedState, ...] = ()
    inputs: tuple[ir.Value, ...] = ()
    outputs: tuple[ir.Value, ...] = ()
    throughout: frozenset[ir.Value] = frozenset()

    @property
    def next_of(self) -> Mapping[ir.Value, ir.Value]:
        """The output by the input of each state."""
        return dict(zip(self.inputs, self.outputs, strict=True))


@dataclass
class FoundStates:
    """The states of the claims that the graph has, and the faults of the others."""

    states: CheckedStates
    failures: list[PlanFailure] = field(default_factory=list)


def found_states(claims: Iterable[PlannedState], rows: Iterable[PlannedBuffer], graph: ir.Graph) -> FoundStates:
    """Return the states that the plan keeps, by names of inputs and outputs of `graph`."""
    at = {row.name: (row.arena, row.offset) for row in rows}
    inputs = {value.name or "": value for value in graph.inputs}
    outputs = {value.name or "": value for value in graph.outputs}
    kept: list[PlannedState] = []
    failures: list[PlanFailure] = []
    seen: set[str] = set()
    for claim in claims:
        names = (claim.input, claim.output)
        if claim.input not in inputs or claim.output not in outputs:
            failures.append(
                PlanFailure(
                    f"the state {claim.input!r} and {claim.output!r} is no input and output of the model", names
                )
            )
        elif not seen.isdisjoint((f"< {claim.input}", f"> {claim.output}")):
            failures.append(PlanFailure(f"{claim.input!r} or {claim.output!r} is in two states", names))
        else:
            seen.update((f"< {claim.input}", f"> {claim.output}"))
            kept.append(claim)
    before = tuple(inputs[claim.input] for claim in kept)
    after = tuple(outputs[claim.output] for claim in kept)
    same = [claim.output for claim in kept if at.get(claim.input, "") == at.get(claim.output)]
    throughout = frozenset((*before, *(outputs[name] for name in same)))
    return FoundStates(CheckedStates(tuple(kept), before, after, throughout), failures)


def carried_states(node: ir.Node, body: ir.Graph, rows: Iterable[PlannedBuffer]) -> CheckedStates:
    """Return the carried values of `node`, a Loop or Scan, that have one address as input and output of its `body`."""
    inputs, outputs = list(body.inputs), list(body.outputs)
    if node.op_type == "Loop" and node.domain in STANDARD:
        pairs = list(zip(inputs[2:], outputs[1:], strict=False))
    elif node.op_type == "Scan" and node.domain in STANDARD:
        count = len(inputs) - node.attributes.get_int("num_scan_inputs", 0)
        pairs = list(zip(inputs[:count], outputs[:count], strict=False))
    else:
        return CheckedStates()
    at = {row.name: (row.arena, row.offset) for row in rows if row.size}
    same = [
        (before, after)
        for before, after in pairs
        if before.name in at and at[before.name] == at.get(after.name or "") and outputs.count(after) == 1
    ]
    before, after = (tuple(pair[side] for pair in same) for side in (0, 1))
    return CheckedStates((), before, after, frozenset((*before, *after)))


def wrong_states(
    states: CheckedStates, rows: Mapping[ir.Value, PlannedBuffer], kept: Iterable[ir.Value], known: GraphFacts
) -> Iterator[PlanFailure]:
    """Yield the faults of states: another address, type or shape than the rows and the graph have, or wrong figures.

    `kept` values outlive the run. None may have bytes that a state is copied into after it.
    """
    kept = [value for value in kept if value in rows]
    for claim, before, after in zip(states.claims, states.inputs, states.outputs, strict=True):
        names = (claim.input, claim.output)
        row, other = rows.get(before), rows.get(after)
        if row is None or other is None:
            yield PlanFailure(f"the state {claim.input!r} and {claim.output!r} has no address", names)
            continue
        if (claim.arena, claim.offset) != (row.arena, row.offset):
            yield PlanFailure(
                f"the state {claim.input!r} lies at {row.offset} of {row.arena!r}, not at {claim.offset} of {claim.arena!r}",
                names,
            )
        axes = _longer_axes(before, after, known)
        if known.shapes.dtype(before) != known.shapes.dtype(after) or axes is None or len(axes) > 1:
            yield PlanFailure(f"{claim.input!r} and {claim.output!r} have types or shapes that are no state", names)
            continue
        yield from _wrong_axis(claim, axes)
        is_same = (row.arena, row.offset) == (other.arena, other.offset)
        yield from _wrong_strides(claim, before, after, is_appended=is_same and bool(axes), known=known)
        if not is_same:
            yield from _lost(row, [rows[value] for value in kept if value is not before])
        right = {
            "size": max(row.size, other.size) if is_same else row.size,
            "copied": 0 if is_same else row.size,
        }
        for name, number in right.items():
            if getattr(claim, name) not in {UNSAID, number}:
                yield PlanFailure(f"{name} of the state {claim.input!r} is {getattr(claim, name)}, not {number}", names)


def _wrong_axis(claim: PlannedState, axes: Sequence[int]) -> Iterator[PlanFailure]:
    """Yield that a state grows along another axis; at sizes below the largest nothing is claimed."""
    right = axes[0] if axes else None
    if claim.size != UNSAID and claim.axis not in {UNSAID, right}:
        reason = f"axis of the state {claim.input!r} is {claim.axis}, not {right}"
        yield PlanFailure(reason, (claim.input, claim.output))


def _lost(state: PlannedBuffer, kept: Iterable[PlannedBuffer]) -> Iterator[PlanFailure]:
    for row in kept:
        if row.arena == state.arena and row.offset < state.end and state.offset < row.end and row.size and state.size:
            reason = f"{row.place} is overwritten after the run, when the state {state.place} is copied there"
            yield PlanFailure(reason, (row.name, state.name))


def _longer_axes(before: ir.Value, after: ir.Value, known: GraphFacts) -> list[int] | None:
    """Return the axes on which `after` is longer; None where both have other ranks, or `after` is shorter."""
    inner, outer = known.shapes.sizes(before), known.shapes.sizes(after)
    if inner is None or outer is None or len(inner) != len(outer):
        return None
    if any(one > other for one, other in zip(inner, outer, strict=True)):
        return None
    return [axis for axis in range(len(inner)) if inner[axis] < outer[axis]]


def _wrong_strides(
    claim: PlannedState, before: ir.Value, after: ir.Value, *, is_appended: bool, known: GraphFacts
) -> Iterator[PlanFailure]:
    """Yield the fault of strides other than those of the largest size, or of strides that the output has not. None is contiguous."""
    if claim.strides is None:
        return
    names = (claim.input, claim.output)
    right = _strides(after, known) if is_appended else None
    is_largest = claim.size != UNSAID
    if is_largest and claim.strides != right:
        yield PlanFailure(f"strides of the state {claim.input!r} are {claim.strides}, not {right}", names)
    elif (before in known.spread) > (after in known.spread) and (known.is_bound((after,)) or claim.strides != right):
        yield PlanFailure(
            f"{claim.output!r} is contiguous, and has not the strides of the state {claim.input!r}", names
        )


def _strides(value: ir.Value, known: GraphFacts) -> tuple[int, ...] | None:
    """Return the bytes from one element of the contiguous `value` to the next on each axis; None where an element is no whole bytes."""
    return _contiguous_strides(known.shapes.sizes(value), known.shapes.dtype(value))


def _contiguous_strides(shape: tuple[int, ...] | None, dtype: ir.DataType | None) -> tuple[int, ...] | None:
    if shape is None or dtype is None or dtype.bitwidth % 8:
        return None
    return tuple(math.prod(shape[axis + 1 :]) * dtype.bitwidth // 8 for axis in range(len(shape)))


def spread_tensors(states: CheckedStates, known: GraphFacts) -> dict[ir.Value, tuple[int, int]]:
    """Return the tensors of growing states whose rows are further apart than they are long, and their views that have these rows.

    Each has the number of its rows, and the bytes from one to the next.
    """
    found: dict[ir.Value, tuple[int, int]] = {}
    for claim, before, after in zip(states.claims, states.inputs, states.outputs, strict=True):
        shape = known.shapes.sizes(before)
        if claim.strides is None or shape is None or not 0 <= (claim.axis or 0) < len(shape):
            continue
        axes = _longer_axes(before, after, known)
        rows = math.prod(shape[: axes[0]]) if axes else 1
        todo = [before] if rows > 1 else []
        # At the largest sizes the graph has them; they are the same at all others.
        strides = _strides(after, known) if claim.size != UNSAID else claim.strides
        pitch = strides[axes[0] - 1] if axes and strides is not None and len(strides) == len(shape) else 0
        if todo and (strides != _strides(after, known) or known.is_bound((after,))):
            todo.append(root_of(after, known))
        while todo:
            value = todo.pop()
            found[value] = (rows, pitch)
            shown = (one for node in value.consumers() for one in held(node, known) if one.rule == "view")
            todo += (one.result for one in shown if one.operand is value and _has_rows(one.result, rows, known))
    return found


def wrong_row_strides(
    states: CheckedStates, rows: Mapping[ir.Value, PlannedBuffer], known: GraphFacts, *, over_ranges: bool
) -> Iterator[PlanFailure]:
    """Yield the `rows` with other strides than the graph and the states give them. A contiguous tensor has none.

    Over ranges, it may have them where it is contiguous at some sizes only. A stride of an axis of one element, which nothing uses, is
    compared at the largest sizes.
    """
    owners = {rows[before].alias or rows[before].name for before in states.inputs if before in rows}
    for value, row in rows.items():
        if row.strides == NO_SHAPE:
            continue
        shape, dtype = known.shapes.sizes(value), known.shapes.dtype(value)
        right = None
        if value in known.spread and (row.alias or row.name) in owners and shape is not None and dtype is not None:
            right = _strides_of_rows(shape, dtype, *known.spread[value])
        elif over_ranges and row.strides is not None:
            right = _contiguous_strides(shape, dtype)
        both = row.strides, right
        if isinstance(row, SizedBuffer) and None not in both and shape is not None:
            both = tuple(_of_long_axes(strides or (), shape) for strides in both)  # type: ignore[assignment]
        if both[0] != both[1]:
            reason = f"strides of {row.name!r} are {row.strides and list(row.strides)}, not {right and list(right)}"
            yield PlanFailure(reason, (row.name,))


def _of_long_axes(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return those of `strides` that are of axes of several elements; all where they are not those of `shape`."""
    if len(strides) != len(shape):
        return tuple(strides)
    return tuple(stride for stride, size in zip(strides, shape, strict=True) if size > 1)


def _strides_of_rows(shape: Sequence[int], dtype: ir.DataType, rows: int, pitch: int) -> tuple[int, ...]:
    """Return the bytes from one element to the next on each axis of a tensor whose first axes number `rows`, `pitch` bytes apart."""
    axes = next(count for count in range(1, len(shape) + 1) if math.prod(shape[:count]) == rows)
    inner = [math.prod(shape[axis + 1 :]) * dtype.bitwidth // 8 for axis in range(axes, len(shape))]
    return (*(math.prod(shape[axis + 1 : axes]) * pitch for axis in range(axes)), *inner)


def _has_rows(value: ir.Value, rows: int, known: GraphFacts) -> bool:
    """Return whether the sizes of the first axes of `value` multiply to the number of `rows`."""
    shape = known.shapes.sizes(value) or ()
    return any(math.prod(shape[:count]) == rows for count in range(1, len(shape) + 1))
