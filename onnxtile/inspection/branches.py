"""Branches of If nodes moved into the main graph: the branches that a run takes, so that their values can be traced."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.graph import node_ids
from onnxtile.model.given import Feeds
from onnxtile.model.submodel import exposing
from onnxtile.model.walk import bodies_of, nodes_inside


def reachable(graph: ir.Graph, path: str = "") -> Iterator[tuple[ir.Node, str]]:
    """Yield the nodes of `graph` and of the branches of its If nodes, each with its name, that of a branch before it."""
    for node, name in node_ids(graph).items():
        yield node, f"{path}/{name}" if path else name
        if _is_if(node):
            for body in bodies_of(node):
                yield from reachable(body.graph, f"{path}/{name}.{body.key}" if path else f"{name}.{body.key}")


def with_branches(
    model: ir.Model, chosen: Collection[ir.Node], feeds: Feeds
) -> tuple[ir.Model, dict[ir.Node, ir.Node]]:
    """Return a model whose main graph has those of `chosen` that a run on `feeds` reaches, and which of its nodes each of them is.

    That is `model` itself where none is in a branch. An If whose branches have one of them gives way to the branch that is taken. Raises
    ModelError where onnxruntime refuses the model.
    """
    if all(node.graph is model.graph for node in chosen):
        return model, {node: node for node in chosen}
    copy = model.clone()
    pairs = zip(model.graph.all_nodes(), copy.graph.all_nodes(), strict=True)
    copies = {original: made for original, made in pairs if original in chosen}
    wanted = set(copies.values())
    while (branching := next((node for node in copy.graph if _is_if(node) and _holds(node, wanted)), None)) is not None:
        _take(copy, branching, feeds)
    return copy, {original: made for original, made in copies.items() if made.graph is copy.graph}


def _is_if(node: ir.Node) -> bool:
    return node.op_type == "If" and node.domain in {"", "ai.onnx"}


def _holds(node: ir.Node, wanted: Collection[ir.Node]) -> bool:
    return any(inner in wanted for inner in nodes_inside(node))


def _take(model: ir.Model, node: ir.Node, feeds: Feeds) -> None:
    """Put the branch of `node` that is taken in its place."""
    condition = node.inputs[0]
    assert condition is not None and condition.name is not None
    taken = exposing(model, [condition.name]).run(feeds)[condition.name]
    if taken.size != 1:
        raise ModelError(f"the condition {condition.name!r} of an If has {taken.size} elements, and must have one")
    branch = node.attributes["then_branch" if taken.item() else "else_branch"].as_graph()
    for value in list(branch.initializers.values()):
        del branch.initializers[value.name or ""]
        model.graph.register_initializer(value)
    inner, results = list(branch), list(branch.outputs)
    branch.outputs.clear()
    branch.remove(inner)
    model.graph.insert_before(node, inner)
    for old, new in zip(node.outputs, results, strict=False):  # a branch may make more than the node gives
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    model.graph.remove(node, safe=True)
