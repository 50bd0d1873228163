"""The searches of the orders of one graph, each done once, and the lower bound of every plan."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import onnx_ir as ir

from onnxtile.kernels.aliases import Alias, LayoutFacts
from onnxtile.kernels.from_onnx import PlanScope
from onnxtile.kernels.kernel_graph import ByteSpan
from onnxtile.model.topology import dependencies
from onnxtile.planning.live_ranges import partial_reads
from onnxtile.planning.offsets.problem import align
from onnxtile.planning.ordering.search import (
    WIDEST,
    FoundOrder,
    OrderingProblem,
    bound_of,
    heights,
    others,
    refined,
    search,
)
from onnxtile.planning.schedule import Schedule, own_order
from onnxtile.planning.scope import Roles, assign
from onnxtile.planning.sharing import Contents
from onnxtile.planning.workspaces import Needs, WorkspaceBuffer
from onnxtile.shapes.resolve import tensor_bytes

# The ordering problem of a graph: the bytes of its tensors, in units that are written and read as a whole.


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


ALL_RULES = frozenset({"view", "in place", "cut", "join"})
"""The rules of aliases."""


@dataclass
class OrderSearch:
    """The searches of the orders of the graph of `scope`. Buffers take multiples of `alignment` bytes.

    Raises ModelError where the order of the file is none.
    """

    facts: LayoutFacts
    scope: PlanScope
    alignment: int
    _problems: list[tuple[frozenset[str], Needs, OrderingProblem]] = field(default_factory=list, init=False)
    _found: dict[int, FoundOrder] = field(default_factory=dict, init=False)

    @cached_property
    def own(self) -> Schedule:
        """The order of the file."""
        return own_order(self.scope.graph)

    @property
    def is_wide(self) -> bool:
        """Whether the graph has too many nodes to search all its orders."""
        return len(self.own.nodes) > WIDEST

    def roles(self, schedule: Schedule) -> Roles:
        """Return the roles of the values in `schedule`; those in the order of the file are found once."""
        return self._own_roles if schedule is self.own else assign(schedule, self.scope, self.facts)

    @cached_property
    def _own_roles(self) -> Roles:
        return assign(self.own, self.scope, self.facts)

    @cached_property
    def _tensors(self) -> tuple[ir.Value, ...]:
        return tuple(self._own_roles.tensors)

    def orders(self, rules: Collection[str], needs: Needs) -> Iterator[Schedule]:
        """Yield orders of the least peak that is found where all aliases by `rules` are taken, each once.

        The first has the least peak before and after its peak, too, recursively.
        """
        problem = self._problem(rules, needs)
        found = self._search(problem)
        first = refined(problem, found.order)
        further = others(problem, found) if found.exact and not self.is_wide else ()
        for order in dict.fromkeys((first, *further)):
            yield Schedule(tuple(self.own.nodes[number] for number in order))

    def bound(self, needs: Needs) -> int:
        """Return a number of bytes that every arena needs, over all orders of the nodes and all lawful aliases.

        `needs` are the workspaces, with the least bytes of bodies. All aliases count as taken, also where two exclude each other, so the
        bound may be too low, never too high. It is exact where the search ends and all aliases are possible.
        """
        problem = self._problem(ALL_RULES, needs)
        if self.is_wide:
            return align(bound_of(problem, heights(problem, range(len(problem.after)))), self.alignment)
        return align(self._search(problem).bound, self.alignment)

    def known_peak(self, rules: Collection[str], needs: Needs) -> int:
        """Return the peak of the orders that `orders` yields, which is no larger than that of the file's order; 0 if not searched yet."""
        for known, of, problem in self._problems:
            if known == frozenset(rules) and of == needs and id(problem) in self._found:
                return self._found[id(problem)].peak
        return 0

    def _problem(self, rules: Collection[str], needs: Needs) -> OrderingProblem:
        wanted = frozenset(rules)
        for known, of, problem in self._problems:
            if known == wanted and of == needs:
                return problem
        workspaces = needs.workspaces(self.own)
        problem = ordering_problem(self.own, self.scope, self.facts, self._tensors, wanted, self.alignment, workspaces)
        self._problems.append((wanted, needs, problem))
        return problem

    def _search(self, problem: OrderingProblem) -> FoundOrder:
        if id(problem) not in self._found:
            self._found[id(problem)] = search(problem)
        return self._found[id(problem)]
