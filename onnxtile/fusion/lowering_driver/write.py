"""Writes what was proved into the graph, and removes what that leaves behind."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

import onnx_ir as ir

from onnxtile import keys
from onnxtile.fusion.lowering import Literal, Made, NewNode, Operand, Replacement, Setting


class Emitter:
    """Replaces calls in one model; names of new nodes and values are free ones."""

    def __init__(self, model: ir.Model) -> None:
        self._names: set[str | None] = set()
        for graph in model.graphs():
            self._names.update(value.name for value in (*graph.inputs, *graph.initializers.values()))
            for node in graph:
                self._names.add(node.name)
                self._names.update(value.name for value in node.outputs)
        self._literals: dict[Hashable, ir.Value] = {}
        self._written: dict[Hashable, ir.Node] = {}
        self._loose: dict[ir.Value, None] = {}
        self._replaced: dict[ir.Value, ir.Value] = {}

    def replaced(self, pairs: Iterable[tuple[ir.Value, ir.Value]]) -> None:
        """Note of each pair of values that the second takes the place of the first."""
        self._replaced.update(pairs)

    def current(self, proof: Replacement) -> Replacement:
        """Return `proof`, made before calls were replaced, with the values that are now in the place of those it names."""
        steps = tuple(replace(step, inputs=tuple(self._current(o) for o in step.inputs)) for step in proof.steps)
        return replace(proof, steps=steps, twice=frozenset(self._newest(value) for value in proof.twice))

    def _current(self, operand: Operand) -> Operand:
        return self._newest(operand) if isinstance(operand, ir.Value) else operand

    def _newest(self, value: ir.Value) -> ir.Value:
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def replace(self, call: ir.Node, proof: Replacement, meta_op: str) -> list[ir.Node]:
        """Put the steps of `proof` in the place of `call`; return the new nodes."""
        graph = call.graph
        assert isinstance(graph, ir.Graph)
        nodes: list[ir.Node] = []
        handed = {made.step for made in proof.outputs}
        main = call.name or self._free(meta_op)
        for i, step in enumerate(proof.steps):
            name = main
            shared = i != proof.main and i not in handed
            if i != proof.main:
                name = self._free(f"{name}/{step.op}")
            nodes.append(self._node(step, nodes, name, graph, shared=shared))
        nodes[proof.main].metadata_props[keys.LOWERED] = meta_op
        fresh = [node for node in dict.fromkeys(nodes) if node.graph is None]
        graph.insert_before(call, fresh)
        for old, made in zip(call.outputs, proof.outputs, strict=True):
            self._replaced[old] = nodes[made.step].outputs[made.output]
            _hand_over(old, nodes[made.step].outputs[made.output])
        kept = {nodes[made.step].outputs[made.output] for made in proof.outputs}
        for node in fresh:
            for i, value in enumerate(node.outputs):
                if value.name != "" and value not in kept:
                    value.name = self._free(f"{node.name}_output_{i}")
        self._names.update(value.name for value in kept)
        self._loose.update(dict.fromkeys(value for value in call.inputs if value is not None))
        graph.remove(call, safe=True)
        return nodes

    def prune(self) -> None:
        """Remove what only the replaced calls read: constants, and nodes whose results are read no more."""
        todo = list(self._loose)
        while todo:
            value = todo.pop()
            node, graph = value.producer(), value.graph
            if value.uses() or value.is_graph_output() or value.is_graph_input() or graph is None:
                continue
            if node is None:
                graph.initializers.pop(value.name or "", None)
            elif all(not v.uses() and not v.is_graph_output() for v in node.outputs) and isinstance(graph, ir.Graph):
                todo.extend(v for v in node.inputs if v is not None)
                if node.graph is not None:
                    graph.remove(node, safe=True)

    def _node(self, step: NewNode, before: list[ir.Node], name: str, graph: ir.Graph, *, shared: bool) -> ir.Node:
        """Return the node of a step; where it may be `shared`, that of an earlier call of the graph, if there is one."""
        operands = [self._operand(operand, before, graph) for operand in step.inputs]
        key = (graph, step.domain, step.op, tuple(operands), repr(sorted(step.attributes.items())))
        if shared and key in self._written:
            return self._written[key]
        node = ir.Node(step.domain, step.op, operands, attributes(step), outputs=step.values(), name=name)
        if shared:
            self._written[key] = node
        return node

    def _operand(self, operand: Operand, before: list[ir.Node], graph: ir.Graph) -> ir.Value | None:
        if isinstance(operand, Made):
            return before[operand.step].outputs[operand.output]
        if not isinstance(operand, Literal):
            return operand
        key = (graph, operand.dtype, operand.array.shape, operand.array.tobytes())
        if key not in self._literals:
            value = literal_value(operand, self._free(f"onnxtile/{operand.hint}"))
            graph.register_initializer(value)
            self._literals[key] = value
        return self._literals[key]

    def _free(self, name: str) -> str:
        candidate, count = name, 1
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate


def literal_value(literal: Literal, name: str) -> ir.Value:
    """Return an initializer that holds `literal`."""
    tensor = ir.Tensor(literal.array, dtype=literal.dtype, name=name)
    return ir.Value(
        name=name, const_value=tensor, shape=ir.Shape(literal.array.shape), type=ir.TensorType(literal.dtype)
    )


def attributes(step: NewNode) -> list[ir.Attr]:
    """Return the attributes of the node that `step` is."""
    return [_attribute(name, setting) for name, setting in step.attributes.items()]


def _attribute(name: str, setting: Setting) -> ir.Attr:
    if isinstance(setting, str):
        return ir.AttrString(name, setting)
    if isinstance(setting, float):
        return ir.AttrFloat32(name, setting)
    return ir.AttrInt64(name, setting) if isinstance(setting, int) else ir.AttrInt64s(name, setting)


def _hand_over(old: ir.Value, new: ir.Value) -> None:
    """Let `new` take the place of `old`: its readers, its name, and what is known of it."""
    name = old.name
    new.type, new.shape, new.doc_string = old.type, old.shape, old.doc_string
    new.metadata_props.update(old.metadata_props)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name = name
