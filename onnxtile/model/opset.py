"""Raising a model to a newer opset by onnx's version converter, without what the converter forgets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter

import onnx
import onnx_ir as ir

from onnxtile.model.save import raise_ir_version
from onnxtile.model.topology import all_nodes, bodies_of, is_read, opset_in
from onnxtile.model.validity import check, skeleton
from onnxtile.system.errors import ModelError

_RESIZE_PLACES = 11
"""The first version of Resize that says which places of its operand it reads."""
_TRUE_MASKS = 12
"""The first opset in which a Dropout that does not train has a mask of True."""


def opset_of(model: ir.Model) -> int:
    """Return the version of the standard operators that `model` imports; 0 where it imports none."""
    return opset_in(model.graph.opset_imports)


class Opsets:
    """The operator versions with which each graph of a model is read: a function has its own, also for the bodies in it."""

    def __init__(self, model: ir.Model) -> None:
        self._main = model.graph.opset_imports
        self._of_functions: dict[object, Mapping[str, int]] = {}
        for function in model.functions.values():
            bodies = (function.graph, *function.subgraphs())
            self._of_functions.update(dict.fromkeys(bodies, function.opset_imports))

    def opsets_of(self, graph: ir.Graph | ir.Function | None) -> Mapping[str, int]:
        """Return the versions by domain."""
        return self._main if graph is None else self._of_functions.get(graph, self._main)


def raised(model: ir.Model, version: int) -> ir.Model:
    """Return a copy of `model` that imports `version` of the standard operators; `model` itself where it does so already.

    onnx's converter rewrites the nodes of the graphs. It deletes local functions, metadata, doc strings, types of inner values and
    overloads: these are put back, and the weights, which it never sees, too. The IR version becomes 10 at least; initializers that IR
    version 3 lists as inputs stay constants. Raises ModelError with the reason where the converter fails. It does so, too, where a
    function of the model uses an operator that `version` has changed, or the mask of a Dropout would change.
    """
    if opset_of(model) >= version:
        return model
    _require_masks_kept(model, version)
    source = model.clone()
    raise_ir_version(source)
    proto = skeleton(source)
    try:
        converted = onnx.version_converter.convert_version(proto, version)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"onnx's version converter cannot raise the model to opset {version}: {reason}") from error
    result = ir.from_proto(converted)
    result.ir_version = source.ir_version
    _restore_model(source, result)
    _restore_graph(source.graph, result.graph)
    if opset_of(model) < _RESIZE_PLACES <= version:
        _keep_places(result)
    for function in source.functions.values():
        result.functions[function.identifier()] = function
    _require_whole(source, result)
    check(result)
    return result


def _require_masks_kept(model: ir.Model, version: int) -> None:
    """Raise ModelError where a mask of a Dropout is read that raising would change: onnxruntime fills it with False before opset 12."""
    if not opset_of(model) < _TRUE_MASKS <= version:
        return
    for node in all_nodes(model):
        if node.op_type == "Dropout" and not node.domain and any(map(is_read, node.outputs[1:])):
            raise ModelError(
                f"a Dropout of opset {opset_of(model)} gives another mask in opset {_TRUE_MASKS}, and it is read"
            )


def _keep_places(result: ir.Model) -> None:
    """Give each Resize the places that it read before opset 11: the converter leaves it those that opset 11 has by default."""
    for node in result.graph.all_nodes():
        if node.op_type == "Resize" and not node.domain:
            node.attributes["coordinate_transformation_mode"] = ir.AttrString(
                "coordinate_transformation_mode", "asymmetric"
            )
            node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "floor")


def _restore_model(source: ir.Model, result: ir.Model) -> None:
    result.producer_name, result.producer_version = source.producer_name, source.producer_version
    result.domain, result.model_version, result.doc_string = source.domain, source.model_version, source.doc_string
    result.metadata_props.clear()
    result.metadata_props.update(source.metadata_props)
    result.device_configurations = source.device_configurations
    result.graph.meta.update(source.graph.meta)
    for domain, version in source.graph.opset_imports.items():
        if domain not in {"", "ai.onnx"}:
            result.graph.opset_imports[domain] = version


def _restore_graph(source: ir.Graph, result: ir.Graph) -> None:
    """Give the nodes and values of `result` what those of `source` with the same outputs or names say of themselves."""
    result.name, result.doc_string = source.name, source.doc_string
    result.metadata_props.clear()
    result.metadata_props.update(source.metadata_props)
    _restore_constants(source, result)
    known = {value.name: value for value in _values(source)}
    for value in _values(result):
        if value.name in known:
            _restore_value(known[value.name], value)
    nodes = {_key(node): node for node in source}
    for node in result:
        original = nodes.get(_key(node))
        if original is not None and original.op_type == node.op_type:
            _restore_node(original, node)


def _restore_constants(source: ir.Graph, result: ir.Graph) -> None:
    """Put the constants back that the converter did not see, or saw as inputs, in the order they had."""
    values = {value.name: value for value in _values(result)}
    initializers = dict(result.initializers)
    inputs = {value.name for value in source.inputs}
    result.initializers.clear()
    for name, value in source.initializers.items():
        restored = values.get(name) or initializers.pop(name, None) or ir.Value(name=name)
        restored.const_value = value.const_value
        restored.type, restored.shape = value.type, value.shape
        result.initializers[name] = restored
    result.initializers.update({name: value for name, value in initializers.items() if name not in result.initializers})
    stand_ins = {value.name: value for value in result.inputs if value.name not in inputs}
    result.inputs[:] = [value for value in result.inputs if value.name in inputs]
    for node in reversed(list(source)):
        if node.op_type != "Constant" or not node.outputs or node.outputs[0].name not in stand_ins:
            continue
        old = stand_ins[node.outputs[0].name]
        copy = ir.Node("", "Constant", [], node.attributes.values(), name=node.name, outputs=[ir.Value()])
        result.insert_before(result[0], copy) if len(result) else result.append(copy)
        old.replace_all_uses_with(copy.outputs[0], replace_graph_outputs=True)
        old.name, copy.outputs[0].name = None, node.outputs[0].name


def _restore_value(source: ir.Value, result: ir.Value) -> None:
    if source.type is not None:
        result.type = source.type
    if source.shape is not None:
        result.shape = source.shape
    result.doc_string = source.doc_string
    result.metadata_props.clear()
    result.metadata_props.update(source.metadata_props)


def _restore_node(source: ir.Node, result: ir.Node) -> None:
    result.name, result.doc_string, result.overload = source.name, source.doc_string, source.overload
    result.metadata_props.clear()
    result.metadata_props.update(source.metadata_props)
    result.device_configurations = source.device_configurations
    bodies = (sorted(bodies_of(node), key=attrgetter("attribute")) for node in (source, result))
    for old, new in zip(*bodies, strict=False):
        _restore_graph(old.graph, new.graph)


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from graph.inputs
    yield from graph.initializers.values()
    for node in graph:
        yield from (value for value in node.outputs if value.name)


def _key(node: ir.Node) -> str:
    return next((value.name for value in node.outputs if value.name), "") or ""


def _require_whole(source: ir.Model, result: ir.Model) -> None:
    """Raise ModelError unless all that the caller can name is still there."""
    if list(source.functions) != list(result.functions):
        raise ModelError("onnx's version converter lost functions of the model")
    for what in ("inputs", "outputs"):
        before, after = ([v.name for v in getattr(m.graph, what)] for m in (source, result))
        if before != after:
            raise ModelError(f"onnx's version converter changed the {what} of the model")
