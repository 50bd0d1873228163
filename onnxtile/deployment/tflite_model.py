"""The graph of a TensorFlow Lite model: its subgraphs with their tensors and operators, as far as a memory plan needs them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import ModelError, UsageError, of_extra

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
            hint=of_extra("tflite"),
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


# The offline memory plan in a TensorFlow Lite file: the metadata OfflineMemoryAllocation, read and written.
#
# The tables of a flatbuffer refer to what follows them. So the new root table, with its lists of buffers and metadata, goes before the old
# file, of which no byte changes: weights, options and fields that this code does not know stay as they are. The vtable of the old root says
# which fields there are. (https://flatbuffers.dev/internals; schema.fbs of TensorFlow Lite.)

NAME = b"OfflineMemoryAllocation"
ONLINE = -1
"""The offset of a tensor that TensorFlow Lite Micro places itself."""

_VERSION = 1
_UNIT = 16
"""Bytes: the largest alignment in a TensorFlow Lite file, that of weights."""
_BUFFERS, _METADATA = 4, 6
"""The fields of the root table that change, by their numbers in the schema."""
_BUFFER_DATA = 0
_BUFFER_OUTSIDE = 1
_NAME_FIELD, _BUFFER_FIELD = 0, 1
_SUBGRAPHS = 2
_TENSORS, _INPUTS, _OUTPUTS, _OPERATORS = range(4)
"""The fields of the root table and of a subgraph, by their numbers in the schema."""


def with_offsets(data: bytes, offsets: Sequence[int]) -> bytes:
    """Return the TensorFlow Lite file `data` with `offsets` as its offline memory plan, instead of one that it may have.

    There is an offset in bytes for each tensor of each subgraph, in their order; ONLINE for one without. Raises ModelError for a file
    whose weights are at absolute places in it.
    """
    with _reading():
        return _changed(data, offsets, {}, _Front())


def with_one_operator(
    data: bytes, position: int, inputs: Sequence[int], outputs: Sequence[int], offsets: Sequence[int]
) -> bytes:
    """Return the TensorFlow Lite file `data` with the operator `position` of its first subgraph alone, and `offsets` as in `with_offsets`.

    `inputs` and `outputs` are the indices of the tensors that become inputs and outputs of the model.
    """
    with _reading():
        return _file_of_operator(data, position, (inputs, outputs), offsets)


def _file_of_operator(
    data: bytes, position: int, ends: tuple[Sequence[int], Sequence[int]], offsets: Sequence[int]
) -> bytes:
    graphs = _vector(data, _field(data, _uoffset(data, 0), _SUBGRAPHS))
    front = _Front()
    inputs, outputs = (front.add(4, struct.pack(f"<I{len(end)}i", len(end), *end)) for end in ends)
    operators = front.vector([-1 - _vector(data, _field(data, graphs[0], _OPERATORS))[position]])
    tensors = -1 - _target(data, _field(data, graphs[0], _TENSORS))
    graph = front.table([(_TENSORS, tensors), (_INPUTS, inputs), (_OUTPUTS, outputs), (_OPERATORS, operators)])
    changed = {_SUBGRAPHS: front.vector([graph, *(-1 - position for position in graphs[1:])])}
    return _changed(data, offsets, changed, front)


def _changed(data: bytes, offsets: Sequence[int], changed: Mapping[int, int], front: _Front) -> bytes:
    """Return the file `data` with the offline memory plan `offsets`; `changed` has parts of `front` for other fields of its root."""
    root = _uoffset(data, 0)
    buffers = _vector(data, _field(data, root, _BUFFERS))
    if any(_field(data, buffer, _BUFFER_OUTSIDE) for buffer in buffers):
        raise ModelError("TensorFlow Lite models with weights outside of their buffers cannot be changed")
    kept = [entry for entry in _vector(data, _field(data, root, _METADATA)) if _name(data, entry) != NAME]
    words = (_VERSION, 1, len(offsets), *offsets)
    plan = front.add(_UNIT, struct.pack("<I", 4 * len(words)) + struct.pack(f"<{len(words)}i", *words), lead=4)
    plan_buffer = front.table([(_BUFFER_DATA, plan)])
    name = front.add(4, struct.pack("<I", len(NAME)) + NAME + b"\0")
    entry = front.table([(_NAME_FIELD, name)], [(_BUFFER_FIELD, len(buffers))])
    new_buffers = front.vector([*(-1 - position for position in buffers), plan_buffer])
    new_metadata = front.vector([*(-1 - position for position in kept), entry])
    changed = {**changed, _BUFFERS: new_buffers, _METADATA: new_metadata}
    fields = _fields(data, root)
    links = [(n, changed.get(n, -1 - _target(data, position))) for n, position in fields.items() if n != 0] + [
        (n, position) for n, position in changed.items() if n not in fields
    ]
    version = struct.unpack_from("<I", data, fields[0])[0] if 0 in fields else 0
    return front.bytes(front.table(sorted(links), [(0, version)]), data)


def offsets_in(data: bytes) -> tuple[int, ...] | None:
    """Return the offline memory plan in the TensorFlow Lite file `data`, an offset for each tensor; None without one.

    Raises ModelError where it has another form.
    """
    with _reading():
        return _offsets(data)


@contextmanager
def _reading() -> Iterator[None]:
    """Raise ModelError where a part of the file leads nowhere."""
    try:
        yield
    except (struct.error, IndexError, AssertionError) as error:
        raise ModelError("the TensorFlow Lite model is damaged", hint="write or fetch it again") from error


def _offsets(data: bytes) -> tuple[int, ...] | None:
    root = _uoffset(data, 0)
    for entry in _vector(data, _field(data, root, _METADATA)):
        if _name(data, entry) != NAME:
            continue
        number = struct.unpack_from("<I", data, _field(data, entry, _BUFFER_FIELD) or 0)[0]
        buffer = _vector(data, _field(data, root, _BUFFERS))[number]
        start = _target(data, _field(data, buffer, _BUFFER_DATA))
        (size,) = struct.unpack_from("<I", data, start)
        words = struct.unpack_from(f"<{size // 4}i", data, start + 4)
        if len(words) < 3 or words[0] != _VERSION or words[2] != len(words) - 3:
            raise ModelError("the offline memory plan of the TensorFlow Lite model has another form")
        return tuple(words[3:])
    return None


class _Front:
    """What goes before the old file, as parts with links.

    A link is the number of a part or, where it is negative, -1 - the place in the old file.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, int, bytes, list[tuple[int, int]]]] = []

    def add(self, unit: int, content: bytes, links: Sequence[tuple[int, int]] = (), lead: int = 0) -> int:
        """Add a part, of which byte `lead` is aligned to `unit`; `links` are places in it that refer to others. Return its number."""
        self._parts.append((unit, lead, content, list(links)))
        return len(self._parts) - 1

    def vector(self, links: Sequence[int]) -> int:
        """Add a vector of links."""
        content = struct.pack("<I", len(links)) + bytes(4 * len(links))
        return self.add(4, content, [(4 + 4 * i, link) for i, link in enumerate(links)])

    def table(self, links: Sequence[tuple[int, int]], numbers: Sequence[tuple[int, int]] = ()) -> int:
        """Add a table with its vtable before it: fields that are `links` or unsigned `numbers` of 32 bits."""
        fields = {field: 4 + 4 * i for i, (field, _) in enumerate((*links, *numbers))}
        positions = [fields.get(field, 0) for field in range(max(fields, default=-1) + 1)]
        head = struct.pack(f"<{2 + len(positions)}H", 4 + 2 * len(positions), 4 + 4 * len(fields), *positions)
        head += bytes(-len(head) % 4)
        body = struct.pack("<i", len(head)) + bytes(4 * len(links)) + b"".join(struct.pack("<I", n) for _, n in numbers)
        starts = [(len(head) + fields[field], link) for field, link in links]
        return self.add(4, head + body, starts, lead=len(head))

    def bytes(self, root: int, old: bytes) -> bytes:
        """Return the file with the table `root` as its root, and `old` after all parts."""
        # A part may only refer to what follows it: the last made comes first.
        positions: dict[int, int] = {}
        end = 8
        for number in reversed(range(len(self._parts))):
            unit, lead, content, _ = self._parts[number]
            end += -(end + lead) % unit
            positions[number] = end
            end += len(content)
        end += -end % _UNIT
        written = bytearray(end)
        for number, (_, _, content, links) in enumerate(self._parts):
            start = positions[number]
            written[start : start + len(content)] = content
            for position, link in links:
                target = end - 1 - link if link < 0 else positions[link] + self._of_table(link)
                struct.pack_into("<I", written, start + position, target - (start + position))
        struct.pack_into("<I4s", written, 0, positions[root] + self._of_table(root), IDENTIFIER)
        return bytes(written) + old

    def _of_table(self, number: int) -> int:
        """Return the bytes from the start of a part to the target of links to it: a table comes after its vtable."""
        unit, lead, _, _ = self._parts[number]
        return lead if unit == 4 else 0


def _uoffset(data: bytes, position: int) -> int:
    return position + int(struct.unpack_from("<I", data, position)[0])


def _target(data: bytes, position: int | None) -> int:
    assert position is not None
    return _uoffset(data, position)


def _fields(data: bytes, table: int) -> dict[int, int]:
    """Return the places of the fields of the table at `table`, by their numbers."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    (size,) = struct.unpack_from("<H", data, vtable)
    positions = struct.unpack_from(f"<{size // 2 - 2}H", data, vtable + 4)
    return {number: table + position for number, position in enumerate(positions) if position}


def _field(data: bytes, table: int, number: int) -> int | None:
    return _fields(data, table).get(number)


def _vector(data: bytes, position: int | None) -> list[int]:
    """Return the places of the tables in the vector that the field at `position` refers to; none without the field."""
    if position is None:
        return []
    start = _uoffset(data, position)
    (length,) = struct.unpack_from("<I", data, start)
    return [_uoffset(data, start + 4 + 4 * i) for i in range(length)]


def _name(data: bytes, entry: int) -> bytes:
    position = _field(data, entry, _NAME_FIELD)
    if position is None:
        return b""
    start = _uoffset(data, position)
    (length,) = struct.unpack_from("<I", data, start)
    return data[start + 4 : start + 4 + length]
