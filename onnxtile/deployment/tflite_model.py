"""The graph of a TensorFlow Lite model: its subgraphs with their tensors and operators, as far as a memory plan needs them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from onnxtile.errors import ModelError, UsageError

IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of every TensorFlow Lite file."""

_ELEMENTS = {
    **{"FLOAT32": ("FLOAT", 4), "FLOAT16": ("FLOAT16", 2), "FLOAT64": ("DOUBLE", 8), "BFLOAT16": ("BFLOAT16", 2)},
    **{"INT8": ("INT8", 1), "INT16": ("INT16", 2), "INT32": ("INT32", 4), "INT64": ("INT64", 8), "INT4": ("INT8", 1)},
    **{"UINT8": ("UINT8", 1), "UINT16": ("UINT16", 2), "UINT32": ("UINT32", 4), "UINT64": ("UINT64", 8)},
    **{"BOOL": ("BOOL", 1), "COMPLEX64": ("COMPLEX64", 8), "COMPLEX128": ("COMPLEX128", 16), "RESOURCE": ("INT32", 4)},
}
"""By element type: its name in ONNX, and the bytes that TensorFlow Lite Micro takes for an element (memory_helpers.cc)."""

_DAMAGE = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError, KeyError)
"""Exceptions of the reader of flatbuffers for offsets that lead nowhere."""


@dataclass(frozen=True)
class MicroTensor:
    """A tensor: `dtype` is its element type in ONNX's spelling, `size` its bytes.

    `is_constant` says that the file holds its elements. A variable keeps its bytes from one inference to the next.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    is_constant: bool
    is_variable: bool

    @property
    def is_planned(self) -> bool:
        """Whether it needs bytes of the arena: it is no constant, no variable, and not empty."""
        return not self.is_constant and not self.is_variable and self.size > 0


@dataclass(frozen=True)
class MicroOperator:
    """An operator: `inputs` and `outputs` are indices of tensors, -1 for one that is left out.

    `bodies` are the subgraphs that it runs, in the order in which TensorFlow Lite Micro plans them.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    bodies: tuple[int, ...] = ()


@dataclass(frozen=True)
class MicroGraph:
    """A subgraph: its tensors, its operators in the order in which they run, and the indices of its inputs and outputs."""

    tensors: tuple[MicroTensor, ...]
    operators: tuple[MicroOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def read_tflite(data: bytes, where: str) -> tuple[MicroGraph, ...]:
    """Return the subgraphs of the model in `data`, the content of the file `where`.

    Raises ModelError where it is no TensorFlow Lite model or is damaged, UsageError where the extra tflite is not installed.
    """
    if data[4:8] != IDENTIFIER:
        raise ModelError(f"{where}: not a TensorFlow Lite model", hint="its bytes 4 to 8 must be TFL3")
    schema = _schema()
    try:
        model = schema.Model.GetRootAs(data, 0)
        names = [_operator_name(model.OperatorCodes(i)) for i in range(_count(model.OperatorCodesLength(), data))]
        held = [_holds(model.Buffers(i), data) for i in range(_count(model.BuffersLength(), data))]
        graphs = tuple(
            _graph(model.Subgraphs(i), names, held, data) for i in range(_count(model.SubgraphsLength(), data))
        )
    except _DAMAGE as error:
        raise ModelError(f"{where}: the TensorFlow Lite model is damaged", hint="write or fetch it again") from error
    if not graphs or not _is_closed(graphs):
        raise ModelError(f"{where}: the TensorFlow Lite model is damaged", hint="write or fetch it again")
    return graphs


def _schema() -> Any:
    try:
        import tflite
    except ModuleNotFoundError as error:
        raise UsageError(
            "the extra tflite is not installed, which reads TensorFlow Lite models",
            hint="pip install 'onnxtile[tflite]'",
        ) from error
    return tflite


def _count(length: int, data: bytes) -> int:
    """Return the `length` of a vector of offsets. Raises ValueError where it does not fit into the file."""
    if length * 4 > len(data):
        raise ValueError(length)
    return length


def _holds(buffer: Any, data: bytes) -> bool:
    """Return whether a buffer holds elements. Raises ValueError where they are not inside the file."""
    length = buffer.DataLength()
    if length == 0:
        return False
    start = buffer._tab.Vector(buffer._tab.Offset(4))
    if start + length > len(data):
        raise ValueError(length)
    return True


def _graph(graph: Any, names: Sequence[str], held: Sequence[bool], data: bytes) -> MicroGraph:
    tensors = tuple(_tensor(graph.Tensors(i), held) for i in range(_count(graph.TensorsLength(), data)))
    operators = tuple(_operator(graph.Operators(i), names) for i in range(_count(graph.OperatorsLength(), data)))
    inputs, outputs = _indices(graph, "Inputs"), _indices(graph, "Outputs")
    return MicroGraph(tensors, operators, inputs, outputs)


def _tensor(tensor: Any, held: Sequence[bool]) -> MicroTensor:
    kind = _element_types()[tensor.Type()]
    if kind not in _ELEMENTS:
        raise ModelError(f"TensorFlow Lite Micro has no tensors of the type {kind}", hint="plan a model without them")
    dtype, width = _ELEMENTS[kind]
    shape = _indices(tensor, "Shape")
    if min(shape, default=0) < 0:
        raise ValueError(shape)
    name = (tensor.Name() or b"").decode("utf-8", "replace")
    return MicroTensor(name, dtype, shape, prod(shape) * width, held[tensor.Buffer()], tensor.IsVariable())


def _operator(operator: Any, names: Sequence[str]) -> MicroOperator:
    name = names[operator.OpcodeIndex()]
    return MicroOperator(name, _indices(operator, "Inputs"), _indices(operator, "Outputs"), _bodies(operator, name))


_BODIES = {
    "IF": ("IfOptions", ("ThenSubgraphIndex", "ElseSubgraphIndex")),
    "WHILE": ("WhileOptions", ("CondSubgraphIndex", "BodySubgraphIndex")),
    "CALL_ONCE": ("CallOnceOptions", ("InitSubgraphIndex",)),
}
"""Operators that run subgraphs: their options, and the fields there (micro_allocation_info.cc)."""


def _bodies(operator: Any, name: str) -> tuple[int, ...]:
    if name not in _BODIES:
        return ()
    kind, fields = _BODIES[name]
    options, table = getattr(_schema(), kind)(), operator.BuiltinOptions()
    options.Init(table.Bytes, table.Pos)
    return tuple(getattr(options, field)() for field in fields)


def _indices(owner: Any, field: str) -> tuple[int, ...]:
    if getattr(owner, f"{field}Length")() == 0:  # a missing vector has no array
        return ()
    return tuple(map(int, getattr(owner, f"{field}AsNumpy")().tolist()))


def _operator_name(code: Any) -> str:
    number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
    if (custom := code.CustomCode()) is not None:
        return str(custom.decode("utf-8", "replace"))
    return _operator_names().get(number, f"operator {number}")


@cache
def _operator_names() -> dict[int, str]:
    return {n: name for name, n in vars(_schema().BuiltinOperator).items() if isinstance(n, int)}


@cache
def _element_types() -> dict[int, str]:
    return {n: name for name, n in vars(_schema().TensorType).items() if isinstance(n, int)}


def _is_closed(graphs: Sequence[MicroGraph]) -> bool:
    """Return whether all indices of tensors and subgraphs are those of one; -1 stands for an operand that an operator leaves out."""
    for graph in graphs:
        used = [i for operator in graph.operators for i in (*operator.inputs, *operator.outputs)]
        if any(not -1 <= i < len(graph.tensors) for i in used):
            return False
        if any(not 0 <= i < len(graph.tensors) for i in (*graph.inputs, *graph.outputs)):
            return False
        if any(not 0 < body < len(graphs) for operator in graph.operators for body in operator.bodies):
            return False
    return True
