"""What one plain call of onnx's shape inference says of the values of a model."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, count
from typing import NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.model.formula import SizeRanges, read_size
from onnxtile.model.functions import graphs_of_proto
from onnxtile.model.known import NOTHING, Known, numeric, types_kept
from onnxtile.model.preserved import copied_tensor
from onnxtile.model.topology import main_graphs, nodes_in, stored_sizes, tensors_of
from onnxtile.model.validity import skeleton
from onnxtile.operators.node_view import Dims
from onnxtile.shapes.contributed import contributed_operators
from onnxtile.shapes.propagation import known_of, named_sizes, say_default
from onnxtile.system.errors import ModelError
from onnxtile.system.interpreter import cycles_freed
from onnxtile.system.posix import return_free_memory


def values(model: ir.Model) -> list[ir.Value]:
    """Return every value of all graphs once, in an order that a clone shares."""
    return [value for graph in main_graphs(model) for value in _graph_values(graph)]


def _graph_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from node.outputs


def inferred_by_onnx(model: ir.Model) -> list[Known]:
    """Return what one plain call of onnx's inference says of `values(model)`; `model` stays as it is.

    What the file declares is forgotten first, save for outputs of operators that nobody knows. Large constants are not shown to onnx, and
    it says nothing of the masks of Dropouts of old opsets: these are known. Raises ModelError where shapes contradict each other.
    """
    graphs = [list(_graph_values(graph)) for graph in main_graphs(model)]
    if len(graphs) > 1:  # in bodies, values get other names, and loops another input
        with cycles_freed():  # a name for the copy here would keep it
            return _inferred_in_place(model.clone())
    with types_kept(graphs[0]):
        return _inferred(model, graphs)


def _inferred_in_place(model: ir.Model) -> list[Known]:
    return _inferred(model, [list(_graph_values(graph)) for graph in main_graphs(model)])


def _inferred(model: ir.Model, graphs: list[list[ir.Value]]) -> list[Known]:
    """Return what onnx's inference says of the values of each of the `graphs`.

    The types and shapes of values are changed, and the bodies of a model that has some.
    """
    contributed = contributed_operators(model)
    for value in _inferable(model, contributed):
        value.shape = None
        if type(value.type) is ir.TensorType:
            value.type = None
    named = named_sizes(model)
    for value in chain.from_iterable(graphs):
        if value.shape is not None and not value.shape.is_static():
            dims = (dim if isinstance(dim, int) else dim.value for dim in value.shape)
            value.shape = ir.Shape(readable(tuple(dims), named) or ())
    last_outputs = _last_outputs(model, list(chain.from_iterable(graphs)))
    if len(graphs) > 1:
        _give_conditions(model)
        _name_apart(model)
    names = [[value.name or "" for value in listed] for listed in graphs]
    results = [_known(known, named) for known in _infer_onnx(_shown_to_onnx(model, contributed, len(graphs)), names)]
    opset = model.graph.opset_imports.get("", 1)
    for output in last_outputs:
        known = results[output.position]
        if known.dims is None:
            results[output.position] = _obvious(output, results[output.first], known, opset)
    return results


def _shown_to_onnx(model: ir.Model, contributed: Collection[tuple[str, str]], graphs: int) -> bytes:
    """Return what onnx infers the shapes of `model` from, as bytes: onnx has a copy of its own, and returns another."""
    proto = skeleton(model, described=False, folded=True)
    functions = [function for function in proto.functions if (function.domain, function.name) not in contributed]
    del proto.functions[:]
    proto.functions.extend(functions)
    for graph in _graph_protos(proto, graphs):
        for node in graph.node:
            say_default(node)
    content: bytes = proto.SerializeToString()
    return content


def _graph_protos(proto: onnx.ModelProto, number: int) -> Iterable[onnx.GraphProto]:
    """Return the `number` of graphs that `proto` has: a search for bodies in each attribute takes as long as inference."""
    return graphs_of_proto(proto.graph) if number > 1 else [proto.graph]


class _LastOutput(NamedTuple):
    """The last output of a Constant or a Dropout: its `position` among all values, and that of the node's `first` output."""

    node: ir.Node
    position: int
    first: int


def _last_outputs(model: ir.Model, listed: list[ir.Value]) -> list[_LastOutput]:
    """Return the outputs of Constants and Dropouts of which onnx may say nothing, or not all, among the values `listed`."""
    wanted = [node for node in nodes_in(model.graph) if node.op_type in {"Constant", "Dropout"} and not node.domain]
    places = {value: index for index, value in enumerate(listed)} if wanted else {}
    outputs = [node.outputs for node in wanted]
    return [
        _LastOutput(node, places[node_values[-1]], places[node_values[0]])
        for node, node_values in zip(wanted, outputs, strict=True)
        if node_values and node_values[-1] in places
    ]


def _obvious(output: _LastOutput, first: Known, known: Known, opset: int) -> Known:
    """Return type and shape of an output, of which onnx knows no more than `known`, from those of the `first` one of the node."""
    tensor = next(tensors_of(output.node), None)
    if output.node.op_type == "Constant":
        return known if tensor is None else Known(tensor.dtype, stored_sizes(tensor))
    if len(output.node.outputs) == 1:
        return known
    result, mask = onnx.defs.get_schema("Dropout", opset).outputs
    return Known(first.dtype if result.type_str == mask.type_str else ir.DataType.BOOL, first.dims)


def _name_apart(model: ir.Model) -> None:
    """Give each value of a graph a name of its own: onnx notes values of sizes by name, and takes those of one body for another's."""
    main, *bodies = main_graphs(model)
    taken = {value.name for value in (*main.inputs, *main.initializers.values())}
    given = (value for graph in bodies for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())))
    named = [*given, *(value for node in nodes_in(main) for value in node.outputs if value.name)]
    used = taken | {value.name for value in named}
    for value in named:
        if value.name in taken:
            if value.const_value is not None:  # clones and the caller share the tensor: it keeps its name
                value.const_value = copied_tensor(value.const_value, value.name)
            value.name = next(name for n in count(len(used)) if (name := f"{value.name}|{n}") not in used)
            used.add(value.name)
        taken.add(value.name)


def _give_conditions(model: ir.Model) -> None:
    """Give each Loop that has none the condition `true`: without it both engines forget the type of the condition in the body."""
    loops = [node for node in nodes_in(model.graph) if node.op_type == "Loop" and not node.domain]
    without = [node for node in loops if len(node.inputs) < 2 or node.inputs[1] is None]
    if not without:
        return
    tensor = ir.tensor(np.asarray(True), name="pkg.onnxtile.true")
    true = ir.Value(name=tensor.name, const_value=tensor, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([]))
    model.graph.register_initializer(true)
    for node in without:
        node.resize_inputs(max(2, len(node.inputs)))
        node.replace_input_with(1, true)


def _inferable(model: ir.Model, contributed: Collection[tuple[str, str]]) -> Iterator[ir.Value]:
    is_known: dict[ir.OperatorIdentifier, bool] = {}
    for node in nodes_in(model.graph):
        operator = domain, name, _ = node.op_identifier()
        if operator not in is_known:
            of_schema = onnx.defs.has(name, domain=domain)
            is_known[operator] = of_schema or (domain, name) in contributed or operator in model.functions
        if is_known[operator]:
            yield from node.outputs


def inferred_types(model: ir.Model) -> list[dict[str, ir.TypeProtocol]]:
    """Return the types that onnx infers of values that are no tensors, by name, of each graph in the order of `main_graphs`.

    Nothing where it finds a fault.
    """
    try:
        graph = onnx.shape_inference.infer_shapes(skeleton(model, described=False)).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return []
    listed = ((*inner.value_info, *inner.output) for inner in graphs_of_proto(graph))
    others = ([info for info in infos if not info.type.HasField("tensor_type")] for infos in listed)
    types = ([(i.name, ir.serde.deserialize_type_proto_for_type(i.type)) for i in infos] for infos in others)
    return [{name: type_ for name, type_ in pairs if type_ is not None} for pairs in types]


def readable(dims: Dims | None, named: SizeRanges) -> Dims | None:
    """Drop the dimension names that are neither a word nor an expression of `named` ones ("?", "unk__12:0"): they say nothing."""
    if dims is None:
        return None
    return tuple(dim if isinstance(dim, int) or _is_readable(dim, named) else None for dim in dims)


def _is_readable(name: str | None, named: SizeRanges) -> bool:
    return bool(name) and (re.fullmatch(r"[A-Za-z_]\w*", name or "") is not None or read_size(name, named) is not None)


_LARGE = 2**20
"""Bytes of a model of which onnx's copies have left so much free memory that it is given back."""


def _infer_onnx(content: bytes, names: list[list[str]]) -> list[Known]:
    """Return the results of onnx for the values called `names` in each graph of the model `content`, in the order of ir.Model.graphs."""
    try:
        inferred = onnx.shape_inference.infer_shapes(content, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"the shapes contradict each other: {' '.join(str(error).split())}") from None
    except (ValueError, RuntimeError):
        inferred = onnx.ModelProto.FromString(content)
    results: list[Known] = []
    for named, graph_proto in zip(names, _graph_protos(inferred, len(names)), strict=True):
        infos = {info.name: known_of(info.type) for info in (*graph_proto.value_info, *graph_proto.output)}
        results.extend(infos.get(name, NOTHING) for name in named)
    if len(content) > _LARGE:
        del inferred, graph_proto, infos
        return_free_memory()
    return results


def _known(known: Known, named: SizeRanges) -> Known:
    """Return `known` without the names that onnx has made up."""
    if numeric(known.dims) is not None or known.dims is None:
        return known
    dims = (
        None if isinstance(dim, str) and dim.startswith("unk__") and dim not in named else dim for dim in known.dims
    )
    return Known(known.dtype, tuple(dims))
