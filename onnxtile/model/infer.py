"""Results of the engines of shape inference for the values of a model, in one form."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.contributed import contributed_operators
from onnxtile.model.copied_tensor import copied_tensor
from onnxtile.model.known import NOTHING, Dim, Dims, Known, declared
from onnxtile.model.size_expression import read_size
from onnxtile.model.size_formula import SizeRange, SizeRanges
from onnxtile.model.validity import skeleton
from onnxtile.model.walk import all_nodes, main_graphs, tensors_of
from onnxtile.sizes import LARGEST_COUNT

__all__ = ["NOTHING", "Dim", "Dims", "Known", "ShapeEngines", "declared", "values"]


def values(model: ir.Model) -> list[ir.Value]:
    """Return every value of all graphs once, in an order that a clone shares."""
    return [value for graph in main_graphs(model) for value in _graph_values(graph)]


def _graph_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from node.outputs


class ShapeEngines:
    """The results of onnx-shape-inference and of onnx for `values(model)`, each computed when asked for, `by_onnx` first or never.

    `model` is changed, let go once onnx-shape-inference has seen it, and must not be used afterwards. What the file declares is forgotten
    first, save for outputs of operators that no engine knows. An engine that stumbles leaves what follows unknown. Raises ModelError where
    the shapes contradict each other.
    """

    def __init__(self, model: ir.Model) -> None:
        self._seen: tuple[ir.Model, list[ir.Value]] | None = model, values(model)
        self._contributed = contributed_operators(model)
        for value in _inferable(model, self._contributed):
            value.shape = None
            if isinstance(value.type, ir.TensorType):
                value.type = None
        named = _names(model)
        graphs = [list(_graph_values(graph)) for graph in main_graphs(model)]
        for value in chain.from_iterable(graphs):
            value.shape = _sane(value.shape, named)
        self._obvious = list(_obvious_outputs(model, list(chain.from_iterable(graphs))))
        _give_conditions(model)
        _name_apart(model)
        self._names = [[value.name or "" for value in graph] for graph in graphs]
        self._proto = skeleton(model)
        functions = [one for one in self._proto.functions if (one.domain, one.name) not in self._contributed]
        del self._proto.functions[:]
        self._proto.functions.extend(functions)

    @property
    def knows_all_operators(self) -> bool:
        """Whether onnx alone may be enough: no operator is onnxruntime's own."""
        return not self._contributed

    @cached_property
    def by_onnx(self) -> list[Known]:
        """The results of onnx, with large constants and the masks of Dropouts of old opsets, which it is not shown or does not say."""
        found = _infer_onnx(self._proto, self._names)
        for output in self._obvious:
            if found[output.place].dims is None:
                found[output.place] = output.known(found[output.first])
        return found

    @cached_property
    def symbolic(self) -> list[Known]:
        """The results of onnx-shape-inference."""
        seen, self._seen = self._seen, None
        assert seen is not None
        model, listed = seen
        error = _infer_symbolic(model, self._contributed)
        found = [declared(value) for value in listed]
        if error is not None:
            _require_consistent(self._proto, error)
        return found


@dataclass(frozen=True)
class _ObviousOutput:
    """The last output of a Constant or a Dropout, by its place among all values, and that of the node's `first` output.

    `dtype` and `dims` are None where they are those of the first output.
    """

    place: int
    first: int
    dtype: ir.DataType | None
    dims: Dims | None

    def known(self, first: Known) -> Known:
        """Return type and shape of the output, from those of the first one."""
        return Known(self.dtype or first.dtype, first.dims if self.dims is None else self.dims)


def _obvious_outputs(model: ir.Model, listed: list[ir.Value]) -> Iterator[_ObviousOutput]:
    """Yield the outputs of Constants and Dropouts of which onnx says nothing, or not all, among the values `listed`."""
    wanted = [
        node for node in all_nodes(model) if node.domain in {"", "ai.onnx"} and node.op_type in {"Constant", "Dropout"}
    ]
    places = {value: place for place, value in enumerate(listed)} if wanted else {}
    opset = model.graph.opset_imports.get("", 1)
    for node in wanted:
        if not node.outputs or node.outputs[-1] not in places:
            continue
        place, first = places[node.outputs[-1]], places[node.outputs[0]]
        tensor = next(tensors_of(node), None)
        if node.op_type == "Constant" and tensor is not None:
            yield _ObviousOutput(place, first, tensor.dtype, tuple(tensor.shape.numpy()))
        elif node.op_type == "Dropout" and len(node.outputs) > 1:
            output, mask = onnx.defs.get_schema("Dropout", opset).outputs
            yield _ObviousOutput(place, first, None if output.type_str == mask.type_str else ir.DataType.BOOL, None)


def _name_apart(model: ir.Model) -> None:
    """Give each value of a graph a name of its own: onnx notes values of sizes by name, and takes those of one body for another's."""
    main, *bodies = main_graphs(model)
    taken = {value.name for value in (*main.inputs, *main.initializers.values())}
    given = (value for graph in bodies for value in dict.fromkeys((*graph.inputs, *graph.initializers.values())))
    named = [*given, *(value for node in main.all_nodes() for value in node.outputs if value.name)]
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
    loops = [node for node in model.graph.all_nodes() if node.op_type == "Loop" and node.domain in {"", "ai.onnx"}]
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
    for node in model.graph.all_nodes():
        is_known = onnx.defs.has(node.op_type, domain=node.domain) or (node.domain, node.op_type) in contributed
        if node.op_identifier() in model.functions or is_known:
            yield from node.outputs


def _names(model: ir.Model) -> dict[str, SizeRange]:
    """Return the names of single dimensions of the inputs of `model`."""
    dims = (dim for value in model.graph.inputs for dim in value.shape or ())
    names = (dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value)
    return {name: (1, LARGEST_COUNT) for name in names if re.fullmatch(r"[A-Za-z_]\w*", name)}


def _sane(shape: ir.Shape | None, named: SizeRanges) -> ir.Shape | None:
    """Drop the dimension names that are neither a word nor an expression of `named` ones ("?", "unk__12:0"): they say nothing."""
    if shape is None or shape.is_static():
        return shape
    return ir.Shape([dim if isinstance(dim, int) or _is_readable(dim.value, named) else None for dim in shape])


def _is_readable(name: str | None, named: SizeRanges) -> bool:
    return bool(name) and (re.fullmatch(r"[A-Za-z_]\w*", name or "") is not None or read_size(name, named) is not None)


def _infer_symbolic(model: ir.Model, contributed: Collection[tuple[str, str]]) -> str | None:
    """Infer in place. Return the error of the engine, None where it finished.

    Its last pass, which traces its own names of unknown dimensions back to declared ones, is left out where nothing is declared: it
    finds no sizes, and took three quarters of the time.
    """
    from onnxtile.model.engine_rules import (
        infer_symbolic,  # it loads the engine, which takes longer than most models do
    )

    named = any(isinstance(dim, ir.SymbolicDim) for value in model.graph.inputs for dim in value.shape or ())
    named_tensors = list(_constant_tensors(model))
    try:
        infer_symbolic(model, contributed, named=named)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return " ".join(str(error).split())
    finally:
        for tensor, name in named_tensors:
            _rename(tensor, name)
    return None


def _rename(tensor: ir.TensorProtocol, name: str | None) -> None:
    """Give `tensor` the name that it had; None where its message had no such field, which an empty name would add."""
    if name is None and isinstance(tensor, ir.TensorProtoTensor):
        tensor.raw.ClearField("name")
    else:
        tensor.name = name


def _constant_tensors(model: ir.Model) -> Iterator[tuple[ir.TensorProtocol, str | None]]:
    """Yield the tensors of Constant nodes with their names: the engine renames them, and clones and the caller's model share them."""
    for node in all_nodes(model):
        attribute = node.attributes.get("value")
        if node.op_type == "Constant" and attribute is not None and not attribute.is_ref():
            tensor = attribute.value
            nameless = isinstance(tensor, ir.TensorProtoTensor) and not tensor.raw.HasField("name")
            yield tensor, None if nameless else tensor.name


def _require_consistent(proto: onnx.ModelProto, reason: str) -> None:
    """Raise ModelError where onnx, too, finds a contradiction: one engine alone may only not know an operator."""
    try:
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        raise ModelError(f"the shapes contradict each other: {reason}") from None


def _infer_onnx(proto: onnx.ModelProto, names: list[list[str]]) -> list[Known]:
    """Return the results of onnx for the values called `names` in each graph of `proto`, in the order of ir.Model.graphs."""
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"the shapes contradict each other: {' '.join(str(error).split())}") from None
    except (ValueError, RuntimeError):
        inferred = proto
    found: list[Known] = []
    for named, graph_proto in zip(names, _graph_protos(inferred.graph), strict=True):
        infos = {info.name: _from_proto(info.type) for info in (*graph_proto.value_info, *graph_proto.output)}
        found.extend(infos.get(name, NOTHING) for name in named)
    return found


def _graph_protos(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield `graph` and those nested in it, in the order of ir.Model.graphs."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            nested = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else attribute.graphs
            for inner in nested:
                yield from _graph_protos(inner)


def _from_proto(type_: onnx.TypeProto) -> Known:
    if not type_.HasField("tensor_type"):
        return NOTHING
    tensor = type_.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Known(dtype, None)
    dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None for dim in tensor.shape.dim)
    return Known(dtype, dims)
