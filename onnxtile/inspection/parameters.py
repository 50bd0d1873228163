"""The parameters of a model: learnt constants, counted apart from constants that only control the computation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from onnxtile.graph import dependencies
from onnxtile.model.bytes import tensor_bytes
from onnxtile.model.constants import Constants, constant_tensor
from onnxtile.model.shapes import Shapes
from onnxtile.model.walk import RESHAPING

_STEERING = {ir.DataType.INT64, ir.DataType.BOOL, ir.DataType.STRING}


@dataclass(frozen=True)
class Parameters:
    """How many tensors, how many elements in them and how many bytes these take; elements also by element type.

    `statistics` are elements that batch normalisations gather and no gradient changes: their means and variances.
    `others` are the bytes of all other constants that are read: scalars, and tensors that steer (shapes, axes, indices).
    """

    tensors: int
    elements: int
    bytes: int
    by_dtype: dict[str, int]
    others: int
    statistics: int = 0

    @property
    def trainable(self) -> int:
        """How many elements a gradient changes."""
        return self.elements - self.statistics

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the parameters."""
        return {
            "tensors": self.tensors,
            "elements": self.elements,
            "trainable": self.trainable,
            "bytes": self.bytes,
            "by_dtype": self.by_dtype,
            "other_constant_bytes": self.others,
        }


def parameters(model: ir.Model, shapes: Shapes, constants: Constants) -> Parameters:
    """Count the constants that computed nodes read, each once, however the exporter wrote them, in the element type that is stored.

    A parameter has at least one dimension and is no int64, boolean or string: those are shapes, axes, indices and masks. What a batch
    normalisation has gathered (mean, variance) counts, as it is stored and read like the rest.
    """
    read = list(dict.fromkeys(stored for value in _read(model, constants) for stored in _stored(value)))
    own = [value for value in read if _is_own(value, shapes)]
    by_dtype: Counter[str] = Counter()
    for value in own:
        dtype = shapes.dtype(value)
        by_dtype[dtype.name.lower() if dtype is not None else "?"] += math.prod(shapes.sizes(value) or (0,))
    sizes = {value: tensor_bytes(value, shapes) or 0 for value in read}
    mine = sum(sizes[value] for value in own)
    inner = [tensor for tensor in _in_functions(model) if len(tensor.shape) and tensor.dtype not in _STEERING]
    for tensor in inner:
        by_dtype[tensor.dtype.name.lower()] += tensor.size
    return Parameters(
        len(own) + len(inner),
        sum(by_dtype.values()),
        mine + sum(tensor.nbytes for tensor in inner),
        dict(sorted(by_dtype.items())),
        sum(sizes.values()) - mine,
        sum(math.prod(shapes.sizes(value) or (0,)) for value in _gathered(model).intersection(own)),
    )


def stored_parameters(model: ir.Model, shapes: Shapes, constants: Constants) -> dict[str, dict[str, int]]:
    """Return for each constant that nodes read, by name, the parameters that it is a view of, with their elements."""
    return {
        value.name or "": {
            one.name or "": math.prod(shapes.sizes(one) or (0,)) for one in _stored(value) if _is_own(one, shapes)
        }
        for value in dict.fromkeys(_read(model, constants))
    }


def _is_own(value: ir.Value, shapes: Shapes) -> bool:
    return shapes.dims(value) != () and shapes.dtype(value) not in _STEERING


def _gathered(model: ir.Model) -> set[ir.Value]:
    """Return the means and variances that batch normalisations read."""
    norms = (node for node in model.graph.all_nodes() if node.op_type == "BatchNormalization")
    read = (value for node in norms for value in node.inputs[3:5] if value is not None)
    return {stored for value in read for stored in _stored(value)}


def _read(model: ir.Model, constants: Constants) -> Iterator[ir.Value]:
    for node in model.graph.all_nodes():
        if not all(value in constants for value in node.outputs):
            yield from (value for value in dependencies(node) if value in constants)
    yield from (value for value in model.graph.outputs if value in constants)


_SAME_ELEMENTS = RESHAPING | {"Transpose"}
_CONVERSIONS = {"Cast", "DequantizeLinear"}


def _stored(value: ir.Value) -> Iterator[ir.Value]:
    """Yield the constants that `value` is a view or a conversion of: weights are often stored in fewer bytes than are read."""
    todo = [value]
    while todo:
        current = todo.pop()
        node = current.producer()
        if node is None or node.op_type not in _SAME_ELEMENTS | _CONVERSIONS:
            yield current
            continue
        operands = node.inputs[:1] if node.op_type in _SAME_ELEMENTS else node.inputs
        todo.extend(operand for operand in operands if operand is not None)


def _in_functions(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield the tensors that functions hold, those of each function once, however often it is called."""
    for function in model.functions.values():
        for node in function.all_nodes():
            held = constant_tensor(node) if node.op_type == "Constant" else None
            if held is not None:
                yield held
