"""The walk over a model and its graphs; topological order, convexity and antichains of one. No other module imports networkx."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxtile.model import keys

# The walk over a model: its graphs, the bodies of nodes at any depth, its local functions, and all nodes and values in them.

# Compared by identity: the hash of an enum is computed in Python, and a walk asks for the type of every attribute.
_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
_TENSOR, _TENSORS = ir.AttributeType.TENSOR, ir.AttributeType.TENSORS


class HeldGraph(NamedTuple):
    """A body of a node: the attribute that holds it, its position where the attribute holds a list of graphs, and the graph."""

    attribute: str
    position: int | None
    graph: ir.Graph

    @property
    def key(self) -> str:
        """The name of the body among those of its node: the attribute, and the position in a list."""
        return self.attribute if self.position is None else f"{self.attribute}.{self.position}"


BodyPath: TypeAlias = tuple[tuple[ir.Node, str], ...]
"""The way from a graph to a body in it: each node passed, outermost first, and the key of the body entered there."""


def bodies_of(node: ir.Node) -> list[HeldGraph]:
    """Return the bodies of `node`, in the order of its attributes; none for an attribute that refers to one of the caller."""
    bodies: list[HeldGraph] = []
    # The plain dict: UserDict's own values() takes most of the time of a walk.
    for attribute in node.attributes.data.values():
        type_ = attribute.type
        if (type_ is not _GRAPH and type_ is not _GRAPHS) or attribute.is_ref():
            continue
        if type_ is _GRAPH:
            bodies.append(HeldGraph(attribute.name, None, attribute.as_graph()))
        else:
            bodies += (HeldGraph(attribute.name, i, body) for i, body in enumerate(attribute.as_graphs()))
    return bodies


def has_body(node: ir.Node) -> bool:
    """Return whether an attribute of `node` holds a graph, or stands for one that the caller of the function gives."""
    for attribute in node.attributes.data.values():  # noqa: SIM110 - each walk asks this of each node, and `any` takes thrice as long
        if (type_ := attribute.type) is _GRAPH or type_ is _GRAPHS:
            return True
    return False


def graphs_in(
    root: ir.Graph | ir.Function, entered: Callable[[ir.Node], list[HeldGraph]] = bodies_of, path: BodyPath = ()
) -> Iterator[tuple[BodyPath, ir.Graph]]:
    """Yield the graph of `root` and the bodies in it at any depth, each before those inside it, with its path.

    `entered` says which bodies of a node are walked.
    """
    yield path, root.graph if isinstance(root, ir.Function) else root
    for node in root:
        for attribute in node.attributes.data.values():  # as `has_body` does, without a call for each node
            if (type_ := attribute.type) is _GRAPH or type_ is _GRAPHS:
                for body in entered(node):
                    yield from graphs_in(body.graph, entered, (*path, (node, body.key)))
                break


def nodes_in(
    root: ir.Graph | ir.Function, entered: Callable[[ir.Node], list[HeldGraph]] = bodies_of
) -> Iterator[ir.Node]:
    """Yield the nodes of `root` in order, each before the nodes of its bodies. `entered` says which bodies are walked."""
    for node in root:
        yield node
        for attribute in node.attributes.data.values():  # as `has_body` does, without a call for each node
            if (type_ := attribute.type) is _GRAPH or type_ is _GRAPHS:
                for body in entered(node):
                    yield from nodes_in(body.graph, entered)
                break


def tensors_of(node: ir.Node) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors that attributes of `node` hold. onnx_ir's `as_tensor` takes 0.3 ms for each: it asks a protocol of 20 members."""
    for attribute in node.attributes.data.values():
        type_ = attribute.type
        if (type_ is not _TENSOR and type_ is not _TENSORS) or attribute.is_ref():
            continue
        if type_ is _TENSOR:
            yield attribute.value
        else:
            yield from attribute.value


def is_external(tensor: ir.TensorProtocol) -> TypeGuard[ir.ExternalTensor]:
    """Return whether the bytes of `tensor` lie in an external file. `isinstance` asks a protocol, which takes ten times as long."""
    return ir.ExternalTensor in type(tensor).__mro__


DTYPES = {dtype.value: dtype for dtype in ir.DataType}
"""The element types by their numbers. An enum asked for a member runs Python for each."""


def stored_sizes(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the sizes of `tensor`: onnx_ir makes a Shape of those in a file each time that it is asked for them."""
    return (
        tuple(tensor.raw.dims) if type(tensor) is ir.serde.TensorProtoTensor else tuple(map(int, tensor.shape.numpy()))
    )


def stored_bytes(tensor: ir.TensorProtocol) -> int:
    """Return the bytes of the elements of `tensor`."""
    if type(tensor) is not ir.serde.TensorProtoTensor:
        return int(tensor.nbytes)
    return -(-math.prod(tensor.raw.dims) * DTYPES[tensor.raw.data_type].bitwidth // 8)


_PLAIN = (
    *(ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.FLOAT),
    *(ir.AttributeType.FLOATS, ir.AttributeType.STRING, ir.AttributeType.STRINGS),
)


def plain_attributes(node: ir.Node) -> tuple[tuple[str, int, str], ...] | None:
    """Return name, type and value of the attributes of `node`, as a key; None where one is no number, text or list of these."""
    attributes = node.attributes.data.values()
    if any(attribute.type not in _PLAIN or attribute.is_ref() for attribute in attributes):
        return None
    return tuple((attribute.name, attribute.type.value, repr(attribute.value)) for attribute in attributes)


def nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes in the bodies of `node`, at any depth."""
    for body in bodies_of(node):
        yield from nodes_in(body.graph)


def values_in(root: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """Yield the inputs of `root`, and the outputs of each node followed by the values of its bodies, at any depth."""
    yield from root.inputs
    for node in root:
        yield from node.outputs
        if has_body(node):
            for body in bodies_of(node):
                yield from values_in(body.graph)


def is_read(value: ir.Value) -> bool:
    """Return whether a node reads `value`, or the caller of its graph."""
    return bool(value.uses()) or value.is_graph_output()


def is_read_outside(value: ir.Value, members: Container[ir.Node]) -> bool:
    """Return whether another node than `members` reads `value`, or the caller of its graph."""
    return value.is_graph_output() or any(reader not in members for reader in value.consumers())


def only_reader(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads `value`, in its own graph; None where several nodes do, or the caller of the graph."""
    readers = set(value.consumers())
    reader = readers.pop() if len(readers) == 1 and not value.is_graph_output() else None
    return reader if reader is not None and reader.graph is value.graph else None


def dependencies(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values `node` reads: its inputs, and what its bodies capture from the graphs around them."""
    yield from (value for value in node.inputs if value is not None)
    if has_body(node):
        for body in bodies_of(node):
            yield from _captured(body.graph)


def _captured(body: ir.Graph) -> Iterator[ir.Value]:
    inside: set[ir.Value] = {*body.inputs, *body.initializers.values()}
    for node in body:
        yield from (value for value in dependencies(node) if value not in inside)
        inside.update(node.outputs)
    yield from (value for value in body.outputs if value is not None and value not in inside)


def has_containers(node: ir.Node) -> bool:
    """Return whether the operator of `node` reads or makes sequences or optionals, which have no array."""
    return node.op_type.startswith(("Sequence", "SplitToSequence", "ConcatFromSequence", "Optional"))


def roots(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """Return the main graph and the local functions: all other graphs are bodies in one of them."""
    return [model.graph, *model.functions.values()]


def opset_in(imports: Mapping[str, int]) -> int:
    """Return the version of the standard operators among `imports`, where their domain has either of its names; 0 where none is."""
    return max(imports.get("", 0), imports.get("ai.onnx", 0))


def main_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph and the bodies in it, in the order of `ir.Model.graphs`, which is slower."""
    yield from (graph for _, graph in graphs_in(model.graph))


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    """Yield the main graph and the bodies in it, then the graph of each local function and the bodies in that."""
    for root in roots(model):
        yield from (graph for _, graph in graphs_in(root))


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph and of the bodies in it, then those of local functions."""
    for root in roots(model):
        yield from nodes_in(root)


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the inputs and initializers of all graphs and functions, then the outputs of all nodes; some may come twice."""
    for graph in all_graphs(model):
        yield from graph.inputs
        yield from graph.initializers.values()
    for node in all_nodes(model):
        yield from node.outputs


def cloned(model: ir.Model) -> ir.Model:
    """Return a clone of `model`, which stays as it is, also in memory: see `drop_empty_notes`."""
    copy = model.clone()
    drop_empty_notes((*all_nodes(model), *all_values(model)))
    return copy


def drop_empty_notes(holders: Iterable[ir.Node | ir.Value]) -> None:
    """Drop the stores of `holders` in which there is no note: onnx_ir makes one of 0.4 KB for each that it clones or writes."""
    for holder in holders:
        if not getattr(holder, _NOTES, True):
            setattr(holder, _NOTES, None)


_NOTES = "_metadata"
"""The attribute behind `meta` in onnx_ir. Asked for by its public name, a store that is not there is made."""


def clear_plan(model: ir.Model) -> None:
    """Take the marks of a plan off `model` (in place): off its graphs, nodes and values, in bodies and functions, too."""
    for holder in (*roots(model), *all_graphs(model), *all_nodes(model), *all_values(model)):
        for key in keys.OF_PLAN & holder.metadata_props.keys():
            del holder.metadata_props[key]


def called_functions(nodes: Iterable[ir.Node], model: ir.Model) -> list[ir.Function]:
    """Return the local functions that `nodes` call, directly or not, in the order of `model`. Nodes of their bodies must be among them."""
    functions = model.functions
    called: set[ir.OperatorIdentifier] = set()
    todo = list(nodes) if functions else []
    while todo:
        identifier = todo.pop().op_identifier()
        if identifier in functions and identifier not in called:
            called.add(identifier)
            todo.extend(nodes_in(functions[identifier]))
    return [function for identifier, function in functions.items() if identifier in called]


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
    names_of: dict[ir.Value, dict[str, None]] = {}
    for node in graph:
        names = {node_id(node): None} if node in sources else {}
        for value in dependencies(node):
            names |= names_of.get(value, {})
        if names:
            few = dict.fromkeys(list(names)[:most])
            names_of.update((value, few) for value in node.outputs)
    return names_of


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

    def contract(self, members: Collection[ir.Node], call: ir.Node, after: set[ir.Node]) -> None:
        """Put `call`, a node of no graph yet, in the place of the last of `members`, and the nodes `after` after it.

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
        slots = (node for node in self._slots[first : last + 1] if node is not None)
        before = [node for node in slots if node not in members and node not in after]
        for node in members:
            del self._position[node]
        self._slots[first : last + 1] = [None] * (last + 1 - first)
        # The members free at least as many places as the call takes.
        for position, node in enumerate([*before, call, *moved], start=last - len(before) - len(moved)):
            self._place(node, position)

    def _place(self, node: ir.Node, position: int) -> None:
        self._slots[position] = node
        self._position[node] = position


def _is_read_outside(node: ir.Node, members: Collection[ir.Node]) -> bool:
    return any(reader not in members for value in node.outputs for reader in value.consumers())


MOST_ELEMENTS = 4_000
"""Of an order, at most: which chains are direct takes their number to the third power."""


def heaviest_antichain(weights: Sequence[int], before: npt.NDArray[np.bool_]) -> list[int]:
    """Return the places of the elements of a heaviest antichain, no two of which are related; nothing for more than 4,000 elements.

    `before` says in row i, column k whether i is before k: a strict partial order. `weights` are not negative. A heaviest
    antichain weighs as much as all elements, less the most that can be matched along chains (Dilworth's theorem, with weights). A minimum
    cut finds it.
    """
    if not 0 < len(weights) <= MOST_ELEMENTS:
        return []
    import networkx as nx  # only plans for every order need it, and it takes long to load

    # The weight of an element flows out of it, and into those after it or through them.
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
    direct: npt.NDArray[np.bool_] = before & (numbers @ numbers == 0)
    return direct


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
