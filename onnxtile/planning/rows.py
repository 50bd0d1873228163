"""The rows of a result: each tensor and workspace of a graph and its bodies, with its address; also as marks in the model."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxtile.declare.plan_document import (
    SHARED,
    UNIQUE,
    VERSION,
    WORKSPACE,
    AttributeValue,
    Constant,
    PlannedBody,
    PlannedBuffer,
    PlannedInput,
    PlannedStream,
)
from onnxtile.kernels.aliases import InputStream, LayoutFacts, views
from onnxtile.kernels.from_onnx import StatePair, States
from onnxtile.kernels.kernel_graph import ARENA, CONSTANT, NONE, OUTSIDE, UNKNOWN, GraphTensor, KernelGraph, StateShare
from onnxtile.model import keys
from onnxtile.model.constants import Constants
from onnxtile.model.formula import SizeFormula, product_of
from onnxtile.model.topology import all_values, clear_plan
from onnxtile.planning.bodies import BodyPlan, BodyPlans
from onnxtile.planning.layout import Layout
from onnxtile.planning.orders import named
from onnxtile.planning.result import KeptState, ListedState, PlanResult, planned_parts
from onnxtile.planning.workspaces import WorkspaceBuffer
from onnxtile.shapes.resolve import Shapes, bytes_formula
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError


@dataclass(frozen=True)
class Address:
    """The start of a buffer: `offset` bytes from the start of `arena`."""

    arena: str
    offset: int


Addresses = Mapping[str, Address]
"""By the name of the buffer."""


def planned(layout: Layout, facts: LayoutFacts, places: Addresses) -> tuple[PlannedBuffer, ...]:
    """Return the rows of the tensors of `layout` in the order in which they are made, then those of its workspaces."""
    graph, shapes, alias_sets = layout.graph, facts.shapes, layout.sharing.alias_sets
    kinds = dict.fromkeys(graph.given, "input") | dict.fromkeys(graph.outputs, "output")
    parts = {buffer.name: planned_parts(buffer) for buffer in layout.buffers if buffer.outline}
    rows = []
    for number, alias_set in alias_sets.of.items():
        tensor, owner, maker = graph.tensors[number], graph.tensors[alias_set.owner], graph.makers[number]
        first, end = alias_set.live_range if owner is tensor else layout.live_ranges[number]
        address = places[owner.name]
        rows.append(
            PlannedBuffer(
                name=tensor.name,
                arena=address.arena,
                offset=address.offset + alias_sets.start(number),
                size=alias_sets.size(number),
                first=first,
                last=end - 1,
                kind=kinds.get(number, "activation"),
                alias=owner.name if owner is not tensor else None,
                node=None if maker == NONE else graph.kernels[maker].name,
                dtype=tensor.dtype,
                shape=tensor.dims,
                parts=parts.get(tensor.name) if owner is tensor else None,
                size_formula=str(bytes_formula(tensor.value, shapes) or ""),
                shape_formula=_texts(shapes.formulas(tensor.value)),
            )
        )
    return (*rows, *(_row(workspace, graph, places) for workspace in layout.workspaces))


def _row(workspace: WorkspaceBuffer, graph: KernelGraph, places: Addresses) -> PlannedBuffer:
    buffer, address = workspace.buffer, places[workspace.buffer.name]
    user = graph.kernels[workspace.users[0]].name if len(workspace.users) == 1 else None
    span = (buffer.lower, buffer.upper - 1)
    at = (buffer.name, address.arena, address.offset, buffer.size)
    return PlannedBuffer(*at, *span, WORKSPACE, node=user, dtype=None, shape=None)


def planned_bodies(layout: Layout, inside: BodyPlans, facts: LayoutFacts, places: Addresses) -> tuple[PlannedBody, ...]:
    """Return the plans of the bodies of the nodes of `layout`, at their addresses in the arena."""
    plans: list[PlannedBody] = []
    workspaces = {workspace.users[0]: workspace.buffer.name for workspace in layout.workspaces if workspace.is_own}
    for kernel, bodies in inside.items():
        # A body without bytes has no workspace.
        start = places[workspaces[kernel]] if kernel in workspaces else Address("", 0)
        plans.extend(_placed(layout.graph.kernels[kernel].name, body, facts, start) for body in bodies)
    return tuple(plans)


def _placed(node: str, body: BodyPlan, facts: LayoutFacts, start: Address) -> PlannedBody:
    places = {name: Address(start.arena, start.offset + offset) for name, offset in body.offsets.items()}
    return PlannedBody(
        node=node,
        attribute=body.attribute,
        size=body.size,
        buffers=planned(body.layout, facts, places),
        bodies=planned_bodies(body.layout, body.inside, facts, places),
        **described(body.layout),
    )


def described(layout: Layout) -> dict[str, Any]:
    """Return what a plan says of the nodes of `layout`, in the order of its schedule, by the fields of PlannedGraph.

    Names of inputs and outputs are "" for one that is left out; attributes are the numbers and texts among them.
    """
    graph, kernels = layout.graph, tuple(layout.kernels)
    names = {number: tensor.name for number, tensor in enumerate(graph.tensors)} | {NONE: ""}
    plain = ((a for a in kernel.node.attributes.values() if a.type in _PLAIN and not a.is_ref()) for kernel in kernels)
    return {
        "schedule": graph.ids(layout.schedule),
        "steps": tuple(layout.schedule.steps.values()),
        "operators": tuple(kernel.operator for kernel in kernels),
        "operands": tuple(tuple(map(names.__getitem__, kernel.operands)) for kernel in kernels),
        "results": tuple(tuple(map(_name, kernel.node.outputs)) for kernel in kernels),
        "attributes": tuple({a.name: _plain(a.value) for a in of_kernel} for of_kernel in plain),
        "constant_nodes": tuple(kernel.name for kernel in kernels if graph.is_computed(kernel)),
    }


_PLAIN = frozenset(getattr(ir.AttributeType, name) for name in ("INT", "FLOAT", "STRING", "INTS", "FLOATS", "STRINGS"))


def _plain(value: Any) -> AttributeValue:
    """Return `value`, floats that JSON cannot write as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, int | float | str) else tuple(_plain(element) for element in value)  # type: ignore[misc]


def ends(numbers: Iterable[int], graph: KernelGraph, shapes: Shapes) -> tuple[PlannedInput, ...]:
    """Return the inputs or outputs of a model with these numbers."""
    tensors = map(graph.tensors.__getitem__, numbers)
    return tuple(PlannedInput(t.name, t.dtype, t.dims, _texts(shapes.formulas(t.value))) for t in tensors)


def _texts(formulas: Sequence[SizeFormula] | None) -> tuple[str, ...] | None:
    return None if formulas is None else tuple(map(str, formulas))


def tensors_outside(layout: Layout, inside: BodyPlans) -> tuple[GraphTensor, ...]:
    """Return the tensors of a graph and its bodies without bytes in the arena, with the reasons, in the order of the schedule.

    Constants are those that a kernel of the run reads, and outputs. Others are outside, as are initializers.
    """
    todo, graphs = [(layout, inside)], list[Layout]()
    while todo:
        current, bodies = todo.pop(0)
        graphs.append(current)
        todo.extend((body.layout, body.inside) for planned in bodies.values() for body in planned)
    listed = [tensor for graph_layout in graphs for tensor in _read_or_made(graph_layout)]
    outside = {tensor.value: tensor for tensor in listed if tensor.role != CONSTANT}
    # A constant that is a graph output is made in the graph, also for the bodies that read it.
    elsewhere = {
        tensor.value for graph_layout in graphs for tensor in graph_layout.graph.tensors if tensor.role == ARENA
    } | outside.keys()
    constants = {tensor.value: tensor for tensor in listed if tensor.role == CONSTANT and tensor.value not in elsewhere}
    held = (tensor for graph_layout in graphs for tensor in graph_layout.graph.tensors if tensor.role == CONSTANT)
    unread = {
        tensor.value: tensor for tensor in held if tensor.value not in elsewhere and tensor.value not in constants
    }
    reason = "a constant that no step reads"
    return (
        *outside.values(),
        *constants.values(),
        *(replace(tensor, role=OUTSIDE, reason=reason) for tensor in unread.values()),
    )


def _read_or_made(layout: Layout) -> Iterator[GraphTensor]:
    """Yield the inputs outside, and the constants that each kernel reads with its results outside, in the order of the schedule."""
    graph = layout.graph
    yield from (graph.tensors[number] for number in graph.inputs if graph.tensors[number].role in {OUTSIDE, UNKNOWN})
    for kernel in layout.kernels:
        read = () if graph.is_computed(kernel) else (graph.tensors[number] for number, _ in kernel.reads)
        yield from (tensor for tensor in read if tensor.role == CONSTANT)
        results = (graph.tensors[number] for number in (*kernel.makes, *kernel.inside))
        yield from (tensor for tensor in results if tensor.role in {OUTSIDE, UNKNOWN})
    yield from (graph.tensors[number] for number in graph.outputs if graph.tensors[number].role == CONSTANT)


def _name(value: ir.Value) -> str:
    return value.name or ""


# The layout of states: the strides of one that grows are those of its largest size at every length, so that none of its rows moves.


def with_states(facts: LayoutFacts, pairs: Collection[StatePair]) -> LayoutFacts:
    """Return `facts` with the states `pairs`: the tensors that their operators may write over them, and those that are spread."""
    if not pairs:
        return facts
    roots, spread = dict[ir.Value, ir.Value](), set[ir.Value]()
    for pair in pairs:
        root = facts.root(pair.output)
        if pair.axis is None:
            roots[pair.input] = root
            continue
        tensors = set(_spread(pair, root, facts))
        # Through a view that no strides describe, the output has bytes of its own.
        if root not in tensors or pair.output in tensors:
            roots[pair.input] = root
        spread |= tensors
    return replace(facts, states=roots, spread=frozenset(spread))


def strides(pair: StatePair, facts: LayoutFacts) -> tuple[int, ...] | None:
    """Return the bytes from one element to the next on each axis of a state to which its operator appends in place; None for others."""
    sizes, dtype = facts.shapes.sizes(pair.output), facts.shapes.dtype(pair.output)
    if pair.axis is None or pair.input not in facts.states or sizes is None or dtype is None or dtype.bitwidth < 8:
        return None
    return (*reversed([*accumulate(sizes[:0:-1], mul, initial=dtype.bitwidth // 8)]),)


@dataclass(frozen=True)
class Strides:
    """The bytes from one element of a tensor to the next on each axis, and these as formulas of a range (None without one)."""

    sizes: tuple[int, ...]
    formulas: tuple[SizeFormula, ...] | None


def spread_strides(pair: StatePair, facts: LayoutFacts) -> dict[ir.Value, Strides]:
    """Return the strides of the tensors of a growing state at one address that are not contiguous; none of another state."""
    sizes = strides(pair, facts)
    if sizes is None or pair.axis is None:
        return {}
    root = facts.root(pair.output)
    ends = Strides(sizes, tuple(map(SizeFormula.number, sizes)))
    strides_of: dict[ir.Value, Strides] = {}
    for value in _spread(pair, root, facts):
        if value in {pair.input, pair.output}:
            strides_of[value] = ends
        elif (axes := _row_axes(value, pair, facts)) is not None:
            strides_of[value] = _of_rows(value, axes, sizes[pair.axis - 1], facts)
    return strides_of


def _of_rows(value: ir.Value, axes: int, pitch: int, facts: LayoutFacts) -> Strides:
    """Return the strides of `value`, whose first `axes` axes number rows that are `pitch` bytes apart."""
    sizes, dtype = facts.shapes.sizes(value), facts.shapes.dtype(value)
    assert sizes is not None and dtype is not None
    formulas = facts.shapes.formulas(value)

    def apart(shape: Sequence[SizeFormula]) -> tuple[SizeFormula, ...]:
        ends = [(axes, pitch) if axis < axes else (len(shape), dtype.bitwidth // 8) for axis in range(len(shape))]
        return tuple(product_of(shape[axis + 1 : end]) * unit for axis, (end, unit) in enumerate(ends))

    largest = tuple(stride.constant or 0 for stride in apart([SizeFormula.number(size) for size in sizes]))
    return Strides(largest, None if formulas is None else apart(formulas))


def _spread(pair: StatePair, root: ir.Value, facts: LayoutFacts) -> Iterator[ir.Value]:
    """Yield the tensors of a growing state that are not contiguous at all lengths, with their views that have the same rows."""
    shape = facts.shapes.sizes(pair.input) or ()
    if math.prod(shape[: pair.axis]) < 2:
        return
    todo = [pair.input, root] if facts.shapes.is_bound(root) else [pair.input]
    while todo:
        value = todo.pop()
        yield value
        shown = (alias for node in value.consumers() for alias in views(node, facts) if alias.source is value)
        todo += (alias.value for alias in shown if _row_axes(alias.value, pair, facts) is not None)


def _row_axes(value: ir.Value, pair: StatePair, facts: LayoutFacts) -> int | None:
    """Return how many first axes of `value` number the rows of the state `pair`, at all sizes; None where none do."""
    shapes = facts.shapes
    sizes, rows = shapes.sizes(value) or (), math.prod((shapes.sizes(pair.input) or ())[: pair.axis])
    formulas, state = shapes.formulas(value), shapes.formulas(pair.input)
    if shapes.is_bound(value) and None in (formulas, state) and value is not facts.root(pair.output):
        return None
    for axes in range(1, len(sizes) + 1):
        is_equal = formulas is None or state is None or product_of(formulas[:axes]) == product_of(state[: pair.axis])
        if math.prod(sizes[:axes]) == rows and is_equal:
            return axes
    return None


# The rows of a result that tell which inputs come row by row, and where its states are.


def planned_streams(streams: Iterable[InputStream]) -> tuple[PlannedStream, ...]:
    """Return the inputs that come row by row, with the rows of each read."""
    return tuple(
        PlannedStream(
            stream.input.name or "",
            stream.axis,
            stream.rows,
            stream.row_bytes,
            tuple((read.first, read.count) for read in stream.reads),
        )
        for stream in streams
    )


def planned_states(states: States, layout: Layout, facts: LayoutFacts, places: Addresses) -> tuple[KeptState, ...]:
    """Return the states kept in the arena of `layout` at the addresses `places`."""
    pairs = zip(states.taken, layout.graph.states, strict=True)
    return tuple(_kept(pair, state, layout, facts, places) for pair, state in pairs)


def with_strides(
    rows: Sequence[PlannedBuffer], states: States, layout: Layout, facts: LayoutFacts
) -> tuple[PlannedBuffer, ...]:
    """Return `rows` with the strides of those that are not contiguous: growing states at one address, and their views there."""
    strides_of: dict[str, Strides] = {}
    for pair, state in zip(states.taken, layout.graph.states, strict=True):
        if layout.sharing.is_one(*state):
            held = {layout.graph.tensors[number].name for number in layout.sharing.alias_sets.of[state.input].tensors}
            spread = spread_strides(pair, facts).items()
            strides_of |= {value.name or "": of_value for value, of_value in spread if value.name in held}
    return tuple(
        replace(
            row,
            strides=strides_of[row.name].sizes,
            strides_formula=_texts(strides_of[row.name].formulas) if row.shape_formula else None,
        )
        if row.name in strides_of
        else row
        for row in rows
    )


def listed_states(states: States) -> tuple[ListedState, ...]:
    """Return the states that are only listed."""
    return tuple(ListedState(_name(pair.input), _name(pair.output), pair.source, pair.axis) for pair in states.listed)


def _kept(pair: StatePair, state: StateShare, layout: Layout, facts: LayoutFacts, places: Addresses) -> KeptState:
    alias_sets = layout.sharing.alias_sets
    before, is_same = alias_sets.of[state.input], layout.sharing.is_one(*state)
    address = places[layout.graph.tensors[before.owner].name]
    sizes = alias_sets.size(state.input), alias_sets.size(state.output)
    return KeptState(
        _name(pair.input),
        _name(pair.output),
        source=pair.source,
        axis=pair.axis,
        arena=address.arena,
        offset=address.offset + alias_sets.start(state.input),
        size=max(sizes) if is_same else sizes[0],
        copied=0 if is_same else sizes[0],
        strides=strides(pair, facts) if is_same else None,
    )


def annotate(model: ir.Model, result: PlanResult) -> None:
    """Write `result` into the metadata of each value and node of `model` and its bodies, and of its graph; older marks are removed.

    Only files of IR version 10 and later keep the metadata. Raises UsageError where `result` is the plan of another model.
    """
    graphs = list(_graphs(model.graph, result))
    clear_plan(model)
    for graph, plan in graphs:
        _mark(graph, plan)
    model.graph.metadata_props[keys.PLAN] = _summary(result)


def _graphs(graph: ir.Graph, plan: PlanResult | PlannedBody) -> Iterator[tuple[ir.Graph, PlanResult | PlannedBody]]:
    """Yield `graph` and its bodies, at any depth, each with its plan. Raises UsageError for the plan of another model."""
    names = {value.name for value in _values(graph)}
    if not {buffer.name for buffer in plan.tensors} <= names:
        raise UsageError("the plan belongs to another model")
    yield graph, plan
    nodes = dict(zip(plan.schedule, named(graph, plan.schedule), strict=True))
    for body in plan.bodies:
        # A function has one graph for all its calls, so only the JSON has their plans.
        if body.attribute is not None:
            yield from _graphs(nodes[body.node].attributes[body.attribute].as_graph(), body)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from (value for node in graph for value in node.outputs)


def _mark(graph: ir.Graph, plan: PlanResult | PlannedBody) -> None:
    workspaces: dict[str | None, list[PlannedBuffer]] = {}
    for row in plan.buffers:
        if row.kind == "workspace" and row.name != SHARED:
            workspaces.setdefault(row.node, []).append(row)
    nodes = named(graph, plan.schedule)
    for node, step, name in zip(nodes, plan.steps, plan.schedule, strict=True):
        node.metadata_props[keys.STEP] = str(step)
        for row in workspaces.get(name, ()):
            key = keys.UNIQUE_WORKSPACE_AT if row.name.endswith(UNIQUE) else keys.WORKSPACE_AT
            node.metadata_props[key] = _json({"arena": row.arena, "offset": row.offset, "size": row.size})
    values = {value.name: value for value in _values(graph)}
    for buffer in plan.tensors:
        marks = values[buffer.name].metadata_props
        marks[keys.ARENA] = buffer.arena
        marks[keys.OFFSET] = str(buffer.offset)
        marks[keys.SIZE] = str(buffer.size)
        if buffer.alias is not None:
            marks[keys.ALIAS_OF] = buffer.alias
        if buffer.parts:
            marks[keys.PARTS] = _json([dict(vars(part)) for part in buffer.parts])


def _summary(result: PlanResult) -> str:
    arenas = [dict(vars(arena)) for arena in result.arenas]
    summary = {"version": VERSION, "alignment": result.alignment, "arenas": arenas, "peak": result.peak}
    summary |= {"io": result.io, "overwrite_inputs": result.overwrite_inputs, "order": result.order}
    summary |= result.rules
    if result.kernels is not None:
        summary["kernels"] = result.kernels.to_dict()
    if result.states:
        state_fields = ("input", "output", "arena", "offset", "size", "copied", "strides")
        summary["states"] = [{key: getattr(state, key) for key in state_fields} for state in result.states]
    if result.movement is not None:
        summary["movement"] = {"fast": result.movement.fast, "slow": result.movement.slow}
    shared = [workspace for workspace in result.buffers if workspace.kind == "workspace" and workspace.name == SHARED]
    if shared:
        fields = ("arena", "offset", "size", "first", "last")
        summary["workspaces"] = [{key: getattr(workspace, key) for key in fields} for workspace in shared]
    return _json(summary)


def _json(content: dict[str, Any] | list[dict[str, Any]]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


# The block of constants of a plan: the bytes that a runtime keeps in flash, each constant at its offset.


def constant_block(model: ir.Model, plan: PlanResult) -> bytes:
    """Return the bytes of all constants of `plan`, a plan of `model`, at their offsets; gaps are zero.

    Elements are little-endian, those of less than a byte packed as ONNX packs them. Raises UsageError where constants of several graphs
    have one name and different bytes, ModelError where onnxruntime cannot compute one.
    """
    placed = [row for row in plan.constants if row.size is not None and row.offset is not None]
    constants = Constants(model)
    named: dict[str, list[ir.Value]] = {row.name: [] for row in placed}
    for value in dict.fromkeys(all_values(model)):
        if value in constants and value.name in named:
            named[value.name].append(value)
    constants.prepare(value for values in named.values() for value in values)
    block = bytearray(max((row.offset + row.size for row in placed), default=0))  # type: ignore[operator]
    for row in placed:
        contents = set(_contents(row, named[row.name], constants))
        if len(contents) != 1:
            raise UsageError(
                f"{len(contents) or 'no'} constants of the model are named {row.name!r} and have {row.size} bytes",
                hint="give the constants of bodies and functions names of their own",
            )
        start = row.offset or 0
        block[start : start + (row.size or 0)] = contents.pop()
    return bytes(block)


def _contents(row: Constant, values: list[ir.Value], constants: Constants) -> Iterator[bytes]:
    """Yield the bytes of the constants `values` that are as long as `row` says."""
    for value in values:
        if value.const_value is not None:
            data = value.const_value.tobytes()
        else:
            dtype = None if row.dtype is None else ir.DataType[row.dtype]
            data = ir.Tensor(np.ascontiguousarray(constants.array(value)), dtype=dtype).tobytes()
        if len(data) == row.size:
            yield data
