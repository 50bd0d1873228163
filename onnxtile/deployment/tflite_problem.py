"""The planning problem of a TensorFlow Lite model: the live ranges that TensorFlow Lite Micro computes, and the tensors that share bytes.

TensorFlow Lite Micro counts a scope for each operator, and one more for each subgraph that an operator runs. A tensor is live from the
scope of the operator that writes it to the scope of the last one that reads it. (tensorflow/lite/micro/micro_allocation_info.cc in
https://github.com/tensorflow/tflite-micro.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from onnxtile.deployment.tflite_model import MicroGraph, MicroOperator
from onnxtile.errors import ModelError
from onnxtile.planning.offsets.problem import Buffer, Problem

UNIT = 16
"""Bytes: TensorFlow Lite Micro rounds the size of each tensor up to a multiple (MicroArenaBufferAlignment)."""

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
"""The bytes of no operator."""

_DEEPEST = 8
"""Levels of subgraphs in subgraphs, at most: one that runs itself has no end."""
_MOST = 500_000
"""Operators of all subgraphs as often as they run, at most."""


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
    def scratch_name(place: int) -> str:
        """Return the name of the buffer of the scratch of the operator at `place`."""
        return f"scratch/{place}"


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
        Buffer(MicroProblem.scratch_name(place), scratch[place], scope, scope + 1)
        for graph, place, scope in marks.scopes
        if graph == 0 and place in scratch
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
        for place, operator in enumerate(graph.operators):
            self._now += 1
            self.scopes.append((number, place, self._now))
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
