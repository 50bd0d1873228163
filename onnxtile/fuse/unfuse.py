"""The way back: calls of meta-ops become the nodes they stand for, as the file had them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import ModelError, UsageError
from onnxtile.fuse.record import ConstantRecord, Record, loads, restore_value


@dataclass(frozen=True)
class Unfused:
    """How many calls were undone, by meta-op."""

    calls: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON of the result."""
        return {"unfused": self.calls}


def unfuse(model: ir.Model) -> Unfused:
    """Undo, in place, all that fuse did to `model`: the same nodes in the same order, with their names, values and metadata.

    Raises UsageError where there is nothing to undo, ModelError where what fuse left in the model is damaged.
    """
    history = json.loads(model.graph.metadata_props.get(keys.ORIGINAL, "[]"))
    if not history:
        raise UsageError("the model was not fused by onnxtile: there is nothing to undo")
    calls: dict[str, int] = {}
    for original in reversed(history):
        for graph in list(_graphs(model)):
            _unfuse_graph(model, graph, original["run"], calls)
        _restore_model(model, original)
    del model.graph.metadata_props[keys.ORIGINAL]
    return Unfused(dict(sorted(calls.items())))


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        if keys.META_OP not in function.metadata_props:
            yield function.graph


def _restore_model(model: ir.Model, original: dict[str, object]) -> None:
    called = _called(model)
    for identifier, function in list(model.functions.items()):
        if keys.META_OP in function.metadata_props and identifier not in called:
            del model.functions[identifier]
    if not original["domain"]:
        model.graph.opset_imports.pop(keys.DOMAIN, None)
    names = original.get("inputs")
    if isinstance(names, list):
        known = {value.name: value for value in (*model.graph.inputs, *model.graph.initializers.values())}
        model.graph.inputs[:] = [known[name] for name in names]
    model.ir_version = int(str(original["ir_version"]))


def _called(model: ir.Model) -> set[ir.OperatorIdentifier]:
    """Return what the model's graphs call, directly or by way of functions."""
    called = {node.op_identifier() for graph in _graphs(model) for node in graph}
    todo = list(called)
    while todo:
        function = model.functions.get(todo.pop())
        inner = {node.op_identifier() for node in function.all_nodes()} - called if function is not None else set()
        called |= inner
        todo += inner
    return called


def _unfuse_graph(model: ir.Model, graph: ir.Graph, run: int, calls: dict[str, int]) -> None:
    places: dict[ir.Node, int] = {}
    todo = [node for node in graph if keys.FUSED in node.metadata_props]
    while todo:
        call = todo.pop()
        record = _record(call)
        if record.run != run:
            continue
        expanded = _expand(model, call, record, places)
        calls[call.op_type] = calls.get(call.op_type, 0) + 1
        todo += [node for node in expanded if keys.FUSED in node.metadata_props]
    for node in graph:
        moved_run, _, place = node.metadata_props.get(keys.PLACE, "").partition(":")
        if place and int(moved_run) == run:
            places[node] = int(place)
            del node.metadata_props[keys.PLACE]
    _reorder(graph, places)


def _record(call: ir.Node) -> Record:
    try:
        return loads(call.metadata_props[keys.FUSED])
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the record of the fused node {call.name!r} is damaged: {error!r}") from None


def _expand(model: ir.Model, call: ir.Node, record: Record, places: dict[ir.Node, int]) -> list[ir.Node]:
    """Put the body of `call` in its place, with the names of `record`; return the new nodes."""
    function = model.functions.get(call.op_identifier())
    if function is None:
        raise ModelError(f"the function of the fused node {call.name!r} is missing")
    graph = call.graph
    assert isinstance(graph, ir.Graph)
    count = len(record.constants)
    body = list(function)
    if len(body) != count + len(record.nodes) or len(function.inputs) != len(call.inputs):
        raise ModelError(f"the function of the fused node {call.name!r} was changed since: it cannot be unfused")
    values: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, call.inputs, strict=True))
    for node, constant in zip(body[:count], record.constants, strict=True):
        values[node.outputs[0]] = _constant(graph, call, node, constant, places)
    made = []
    for node, own in zip(body[count:], record.nodes, strict=True):
        outputs = [ir.Value() for _ in node.outputs]
        values.update(zip(node.outputs, outputs, strict=True))
        operands = [None if value is None else values[value] for value in node.inputs]
        copy = ir.Node(
            node.domain, node.op_type, operands, node.attributes.values(), overload=node.overload, outputs=outputs,
            name=own.name or None, doc_string=own.doc or None, metadata_props=dict(own.metadata),
        )  # fmt: skip
        made.append(copy)
        if own.place is not None:
            places[copy] = own.place
    _hand_over(call, function, values)
    graph.insert_before(call, made)
    graph.remove(call, safe=True)
    for copy, own in zip(made, record.nodes, strict=True):
        copy.name = own.name  # the graph gave a name to one that had none
        for value, known in zip(copy.outputs, own.outputs, strict=True):
            restore_value(value, known)
    return made


def _hand_over(call: ir.Node, function: ir.Function, values: dict[ir.Value, ir.Value | None]) -> None:
    """Let what read the outputs of `call` read what the new nodes make."""
    for outer, inner in zip(call.outputs, function.outputs, strict=True):
        value = values[inner]
        assert value is not None
        outer.replace_all_uses_with(value, replace_graph_outputs=True)
        outer.name = None


def _constant(
    graph: ir.Graph, call: ir.Node, node: ir.Node, record: ConstantRecord, places: dict[ir.Node, int]
) -> ir.Value:
    """Return the constant of `record`: the one that is still in the graph, or a new one with the value the function holds."""
    name = record.value.name
    if name in graph.initializers:
        return graph.initializers[name]
    if record.node is None:
        tensor = next(iter(node.attributes.values())).as_tensor()
        value = ir.Value(
            name=name, const_value=tensor, shape=ir.Shape(tensor.shape.numpy()), type=ir.TensorType(tensor.dtype)
        )
        restore_value(value, record.value)
        graph.register_initializer(value)
        return value
    for other in graph:
        if any(value.name == name for value in other.outputs):
            return next(value for value in other.outputs if value.name == name)
    value = ir.Value()
    own = record.node
    copy = ir.Node(
        "", "Constant", [], node.attributes.values(), outputs=[value],
        name=own.name or None, doc_string=own.doc or None, metadata_props=dict(own.metadata),
    )  # fmt: skip
    graph.insert_before(call, [copy])
    copy.name = own.name
    restore_value(value, record.value)
    if own.place is not None:
        places[copy] = own.place
    return value


def _reorder(graph: ir.Graph, places: dict[ir.Node, int]) -> None:
    """Put the nodes of `places` where they were; the others keep their order in the places between.

    Where the model was edited since, so that this order is none, the graph is sorted.
    """
    if not places:
        return
    nodes = list(graph)
    by_place = {place: node for node, place in places.items()}
    others = iter([node for node in nodes if node not in places])
    ordered: list[ir.Node] = []
    for place in range(max(len(nodes), max(by_place) + 1)):
        node = by_place.get(place) or next(others, None)
        if node is not None:
            ordered.append(node)
    graph.remove(nodes)
    graph.extend(ordered)
    if not _is_sorted(graph):
        graph.sort()


def _is_sorted(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        for value in node.inputs:
            producer = value.producer() if value is not None else None
            if producer is not None and producer.graph is graph and producer not in seen:
                return False
        seen.add(node)
    return True
