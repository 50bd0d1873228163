"""Topological order, convexity and antichains of a graph. No other module imports networkx."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtile.model.walk import dependencies

__all__ = [
    "MOST_ELEMENTS",
    "TopologicalOrder",
    "dependencies",
    "followers",
    "heaviest_antichain",
    "least_cost_flow",
    "node_id",
    "node_ids",
]


def node_id(node: ir.Node) -> str:
    """Return the name by which results refer to `node`: its own, or its first output's where it has none."""
    return node.name or next((value.name for value in node.outputs if value.name), "") or ""


def node_ids(nodes: Iterable[ir.Node]) -> dict[ir.Node, str]:
    """Return the name by which results refer to each node: its own, or its first output's where that is empty or repeated."""
    nodes = list(nodes)
    counts: dict[str | None, int] = {}
    for node in nodes:
        counts[node.name] = counts.get(node.name, 0) + 1
    return {
        node: (node.name if node.name and counts[node.name] == 1 else None)
        or next((value.name for value in node.outputs if value.name), None)
        or node.name
        or node.op_type
        for node in nodes
    }


def followers(graph: ir.Graph, sources: Container[ir.Node], most: int) -> dict[ir.Value, dict[str, None]]:
    """Return the values of `graph` that depend on a node of `sources`, each with the names of these nodes, `most` at most."""
    found: dict[ir.Value, dict[str, None]] = {}
    for node in graph:
        names = {node_id(node): None} if node in sources else {}
        for value in dependencies(node):
            names |= found.get(value, {})
        if names:
            few = dict.fromkeys(list(names)[:most])
            found.update((value, few) for value in node.outputs)
    return found


class TopologicalOrder:
    """A topological order of one graph, kept while sets of nodes are contracted into one.

    A set is convex when no path leaves it and comes back; only such a set can become one node without making a cycle. Positions are
    those of the file, so everything between two nodes lies between their positions.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._slots: list[ir.Node | None] = list(graph)
        self._position = {node: i for i, node in enumerate(graph)}

    def position(self, node: ir.Node) -> int:
        """Return where `node` stands, counted from 0."""
        return self._position[node]

    def between(self, members: Collection[ir.Node], copied: Collection[ir.Node] = ()) -> set[ir.Node] | None:
        """Return the other nodes that must stand after `members` once these are one node; None where the set is not convex.

        They are the nodes between the first and the last member that depend on one of them. The members read copies of their own of
        the nodes `copied`.
        """
        first, last = min(map(self.position, members)), max(map(self.position, members))
        # What only the last member gives away is read after all members: the usual case, and no search.
        if all(node is self._slots[last] or not _is_read_outside(node, members) for node in members):
            return set()
        after: set[ir.Node] = set()
        for node in (n for n in self._slots[first : last + 1] if n is not None):
            producers = {producer for value in dependencies(node) if (producer := value.producer()) is not None}
            if node not in members:
                if any(producer in members or producer in after for producer in producers):
                    after.add(node)
            elif any(producer in after and producer not in copied for producer in producers):
                return None
        return after

    def _others(self, first: int, last: int, members: Collection[ir.Node]) -> Iterable[ir.Node]:
        return (node for node in self._slots[first : last + 1] if node is not None and node not in members)

    def contract(self, members: Collection[ir.Node], call: ir.Node, after: set[ir.Node]) -> None:
        """Put `call`, a node of no graph yet, in the place of the last of `members`, and the nodes `after` behind it.

        `members` stay in the graph, for the caller to remove; `after` is what `between` returned.
        """
        first, last = min(map(self.position, members)), max(map(self.position, members))
        final = self._slots[last]
        assert final is not None
        moved = sorted(after, key=self.position)
        self._graph.insert_after(final, [call])
        if moved:
            self._graph.remove(moved)
            self._graph.insert_after(call, moved)
        if not moved:
            for node in members:
                self._slots[self._position.pop(node)] = None
            self._place(call, last)
            return
        before = [node for node in self._others(first, last, members) if node not in after]
        for node in members:
            del self._position[node]
        self._slots[first : last + 1] = [None] * (last + 1 - first)
        # The members free at least as many places as the call takes.
        for place, node in enumerate([*before, call, *moved], start=last - len(before) - len(moved)):
            self._place(node, place)

    def _place(self, node: ir.Node, place: int) -> None:
        self._slots[place] = node
        self._position[node] = place


def _is_read_outside(node: ir.Node, members: Collection[ir.Node]) -> bool:
    return any(reader not in members for value in node.outputs for reader in value.consumers())


MOST_ELEMENTS = 4_000
"""Of an order, at most: which chains are direct takes their number to the third power."""


def heaviest_antichain(weights: Sequence[int], before: npt.NDArray[np.bool_]) -> list[int]:
    """Return the places of the elements of a heaviest antichain, no two of which are related; nothing for more than 4,000 elements.

    `before` says in row i, column k whether i is before k: a strict partial order. `weights` are not negative. An antichain weighs at most
    what is left of all weights when as much as possible has been matched along chains, and that is a minimum cut (Dilworth's theorem, with
    weights).
    """
    if not 0 < len(weights) <= MOST_ELEMENTS:
        return []
    import networkx as nx  # only plans for every order need it, and it takes long to load

    # The weight of an element flows out of it, and into those behind it or through them.
    network = nx.DiGraph()
    for i, weight in enumerate(weights):
        network.add_edge("source", (i, "out"), capacity=weight)
        network.add_edge((i, "in"), "sink", capacity=weight)
        network.add_edge((i, "in"), (i, "out"))
    for i, k in np.argwhere(_direct(before)).tolist():
        network.add_edge((i, "out"), (k, "in"))
    _, (near, _) = nx.minimum_cut(network, "source", "sink", flow_func=nx.algorithms.flow.preflow_push)
    return [i for i, weight in enumerate(weights) if weight and (i, "out") in near and (i, "in") not in near]


def _direct(before: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which pairs of `before` have nothing between them."""
    numbers = before.astype(np.float32)
    found: npt.NDArray[np.bool_] = before & (numbers @ numbers == 0)
    return found


def least_cost_flow(demand: Sequence[int], edges: Iterable[tuple[int, int, int, int]]) -> int:
    """Return the least cost of a flow in which the node i receives `demand[i]` more than it sends.

    An edge is its two nodes, the most that flows through it, and the cost of one unit. Raises networkx's NetworkXUnfeasible where there is
    no such flow.
    """
    import networkx as nx  # few plans need it, and it takes long to load

    graph = nx.MultiDiGraph()
    for node, wanted in enumerate(demand):
        graph.add_node(node, demand=wanted)
    for start, end, most, cost in edges:
        graph.add_edge(start, end, capacity=most, weight=cost)
    return int(nx.network_simplex(graph)[0])
