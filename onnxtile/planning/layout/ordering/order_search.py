"""The searches of the orders of one graph, each done once, and the lower bound of every plan."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import onnx_ir as ir

from onnxtile.planning.layout.aliases.find import LayoutFacts
from onnxtile.planning.layout.ordering.byte_units import ordering_problem
from onnxtile.planning.layout.ordering.ordering_problem import OrderingProblem
from onnxtile.planning.layout.ordering.refine import refined
from onnxtile.planning.layout.ordering.schedule import Schedule, own_order
from onnxtile.planning.layout.ordering.search import WIDEST, FoundOrder, bound_of, heights, others, search
from onnxtile.planning.layout.roles import Roles, assign
from onnxtile.planning.layout.scope import PlanScope
from onnxtile.planning.layout.workspaces import Needs
from onnxtile.planning.offsets.problem import align

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
