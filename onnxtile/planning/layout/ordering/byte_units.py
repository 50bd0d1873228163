"""The ordering problem of a graph: the bytes of its tensors, in units that are written and read as a whole."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.aliases.alias_sets import Contents
from onnxtile.planning.layout.aliases.byte_reads import partial_reads
from onnxtile.planning.layout.aliases.find import Alias, LayoutFacts
from onnxtile.planning.layout.byte_span import ByteSpan
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.layout.workspaces import WorkspaceBuffer
from onnxtile.planning.offsets.problem import align


def ordering_problem(
    schedule: Schedule,
    scope: PlanScope,
    facts: LayoutFacts,
    tensors: Iterable[ir.Value],
    rules: Collection[str],
    alignment: int,
    workspaces: Iterable[WorkspaceBuffer] = (),
) -> OrderingProblem:
    """Return the problem of ordering the nodes of `schedule`, where every alias by `rules` between `tensors` is taken.

    Aliases may exclude each other, so no plan has a lower peak than the best order of this problem. Tensors with the same content have the
    same units; a Slice reads only its own bytes. A tensor without parts takes multiples of `alignment` bytes, as `workspaces` do.
    """
    sizes = {value: tensor_bytes(value, facts.shapes) or 0 for value in tensors}
    found = [alias for node in schedule.nodes for alias in facts.lawful(node)]
    taken = [a for a in found if a.rule in rules and a.value in sizes and a.source in sizes]
    together = [(alias.value, alias.source) for alias in taken] + [(pair.output, pair.input) for pair in scope.states]
    units = _Units(schedule, facts, sizes, taken, together, alignment)
    numbers = {node: number for number, node in enumerate(schedule.nodes)}
    after, touches = [], []
    for node in numbers:
        read = dict.fromkeys(dependencies(node))
        makers = (value.producer() for value in read)
        after.append(tuple(sorted({numbers[maker] for maker in makers if maker is not None and maker in numbers})))
        made = (unit for value in node.outputs if value in sizes for unit in units.of(value))
        used = (unit for value in read if value in sizes for unit in units.read(node, value))
        touches.append(tuple(dict.fromkeys((*made, *used))))
    all_sizes = list(units.sizes)
    for workspace in workspaces:
        for user in workspace.nodes:
            touches[numbers[user]] += (len(all_sizes),)
        all_sizes.append(align(workspace.buffer.size, alignment))
    over: dict[int, dict[ir.Value, list[tuple[int, ...]]]] = {}
    for alias in taken:
        maker = alias.value.producer()
        if alias.rule == "in place" and maker is not None:
            over.setdefault(numbers[maker], {}).setdefault(alias.value, []).append(units.of(alias.source))
    kept = frozenset(unit for value in scope.kept if value in sizes for unit in units.of(value))
    # An input that no node reads is dead after the first step, whichever that is.
    used_later = kept.union(*touches)
    return OrderingProblem(
        tuple(after),
        tuple(touches),
        tuple(all_sizes),
        kept,
        frozenset(unit for value in scope.given if value in sizes for unit in units.of(value)) & used_later,
        {node: tuple(map(tuple, results.values())) for node, results in over.items()},
    )


class _Units:
    """The units of bytes of the tensors in `sizes`, with the aliases `taken`; unit n has `sizes[n]` bytes.

    A unit holds bytes of one tensor, its origin: no other tensor and no read of a part has some of them and not the others. The pairs
    `together` may lie in one buffer, where a tensor need not be aligned once another has parts.
    """

    def __init__(
        self,
        schedule: Schedule,
        facts: LayoutFacts,
        sizes: Mapping[ir.Value, int],
        taken: Iterable[Alias],
        together: Iterable[tuple[ir.Value, ir.Value]],
        alignment: int,
    ) -> None:
        known: dict[ir.Value, list[Alias]] = {}
        groups = _Groups()
        for one, other in together:
            groups.join(one, other)
        for alias in taken:
            if alias.rule != "in place":
                known.setdefault(alias.value, []).append(alias)
        self._contents = Contents(sizes)
        for value in sizes:
            self._contents.add(value, known.get(value, ()))
        self._partial = partial_reads(schedule.nodes, facts)
        cuts: dict[ir.Value, set[int]] = {}
        for value, size in sizes.items():
            reads = self._partial.get(value, {}).values()
            for span in (ByteSpan(0, size), *(span for read in reads for span in read or ())):
                for origin, start, end in self._ranges(value, span):
                    cuts.setdefault(origin, set()).update((start, end))
        in_parts = {groups.of(alias.value) for same in known.values() for alias in same if alias.rule != "view"}
        found: list[int] = []
        self._starts: dict[ir.Value, tuple[int, list[int]]] = {}
        for origin, places in cuts.items():
            starts = sorted(places)
            self._starts[origin] = (len(found), starts)
            bytes_of = [end - start for start, end in pairwise(starts)]
            whole = len(bytes_of) == 1 and groups.of(origin) not in in_parts
            found += [align(bytes_of[0], alignment)] if whole else bytes_of
        self.sizes = tuple(found)

    def of(self, value: ir.Value) -> tuple[int, ...]:
        """Return the units of `value`."""
        return self._at(value, ByteSpan(0, self._contents.sizes[value]))

    def read(self, node: ir.Node, value: ir.Value) -> tuple[int, ...]:
        """Return the units that `node` reads of `value`."""
        spans = self._partial.get(value, {}).get(node)
        if spans is None:
            return self.of(value)
        return tuple(unit for span in spans for unit in self._at(value, span))

    def _at(self, value: ir.Value, span: ByteSpan) -> tuple[int, ...]:
        found: list[int] = []
        for origin, start, end in self._ranges(value, span):
            first, starts = self._starts[origin]
            found += range(first + bisect_left(starts, start), first + bisect_left(starts, end))
        return tuple(found)

    def _ranges(self, value: ir.Value, span: ByteSpan) -> Iterable[tuple[ir.Value, int, int]]:
        """Yield the bytes `span` of `value` as ranges of the tensors that they are bytes of."""
        for piece in self._contents.pieces(value):
            start, end = max(piece.start, span.start), min(piece.end, span.end)
            if start < end:
                yield piece.origin, piece.begin + start - piece.start, piece.begin + end - piece.start


@dataclass
class _Groups:
    """The tensors that aliases connect."""

    def __post_init__(self) -> None:
        self._known: dict[ir.Value, ir.Value] = {}

    def of(self, value: ir.Value) -> ir.Value:
        """Return the representative of all tensors that aliases connect with `value`."""
        path = []
        while self._known.get(value, value) is not value:
            path.append(value)
            value = self._known[value]
        self._known.update(dict.fromkeys(path, value))
        return value

    def join(self, one: ir.Value, other: ir.Value) -> None:
        """Connect two tensors."""
        self._known[self.of(one)] = self.of(other)
