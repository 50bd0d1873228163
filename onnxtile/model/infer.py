"""Results of the engines of shape inference for the values of a model, in one form."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator

import onnx
import onnx_ir as ir

from onnxtile.errors import ModelError
from onnxtile.model.contributed import contributed_operators
from onnxtile.model.known import NOTHING, Dim, Dims, Known, declared
from onnxtile.model.size_expression import read_size
from onnxtile.model.size_formula import SizeRange, SizeRanges
from onnxtile.model.validity import skeleton
from onnxtile.model.walk import all_nodes
from onnxtile.sizes import LARGEST_COUNT

__all__ = ["NOTHING", "Dim", "Dims", "Known", "declared", "infer", "values"]


def values(model: ir.Model) -> list[ir.Value]:
    """Return every value of all graphs once, in an order that a clone shares."""
    return [value for graph in model.graphs() for value in _graph_values(graph)]


def _graph_values(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from dict.fromkeys((*graph.inputs, *graph.initializers.values()))
    for node in graph:
        yield from node.outputs


def infer(model: ir.Model, *, once: bool = False) -> tuple[list[Known], list[Known]]:
    """Return the results of onnx-shape-inference and of onnx for `values(model)`. `model` is changed and must not be used afterwards.

    What the file declares is forgotten first, save for outputs of operators that no engine knows. An engine that stumbles leaves what
    follows unknown. With `once`, the results of onnx count as those of both where they leave no size open: a run will prove them.
    Raises ModelError where the shapes contradict each other.
    """
    everything = values(model)
    contributed = contributed_operators(model)
    for value in _inferable(model, contributed):
        value.shape = None
        if isinstance(value.type, ir.TensorType):
            value.type = None
    named = _names(model)
    for value in everything:
        value.shape = _sane(value.shape, named)
    proto = skeleton(model)
    functions = [one for one in proto.functions if (one.domain, one.name) not in contributed]
    del proto.functions[:]
    proto.functions.extend(functions)
    graphs = list(model.graphs())
    if once and not contributed:
        from_onnx = _infer_onnx(proto, graphs)
        if all(map(_is_closed, everything, from_onnx)):
            return from_onnx, from_onnx
    symbolic_error = _infer_symbolic(model, contributed)
    symbolic = [declared(value) for value in everything]
    if symbolic_error is not None:
        _require_consistent(proto, symbolic_error)
    return symbolic, _infer_onnx(proto, graphs)


def _is_closed(value: ir.Value, known: Known) -> bool:
    """Return whether all sizes of `value` are known: from the file where no node makes it."""
    dims = known.dims if value.producer() is not None else declared(value).dims
    return not value.name or (dims is not None and all(isinstance(dim, int) and dim > 0 for dim in dims))


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
    import onnx_shape_inference  # it imports sympy, which takes longer than most models do

    from onnxtile.model.engine_rules import correct

    correct(contributed)
    named = any(isinstance(dim, ir.SymbolicDim) for value in model.graph.inputs for dim in value.shape or ())
    logger = logging.getLogger("onnx_shape_inference")
    level = logger.level
    named_tensors = list(_constant_tensors(model))
    logger.setLevel(logging.CRITICAL)
    try:
        onnx_shape_inference.infer_symbolic_shapes(model, warn_on_missing=False, adopt_declared_symbols=named)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        return " ".join(str(error).split())
    finally:
        logger.setLevel(level)
        for tensor, name in named_tensors:
            tensor.name = name
    return None


def _constant_tensors(model: ir.Model) -> Iterator[tuple[ir.TensorProtocol, str | None]]:
    """Yield the tensors of Constant nodes with their names: the engine renames them, and clones and the caller's model share them."""
    for node in all_nodes(model):
        attribute = node.attributes.get("value")
        if node.op_type == "Constant" and attribute is not None and not attribute.is_ref():
            yield attribute.value, attribute.value.name


def _require_consistent(proto: onnx.ModelProto, reason: str) -> None:
    """Raise ModelError where onnx, too, finds a contradiction: one engine alone may only not know an operator."""
    try:
        onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)
    except onnx.shape_inference.InferenceError:
        raise ModelError(f"the shapes contradict each other: {reason}") from None


def _infer_onnx(proto: onnx.ModelProto, graphs: list[ir.Graph]) -> list[Known]:
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except onnx.shape_inference.InferenceError as error:
        raise ModelError(f"the shapes contradict each other: {' '.join(str(error).split())}") from None
    except (ValueError, RuntimeError):
        inferred = proto
    found: list[Known] = []
    for graph, graph_proto in zip(graphs, _graph_protos(inferred.graph), strict=True):
        infos = {info.name: _from_proto(info.type) for info in (*graph_proto.value_info, *graph_proto.output)}
        found.extend(infos.get(value.name or "", NOTHING) for value in _graph_values(graph))
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
