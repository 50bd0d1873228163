"""A lower bound of every plan of a graph, over all orders of its nodes and all lawful aliases.

While a node runs, some tensors are live in every order: its operands, its results, and tensors made on a path to it and read on a path from
it. They share bytes only where they have the same content (views, and parts of one whole), or where a result is written over an operand
that no later node reads. Every lawful alias counts as taken, also where two exclude each other, so the bound may be too low, never too
high.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.planning.layout.aliases.alias_sets import Contents, clipped
from onnxtile.planning.layout.aliases.byte_reads import spans_read
from onnxtile.planning.layout.aliases.find import Alias, LayoutFacts
from onnxtile.planning.layout.byte_span import ByteSpan
from onnxtile.planning.layout.bytes import tensor_bytes
from onnxtile.planning.layout.graph_layout import Layout
from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.layout.workspaces import Needs
from onnxtile.planning.offsets.problem import align

_MOST_STEPS = 8
"""The steps at the peak of the schedule that are examined, at most; each takes two passes over the graph."""


def any_order_bound(layout: Layout, facts: LayoutFacts, needs: Needs) -> int:
    """Return a number of bytes that every arena needs, over all orders of the nodes and all aliases.

    `layout` is any layout of the graph. The bound can equal the size of its arena only at a peak of its schedule: only peaks are examined.
    `needs` are the workspaces, with the least bytes of bodies.
    """
    scope, tensors = layout.scope, layout.roles.tensors
    paths = _Paths(layout.schedule)
    contents = _Distinct(layout, facts)
    together = [contents.bytes({v: None for v in values if v in tensors}) for values in (scope.kept, scope.given)]
    steps = set(layout.problem.peak_steps(_MOST_STEPS))
    for node in (node for node, step in layout.schedule.steps.items() if step in steps):
        before, after = paths.before(node), paths.after(node)
        later = _bytes_read(after, paths, facts) | dict.fromkeys(scope.kept)
        made = dict.fromkeys(value for maker in before for value in maker.outputs) | dict.fromkeys(scope.given)
        freed = {alias for alias in facts.lawful(node) if alias.source in tensors and alias.source not in later}
        over = {alias.value for alias in freed if alias.rule == "in place"}
        live = _bytes_read((node, *after), paths, facts) | dict.fromkeys(v for v in made if v in scope.kept)
        needed = {v: spans for v, spans in live.items() if v in made or v in paths.reads[node]}
        needed |= dict.fromkeys(v for v in node.outputs if v not in over)
        workspace = _workspace(node, needs, layout.alignment)
        together.append(contents.bytes({v: spans for v, spans in needed.items() if v in tensors}) + workspace)
    return max(together)


def _bytes_read(nodes: Iterable[ir.Node], paths: _Paths, facts: LayoutFacts) -> dict[ir.Value, list[ByteSpan] | None]:
    """Return the bytes that `nodes` read, by tensor; None for all bytes of it."""
    found: dict[ir.Value, list[ByteSpan] | None] = {}
    for node in nodes:
        for value in paths.reads[node]:
            spans, before = spans_read(node, value, facts), found.get(value, [])
            found[value] = None if spans is None or before is None else [*before, *spans]
    return found


def _workspace(node: ir.Node, needs: Needs, alignment: int) -> int:
    own, body = needs.kernels.get(node, 0), needs.bodies.get(node, 0)
    if needs.shared:
        shared = max(needs.kernels.values()) if own else 0
        return align(body, alignment) + align(shared, alignment)
    return align(own + body, alignment)


class _Paths:
    """The nodes that run before or after a node in every order, and the values that each reads."""

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
    """The content of each tensor, and the groups of tensors that may lie in one buffer."""

    def __init__(self, layout: Layout, facts: LayoutFacts) -> None:
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
        """Return the representative of all tensors that aliases connect with `value`."""
        path = []
        while value in self._groups and self._groups[value] is not value:
            path.append(value)
            value = self._groups[value]
        self._groups.update(dict.fromkeys(path, value))
        return value

    def bytes(self, values: Mapping[ir.Value, Iterable[ByteSpan] | None]) -> int:
        """Return the least bytes of `values` while the bytes given for each (None: all) are live: equal content counts once.

        Buffers are rounded up to the alignment. Tensors of different content lie in one buffer only as parts of a whole.
        """
        spans: dict[ir.Value, list[tuple[int, int]]] = {}
        for value, live in values.items():
            for start, end in [ByteSpan(0, self._sizes[value])] if live is None else live:
                for piece in clipped(self._contents.pieces(value), start, end):
                    spans.setdefault(piece.origin, []).append((piece.begin, piece.begin + piece.end - piece.start))
        sums: dict[ir.Value, int] = {}
        for origin, size in _lengths(spans):
            group = self._group(origin)
            together = group if group in self._in_parts else origin
            sums[together] = sums.get(together, 0) + size
        return sum(align(size, self._alignment) for size in sums.values())


def _lengths(spans: Mapping[ir.Value, list[tuple[int, int]]]) -> Iterator[tuple[ir.Value, int]]:
    """Yield each origin with the number of bytes that its spans cover."""
    for origin, pieces in spans.items():
        covered = end = 0
        for start, stop in sorted(pieces):
            covered += max(stop - max(start, end), 0)
            end = max(end, stop)
        yield origin, covered
