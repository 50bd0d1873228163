"""The way back: calls of meta-ops become the nodes they stand for, as the file had them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

import onnx_ir as ir

from onnxtile.fusion.metaop import digest
from onnxtile.fusion.record import (
    ConstantRecord,
    History,
    NodeRecord,
    Record,
    TensorRecord,
    fused_graphs,
    past_of,
    restore_value,
    restored_attributes,
    restored_tensor,
    take_place,
)
from onnxtile.model import keys
from onnxtile.model.topology import called_functions, dependencies
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError

_T = TypeVar("_T")


class ChangedFunction(ModelError):
    """The function of a fused node is not the one that fuse made: that of a tiled model, say, has other nodes."""


def unfuse(model: ir.Model) -> dict[str, int]:
    """Undo, in place, all that fuse did to `model`: the same nodes in the same order, with their names, values and metadata.

    Return how many calls were undone, by meta-op. Raises UsageError where there is nothing to undo or a call was lowered, ModelError where
    what fuse left in the model is damaged.
    """
    if keys.ORIGINAL not in model.graph.metadata_props:
        raise UsageError("the model was not fused by onnxtile: there is nothing to undo")
    _require_not_lowered(model)
    undo = Undo(model)
    for run in reversed(undo.history):
        for graph in list(fused_graphs(model)):
            undo.graph(graph, run.run)
        undo.restore(run)
    undo.require_all()
    del model.graph.metadata_props[keys.ORIGINAL]
    return dict(sorted(undo.calls.items()))


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    """Turn what a damaged record leads to into one line."""
    try:
        yield
    except (ValueError, KeyError) as error:
        reason = " ".join(str(error).split("\n")[:3])
        raise ModelError(f"the record {what} is damaged: {' '.join(reason.split())}") from None


def _require_not_lowered(model: ir.Model) -> None:
    lowered = [node for node in model.graph.all_nodes() if keys.LOWERED in node.metadata_props]
    if not lowered:
        return
    first = lowered[0]
    others = f", and {len(lowered) - 1} more" if len(lowered) > 1 else ""
    raise UsageError(
        f"{first.name!r} was lowered from {first.metadata_props[keys.LOWERED]} to {first.op_type}{others}: "
        "what is lowered cannot be unfused",
        hint="unfuse a model that was fused without --lower",
    )


class Undo:
    """Takes calls of meta-ops back into the nodes they stand for, in one model."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        with _refusals("of what fuse did to the model"):
            self._past = past_of(model)
        self._digests: dict[ir.OperatorIdentifier, str] = {}
        self.calls: dict[str, int] = {}

    @property
    def history(self) -> tuple[History, ...]:
        """The runs of fuse on the model, in their order."""
        return self._past.history

    def graph(self, graph: ir.Graph, run: int) -> None:
        """Undo in `graph` what the `run` of fuse did there."""
        places: dict[ir.Node, int] = {}
        initializers: dict[ir.Value, int] = {}
        values = {value.name or "": value for node in graph for value in node.outputs}
        todo = [node for node in graph if keys.FUSED in node.metadata_props]
        while todo:
            call = todo.pop()
            with _refusals(f"of the fused node {call.name!r}"):
                record = self._past.record(call)
                if record.run != run:
                    continue
                expanded = self._expand(call, record, places, initializers, values)
            name = keys.meta_op(call.op_type)
            self.calls[name] = self.calls.get(name, 0) + 1
            todo += [node for node in expanded if keys.FUSED in node.metadata_props]
        for node in graph:
            with _refusals(f"of where {node.name!r} stood"):
                position = take_place(node, run)
            if position is not None:
                places[node] = position
        _reorder(graph, places)
        _reorder_initializers(graph, initializers)

    def preview(self, call: ir.Node, known: dict[str, ir.Value], graph: ir.Graph) -> Opening:
        """Return the nodes that `call` of `graph` stands for, in no graph yet; `known` are the values of the graph by name.

        Raises ModelError where what fuse left in the model is damaged, ChangedFunction where the function is not as fuse made it.
        """
        with _refusals(f"of the fused node {call.name!r}"):
            return self._opened(call, self._past.record(call), known, graph)

    def restore(self, past: History) -> None:
        """Give the model as a whole what it had before a run: functions, imports, inputs, IR version."""
        model = self._model
        remove_uncalled(model)
        if not past.domain:
            model.graph.opset_imports.pop(keys.DOMAIN, None)
        for identifier in past.functions:
            if identifier in model.functions:
                model.functions[identifier].opset_imports.pop(keys.DOMAIN, None)
        if past.inputs is not None:
            known = {value.name: value for value in (*model.graph.inputs, *model.graph.initializers.values())}
            with _refusals("of the model's inputs"):
                model.graph.inputs[:] = [known[name] for name in past.inputs]
        model.ir_version = past.ir_version

    def require_all(self) -> None:
        """Raise ModelError where a call of a meta-op is left: its record is gone."""
        for node in (node for graph in fused_graphs(self._model) for node in graph):
            function = self._model.functions.get(node.op_identifier())
            if node.domain == keys.DOMAIN and (function is None or keys.META_OP in function.metadata_props):
                raise ModelError(f"the fused node {node.name!r} has lost its record: it cannot be unfused")

    def _body(self, call: ir.Node, record: Record) -> ir.Function:
        """Return the function that `call` calls. Raises ModelError where it is missing, ChangedFunction where fuse made another."""
        function = self._model.functions.get(call.op_identifier())
        if function is None:
            raise ModelError(f"the function of the fused node {call.name!r} is missing")
        key = function.identifier()
        if key not in self._digests:
            self._digests[key] = digest(function)
        if self._digests[key] != record.body or len(function.inputs) != len(call.inputs):
            raise ChangedFunction(
                f"the function of the fused node {call.name!r} was changed since: it cannot be unfused",
                hint="unfuse a model before tile or another tool changes it",
            )
        body = list(function)
        kept = [
            (node.outputs, node_record.outputs)
            for node, node_record in zip(body[len(record.constants) :], record.nodes, strict=True)
        ]
        if any(len(outputs) != len(known) for outputs, known in kept) or len(function.outputs) != len(call.outputs):
            raise ValueError("it has other outputs than the function")
        return function

    def _expand(
        self,
        call: ir.Node,
        record: Record,
        places: dict[ir.Node, int],
        initializers: dict[ir.Value, int],
        known: dict[str, ir.Value],
    ) -> list[ir.Node]:
        """Put the body of `call` in its place, with the names of `record`; return the new nodes, and note where what it makes stood."""
        graph = call.graph
        assert isinstance(graph, ir.Graph)
        opening = self._opened(call, record, known, graph)
        opening.insert()
        for copy, node_record in opening.pairs():
            if node_record.place is not None:
                places[copy] = node_record.place
        initializers.update(
            (value, constant.place) for value, constant in opening.constants if constant.place is not None
        )
        return opening.nodes

    def _opened(self, call: ir.Node, record: Record, known: dict[str, ir.Value], graph: ir.Graph) -> Opening:
        """Return the body of `call` with the names of `record`. Constants that the graph lacks are added to `known`."""
        function = self._body(call, record)
        count = len(record.constants)
        body = list(function)
        values: dict[ir.Value, ir.Value | None] = dict(zip(function.inputs, call.inputs, strict=True))
        constants: list[tuple[ir.Value, ConstantRecord]] = []
        for node, constant in zip(body[:count], record.constants, strict=True):
            value = graph.initializers.get(constant.value.name) or known.get(constant.value.name)
            if value is None:
                value = known[constant.value.name] = _constant(node, constant)
            if _is_loose(value):
                constants.append((value, constant))
            values[node.outputs[0]] = value
        nodes: list[ir.Node] = []
        for node, node_record in zip(body[count:], record.nodes, strict=True):
            outputs = [ir.Value() for _ in node.outputs]
            values.update(zip(node.outputs, outputs, strict=True))
            operands = [None if value is None else values[value] for value in node.inputs]
            nodes.append(_copy(node, node_record, operands, outputs))
            _restore_names(nodes[-1], node_record)
        results = [values[value] for value in function.outputs]
        outputs_of_call = [value for value in results if value is not None]
        return Opening(call, nodes, list(record.nodes), constants, outputs_of_call, known)


@dataclass
class Opening:
    """The nodes that a call stands for; until `insert` they are part of no graph.

    `records` say what each node was. `constants` are the constants that are in no graph either, `outputs` the values that take the place
    of the call's. `known` are the values of the graph by name: a node that fuse copied into several calls is inserted once.
    """

    call: ir.Node
    nodes: list[ir.Node]
    records: list[NodeRecord]
    constants: list[tuple[ir.Value, ConstantRecord]]
    outputs: list[ir.Value]
    known: dict[str, ir.Value]

    def pairs(self) -> Iterator[tuple[ir.Node, NodeRecord]]:
        """Yield the nodes, those of constants included, each with what was recorded of it."""
        for value, constant in self.constants:
            node = value.producer()
            if node is not None and constant.node is not None:
                yield node, constant.node
        yield from zip(self.nodes, self.records, strict=True)

    def insert(self) -> None:
        """Put the nodes in the place of the call, and constants that are still in no graph into its graph."""
        graph = self.call.graph
        assert isinstance(graph, ir.Graph)
        for value, constant in self.constants:
            if not _is_loose(value):
                continue
            node = value.producer()
            if node is not None:
                graph.insert_before(self.call, [node])
            else:
                graph.register_initializer(value)
            restore_value(value, constant.value)
        for outer, value in zip(self.call.outputs, self.outputs, strict=True):
            outer.replace_all_uses_with(value, replace_graph_outputs=True)
            outer.name = None
        self._leave_out_known()
        graph.insert_before(self.call, self.nodes)
        graph.remove(self.call, safe=True)
        for node, record in self.pairs():
            _restore_names(node, record)  # the graph gave a name to one that had none
            if record.copied:
                self.known.update({value.name or "": value for value in node.outputs})

    def _leave_out_known(self) -> None:
        """Drop each copied node whose results the graph has already; its readers read these."""
        kept = []
        for node, record in zip(self.nodes, self.records, strict=True):
            there = [self.known.get(value.name) for value in record.outputs] if record.copied else [None]
            in_graph = [value for value in there if value is not None and not _is_loose(value)]
            if len(in_graph) < len(node.outputs):
                kept.append((node, record))
                continue
            for value, same in zip(node.outputs, in_graph, strict=True):
                value.replace_all_uses_with(same)
            _read_nothing(node)
        self.nodes, self.records = [node for node, _ in kept], [record for _, record in kept]

    def discard(self) -> None:
        """Let those of the nodes that are in no graph read nothing."""
        for node in (node for node in self.nodes if node.graph is None):
            _read_nothing(node)


def _read_nothing(node: ir.Node) -> None:
    for position in range(len(node.inputs)):
        node.replace_input_with(position, None)


def _is_loose(value: ir.Value) -> bool:
    """Tell whether `value` is of no graph."""
    node = value.producer()
    return value.graph is None if node is None else node.graph is None


def remove_uncalled(model: ir.Model) -> None:
    """Remove the functions of meta-ops that the graphs of the model do not call, directly or by way of functions."""
    called = called_functions((node for graph in fused_graphs(model) for node in graph), model)
    for identifier, function in list(model.functions.items()):
        if keys.META_OP in function.metadata_props and function not in called:
            del model.functions[identifier]


def _copy(node: ir.Node, record: NodeRecord, operands: list[ir.Value | None], outputs: list[ir.Value]) -> ir.Node:
    """Return `node` of a function as the node that `record` describes."""
    return ir.Node(
        node.domain, node.op_type, operands, restored_attributes(node, record), overload=node.overload, outputs=outputs,
        name=record.name or None, doc_string=record.doc or None, metadata_props=dict(record.metadata),
    )  # fmt: skip


def _restore_names(copy: ir.Node, record: NodeRecord) -> None:
    copy.name = record.name
    for value, known in zip(copy.outputs, record.outputs, strict=True):
        restore_value(value, known)


def _constant(node: ir.Node, record: ConstantRecord) -> ir.Value:
    """Return the constant of `record`, made anew with the value that the function holds."""
    if record.node is None:
        known = record.tensor or TensorRecord(record.value.name)
        tensor = restored_tensor(next(iter(node.attributes.values())).as_tensor(), known)
        value = ir.Value(
            name=record.value.name,
            const_value=tensor,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
        )
        restore_value(value, record.value)
        return value
    value = ir.Value()
    _restore_names(_copy(node, record.node, [], [value]), record.node)
    restore_value(value, record.value)
    return value


def _reorder(graph: ir.Graph, places: dict[ir.Node, int]) -> None:
    """Put the nodes of `places` where they were; the others keep their order in the places between.

    Where the model was edited since, so that this order is none, the graph is sorted.
    """
    if not places:
        return
    nodes = list(graph)
    graph.remove(nodes)
    graph.extend(_in_places(nodes, places))
    if not _is_sorted(graph):
        graph.sort()


def _reorder_initializers(graph: ir.Graph, places: dict[ir.Value, int]) -> None:
    """Put the initializers of `places` where they were; the others keep their order in the places between."""
    if not places:
        return
    ordered = _in_places(list(graph.initializers.values()), places)
    graph.initializers.clear()
    for value in ordered:
        graph.register_initializer(value)


def _in_places(listed: list[_T], places: Mapping[_T, int]) -> list[_T]:
    """Return `listed` with those of `places` there, counted from 0; the others keep their order in the places between."""
    others = iter([element for element in listed if element not in places])
    ordered: list[_T] = []
    for element, position in sorted(places.items(), key=lambda item: item[1]):
        ordered.extend(islice(others, max(0, position - len(ordered))))
        ordered.append(element)
    return [*ordered, *others]


def _is_sorted(graph: ir.Graph) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        for value in dependencies(node):
            producer = value.producer()
            if producer is not None and producer.graph is graph and producer not in seen:
                return False
        seen.add(node)
    return True
