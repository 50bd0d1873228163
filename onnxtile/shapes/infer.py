"""Results of the engines of shape inference for the values of a model, in one form."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import chain, count
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from onnxtile.model.formula import SizeRange, SizeRanges, read_size
from onnxtile.model.known import NOTHING, Dims, Known, declared
from onnxtile.model.preserved import copied_tensor
from onnxtile.model.topology import all_nodes, main_graphs, tensors_of, values_in
from onnxtile.model.validity import INLINE_BYTES, skeleton
from onnxtile.shapes.contributed import KnownOperand, contributed_operators, results
from onnxtile.shapes.internals import shape_engine
from onnxtile.system.errors import ModelError
from onnxtile.system.runtime import Array
from onnxtile.system.text import LARGEST_COUNT

if TYPE_CHECKING:
    from onnx_shape_inference import ShapeInferenceContext


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


# Symbolic shapes by a copy of onnx-shape-inference in which rules are replaced: those that are wrong, those that lose what is chosen
# between sizes, and all for operators of onnxruntime.
#
# What follows from a wrong shape is wrong, too: a rule must be right while the engine goes through the model, not only afterwards.

ENGINE = shape_engine()
registry = ENGINE.registry

_FAR = 2**29
"""Exporters write such ends of a Slice for "to the last": no dimension that is still open becomes larger."""

_WHOLE = frozenset({ir.DataType.INT64, ir.DataType.INT32})
"""Element types of shapes."""
_MOST = 64
"""Elements of the longest shape whose elements are followed."""

_Inference: TypeAlias = "Callable[[ShapeInferenceContext, ir.Node], None]"

_LOCK = Lock()
_REPLACED: set[tuple[str, str]] = set()


def infer_symbolic(model: ir.Model, contributed: Iterable[tuple[str, str]], *, named: bool) -> None:
    """Infer the shapes of `model` in place; those of the `contributed` operators (domain, name) as onnxruntime does.

    With `named`, names of unknown dimensions are traced back to declared ones. Raises what the library raises.
    """
    with _LOCK:
        if ("", "Slice") not in _REPLACED:
            _replace_slice()
            _replace_defaults()
            _replace_choices()
            _replace_broadcast()
            _replace_collection()
        for domain, name in contributed:
            if (domain, name) not in _REPLACED:
                registry.register(domain, name, since_version=1)(_contributed)
                _REPLACED.add((domain, name))
    ENGINE.infer_symbolic_shapes(model, warn_on_missing=False, adopt_declared_symbols=named)


def _contributed(context: ShapeInferenceContext, node: ir.Node) -> None:
    """Note what onnxruntime infers for the outputs of `node`."""
    operands = [None if value is None else _operand(value) for value in node.inputs]
    opsets = {domain: context.get_opset_version(domain) for domain in ("", node.domain)}
    for value, known in zip(node.outputs, results(node, operands, opsets), strict=True):
        if known.dims is not None:
            value.shape = ir.Shape([context.new_symbolic_dim() if dim is None else dim for dim in known.dims])
        if known.dtype is not None:
            context.set_dtype(value, known.dtype)


def _operand(value: ir.Value) -> KnownOperand:
    known = declared(value)
    return KnownOperand(known.dtype, known.dims, _number(value))


def _number(value: ir.Value | None) -> Array | None:
    """Return the elements of `value` where they are known and few; the engine notes those that it computes as constants."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.nbytes > INLINE_BYTES or tensor.dtype == ir.DataType.STRING:
        return None
    return tensor.numpy()


def _replace_slice() -> None:
    library = registry.get("", "Slice", version=10)
    known_numbers = ENGINE._ops._utils.get_known_dim_values
    assert library is not None

    def clamped(context: ShapeInferenceContext, node: ir.Node) -> None:
        """Clamp to the size that is sliced where that is open: the library takes the numbers of the operands to lie inside.

        Of axes and steps that are not known it takes the defaults, as if they were left out; then no size is known.
        """
        data, made = node.inputs[0], node.outputs[0]
        if any(value is not None and known_numbers(context, value) is None for value in node.inputs[3:5]):
            if data is not None and data.shape is not None:
                made.shape = ir.Shape([context.new_symbolic_dim() for _ in data.shape])
            if data is not None and data.dtype is not None:
                context.set_dtype(made, data.dtype)
            return
        library(context, node)
        if data is None or data.shape is None or made.shape is None or len(data.shape) != len(made.shape):
            return
        dims = list(made.shape)
        for axis, start, end, step in _cuts(node, len(dims)):
            size = data.shape[axis]
            if isinstance(size, ir.SymbolicDim) and isinstance(dims[axis], int) and dims[axis]:
                dims[axis] = _clamped(size, start, end, step)
        made.shape = ir.Shape(dims)

    registry.register("", "Slice", since_version=10)(clamped)
    _REPLACED.add(("", "Slice"))


def _replace_defaults() -> None:
    """Leave the sizes open that an unknown operand says: of the parts of a Split, and which axes a Squeeze removes.

    The library takes the default, as if the operand were left out.
    """
    for name, unknown in (("Split", _open_parts), ("Squeeze", _open_axes)):
        library = registry.get("", name, version=13)
        assert library is not None

        def said(
            context: ShapeInferenceContext, node: ir.Node, library: _Inference = library, unknown: _Inference = unknown
        ) -> None:
            given = node.inputs[1] if len(node.inputs) > 1 else None
            is_known = given is None or ir.convenience.get_const_tensor(given) is not None
            (library if is_known else unknown)(context, node)

        registry.register("", name, since_version=13)(said)


def _open_parts(context: ShapeInferenceContext, node: ir.Node) -> None:
    data = node.inputs[0]
    if data is None or data.dtype is None:
        return
    for value in node.outputs:
        context.set_dtype(value, data.dtype)
        if data.shape is not None:
            axis = node.attributes.get_int("axis", 0) % max(len(data.shape), 1)
            dims = [context.new_symbolic_dim() if at == axis else dim for at, dim in enumerate(data.shape)]
            value.shape = ir.Shape(dims)


def _open_axes(context: ShapeInferenceContext, node: ir.Node) -> None:
    data, axes = node.inputs
    if data is None or axes is None or data.dtype is None:
        return
    context.set_dtype(node.outputs[0], data.dtype)
    count = axes.shape[0] if axes.shape is not None and len(axes.shape) == 1 else None
    if data.shape is not None and isinstance(count, int):
        node.outputs[0].shape = ir.Shape([context.new_symbolic_dim() for _ in range(len(data.shape) - count)])


_MOST_COMPARED = 4
"""Sizes, at most, of which the largest is written out: sympy compares each with each other, and takes 3 ms for two."""


def _replace_broadcast() -> None:
    """Let two sizes that may differ broadcast to the larger one: the library takes the first, though it may be 1 in a run."""
    library = ENGINE._broadcast._broadcast_dim

    def larger(first: int | ir.SymbolicDim, second: int | ir.SymbolicDim) -> int | ir.SymbolicDim | None:
        if isinstance(first, int) or isinstance(second, int) or None in (first.value, second.value):
            found: int | ir.SymbolicDim | None = library(first, second)
            return found
        ones, others = _largest_of(str(first.value)), _largest_of(str(second.value))
        joined = tuple(dict.fromkeys((*ones, *others)))
        if len(joined) == len(ones):
            return first
        if len(joined) == len(others):
            return second
        is_simple = len(ones) == len(others) == 1  # sympy takes seconds to make the largest of many sums
        if is_simple and _expression(first) == _expression(second):
            return first
        text = ", ".join(joined)
        # The library's own unknown sizes have such a name, too. The same sizes have the same largest one.
        return ir.SymbolicDim(
            f"Max({text})" if len(joined) <= _MOST_COMPARED else f"_largest_{sha256(text.encode()).hexdigest()[:32]}"
        )

    ENGINE._broadcast._broadcast_dim = larger


@lru_cache(maxsize=4096)
def _largest_of(size: str) -> tuple[str, ...]:
    """Return the sizes of which `size` is the largest: several of "Max(a, b + c)", else `size` alone."""
    if not (size.startswith("Max(") and size.endswith(")")):
        return (size,)
    found, depth = [""], 0
    for sign in size[len("Max(") : -1]:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return (size,)  # the first parenthesis ends before the last one, as in "Max(a, b) + f(c)"
        if sign == "," and depth == 0:
            found.append("")
        else:
            found[-1] += sign
    return tuple(dict.fromkeys(one.strip() for one in found))


def _replace_collection() -> None:
    """Collect the names of symbols without sympy: the library makes an expression of each number, and importing sympy takes 0.3 s.

    The module waits to be executed: it is not read here, and its own function counts once it is.
    """
    vars(ENGINE._constraints)["collect_symbol_names"] = _symbol_names


def _expression(dim: ir.SymbolicDim) -> object:
    """Return `dim` as an expression of sympy; two are equal where their normal forms are. None for an unknown dimension."""
    return ENGINE._symbolic_shapes.dim_to_expr(dim)


def _symbol_names(graph: ir.Graph) -> set[str]:
    """Return the names of symbols in the dimensions of all values of `graph` and its bodies."""
    dims = (dim for value in values_in(graph) if value.shape is not None for dim in value.shape)
    named = {dim.value for dim in dims if isinstance(dim, ir.SymbolicDim) and dim.value is not None}
    words = {name for name in named if name.isidentifier()}
    expressions = (ENGINE._symbolic_shapes.dim_to_expr(ir.SymbolicDim(text)) for text in sorted(named - words))
    return words.union(symbol.name for one in expressions if one is not None for symbol in one.free_symbols)


def _replace_choices() -> None:
    """Carry the comparisons of sizes with numbers through Equal, and what Where chooses by them: exporters write an Expand so."""
    equal, where = registry.get("", "Equal", version=7), registry.get("", "Where", version=9)
    filled = registry.get("", "ConstantOfShape", version=9)
    assert equal is not None and where is not None and filled is not None

    def repeated(context: ShapeInferenceContext, node: ir.Node) -> None:
        filled(context, node)
        made, attribute = node.outputs[0], node.attributes.get("value")
        count = made.shape[0] if made.shape is not None and len(made.shape) == 1 else None
        if (
            attribute is not None
            and attribute.as_tensor().dtype in _WHOLE
            and isinstance(count, int)
            and count <= _MOST
        ):
            context.set_symbolic_value(made, [int(attribute.as_tensor().numpy().ravel()[0])] * count)

    def compared(context: ShapeInferenceContext, node: ir.Node) -> None:
        equal(context, node)
        first, second = (_elements(context, value) for value in node.inputs)
        if first is None or second is None or not {len(first), len(second)} <= {1, max(len(first), len(second))}:
            return
        count = max(len(first), len(second))
        pairs = zip(_repeated(first, count), _repeated(second, count), strict=True)
        truths = [_is_equal(context, a, b) for a, b in pairs]
        known = [int(truth) for truth in truths if truth is not None]
        if len(known) == count:
            context.set_symbolic_value(node.outputs[0], list(known))

    def chosen(context: ShapeInferenceContext, node: ir.Node) -> None:
        where(context, node)
        condition, yes, no = (_elements(context, value) for value in node.inputs)
        if condition is None or not all(isinstance(one, int) for one in condition):
            return
        count = max(len(condition), len(yes or ()), len(no or ()))
        columns = [_repeated(one or [None], count) for one in (condition, yes, no)]
        taken = [a if truth else b for truth, a, b in zip(*columns, strict=False)]
        found = [one for one in taken if one is not None]
        if len(found) == count:
            context.set_symbolic_value(node.outputs[0], found)

    registry.register("", "ConstantOfShape", since_version=9)(repeated)
    registry.register("", "Equal", since_version=7)(compared)
    registry.register("", "Where", since_version=9)(chosen)


_Element: TypeAlias = int | ir.SymbolicDim
_ElementOrNone = TypeVar("_ElementOrNone", _Element, _Element | None)


def _elements(context: ShapeInferenceContext, value: ir.Value | None) -> list[_Element] | None:
    return None if value is None else context.get_symbolic_value(value)


def _repeated(elements: Sequence[_ElementOrNone], count: int) -> Sequence[_ElementOrNone]:
    return list(elements) * count if len(elements) == 1 else elements


def _is_equal(context: ShapeInferenceContext, a: _Element, b: _Element) -> bool | None:
    """Return whether two elements are equal; None where it is not known. A declared dimension has at least one element."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    names = {
        word for one in (a, b) if not isinstance(one, int) for word in re.findall(r"[A-Za-z_]\w*", one.value or "")
    }
    if any(context.is_generated_symbol(name) for name in names):
        return None
    least = dict.fromkeys(names, (1, LARGEST_COUNT))
    sizes = [read_size(one if isinstance(one, int) else one.value, least) for one in (a, b)]
    if sizes[0] is None or sizes[1] is None:
        return None
    low, high = (sizes[0] - sizes[1]).limits(least)
    return (False if low > 0 or high < 0 else None) if low or high else True


def _clamped(size: ir.SymbolicDim, start: int, end: int, step: int) -> ir.SymbolicDim | int:
    """Return how many elements an axis of the open `size` has from `start`, below `end`; none of the numbers is negative."""
    last = size if end >= _FAR else ir.SymbolicDim(f"Min({end}, {size.value})")
    length = last if start == 0 else ir.SymbolicDim(f"Max(0, {last.value} - {start})")
    return length if step == 1 else (length + step - 1) // step


def _cuts(node: ir.Node, rank: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield axis (counted from 0), start, end and step of each axis that `node`, a Slice, cuts by known numbers."""
    starts, ends = _integers(node, 1), _integers(node, 2)
    axes = _integers(node, 3) or range(len(starts))
    steps = _integers(node, 4) or [1] * len(starts)
    if len(starts) == len(ends) == len(axes) == len(steps):
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            yield axis % rank, start, end, step


def _integers(node: ir.Node, place: int) -> Sequence[int]:
    number = _number(node.inputs[place]) if place < len(node.inputs) else None
    return [] if number is None else [int(one) for one in number.ravel()]
