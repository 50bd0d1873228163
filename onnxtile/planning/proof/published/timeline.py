"""When each value of a graph is made and read, by a walk over its nodes in the order of the plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx_ir as ir

from onnxtile.planning.proof.failure import PlanFailure
from onnxtile.planning.proof.published.evidence import names_of, reads

_NAMED = 3
"""The most nodes in a message."""


@dataclass(frozen=True)
class RunOrder:
    """The nodes of `graph` in the order in which they run, the step of each, and its name in the plan.

    `kept` values must outlive the run, `given` values exist before it. Values `apart` share bytes with nothing in the whole run. The bytes
    of values in `throughout` are held in all steps.
    """

    graph: ir.Graph
    nodes: tuple[ir.Node, ...]
    steps: tuple[int, ...]
    names: tuple[str, ...]
    kept: frozenset[ir.Value]
    given: tuple[ir.Value, ...]
    apart: frozenset[ir.Value] = frozenset()
    throughout: frozenset[ir.Value] = frozenset()

    @cached_property
    def step_of(self) -> dict[ir.Node, int]:
        """The step of each node."""
        return dict(zip(self.nodes, self.steps, strict=True))

    @cached_property
    def name_of(self) -> dict[ir.Node, str]:
        """The name of each node in the plan."""
        return dict(zip(self.nodes, self.names, strict=True))

    @cached_property
    def reads(self) -> dict[ir.Node, dict[ir.Value, None]]:
        """The values that each node reads, also in its bodies."""
        return {node: reads(node) for node in self.nodes}

    @cached_property
    def readers(self) -> dict[ir.Value, list[ir.Node]]:
        """The nodes that read each value, in the order in which they run."""
        found: dict[ir.Value, list[ir.Node]] = {}
        for node, values in self.reads.items():
            for value in values:
                found.setdefault(value, []).append(node)
        return found

    @cached_property
    def handed_out(self) -> frozenset[ir.Value]:
        """The outputs of the graph."""
        return frozenset(self.graph.outputs)

    def users(self, value: ir.Value) -> list[ir.Node]:
        """Return the last users of `value`: its readers, or its producer if it has none."""
        maker = value.producer()
        return self.readers.get(value) or ([] if maker is None else [maker])

    @property
    def end(self) -> int:
        """The last step; 0 where there is none."""
        return self.steps[-1] if self.steps else 0

    def first(self, value: ir.Value) -> int:
        """Return the first step of the live range of `value`, which this graph makes or is given."""
        maker = value.producer()
        return 0 if maker is None or value in self.apart else self.step_of[maker]

    def last(self, value: ir.Value) -> int:
        """Return the last step of the live range of `value`."""
        if value in self.kept | self.apart or (value in self.throughout and value.producer() is None):
            return self.end
        readers = self.readers.get(value)
        return self.step_of[readers[-1]] if readers else self.first(value)


def timeline(
    graph: ir.Graph,
    schedule: Sequence[str],
    steps: Sequence[int],
    kept: frozenset[ir.Value],
    given: tuple[ir.Value, ...],
    apart: frozenset[ir.Value] = frozenset(),
    throughout: frozenset[ir.Value] = frozenset(),
) -> RunOrder | list[PlanFailure]:
    """Return the order in which the nodes of `graph` run, or the faults of `schedule` and `steps` that are not an order of them."""
    waiting: dict[str, list[ir.Node]] = {}
    for node, name in names_of(graph).items():
        waiting.setdefault(name, []).append(node)
    nodes, unknown = [], []
    for name in schedule:
        if waiting.get(name):
            nodes.append(waiting[name].pop(0))
        else:
            unknown.append(name)
    missing = [name for name, left in waiting.items() if left]
    failures = []
    if unknown:
        failures.append(
            PlanFailure(f"the schedule has {_listed(unknown)}, which the graph does not have, or has fewer times")
        )
    if missing:
        failures.append(PlanFailure(f"the schedule lacks {_listed(missing)}"))
    if len(steps) != len(schedule):
        failures.append(PlanFailure(f"there are {len(steps)} steps for the {len(schedule)} nodes of the schedule"))
    if failures:
        return failures
    found = RunOrder(graph, tuple(nodes), tuple(steps), tuple(schedule), kept, given, apart, throughout)
    return list(_disorder(found)) or found


def _disorder(line: RunOrder) -> Iterator[PlanFailure]:
    """Yield each step that does not follow the one before, and each node that runs before a value it reads is made."""
    before = -1
    for name, step in zip(line.names, line.steps, strict=True):
        if step not in {before, before + 1} or step < 0:
            yield PlanFailure(
                f"step {step} of {name!r} follows step {before}"
                if before >= 0
                else f"{name!r} is in step {step}, not 0"
            )
            return
        before = step
    place = {node: number for number, node in enumerate(line.nodes)}
    for number, node in enumerate(line.nodes):
        for value in line.reads[node]:
            maker = value.producer()
            if maker is None or maker not in place:
                continue
            if place[maker] >= number or line.steps[place[maker]] >= line.steps[number]:
                reason = f"{line.names[number]!r} reads {value.name!r}, which {line.names[place[maker]]!r} makes later"
                yield PlanFailure(reason, (value.name or "",), line.steps[number])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more
