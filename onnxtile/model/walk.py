"""The walk over a model: its graphs, the bodies of nodes at any depth, its local functions, and all nodes and values in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

_GRAPH = ir.AttributeType.GRAPH
# No set: the hash of an enum is computed in Python, and a walk asks for the type of every attribute.
_GRAPH_TYPES = (_GRAPH, ir.AttributeType.GRAPHS)


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
    found: list[HeldGraph] = []
    # The plain dict: UserDict's own values() takes most of the time of a walk.
    for attribute in node.attributes.data.values():
        type_ = attribute.type
        if type_ not in _GRAPH_TYPES or attribute.is_ref():
            continue
        if type_ == _GRAPH:
            found.append(HeldGraph(attribute.name, None, attribute.as_graph()))
        else:
            found += (HeldGraph(attribute.name, i, body) for i, body in enumerate(attribute.as_graphs()))
    return found


def has_body(node: ir.Node) -> bool:
    """Return whether an attribute of `node` holds a graph, or stands for one that the caller of the function gives."""
    return any(attribute.type in _GRAPH_TYPES for attribute in node.attributes.data.values())


def graphs_in(
    root: ir.Graph | ir.Function, entered: Callable[[ir.Node], list[HeldGraph]] = bodies_of, path: BodyPath = ()
) -> Iterator[tuple[BodyPath, ir.Graph]]:
    """Yield the graph of `root` and the bodies in it at any depth, each before those inside it, with its path.

    `entered` says which bodies of a node are walked.
    """
    yield path, root.graph if isinstance(root, ir.Function) else root
    for node in root:
        for body in entered(node):
            yield from graphs_in(body.graph, entered, (*path, (node, body.key)))


def nodes_in(
    root: ir.Graph | ir.Function, entered: Callable[[ir.Node], list[HeldGraph]] = bodies_of
) -> Iterator[ir.Node]:
    """Yield the nodes of `root` in order, each before the nodes of its bodies. `entered` says which bodies are walked."""
    for node in root:
        yield node
        for body in entered(node):
            yield from nodes_in(body.graph, entered)


def tensors_of(node: ir.Node) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors that attributes of `node` hold. onnx_ir's `as_tensor` takes 0.3 ms for each: it asks a protocol of 20 members."""
    for attribute in node.attributes.data.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR:
            yield attribute.value
        elif attribute.type == ir.AttributeType.TENSORS:
            yield from attribute.value


def nodes_inside(node: ir.Node) -> Iterator[ir.Node]:
    """Yield the nodes in the bodies of `node`, at any depth."""
    for body in bodies_of(node):
        yield from nodes_in(body.graph)


def values_in(root: ir.Graph | ir.Function) -> Iterator[ir.Value]:
    """Yield the inputs of `root`, and the outputs of each node followed by the values of its bodies, at any depth."""
    yield from root.inputs
    for node in root:
        yield from node.outputs
        for body in bodies_of(node):
            yield from values_in(body.graph)


def dependencies(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values `node` reads: its inputs, and what its bodies capture from the graphs around them."""
    yield from (value for value in node.inputs if value is not None)
    for body in bodies_of(node):
        yield from _captured(body.graph)


def _captured(body: ir.Graph) -> Iterator[ir.Value]:
    own: set[ir.Value] = {*body.inputs, *body.initializers.values()}
    for node in body:
        yield from (value for value in dependencies(node) if value not in own)
        own.update(node.outputs)
    yield from (value for value in body.outputs if value is not None and value not in own)


def has_containers(node: ir.Node) -> bool:
    """Return whether the operator of `node` reads or makes sequences or optionals, which have no array."""
    return node.op_type.startswith(("Sequence", "SplitToSequence", "ConcatFromSequence", "Optional"))


def roots(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """Return the main graph and the local functions: all other graphs are bodies in one of them."""
    return [model.graph, *model.functions.values()]


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


def called_functions(nodes: Iterable[ir.Node], model: ir.Model) -> list[ir.Function]:
    """Return the local functions that `nodes` call, directly or not, in the order of `model`. Nodes of their bodies must be among them."""
    functions = model.functions
    found: set[ir.OperatorIdentifier] = set()
    todo = list(nodes) if functions else []
    while todo:
        identifier = todo.pop().op_identifier()
        if identifier in functions and identifier not in found:
            found.add(identifier)
            todo.extend(nodes_in(functions[identifier]))
    return [function for identifier, function in functions.items() if identifier in found]
