"""The plan of a TensorFlow Lite model as the result that reports and files show. Steps are the scopes of TensorFlow Lite Micro."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import TypeAlias

from onnxtile.declare.plan_document import WORKSPACE, Constant, CopyCount, Excluded, PlannedBuffer, PlannedInput
from onnxtile.deployment.tflite_model import MicroGraph, MicroOperator, MicroTensor
from onnxtile.planning.offsets.problem import Buffer, Problem, align
from onnxtile.planning.result import PlanResult
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError

# The planning problem of a TensorFlow Lite model: the live ranges that TensorFlow Lite Micro computes, and the tensors that share bytes.
#
# TensorFlow Lite Micro counts a scope for each operator, and one more for each subgraph that an operator runs. A tensor is live from the
# scope of the operator that writes it to the scope of the last one that reads it. (tensorflow/lite/micro/micro_allocation_info.cc in
# https://github.com/tensorflow/tflite-micro.)

UNIT = 16
"""Bytes: TensorFlow Lite Micro rounds the size of each tensor up to a multiple of this (MicroArenaBufferAlignment)."""

TensorKey: TypeAlias = tuple[int, int]
"""A tensor: the index of its subgraph, and its own index there."""

VIEWS = frozenset({"EXPAND_DIMS", "RESHAPE"})
"""Operators whose kernels leave the elements where they are, if input 0 and the output have one address."""

ELEMENTWISE = frozenset(
    {
        *(
            "ABS",
            "CEIL",
            "COS",
            "ELU",
            "EXP",
            "FLOOR",
            "HARD_SWISH",
            "LEAKY_RELU",
            "LOG",
            "LOGICAL_NOT",
            "LOGISTIC",
            "NEG",
        ),
        *("RELU", "RELU6", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "TANH"),
        *("ADD", "DIV", "MAXIMUM", "MINIMUM", "MUL", "SQUARED_DIFFERENCE", "SUB"),
    }
)
"""Operators whose kernels read an element of an input before they write the same element of the output, and never again."""

NO_SCRATCH: Mapping[int, int] = MappingProxyType({})
"""No operator needs scratch bytes."""

_DEEPEST = 8
"""Levels of subgraphs in subgraphs, at most: one that runs itself has no end."""
_MOST = 500_000
"""Operators that run in all subgraphs, at most: each counts as often as it runs."""


@dataclass(frozen=True)
class MicroProblem:
    """The problem, the owner of the bytes of each tensor that is planned, and the scope of each operator, in the order of the scopes.

    `scratch` has the bytes that operators of the first subgraph need beside their tensors, by their places.
    """

    problem: Problem
    owners: Mapping[TensorKey, TensorKey]
    live_ranges: Mapping[TensorKey, tuple[int, int]]
    scopes: Sequence[tuple[int, int, int]]
    scratch: Mapping[int, int]

    @staticmethod
    def name(key: TensorKey) -> str:
        """Return the name of the buffer of the tensor `key`."""
        return f"{key[0]}/{key[1]}"

    @staticmethod
    def scratch_name(position: int) -> str:
        """Return the name of the buffer of the scratch of the operator at `position`."""
        return f"scratch/{position}"


def problem_of(
    graphs: Sequence[MicroGraph], alignment: int = UNIT, scratch: Mapping[int, int] = NO_SCRATCH
) -> MicroProblem:
    """Return the problem of the model with the subgraphs `graphs`; `scratch` is as in MicroProblem.

    Raises ModelError where a subgraph runs itself.
    """
    marks = _Marks(graphs)
    marks.walk(0, 0)
    ranges = {key: (first, last) for key, (first, last) in sorted(marks.live.items())}
    owners = _owners(graphs, ranges)
    together: dict[TensorKey, list[TensorKey]] = {}
    for key, owner in owners.items():
        together.setdefault(owner, []).append(key)
    buffers = tuple(
        Buffer(
            MicroProblem.name(owner),
            max(graphs[graph].tensors[index].size for graph, index in keys),
            min(ranges[key][0] for key in keys),
            max(ranges[key][1] for key in keys) + 1,
        )
        for owner, keys in together.items()
    )
    workspaces = tuple(
        Buffer(MicroProblem.scratch_name(position), scratch[position], scope, scope + 1)
        for graph, position, scope in marks.scopes
        if graph == 0 and position in scratch
    )
    return MicroProblem(Problem((*buffers, *workspaces), alignment), owners, ranges, tuple(marks.scopes), scratch)


@dataclass
class _Marks:
    """The walk over the subgraphs in the order of TensorFlow Lite Micro: `live` has the first and last scope of each planned tensor.

    `scopes` has for each operator its subgraph, its index there, and its scope.
    """

    graphs: Sequence[MicroGraph]
    live: dict[TensorKey, tuple[int, int]] = field(default_factory=dict)
    scopes: list[tuple[int, int, int]] = field(default_factory=list)
    _now: int = 0

    def walk(self, number: int, depth: int) -> None:
        if depth > _DEEPEST or len(self.scopes) > _MOST:
            raise ModelError(
                f"a subgraph of the TensorFlow Lite model runs itself, or subgraphs are more than {_DEEPEST} levels deep"
            )
        graph = self.graphs[number]
        self._mark(number, graph.inputs)
        for position, operator in enumerate(graph.operators):
            self._now += 1
            self.scopes.append((number, position, self._now))
            self._mark(number, operator.outputs)
            for body in operator.bodies:
                self._now += 1
                self.walk(body, depth + 1)
            self._mark(number, (*operator.inputs, *operator.outputs))
        self._mark(number, graph.outputs)

    def _mark(self, number: int, indices: Sequence[int]) -> None:
        for index in indices:
            if index >= 0 and self.graphs[number].tensors[index].is_planned:
                first, _ = self.live.get((number, index), (self._now, self._now))
                self.live[number, index] = (first, self._now)


def _owners(graphs: Sequence[MicroGraph], ranges: Mapping[TensorKey, tuple[int, int]]) -> dict[TensorKey, TensorKey]:
    """Return the tensor that owns the bytes of each planned tensor."""
    owners = {key: key for key in ranges}
    ends = {key: last for key, (_, last) in ranges.items()}
    kept = {
        (number, index) for number, graph in enumerate(graphs) for index in (*graph.inputs, *graph.outputs) if number
    }
    for number, graph in enumerate(graphs):
        for operator in graph.operators:
            for source, result in _candidates(number, operator, graph):
                if source not in owners or owners.get(result) != result or result in kept or owners[source] in kept:
                    continue
                owner = owners[source]
                is_read_again = ends[owner] > ranges[result][0]
                if is_read_again and operator.name not in VIEWS:
                    continue
                owners[result] = owner
                ends[owner] = max(ends[owner], ends[result])
                break
    return owners


def _candidates(number: int, operator: MicroOperator, graph: MicroGraph) -> Iterator[tuple[TensorKey, TensorKey]]:
    """Yield the inputs of `operator` that its output may share bytes with, each with the output."""
    if operator.name not in VIEWS | ELEMENTWISE or len(operator.outputs) != 1 or operator.outputs[0] < 0:
        return
    result = graph.tensors[operator.outputs[0]]
    for index in operator.inputs[:1] if operator.name in VIEWS else operator.inputs:
        source = graph.tensors[index] if index >= 0 else None
        if source is None or (source.dtype, source.size) != (result.dtype, result.size):
            continue
        if operator.name in VIEWS or (source.shape == result.shape and operator.inputs.count(index) == 1):
            yield (number, index), (number, operator.outputs[0])


def plan_rows(graphs: Sequence[MicroGraph], problem: MicroProblem, planned: PlanResult) -> PlanResult:
    """Return `planned`, the plan of the buffers of `problem`, with rows for all tensors of `graphs`, and their operators."""
    names = _names(graphs)
    nodes = {position: _node(position, graphs) for position in ((graph, index) for graph, index, _ in problem.scopes)}
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
        planned,
        io="inside",
        order="model",
        activation_bytes=sum(align(_tensor(graphs, key).size, unit) for key in problem.owners),
        in_place=sum(key != owner for key, owner in problem.owners.items()) - len(shared[0]),
        copies=CopyCount(len(shared[0]), sum(shared[0]), len(shared[1]), sum(shared[1])),
        schedule=tuple(nodes[position] for position in steps),
        steps=tuple(steps.values()),
        operators=tuple(operator.name for operator in operators),
        operands=linked["inputs"],
        results=linked["outputs"],
        attributes=tuple({} for _ in operators),
        buffers=_buffers(graphs, problem, planned, names, nodes),
        constants=tuple(
            Constant(names[key], tensor.size, None, tensor.dtype, tensor.shape)
            for key in names
            if (tensor := _tensor(graphs, key)).is_constant
        ),
        outside=tuple(Excluded(names[key], _reason(graphs, key), *_type(graphs, key)) for key in unread),
        inputs=tuple(PlannedInput(names[0, i], *_type(graphs, (0, i))) for i in main.inputs),
        outputs=tuple(PlannedInput(names[0, i], *_type(graphs, (0, i))) for i in main.outputs),
    )


def _names(graphs: Sequence[MicroGraph]) -> dict[TensorKey, str]:
    """Return the name of each tensor: its own, with its indices after it where that is empty or repeated."""
    keys = [(number, index) for number, graph in enumerate(graphs) for index in range(len(graph.tensors))]
    times = Counter(_tensor(graphs, key).name for key in keys)
    names = {}
    for key in keys:
        name = _tensor(graphs, key).name
        names[key] = name if name and times[name] == 1 else f"{name}#{key[0]}.{key[1]}"
    return names


def _node(position: TensorKey, graphs: Sequence[MicroGraph]) -> str:
    name = graphs[position[0]].operators[position[1]].name
    return f"{name}_{position[1]}" if position[0] == 0 else f"{name}_{position[0]}.{position[1]}"


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
    planned: PlanResult,
    names: Mapping[TensorKey, str],
    nodes: Mapping[TensorKey, str],
) -> tuple[PlannedBuffer, ...]:
    rows = {row.name: row for row in planned.buffers}
    makers = {
        (number, index): nodes[number, position]
        for number, position, _ in problem.scopes
        for index in graphs[number].operators[position].outputs
    }
    ends = {**dict.fromkeys(graphs[0].inputs, "input"), **dict.fromkeys(graphs[0].outputs, "output")}
    buffers = []
    for key, owner in problem.owners.items():
        row, tensor = rows[problem.name(owner)], _tensor(graphs, key)
        first, last = (row.first, row.last) if key == owner else problem.live_ranges[key]
        buffers.append(
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
    scopes = {position: scope for graph, position, scope in problem.scopes if graph == 0}
    for position, size in problem.scratch.items():
        row, scope, node = rows[problem.scratch_name(position)], scopes[position], nodes[0, position]
        buffers.append(
            PlannedBuffer(
                f"{node} scratch",
                row.arena,
                row.offset,
                size,
                scope,
                scope,
                WORKSPACE,
                node=node,
                dtype=None,
                shape=None,
            )
        )
    return tuple(buffers)
