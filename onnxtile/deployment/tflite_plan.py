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
    return _RowWriter(graphs, problem, planned).result()


@dataclass
class _RowWriter:
    """Writes the rows of a plan. Tensors are called by their names, with their indices after them where these are empty or repeated."""

    graphs: Sequence[MicroGraph]
    problem: MicroProblem
    planned: PlanResult

    def __post_init__(self) -> None:
        keys = [(number, index) for number, graph in enumerate(self.graphs) for index in range(len(graph.tensors))]
        self._tensors = {key: self.graphs[key[0]].tensors[key[1]] for key in keys}
        times = Counter(tensor.name for tensor in self._tensors.values())
        self._names = {
            (graph, index): tensor.name if tensor.name and times[tensor.name] == 1 else f"{tensor.name}#{graph}.{index}"
            for (graph, index), tensor in self._tensors.items()
        }
        self._operators = {
            (graph, index): self.graphs[graph].operators[index] for graph, index, _ in self.problem.scopes
        }
        self._nodes = {
            (graph, index): f"{operator.name}_{index}" if graph == 0 else f"{operator.name}_{graph}.{index}"
            for (graph, index), operator in self._operators.items()
        }

    def result(self) -> PlanResult:
        """Return the plan with all rows."""
        owners, (avoided, remaining) = self.problem.owners, self._views()
        steps = {(graph, index): scope for graph, index, scope in self.problem.scopes}
        constant = {key for key, tensor in self._tensors.items() if tensor.is_constant}
        return replace(
            self.planned,
            io="inside",
            order="model",
            activation_bytes=sum(align(self._tensors[key].size, self.problem.problem.alignment) for key in owners),
            in_place=sum(key != owner for key, owner in owners.items()) - len(avoided),
            copies=CopyCount(len(avoided), sum(avoided), len(remaining), sum(remaining)),
            schedule=tuple(self._nodes[position] for position in steps),
            steps=tuple(steps.values()),
            operators=tuple(self._operators[position].name for position in steps),
            operands=tuple(self._linked(position[0], self._operators[position].inputs) for position in steps),
            results=tuple(self._linked(position[0], self._operators[position].outputs) for position in steps),
            attributes=tuple({} for _ in steps),
            buffers=(*self._buffers(), *self._workspaces()),
            constants=tuple(
                Constant(self._names[key], tensor.size, None, tensor.dtype, tensor.shape)
                for key, tensor in self._tensors.items()
                if key in constant
            ),
            outside=tuple(
                Excluded(self._names[key], _reason(tensor), tensor.dtype, tensor.shape)
                for key, tensor in self._tensors.items()
                if key not in owners and key not in constant
            ),
            inputs=self._ends(self.graphs[0].inputs),
            outputs=self._ends(self.graphs[0].outputs),
        )

    def _linked(self, number: int, indices: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._names[number, index] if index >= 0 else "" for index in indices)

    def _ends(self, indices: Sequence[int]) -> tuple[PlannedInput, ...]:
        tensors = ((self._names[0, index], self._tensors[0, index]) for index in indices)
        return tuple(PlannedInput(name, tensor.dtype, tensor.shape) for name, tensor in tensors)

    def _views(self) -> tuple[list[int], list[int]]:
        """Return the bytes of the results of operators that leave elements as they are: those in place, and those that are copied."""
        avoided: list[int] = []
        remaining: list[int] = []
        for number, graph in enumerate(self.graphs):
            for operator in graph.operators:
                key = (number, operator.outputs[0]) if operator.outputs else (number, -1)
                if operator.name in VIEWS and key in self.problem.owners:
                    (remaining if self.problem.owners[key] == key else avoided).append(self._tensors[key].size)
        return avoided, remaining

    def _buffers(self) -> Iterator[PlannedBuffer]:
        rows = {row.name: row for row in self.planned.buffers}
        makers = {
            (number, index): node
            for (number, position), node in self._nodes.items()
            for index in self._operators[number, position].outputs
        }
        main = self.graphs[0]
        ends = {(0, i): kind for kind, indices in (("input", main.inputs), ("output", main.outputs)) for i in indices}
        for key, owner in self.problem.owners.items():
            row, tensor = rows[self.problem.name(owner)], self._tensors[key]
            first, last = (row.first, row.last) if key == owner else self.problem.live_ranges[key]
            yield PlannedBuffer(
                name=self._names[key],
                arena=row.arena,
                offset=row.offset,
                size=tensor.size,
                first=first,
                last=last,
                kind=ends.get(key, "activation"),
                alias=None if key == owner else self._names[owner],
                node=makers.get(key),
                dtype=tensor.dtype,
                shape=tensor.shape,
            )

    def _workspaces(self) -> Iterator[PlannedBuffer]:
        rows = {row.name: row for row in self.planned.buffers}
        scopes = {position: scope for graph, position, scope in self.problem.scopes if graph == 0}
        for position, size in self.problem.scratch.items():
            row, scope, node = rows[self.problem.scratch_name(position)], scopes[position], self._nodes[0, position]
            scratch = (f"{node} scratch", row.arena, row.offset, size, scope, scope, WORKSPACE)
            yield PlannedBuffer(*scratch, node=node, dtype=None, shape=None)


def _reason(tensor: MicroTensor) -> str:
    if tensor.is_variable:
        return "a variable, which keeps its bytes from one inference to the next"
    return "a tensor without elements" if not tensor.size else "a tensor that no operator uses"
