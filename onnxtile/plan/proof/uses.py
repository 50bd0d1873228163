"""The steps at which each value is written and read, told by the graph's own def-use chains.

The check of a plan compares lives with these. They are found from the other end than the lives in plan.order.live: from each value to its
readers instead of from each node to what it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from onnxtile.plan.order.schedule import Schedule
from onnxtile.plan.proof.tenant import BEFORE
from onnxtile.plan.scope import Scope


def steps_of_use(scope: Scope, schedule: Schedule, values: Iterable[ir.Value]) -> dict[ir.Value, tuple[int, ...]]:
    """Return for each of `values` the steps that write or read it.

    What is given is written before the first step, at -1; the last step of all reads what is kept.
    """
    steps: dict[ir.Node, int] = {}
    handed_out: dict[ir.Value, set[int]] = {}
    for node, step in schedule.steps.items():
        steps[node] = step
        for body in _bodies(node):
            steps.update((inner, step) for inner in body)
            for value in body.outputs:
                handed_out.setdefault(value, set()).add(step)
    found = {}
    for value in values:
        producer = value.producer()
        own = {steps[producer] if producer is not None else BEFORE}
        read = {steps[reader] for reader in value.consumers()}
        last = {schedule.end - 1} if value in scope.kept else set()
        found[value] = tuple(sorted(own | read | last | handed_out.get(value, set())))
    return found


def crowded_steps(schedule: Schedule, values: Iterable[ir.Value]) -> dict[ir.Value, tuple[int, ...]]:
    """Return for each of `values` that several nodes read in one step what steps those are."""
    top: dict[ir.Node, ir.Node] = {}
    handed_out: dict[ir.Value, set[ir.Node]] = {}
    for node in schedule.nodes:
        top[node] = node
        for body in _bodies(node):
            top.update((inner, node) for inner in body)
            for value in body.outputs:
                handed_out.setdefault(value, set()).add(node)
    found = {}
    for value in values:
        readers = {top[reader] for reader in value.consumers()} | handed_out.get(value, set())
        counts = Counter(schedule.steps[reader] for reader in readers)
        crowded = tuple(sorted(step for step, count in counts.items() if count > 1))
        if crowded:
            found[value] = crowded
    return found


def followers(schedule: Schedule) -> list[list[int]]:
    """Return for the node of each place in `schedule` the places of those that read what it makes."""
    place: dict[ir.Node, int] = {}
    handed_out: dict[ir.Value, set[int]] = {}
    for number, node in enumerate(schedule.nodes):
        place[node] = number
        for body in _bodies(node):
            place.update((inner, number) for inner in body)
            for value in body.outputs:
                handed_out.setdefault(value, set()).add(number)
    return [
        sorted(
            {place[r] for v in node.outputs for r in v.consumers()}.union(
                *(handed_out.get(v, ()) for v in node.outputs)
            )
        )
        for node in schedule.nodes
    ]


def _bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """Yield the bodies of `node`, and of the nodes in them, at any depth."""
    todo = [node]
    while todo:
        for attribute in todo.pop().attributes.values():
            bodies: Iterable[ir.Graph] = ()
            if attribute.type == ir.AttributeType.GRAPH:
                bodies = [attribute.as_graph()]
            elif attribute.type == ir.AttributeType.GRAPHS:
                bodies = attribute.as_graphs()
            for body in bodies:
                yield body
                todo.extend(body)
