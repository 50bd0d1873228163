"""The plan of a TensorFlow Lite model as the result that reports and files show. Steps are the scopes of TensorFlow Lite Micro."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from onnxtile.deployment.tflite_model import MicroGraph, MicroTensor
from onnxtile.deployment.tflite_problem import VIEWS, MicroProblem, TensorKey
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.result import (
    Constant,
    CopyCount,
    Excluded,
    PlannedBuffer,
    PlannedInput,
    PlannedOutput,
    PlanResult,
)


def plan_rows(graphs: Sequence[MicroGraph], problem: MicroProblem, placed: PlanResult) -> PlanResult:
    """Return `placed`, the plan of the buffers of `problem`, with rows for all tensors of `graphs`, and their operators."""
    names = _names(graphs)
    nodes = {place: _node(place, graphs) for place in ((graph, index) for graph, index, _ in problem.scopes)}
    shared = _shared(graphs, problem)
    unit = problem.problem.alignment
    main = graphs[0]
    steps = {(graph, index): scope for graph, index, scope in problem.scopes}
    operators = [graphs[graph].operators[index] for graph, index in steps]
    linked = {
        kind: tuple(
            tuple(names[graph, i] if i >= 0 else "" for i in getattr(graphs[graph].operators[index], kind))
            for graph, index in steps
        )
        for kind in ("inputs", "outputs")
    }
    unread = [key for key in names if key not in problem.owners and not _tensor(graphs, key).is_constant]
    return replace(
        placed,
        io="inside",
        order="model",
        activation_bytes=sum(align(_tensor(graphs, key).size, unit) for key in problem.owners),
        in_place=sum(key != owner for key, owner in problem.owners.items()) - len(shared[0]),
        copies=CopyCount(len(shared[0]), sum(shared[0]), len(shared[1]), sum(shared[1])),
        schedule=tuple(nodes[place] for place in steps),
        steps=tuple(steps.values()),
        operators=tuple(operator.name for operator in operators),
        operands=linked["inputs"],
        results=linked["outputs"],
        attributes=tuple({} for _ in operators),
        buffers=_buffers(graphs, problem, placed, names, nodes),
        constants=tuple(
            Constant(names[key], tensor.size, None, tensor.dtype, tensor.shape)
            for key in names
            if (tensor := _tensor(graphs, key)).is_constant
        ),
        outside=tuple(Excluded(names[key], _reason(graphs, key), *_type(graphs, key)) for key in unread),
        inputs=tuple(PlannedInput(names[0, i], *_type(graphs, (0, i))) for i in main.inputs),
        outputs=tuple(PlannedOutput(names[0, i], *_type(graphs, (0, i))) for i in main.outputs),
    )


def _names(graphs: Sequence[MicroGraph]) -> dict[TensorKey, str]:
    """Return the name of each tensor: its own, with its place behind it where that is empty or repeated."""
    keys = [(number, index) for number, graph in enumerate(graphs) for index in range(len(graph.tensors))]
    times = Counter(_tensor(graphs, key).name for key in keys)
    found = {}
    for key in keys:
        name = _tensor(graphs, key).name
        found[key] = name if name and times[name] == 1 else f"{name}#{key[0]}.{key[1]}"
    return found


def _node(place: TensorKey, graphs: Sequence[MicroGraph]) -> str:
    name = graphs[place[0]].operators[place[1]].name
    return f"{name}_{place[1]}" if place[0] == 0 else f"{name}_{place[0]}.{place[1]}"


def _tensor(graphs: Sequence[MicroGraph], key: TensorKey) -> MicroTensor:
    return graphs[key[0]].tensors[key[1]]


def _type(graphs: Sequence[MicroGraph], key: TensorKey) -> tuple[str, tuple[int, ...]]:
    tensor = _tensor(graphs, key)
    return tensor.dtype, tensor.shape


def _reason(graphs: Sequence[MicroGraph], key: TensorKey) -> str:
    if _tensor(graphs, key).is_variable:
        return "a variable, which keeps its bytes from one inference to the next"
    return "a tensor without elements" if not _tensor(graphs, key).size else "a tensor that no operator uses"


def _shared(graphs: Sequence[MicroGraph], problem: MicroProblem) -> tuple[list[int], list[int]]:
    """Return the bytes of the results of operators that leave elements as they are: those in place, and those that are copied."""
    avoided: list[int] = []
    remaining: list[int] = []
    for number, graph in enumerate(graphs):
        for operator in graph.operators:
            key = (number, operator.outputs[0]) if operator.outputs else (number, -1)
            if operator.name in VIEWS and key in problem.owners:
                (remaining if problem.owners[key] == key else avoided).append(_tensor(graphs, key).size)
    return avoided, remaining


def _buffers(
    graphs: Sequence[MicroGraph],
    problem: MicroProblem,
    placed: PlanResult,
    names: Mapping[TensorKey, str],
    nodes: Mapping[TensorKey, str],
) -> tuple[PlannedBuffer, ...]:
    rows = {row.name: row for row in placed.buffers}
    makers = {
        (number, index): nodes[number, place]
        for number, place, _ in problem.scopes
        for index in graphs[number].operators[place].outputs
    }
    ends = {**dict.fromkeys(graphs[0].inputs, "input"), **dict.fromkeys(graphs[0].outputs, "output")}
    found = []
    for key, owner in problem.owners.items():
        row, tensor = rows[problem.name(owner)], _tensor(graphs, key)
        first, last = (row.first, row.last) if key == owner else problem.live_ranges[key]
        found.append(
            PlannedBuffer(
                name=names[key],
                arena=row.arena,
                offset=row.offset,
                size=tensor.size,
                first=first,
                last=last,
                kind=ends.get(key[1], "activation") if key[0] == 0 else "activation",
                alias=None if key == owner else names[owner],
                node=makers.get(key),
                dtype=tensor.dtype,
                shape=tensor.shape,
            )
        )
    scopes = {place: scope for graph, place, scope in problem.scopes if graph == 0}
    for place, size in problem.scratch.items():
        row, scope, node = rows[problem.scratch_name(place)], scopes[place], nodes[0, place]
        found.append(
            PlannedBuffer(f"{node} scratch", row.arena, row.offset, size, scope, scope, "workspace", node=node)
        )
    return tuple(found)
