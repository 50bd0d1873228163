"""Shapes that a model computes: the few numbers of shape arithmetic are computed too, node by node, and nothing larger.

Engines of shape inference carry such numbers through some operators and lose them at others (Where, Equal, ConstantOfShape,
ScatterND ...), and with them the sizes of all that follows. Here they are computed by onnx's reference implementation, and handed to onnx's
inference of one node at a time. No activation is computed, whatever its size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from onnxtile.collector import collector_paused
from onnxtile.model.body_shapes import CONTROL_FLOW, follow, made_inside
from onnxtile.model.constants import constant_tensor
from onnxtile.model.contributed import KnownOperand, contributed_operators, results
from onnxtile.model.dependence import shape_operands
from onnxtile.model.intervals import Interval, keeps_its_sign
from onnxtile.model.intervals import results as interval_results
from onnxtile.model.known import NOTHING, Dims, Known
from onnxtile.model.submodel import assembled, tensor_type
from onnxtile.model.walk import bodies_of
from onnxtile.runtime import Array

_MOST = 4096
"""Elements of the largest tensor that is computed."""

_ARITHMETIC = {
    *("Abs", "Add", "And", "Cast", "Ceil", "Clip", "Concat", "ConstantOfShape", "CumSum", "Div", "Equal", "Expand"),
    *("Flatten", "Floor", "Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less"),
    *("LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pow", "Range", "ReduceMax"),
    *("ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND", "Sign", "Slice"),
    *("Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose", "Trilu", "Unsqueeze", "Where"),
}
"""Operators that compute sizes and shapes."""

_GROWING_BY = {
    "ConstantOfShape": 0,
    "Expand": 1,
    "OneHot": 1,
    "Pad": 1,
    "Range": 1,
    "Reshape": 1,
    "Slice": 2,
    "Tile": 1,
    "TopK": 1,
}
"""The inputs with whose numbers the shape of the output grows."""

_SHRINKING_BY = {"Slice": 1}
"""The inputs with whose numbers it shrinks: it is largest where these are least."""

_STEPS = {"Range": 2, "Slice": 4}
"""The inputs that say in which direction the others count."""


class Propagation:
    """Carries numbers and shapes forward through a model and the bodies in it; `dtypes` and `dims` say what is known before.

    Of the values `news` the engines of shape inference did not know. Those in `upper` are not larger than it says on the axes
    named there; of the numbers that follow the least and the most are known (model.intervals), and of shapes the largest.
    """

    def __init__(
        self,
        model: ir.Model,
        dtypes: Mapping[ir.Value, ir.DataType],
        dims: Mapping[ir.Value, Dims],
        news: Iterable[ir.Value] = (),
        upper: Mapping[ir.Value, Collection[int]] | None = None,
    ) -> None:
        self._model = model
        self._known_before = dims
        self.dtypes = dict(dtypes)
        self.dims = dict(dims)
        self.never: dict[ir.Value, str] = {}
        self.upper = set(upper or ())
        self._open = dict(upper or {})
        self._least: dict[ir.Value, Array] = {}
        self._numbers: dict[ir.Value, Array] = {}
        self._news: set[ir.Value] = set(news)
        self._opsets = model.graph.opset_imports
        self._functions: list[onnx.FunctionProto] | None = None
        self._contributed = contributed_operators(model)

    @collector_paused()
    def run(self) -> None:
        """Visit every node in order; those in a loop until the shapes that it carries are settled."""
        self.visit(self._model.graph)

    def visit(self, body: ir.Graph) -> None:
        """Visit the nodes of `body` once, in order."""
        for value in body.initializers.values():
            self._hold(value, value.const_value)
        for node in body:
            self._visit(node)

    def of(self, value: ir.Value) -> Dims | None:
        """Return the dimensions of `value`, as far as they are known."""
        return self.dims.get(value)

    def type_of(self, value: ir.Value) -> ir.DataType | None:
        """Return the element type of `value`."""
        return self.dtypes.get(value)

    def number(self, value: ir.Value) -> Array | None:
        """Return the elements of `value`, where it is one of few known numbers; the most that they may be, but a truth is sure."""
        known = self._numbers.get(value)
        return None if known is not None and known.dtype == bool and value in self._least else known

    def why_never(self, values: Iterable[ir.Value]) -> str | None:
        """Return why no run comes to make one of `values`; None where one may make them all."""
        return next((self.never[value] for value in values if value in self.never), None)

    def lose(self, values: Iterable[ir.Value], reason: str) -> None:
        """Note that no run comes to make `values`."""
        self.never.update(dict.fromkeys(values, reason))

    def forget(self, values: Iterable[ir.Value]) -> None:
        """Go back to what was known of `values` before."""
        for value in values:
            self._numbers.pop(value, None)
            self._least.pop(value, None)
            self.never.pop(value, None)
            self._news.discard(value)
            if value in self._known_before:
                self.dims[value] = self._known_before[value]
            else:
                self.dims.pop(value, None)

    def _visit(self, node: ir.Node) -> None:
        standard = node.domain in {"", "ai.onnx"}
        lost = self.why_never(value for value in node.inputs if value is not None)
        if lost is not None:
            self.lose((*node.outputs, *made_inside(node)), lost)
            return
        open_ = [value for value in node.outputs if self._sizes(value) is None]
        if standard and node.op_type in CONTROL_FLOW:
            if self._depends_on_bounds(node):
                self.upper.update(value for body in bodies_of(node) for value in body.graph.inputs)
            follow(node, self)
        elif not self._is_bent(node):
            self._visit_kernel(node, standard)
        if self._depends_on_bounds(node):
            self.upper.update(value for value in open_ if self._sizes(value) is not None)

    def _depends_on_bounds(self, node: ir.Node) -> bool:
        read = (*node.inputs, *(value for body in bodies_of(node) for value in body.graph.outputs))
        return any(value in self.upper or value in self._least for value in read)

    def _is_bent(self, node: ir.Node) -> bool:
        """Return whether the shape of the output of `node` might get larger where a bound is not reached."""
        loose = {place for place, value in enumerate(node.inputs) if value in self._least}
        if not loose or node.op_type in {"Shape", "Size"}:
            return False
        if node.domain not in {"", "ai.onnx"}:
            return True
        deciding = loose.intersection(shape_operands(node))
        rising, falling = _GROWING_BY.get(node.op_type), _SHRINKING_BY.get(node.op_type)
        return bool(deciding - {rising, falling}) or (bool(deciding) and not self._counts_up(node, deciding))

    def _counts_up(self, node: ir.Node, places: Iterable[int]) -> bool:
        """Return whether a Range or Slice counts up, and the numbers at `places` from one end of an axis."""
        if node.op_type not in _STEPS:
            return True
        step = node.inputs[_STEPS[node.op_type]] if len(node.inputs) > _STEPS[node.op_type] else None
        rises = step is None or (step in self._numbers and bool((self._interval(step)[0] > 0).all()))
        return rises and all(keeps_its_sign(self._interval(node.inputs[place])) for place in places)

    def _visit_kernel(self, node: ir.Node, standard: bool) -> None:
        if standard and node.op_type == "Constant":
            self._hold(node.outputs[0], constant_tensor(node))
        elif standard and node.op_type in {"Shape", "Size"}:
            self._measure(node)
        else:
            # Where nothing is new, the engines have said what there is to say; of onnxruntime's operators only one of them can.
            new = node.graph is not self._model.graph or self._is_contributed(node)
            new = new or any(value in self._news for value in node.inputs)
            if new and any(value.name and self._sizes(value) is None for value in node.outputs):
                self._infer(node)
            if standard and node.op_type in _ARITHMETIC and self._is_small(node):
                self._compute(node)

    def _hold(self, value: ir.Value, tensor: ir.TensorProtocol | None) -> None:
        if tensor is not None and tensor.size <= _MOST and tensor.dtype != ir.DataType.STRING:
            self._numbers[value] = tensor.numpy()

    def _measure(self, node: ir.Node) -> None:
        sizes = None if node.inputs[0] is None else self._sizes(node.inputs[0])
        if sizes is None:
            return
        self._learn(node.outputs[0], _measured(node, sizes))
        if node.inputs[0] in self.upper:
            open_ = self._open.get(node.inputs[0], range(len(sizes)))
            self._least[node.outputs[0]] = _measured(node, [0 if i in open_ else n for i, n in enumerate(sizes)])

    def _learn(self, value: ir.Value, array: Array) -> None:
        self._numbers[value] = array
        self.dims[value] = array.shape
        self._news.add(value)

    def _sizes(self, value: ir.Value) -> tuple[int, ...] | None:
        dims = self.dims.get(value)
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            return None
        return tuple(int(dim) for dim in dims if dim is not None)

    def _is_small(self, node: ir.Node) -> bool:
        """Tell whether all inputs of `node` are known numbers, and its outputs are few."""
        if not all(value is None or value in self._numbers for value in node.inputs):
            return False
        # How many places NonZero finds, no inference says: no more than there are.
        counted = node.op_type == "NonZero"
        sizes = [self._sizes(value) for value in (node.inputs if counted else node.outputs) if value is not None]
        return all(size is not None and math.prod(size) <= _MOST for size in sizes)

    def _compute(self, node: ir.Node) -> None:
        if any(value in self._least for value in node.inputs):
            self._compute_intervals(node)
            return
        made = self._evaluate(node, [None if value is None else self._numbers[value] for value in node.inputs])
        for value, array in zip(node.outputs, made, strict=False):
            self._learn(value, array)

    def _compute_intervals(self, node: ir.Node) -> None:
        operands = [None if value is None else self._interval(value) for value in node.inputs]
        found = interval_results(node.op_type, operands, lambda numbers: self._evaluate(node, numbers))
        for value, (least, most) in zip(node.outputs, found or (), strict=False):
            self._learn(value, most)
            if not np.array_equal(least, most):
                self._least[value] = least

    def _interval(self, value: ir.Value | None) -> Interval:
        assert value is not None
        most = self._numbers[value]
        return self._least.get(value, most), most

    def _evaluate(self, node: ir.Node, numbers: Sequence[Array | None]) -> list[Array]:
        """Return the outputs of `node` on `numbers`, one array for each input; an empty list where it cannot be computed."""
        proto, names = _with_names(node)
        given = zip(node.inputs, numbers, strict=True)
        feeds = {names[value]: array for value, array in given if value is not None and array is not None}
        made = _evaluated(self._one_node(proto, {}), feeds)
        return [np.asarray(one) for one in made] if all(isinstance(m, np.ndarray | np.generic) for m in made) else []

    def _infer(self, node: ir.Node) -> None:
        """Note what onnx infers for the outputs of `node` from the shapes of its inputs and from known numbers."""
        if self._is_contributed(node):
            self._ask(node)
            return
        proto, names = _with_names(node)
        typed = {names[value]: value for value in dict.fromkeys(node.inputs) if value is not None}
        model = self._one_node(proto, typed)
        found = _inferred(model)
        if found is None:
            return
        if node.graph is not self._model.graph and self._fails(node, model):
            reason = f"never made: {node.op_type} {node.name or ''}".rstrip() + " cannot run on tensors of these shapes"
            self.lose(node.outputs, reason)
            return
        sure = (_inferred(self._one_node(proto, typed, sure=True)) or {}) if self._depends_on_bounds(node) else None
        for value in node.outputs:
            known = found.get(names.get(value, ""), NOTHING)
            if known.dims is not None:
                if sure is not None:
                    self._note_open(value, sure.get(names[value], NOTHING).dims, len(known.dims))
                self.note(value, known.dtype, known.dims)

    def _is_contributed(self, node: ir.Node) -> bool:
        return (node.domain, node.op_type) in self._contributed

    def _ask(self, node: ir.Node) -> None:
        """Note what onnxruntime infers for the outputs of `node`, an operator of its own."""
        operands = [None if value is None else self._operand(value) for value in node.inputs]
        for value, known in zip(node.outputs, results(node, operands, self._model.graph.opset_imports), strict=True):
            self.note(value, known.dtype, known.dims)

    def _operand(self, value: ir.Value) -> KnownOperand:
        return KnownOperand(self.dtypes.get(value), self.dims.get(value), self._numbers.get(value))

    def _note_open(self, value: ir.Value, sure: Dims | None, rank: int) -> None:
        """Note on which axes `value` may be smaller than its bound: where neither inference without bounds knows it, nor `sure`."""
        tables = [dims for dims in (self.dims.get(value), sure) if dims is not None and len(dims) == rank]
        self._open[value] = {axis for axis in range(rank) if not any(isinstance(dims[axis], int) for dims in tables)}

    def _fails(self, node: ir.Node, model: onnx.ModelProto) -> bool:
        """Return whether onnx finds the sizes of the inputs of `node` (alone in `model`) to be wrong: a branch that a run never takes."""
        if not all(value is None or self._sizes(value) is not None for value in node.inputs):
            return False
        try:
            onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except onnx.shape_inference.InferenceError as error:
            return "ShapeInferenceError" in str(error)
        return False

    def note(self, value: ir.Value, dtype: ir.DataType | None, dims: Dims | None) -> None:
        """Add to what is known of `value`; a number stays what it was.

        Engines that do not know which branch is taken may have the wrong rank, too, where they know no size.
        """
        if dims is not None:
            before = self.dims.get(value) or (None,) * len(dims)
            if len(before) != len(dims) and self._sizes(value) is None:
                before = (None,) * len(dims)
            if len(before) == len(dims):
                merged = tuple(b if isinstance(b, int) or f is None else f for b, f in zip(before, dims, strict=True))
                if merged != self.dims.get(value):
                    self._news.add(value)
                self.dims[value] = merged
        if dtype is not None and dtype != ir.DataType.UNDEFINED and value not in self.dtypes:
            self.dtypes[value] = dtype

    def _one_node(self, node: onnx.NodeProto, typed: Mapping[str, ir.Value], *, sure: bool = False) -> onnx.ModelProto:
        """Return a model of `node` alone; `typed` inputs have their shapes, and their numbers where these are known.

        With `sure`, only what is the same whether bounds are reached or not.
        """
        held = {n: v for n, v in typed.items() if v in self._numbers and not (sure and v in self._least)}
        constants = [numpy_helper.from_array(self._largest(node, n, v), n) for n, v in held.items()]
        inputs: dict[str, onnx.TypeProto | None] = {
            name: self._type(value, sure=sure) for name, value in typed.items() if name not in held
        }
        if not typed:
            inputs = {name: None for name in node.input if name}
        outputs = [name for name in node.output if name]
        functions = self._called(node)
        return assembled([node], inputs, outputs, self._opsets, constants=constants, functions=functions)

    def _largest(self, node: onnx.NodeProto, name: str, value: ir.Value) -> Array:
        """Return which of its numbers of the operand `value` makes the result of `node` largest."""
        place = _SHRINKING_BY.get(node.op_type)
        shrinks = place is not None and place < len(node.input) and node.input[place] == name
        return self._interval(value)[0 if shrinks else 1]

    def _type(self, value: ir.Value, *, sure: bool) -> onnx.TypeProto:
        if value.type is not None and not isinstance(value.type, ir.TensorType):
            return ir.serde.serialize_type(value.type)
        dtype, dims = self.dtypes.get(value), self.dims.get(value)
        if sure and dims is not None and value in self.upper:
            open_ = self._open.get(value, range(len(dims)))
            dims = tuple(None if axis in open_ else dim for axis, dim in enumerate(dims))
        return tensor_type(dtype, dims)

    def _called(self, node: onnx.NodeProto) -> Iterator[onnx.FunctionProto]:
        if (node.domain, node.op_type, node.overload) not in self._model.functions:
            return
        if self._functions is None:
            self._functions = [ir.serde.serialize_function(one) for one in self._model.functions.values()]
        yield from self._functions


def _inferred(model: onnx.ModelProto) -> dict[str, Known] | None:
    """Return onnx's inferred types of the outputs of `model`, which has one node, by name; None where inference fails."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return None
    found = {}
    for info in inferred.graph.output:
        tensor = info.type.tensor_type
        if tensor.HasField("shape"):
            sizes = (dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim)
            dims = tuple(None if size is None or size < 0 else size for size in sizes)
            found[info.name] = Known(ir.DataType(tensor.elem_type) if tensor.elem_type else None, dims)
    return found


def _measured(node: ir.Node, sizes: Sequence[int]) -> Array:
    """Return the output of `node`, a Shape or a Size, for a tensor of these `sizes`."""
    end = node.attributes.get("end")
    part = sizes[node.attributes.get_int("start", 0) : None if end is None else end.as_int()]
    return np.asarray(math.prod(sizes) if node.op_type == "Size" else part, np.int64)


def _with_names(node: ir.Node) -> tuple[onnx.NodeProto, dict[ir.Value, str]]:
    """Return `node` with names of its own for what it reads and makes, and these names."""
    proto = ir.serde.serialize_node(node)
    values = [value for value in (*node.inputs, *node.outputs) if value is not None and value.name]
    return proto, {value: value.name or "" for value in values}


def _evaluated(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Any]:
    """Return the results of onnx's reference implementation; an empty list where it fails."""
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            made = ReferenceEvaluator(model).run(None, dict(feeds))
    except (ArithmeticError, LookupError, NotImplementedError, RuntimeError, TypeError, ValueError):
        return []
    return list(made) if isinstance(made, list) else []
