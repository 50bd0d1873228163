"""All nodes and all values of a model, wherever they stand."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir


def all_nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Yield the nodes of the main graph and of the bodies inside it, then those of local functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def all_values(model: ir.Model) -> Iterator[ir.Value]:
    """Yield the inputs and initializers of all graphs, the inputs of functions, and what nodes make; some may come twice."""
    for graph in model.graphs():
        yield from graph.inputs
        yield from graph.initializers.values()
    for function in model.functions.values():
        yield from function.inputs
        for body in function.subgraphs():
            yield from body.inputs
            yield from body.initializers.values()
    for node in all_nodes(model):
        yield from node.outputs
