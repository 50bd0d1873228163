"""The order in which a model's nodes run; the step of a node is its place in it, counted from 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.graph import dependencies, node_ids


@dataclass(frozen=True)
class Schedule:
    """The nodes of a main graph in the order in which they run. A node with bodies, or a call of a function, is one step."""

    nodes: tuple[ir.Node, ...] = field(repr=False)

    @cached_property
    def steps(self) -> Mapping[ir.Node, int]:
        """The step of each node."""
        return {node: step for step, node in enumerate(self.nodes)}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """What results call each node, by step."""
        names = node_ids(self.nodes)
        return tuple(names[node] for node in self.nodes)

    @property
    def end(self) -> int:
        """The step after the last one."""
        return len(self.nodes)


def own_order(model: ir.Model) -> Schedule:
    """Return the order of the file. Raises ModelError where a node stands before one that it depends on."""
    schedule = Schedule(tuple(model.graph))
    for node, step in schedule.steps.items():
        for value in dependencies(node):
            producer = value.producer()
            if producer is not None and schedule.steps.get(producer, -1) >= step:
                raise ModelError(f"the node {schedule.ids[step]!r} reads {value.name!r}, which is made after it")
    return schedule
