"""Removes constants without uses."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxtile.operators.node_view import KnownConstants


def prune(values: Iterable[ir.Value], constants: KnownConstants) -> None:
    """Remove from their graphs the `values` that are constant and unused, and the operators that compute them."""
    pending = [value for value in values if value in constants]
    while pending:
        value = pending.pop()
        node, graph = value.producer(), value.graph
        if value.uses() or value.is_graph_output() or graph is None:
            continue
        if value.is_initializer():
            assert value.name is not None
            del graph.initializers[value.name]
        elif node is not None and not any(v.uses() or v.is_graph_output() for v in node.outputs):
            pending.extend(v for v in node.inputs if v is not None)
            graph.remove(node, safe=True)
