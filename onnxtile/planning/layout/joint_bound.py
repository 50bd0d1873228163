"""A lower bound of every plan of a graph: in whichever order its nodes run, and whatever shares bytes.

While a node runs, some tensors hold bytes in every order: its operands, its results, and what is made before it and read after it, on
paths through it. Of these, only bytes of one content can be one (views, and parts of one whole), and a result can lie on an operand that
nobody reads later. All aliases that are lawful count as taken, also where they exclude each other, so the bound may be too low, never too
high.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.aliases.alias_sets import Contents
from onnxtile.planning.layout.aliases.find import Alias, ModelFacts
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.workspaces import Needs
from onnxtile.planning.offsets.problem import align

_MOST_STEPS = 8
"""Steps at the peak of the schedule that are looked at; each takes two passes over the graph."""


def any_order_bound(layout: Layout, facts: ModelFacts, needs: Needs) -> int:
    """Return the bytes that no arena can do without, whatever the order of the nodes and the aliases.

    `layout` is one of the graph's; the bound can be its arena's size only at a peak of its schedule, and is sought there. `needs` says the
    workspaces, those of bodies as small as they can be.
    """
    scope, tensors = layout.scope, layout.roles.tensors
    paths = _Paths(layout.schedule)
    contents = _Distinct(layout, facts)
    together = [contents.bytes(v for v in values if v in tensors) for values in (scope.kept, scope.given)]
    steps = set(layout.problem.peak_steps(_MOST_STEPS))
    for node in (node for node, step in layout.schedule.steps.items() if step in steps):
        before, after = paths.before(node), paths.after(node)
        later = set(scope.kept).union(*(paths.reads[reader] for reader in after))
        made = dict.fromkeys(value for maker in before for value in maker.outputs) | dict.fromkeys(scope.given)
        freed = {alias for alias in facts.lawful(node) if alias.source in tensors and alias.source not in later}
        over = {alias.value for alias in freed if alias.rule == "in place"}
        live = [*paths.reads[node], *(v for v in made if v in later), *(v for v in node.outputs if v not in over)]
        workspace = _workspace(node, needs, layout.alignment)
        together.append(contents.bytes(v for v in live if v in tensors) + workspace)
    return max(together)


def _workspace(node: ir.Node, needs: Needs, alignment: int) -> int:
    own, body = needs.kernels.get(node, 0), needs.bodies.get(node, 0)
    if needs.shared:
        shared = max(needs.kernels.values()) if own else 0
        return align(body, alignment) + align(shared, alignment)
    return align(own + body, alignment)


class _Paths:
    """Which nodes run before or after one in every order, and what each reads."""

    def __init__(self, schedule: Schedule) -> None:
        self.reads = {node: tuple(dict.fromkeys(dependencies(node))) for node in schedule.nodes}

    def before(self, node: ir.Node) -> set[ir.Node]:
        found: set[ir.Node] = set()
        todo = [node]
        while todo:
            makers = (value.producer() for value in self.reads[todo.pop()])
            new = {maker for maker in makers if maker is not None and maker in self.reads} - found
            found |= new
            todo += new
        return found

    def after(self, node: ir.Node) -> list[ir.Node]:
        made, found = set(node.outputs), []
        for other, read in self.reads.items():
            if not made.isdisjoint(read):
                found.append(other)
                made.update(other.outputs)
        return found


class _Distinct:
    """What lies in each tensor, and which tensors may lie in one buffer at all."""

    def __init__(self, layout: Layout, facts: ModelFacts) -> None:
        self._alignment = layout.alignment
        self._sizes = {value: tensor_bytes(value, facts.shapes) or 0 for value in layout.roles.tensors}
        self._groups: dict[ir.Value, ir.Value] = {}
        self._contents = Contents(self._sizes)
        known: dict[ir.Value, list[Alias]] = {}
        self._in_parts: set[ir.Value] = set()
        found = (alias for node in layout.schedule.nodes for alias in facts.lawful(node))
        for alias in (a for a in found if a.value in self._sizes and a.source in self._sizes):
            self._groups[self._group(alias.value)] = self._group(alias.source)
            if alias.rule != "in place":
                known.setdefault(alias.value, []).append(alias)
        for value in self._sizes:
            self._contents.add(value, known.get(value, ()))
        parts = (alias for same in known.values() for alias in same if alias.rule != "view")
        self._in_parts.update(self._group(alias.value) for alias in parts)

    def _group(self, value: ir.Value) -> ir.Value:
        """Return the one that stands for all tensors that aliases connect with `value`."""
        path = []
        while value in self._groups and self._groups[value] is not value:
            path.append(value)
            value = self._groups[value]
        self._groups.update(dict.fromkeys(path, value))
        return value

    def bytes(self, values: Iterable[ir.Value]) -> int:
        """Return the bytes that `values` take at least where all of them are live: those of different content.

        A buffer is rounded up to the alignment, and two tensors of different content may lie in one only as parts of a whole.
        """
        spans: dict[ir.Value, list[tuple[int, int]]] = {}
        for value in dict.fromkeys(values):
            for piece in self._contents.pieces(value):
                spans.setdefault(piece.origin, []).append((piece.begin, piece.begin + piece.end - piece.start))
        sums: dict[ir.Value, int] = {}
        for origin, size in _lengths(spans):
            group = self._group(origin)
            together = group if group in self._in_parts else origin
            sums[together] = sums.get(together, 0) + size
        return sum(align(size, self._alignment) for size in sums.values())


def _lengths(spans: Mapping[ir.Value, list[tuple[int, int]]]) -> Iterator[tuple[ir.Value, int]]:
    """Yield for each origin the bytes that its spans cover."""
    for origin, pieces in spans.items():
        covered = end = 0
        for start, stop in sorted(pieces):
            covered += max(stop - max(start, end), 0)
            end = max(end, stop)
        yield origin, covered
