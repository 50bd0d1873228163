"""Formulas of sizes that no engine of shape inference writes: carried forward through a model, node by node.

Engines lose a size where a Slice begins at a size, as at the length of a cache, or where a Reshape has what is left. Here the few sizes
that such nodes read are followed as formulas. What depends on such a node is then inferred by onnx, with a name for each formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from onnxtile.model.constants import constant_tensor
from onnxtile.model.formula import SizeFormula, SizeRanges, exact_quotient, extreme, product_of
from onnxtile.model.submodel import assembled, bare_node, tensor_type
from onnxtile.model.topology import has_body
from onnxtile.operators.table import movement_of

_ShapeFormula: TypeAlias = tuple[SizeFormula, ...]
_MOST = 64
"""Elements of the longest shape whose elements are followed."""
_DEEPEST = 100
"""Nodes between a size and where it is read, at most."""
_FAR = 2**29
"""Exporters write such ends of a Slice for "to the last": no dimension becomes larger."""


class FormulaPropagation:
    """Adds to the `formulas` of values of `model` those that follow over `ranges`; `dtypes` says their element types."""

    def __init__(
        self,
        model: ir.Model,
        dtypes: Mapping[ir.Value, ir.DataType],
        formulas: Mapping[ir.Value, _ShapeFormula],
        ranges: SizeRanges,
    ) -> None:
        self._model = model
        self._dtypes = dtypes
        self._ranges = ranges
        self._numbers: dict[ir.Value, _ShapeFormula | None] = {}
        self._names: dict[str, SizeFormula] = {}
        self._named: dict[SizeFormula, str] = {}
        self.formulas = dict(formulas)

    def run(self) -> None:
        """Visit the nodes of the main graph in order."""
        for node in self._model.graph:
            open_ = [value for value in node.outputs if value.name and value not in self.formulas]
            if open_ and node.domain in {"", "ai.onnx"} and not has_body(node):
                self._visit(node)

    def _visit(self, node: ir.Node) -> None:
        operands = [None if value is None else self._shape(value) for value in node.inputs]
        if any(value is not None and found is None for value, found in zip(node.inputs, operands, strict=True)):
            return
        rule = _RULES.get(node.op_type)
        if rule is None:
            self._infer(node)
            return
        found = rule(self, node)
        if found is not None:
            self.formulas[node.outputs[0]] = found

    def _shape(self, value: ir.Value) -> _ShapeFormula | None:
        tensor = value.const_value
        if tensor is not None:
            return tuple(SizeFormula.number(int(size)) for size in tensor.shape.numpy())
        return self.formulas.get(value)

    def shape(self, node: ir.Node, place: int) -> _ShapeFormula:
        """Return the sizes of an operand of which all are known."""
        value = node.inputs[place]
        found = None if value is None else self._shape(value)
        assert found is not None
        return found

    def list(self, node: ir.Node, place: int, depth: int = 0) -> _ShapeFormula | None:
        """Return the elements of an operand that is a short list of sizes, or one size; None where they are not known."""
        value = node.inputs[place] if place < len(node.inputs) else None
        return None if value is None else self._elements(value, depth)

    def _elements(self, value: ir.Value, depth: int) -> _ShapeFormula | None:
        if value not in self._numbers:
            self._numbers[value] = None if depth > _DEEPEST else self._found(value, depth)
        return self._numbers[value]

    def _found(self, value: ir.Value, depth: int) -> _ShapeFormula | None:
        node = value.producer()
        tensor = value.const_value
        if tensor is None and node is not None and node.op_type == "Constant":
            tensor = constant_tensor(node)
        if tensor is not None:
            is_whole = tensor.dtype in {ir.DataType.INT64, ir.DataType.INT32} and tensor.size <= _MOST
            return tuple(SizeFormula.number(int(one)) for one in tensor.numpy().ravel()) if is_whole else None
        if node is None or node.domain not in {"", "ai.onnx"}:
            return None
        if node.op_type in {"Shape", "Size"}:
            return self._measured(node)
        if movement_of(node) in {"renames", "converts"}:
            return self.list(node, 0, depth + 1) if self._is_whole(value) else None
        if node.op_type == "Div" or node.op_type in _ARITHMETIC:
            return self._computed(node, depth)
        return self._moved(node, depth)

    def _is_whole(self, value: ir.Value) -> bool:
        return self._dtypes.get(value) in {ir.DataType.INT64, ir.DataType.INT32}

    def _measured(self, node: ir.Node) -> _ShapeFormula | None:
        value = node.inputs[0]
        sizes = None if value is None else self._shape(value)
        if sizes is None:
            return None
        if node.op_type == "Size":
            return (product_of(sizes),)
        end = node.attributes.get("end")
        return sizes[node.attributes.get_int("start", 0) : None if end is None else end.as_int()]

    def _computed(self, node: ir.Node, depth: int) -> _ShapeFormula | None:
        first, second = self.list(node, 0, depth + 1), self.list(node, 1, depth + 1)
        if first is None or second is None or not {len(first), len(second)} <= {1, max(len(first), len(second))}:
            return None
        count = max(len(first), len(second))
        columns = [one * count if len(one) == 1 else one for one in (first, second)]
        compute = self._divided if node.op_type == "Div" else _ARITHMETIC[node.op_type]
        return _whole(compute(a, b) for a, b in zip(*columns, strict=True))

    def _divided(self, total: SizeFormula, divisor: SizeFormula) -> SizeFormula | None:
        """Return a whole quotient, which ONNX rounds towards 0."""
        number = divisor.constant
        if number is not None and number > 0 and total.limits(self._ranges)[0] >= 0:
            return total // number
        return exact_quotient(total, divisor)

    def _moved(self, node: ir.Node, depth: int) -> _ShapeFormula | None:
        """Return the elements that a Gather, Concat or Slice takes of lists."""
        if node.op_type == "Concat":
            parts = [self.list(node, place, depth + 1) for place in range(len(node.inputs))]
            return None if None in parts else tuple(one for part in parts for one in part or ())[:_MOST]
        if node.op_type not in {"Gather", "Slice"}:
            return None
        data = self.list(node, 0, depth + 1)
        places = [_constants(self.list(node, place, depth + 1)) for place in range(1, len(node.inputs))]
        value = node.inputs[0]
        shape = None if value is None else self._shape(value)
        if data is None or None in places or shape is None or len(shape) != 1:
            return None
        first = places[0] or []
        if node.op_type == "Gather":
            return tuple(data[one] for one in first) if all(-len(data) <= one < len(data) for one in first) else None
        step = places[3] if len(places) > 3 else [1]
        return data[first[0] : (places[1] or [0])[0] : (step or [1])[0]] if len(first) == 1 else None

    def _infer(self, node: ir.Node) -> None:
        """Note what onnx infers for the outputs of `node`, with a name for each formula."""
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        names = {value: f"v{place}" for place, value in enumerate(dict.fromkeys(values))}
        inputs = {
            names[value]: tensor_type(self._dtypes.get(value), tuple(map(self._name, self._shape(value) or ())))
            for value in node.inputs
            if value is not None
        }
        constants = [
            onnx.numpy_helper.from_array(tensor.numpy(), names[value])
            for value in dict.fromkeys(node.inputs)
            if value is not None and (tensor := _tensor(value)) is not None and tensor.size <= _MOST
        ]
        made = [names[value] for value in node.outputs if value.name]
        types = {name: type_ for name, type_ in inputs.items() if name not in {one.name for one in constants}}
        opsets = self._model.graph.opset_imports
        alone = assembled([bare_node(node, names)], types, made, opsets, constants=constants)
        try:
            inferred = onnx.shape_inference.infer_shapes(alone, data_prop=True)
        except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
            return
        by_name = {names[value]: value for value in node.outputs}
        for info in inferred.graph.output:
            found = self._read(info.type.tensor_type)
            if found is not None:
                self.formulas.setdefault(by_name[info.name], found)

    def _name(self, size: SizeFormula) -> int | str:
        known = size.constant
        if known is not None:
            return known
        name = self._named.setdefault(size, f"f{len(self._named)}")
        self._names[name] = size
        return name

    def _read(self, tensor: onnx.TypeProto.Tensor) -> _ShapeFormula | None:
        if not tensor.HasField("shape"):
            return None
        return _whole(
            SizeFormula.number(dim.dim_value) if dim.HasField("dim_value") else self._names.get(dim.dim_param)
            for dim in tensor.shape.dim
        )

    def sliced(self, node: ir.Node) -> _ShapeFormula | None:
        """Return the sizes of what a Slice makes; it may begin or end at a size."""
        found = list(self.shape(node, 0))
        starts, ends = self.list(node, 1), self.list(node, 2)
        axes, steps = self.list(node, 3), self.list(node, 4)
        if (
            starts is None
            or ends is None
            or any(
                len(node.inputs) > place and node.inputs[place] is not None and given is None
                for place, given in ((3, axes), (4, steps))
            )
        ):
            return None
        numbers = _constants(axes) if axes is not None else range(len(starts))
        strides = _constants(steps) if steps is not None else [1] * len(starts)
        if numbers is None or strides is None or not len(starts) == len(ends) == len(numbers) == len(strides):
            return None
        for axis, start, end, step in zip(numbers, starts, ends, strides, strict=True):
            length = self._length(found[axis], start, end) if step > 0 else None
            if length is None:
                return None
            found[axis] = (length + (step - 1)) // step
        return tuple(found)

    def _length(self, size: SizeFormula, start: SizeFormula, end: SizeFormula) -> SizeFormula | None:
        first, last = self._clamped(size, start), self._clamped(size, end)
        if first is None or last is None:
            return None
        return extreme("max", [last - first, SizeFormula.number(0)], self._ranges)

    def _clamped(self, size: SizeFormula, place: SizeFormula) -> SizeFormula | None:
        """Return the place on an axis of this size that a Slice means, counted from 0; None where the sign is not known."""
        low, high = place.limits(self._ranges)
        if high < 0:
            return extreme("max", [place + size, SizeFormula.number(0)], self._ranges)
        if low < 0:
            return None
        return size if low >= _FAR else extreme("min", [place, size], self._ranges)

    def reshaped(self, node: ir.Node) -> _ShapeFormula | None:
        """Return the sizes of what a Reshape makes: a 0 is the size of the operand, a -1 what is left of its elements."""
        sizes, wanted = self.shape(node, 0), self.list(node, 1)
        if wanted is None:
            return None
        keeps_zero = node.attributes.get_int("allowzero", 0) == 1
        found: list[SizeFormula | None] = []
        for axis, size in enumerate(wanted):
            if size.constant == 0 and not keeps_zero:
                found.append(sizes[axis] if axis < len(sizes) else None)
            elif size.constant is None and size.limits(self._ranges)[0] < (0 if keeps_zero else 1):
                return None
            else:
                found.append(size)
        left = [axis for axis, size in enumerate(found) if size is not None and size.constant == -1]
        known = _whole(size for axis, size in enumerate(found) if axis not in left)
        if known is None or len(left) > 1:
            return None
        for axis in left:
            found[axis] = exact_quotient(product_of(sizes), product_of(known))
        return _whole(found)

    def joined(self, node: ir.Node) -> _ShapeFormula | None:
        """Return the sizes of what a Concat makes."""
        parts = [self.shape(node, place) for place in range(len(node.inputs))]
        axis = node.attributes.get_int("axis", 0)
        if len({len(part) for part in parts}) != 1 or not -len(parts[0]) <= axis < len(parts[0]):
            return None
        axis %= len(parts[0])
        total = sum((part[axis] for part in parts), SizeFormula.number(0))
        return (*parts[0][:axis], total, *parts[0][axis + 1 :])

    def filled(self, node: ir.Node) -> _ShapeFormula | None:
        """Return the sizes of what a ConstantOfShape makes."""
        return self.list(node, 0)

    def counted(self, node: ir.Node) -> _ShapeFormula | None:
        """Return the size of a Range of whole numbers that counts in ones."""
        start, limit, step = (self.list(node, place) for place in range(3))
        if start is None or limit is None or step is None or step[0].constant != 1:
            return None
        return (extreme("max", [limit[0] - start[0], SizeFormula.number(0)], self._ranges),)

    def expanded(self, node: ir.Node) -> _ShapeFormula | None:
        """Return the sizes of what an Expand makes: those of both, where they are equal or one of them is 1."""
        sizes, wanted = self.shape(node, 0), self.list(node, 1)
        if wanted is None:
            return None
        rank = max(len(sizes), len(wanted))
        one = SizeFormula.number(1)
        columns = [(one,) * (rank - len(shape)) + shape for shape in (sizes, wanted)]
        return _whole(a if b in {one, a} else b if a == one else None for a, b in zip(*columns, strict=True))


def _whole(found: Iterable[SizeFormula | None]) -> _ShapeFormula | None:
    """Return all formulas; None where one is not known."""
    listed = tuple(found)
    known = tuple(one for one in listed if one is not None)
    return known if len(known) == len(listed) else None


def _constants(sizes: Sequence[SizeFormula] | None) -> list[int] | None:
    """Return the numbers that `sizes` are; None where one is no number."""
    found = [None] if sizes is None else [size.constant for size in sizes]
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def _tensor(value: ir.Value) -> ir.TensorProtocol | None:
    node = value.producer()
    return constant_tensor(node) if node is not None and node.op_type == "Constant" else value.const_value


_RULES: Mapping[str, Callable[[FormulaPropagation, ir.Node], _ShapeFormula | None]] = {
    "Concat": FormulaPropagation.joined,
    "ConstantOfShape": FormulaPropagation.filled,
    "Expand": FormulaPropagation.expanded,
    "Range": FormulaPropagation.counted,
    "Reshape": FormulaPropagation.reshaped,
    "Slice": FormulaPropagation.sliced,
}
"""The sizes of what an operator makes of operands of known sizes."""
_ARITHMETIC: Mapping[str, Callable[[SizeFormula, SizeFormula], SizeFormula | None]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
}
