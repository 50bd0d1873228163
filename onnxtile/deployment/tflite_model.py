"""TensorFlow Lite models: subgraphs with their tensors and operators, and the plan of one as the result that files show."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cache
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

from onnxtile.declare.plan_document import WORKSPACE, Constant, CopyCount, Excluded, PlannedBuffer, PlannedInput
from onnxtile.planning.offsets.problem import Buffer, Problem, align
from onnxtile.planning.result import PlanResult
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


# The planning problem of a TensorFlow Lite model: the live ranges that TensorFlow Lite Micro computes, and the tensors that share bytes.
#
# TensorFlow Lite Micro counts a scope for each operator, and one more for each subgraph that an operator runs. A tensor is live from the
# scope of the operator that writes it to the scope of the last one that reads it. (tensorflow/lite/micro/micro_allocation_info.cc in
# https://github.com/tensorflow/tflite-micro.)

UNIT = 16
"""Bytes: TensorFlow Lite Micro rounds the size of each tensor up to a multiple (MicroArenaBufferAlignment)."""

TensorKey: TypeAlias = tuple[int, int]
"""A tensor: the index of its subgraph, and its own index there."""

VIEWS = frozenset({"EXPAND_DIMS", "RESHAPE"})
"""Operators whose kernels leave the elements where they are, if input 0 and the output have one address."""

ELEMENTWISE = frozenset(
    {
        *(
            "ABS",
            "CEIL",
            "COS",
            "ELU",
            "EXP",
            "FLOOR",
            "HARD_SWISH",
            "LEAKY_RELU",
            "LOG",
            "LOGICAL_NOT",
            "LOGISTIC",
            "NEG",
        ),
        *("RELU", "RELU6", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "TANH"),
        *("ADD", "DIV", "MAXIMUM", "MINIMUM", "MUL", "SQUARED_DIFFERENCE", "SUB"),
    }
)
"""Operators whose kernels read an element of an input before they write the same element of the output, and never again."""

NO_SCRATCH: Mapping[int, int] = MappingProxyType({})
"""The bytes of no operator."""

_DEEPEST = 8
"""Levels of subgraphs in subgraphs, at most: one that runs itself has no end."""
_MOST = 500_000
"""Operators of all subgraphs as often as they run, at most."""


@dataclass(frozen=True)
class MicroProblem:
    """The problem, the owner of the bytes of each tensor that is planned, and the scope of each operator, in the order of the scopes.

    `scratch` has the bytes that operators of the first subgraph need beside their tensors, by their places.
    """

    problem: Problem
    owners: Mapping[TensorKey, TensorKey]
    live_ranges: Mapping[TensorKey, tuple[int, int]]
    scopes: Sequence[tuple[int, int, int]]
    scratch: Mapping[int, int]

    @staticmethod
    def name(key: TensorKey) -> str:
        """Return the name of the buffer of the tensor `key`."""
        return f"{key[0]}/{key[1]}"

    @staticmethod
    def scratch_name(position: int) -> str:
        """Return the name of the buffer of the scratch of the operator at `position`."""
        return f"scratch/{position}"


def problem_of(
    graphs: Sequence[MicroGraph], alignment: int = UNIT, scratch: Mapping[int, int] = NO_SCRATCH
) -> MicroProblem:
    """Return the problem of the model with the subgraphs `graphs`; `scratch` is as in MicroProblem.

    Raises ModelError where a subgraph runs itself.
    """
    marks = _Marks(graphs)
    marks.walk(0, 0)
    ranges = {key: (first, last) for key, (first, last) in sorted(marks.live.items())}
    owners = _owners(graphs, ranges)
    together: dict[TensorKey, list[TensorKey]] = {}
    for key, owner in owners.items():
        together.setdefault(owner, []).append(key)
    buffers = tuple(
        Buffer(
            MicroProblem.name(owner),
            max(graphs[graph].tensors[index].size for graph, index in keys),
            min(ranges[key][0] for key in keys),
            max(ranges[key][1] for key in keys) + 1,
        )
        for owner, keys in together.items()
    )
    workspaces = tuple(
        Buffer(MicroProblem.scratch_name(position), scratch[position], scope, scope + 1)
        for graph, position, scope in marks.scopes
        if graph == 0 and position in scratch
    )
    return MicroProblem(Problem((*buffers, *workspaces), alignment), owners, ranges, tuple(marks.scopes), scratch)


@dataclass
class _Marks:
    """The walk over the subgraphs in the order of TensorFlow Lite Micro: `live` has the first and last scope of each planned tensor.

    `scopes` has for each operator its subgraph, its index there, and its scope.
    """

    graphs: Sequence[MicroGraph]
    live: dict[TensorKey, tuple[int, int]] = field(default_factory=dict)
    scopes: list[tuple[int, int, int]] = field(default_factory=list)
    _now: int = 0

    def walk(self, number: int, depth: int) -> None:
        if depth > _DEEPEST or len(self.scopes) > _MOST:
            raise ModelError(
                f"a subgraph of the TensorFlow Lite model runs itself, or subgraphs are more than {_DEEPEST} levels deep"
            )
        graph = self.graphs[number]
        self._mark(number, graph.inputs)
        for position, operator in enumerate(graph.operators):
            self._now += 1
            self.scopes.append((number, position, self._now))
            self._mark(number, operator.outputs)
            for body in operator.bodies:
                self._now += 1
                self.walk(body, depth + 1)
            self._mark(number, (*operator.inputs, *operator.outputs))
        self._mark(number, graph.outputs)

    def _mark(self, number: int, indices: Sequence[int]) -> None:
        for index in indices:
            if index >= 0 and self.graphs[number].tensors[index].is_planned:
                first, _ = self.live.get((number, index), (self._now, self._now))
                self.live[number, index] = (first, self._now)


def _owners(graphs: Sequence[MicroGraph], ranges: Mapping[TensorKey, tuple[int, int]]) -> dict[TensorKey, TensorKey]:
    """Return the tensor that owns the bytes of each planned tensor."""
    owners = {key: key for key in ranges}
    ends = {key: last for key, (_, last) in ranges.items()}
    kept = {
        (number, index) for number, graph in enumerate(graphs) for index in (*graph.inputs, *graph.outputs) if number
    }
    for number, graph in enumerate(graphs):
        for operator in graph.operators:
            for source, result in _candidates(number, operator, graph):
                if source not in owners or owners.get(result) != result or result in kept or owners[source] in kept:
                    continue
                owner = owners[source]
                is_read_again = ends[owner] > ranges[result][0]
                if is_read_again and operator.name not in VIEWS:
                    continue
                owners[result] = owner
                ends[owner] = max(ends[owner], ends[result])
                break
    return owners


def _candidates(number: int, operator: MicroOperator, graph: MicroGraph) -> Iterator[tuple[TensorKey, TensorKey]]:
    """Yield the inputs of `operator` that its output may share bytes with, each with the output."""
    if operator.name not in VIEWS | ELEMENTWISE or len(operator.outputs) != 1 or operator.outputs[0] < 0:
        return
    result = graph.tensors[operator.outputs[0]]
    for index in operator.inputs[:1] if operator.name in VIEWS else operator.inputs:
        source = graph.tensors[index] if index >= 0 else None
        if source is None or (source.dtype, source.size) != (result.dtype, result.size):
            continue
        if operator.name in VIEWS or (source.shape == result.shape and operator.inputs.count(index) == 1):
            yield (number, index), (number, operator.outputs[0])


def plan_rows(graphs: Sequence[MicroGraph], problem: MicroProblem, planned: PlanResult) -> PlanResult:
    """Return `planned`, the plan of the buffers of `problem`, with rows for all tensors of `graphs`, and their operators."""
    names = _names(graphs)
    nodes = {position: _node(position, graphs) for position in ((graph, index) for graph, index, _ in problem.scopes)}
    shared = _shared(graphs, problem)
    unit = problem.problem.alignment
    main = graphs[0]
    steps = {(graph, index): scope for graph, index, scope in problem.scopes}
    operators = [graphs[graph].operators[index] for graph, index in steps]
    linked = {
        kind: tuple(
            tuple(names[graph, i] if i >= 0 else "" for i in getattr(graphs[graph].operators[index], kind))
            for graph, index in steps
        )
        for kind in ("inputs", "outputs")
    }
    unread = [key for key in names if key not in problem.owners and not _planned_tensor(graphs, key).is_constant]
    return replace(
        planned,
        io="inside",
        order="model",
        activation_bytes=sum(align(_planned_tensor(graphs, key).size, unit) for key in problem.owners),
        in_place=sum(key != owner for key, owner in problem.owners.items()) - len(shared[0]),
        copies=CopyCount(len(shared[0]), sum(shared[0]), len(shared[1]), sum(shared[1])),
        schedule=tuple(nodes[position] for position in steps),
        steps=tuple(steps.values()),
        operators=tuple(operator.name for operator in operators),
        operands=linked["inputs"],
        results=linked["outputs"],
        attributes=tuple({} for _ in operators),
        buffers=_buffers(graphs, problem, planned, names, nodes),
        constants=tuple(
            Constant(names[key], tensor.size, None, tensor.dtype, tensor.shape)
            for key in names
            if (tensor := _planned_tensor(graphs, key)).is_constant
        ),
        outside=tuple(Excluded(names[key], _reason(graphs, key), *_type(graphs, key)) for key in unread),
        inputs=tuple(PlannedInput(names[0, i], *_type(graphs, (0, i))) for i in main.inputs),
        outputs=tuple(PlannedInput(names[0, i], *_type(graphs, (0, i))) for i in main.outputs),
    )


def _names(graphs: Sequence[MicroGraph]) -> dict[TensorKey, str]:
    """Return the name of each tensor: its own, with its indices after it where that is empty or repeated."""
    keys = [(number, index) for number, graph in enumerate(graphs) for index in range(len(graph.tensors))]
    times = Counter(_planned_tensor(graphs, key).name for key in keys)
    names = {}
    for key in keys:
        name = _planned_tensor(graphs, key).name
        names[key] = name if name and times[name] == 1 else f"{name}#{key[0]}.{key[1]}"
    return names


def _node(position: TensorKey, graphs: Sequence[MicroGraph]) -> str:
    name = graphs[position[0]].operators[position[1]].name
    return f"{name}_{position[1]}" if position[0] == 0 else f"{name}_{position[0]}.{position[1]}"


def _planned_tensor(graphs: Sequence[MicroGraph], key: TensorKey) -> MicroTensor:
    return graphs[key[0]].tensors[key[1]]


def _type(graphs: Sequence[MicroGraph], key: TensorKey) -> tuple[str, tuple[int, ...]]:
    tensor = _planned_tensor(graphs, key)
    return tensor.dtype, tensor.shape


def _reason(graphs: Sequence[MicroGraph], key: TensorKey) -> str:
    if _planned_tensor(graphs, key).is_variable:
        return "a variable, which keeps its bytes from one inference to the next"
    return "a tensor without elements" if not _planned_tensor(graphs, key).size else "a tensor that no operator uses"


def _shared(graphs: Sequence[MicroGraph], problem: MicroProblem) -> tuple[list[int], list[int]]:
    """Return the bytes of the results of operators that leave elements as they are: those in place, and those that are copied."""
    avoided: list[int] = []
    remaining: list[int] = []
    for number, graph in enumerate(graphs):
        for operator in graph.operators:
            key = (number, operator.outputs[0]) if operator.outputs else (number, -1)
            if operator.name in VIEWS and key in problem.owners:
                (remaining if problem.owners[key] == key else avoided).append(_planned_tensor(graphs, key).size)
    return avoided, remaining


def _buffers(
    graphs: Sequence[MicroGraph],
    problem: MicroProblem,
    planned: PlanResult,
    names: Mapping[TensorKey, str],
    nodes: Mapping[TensorKey, str],
) -> tuple[PlannedBuffer, ...]:
    rows = {row.name: row for row in planned.buffers}
    makers = {
        (number, index): nodes[number, position]
        for number, position, _ in problem.scopes
        for index in graphs[number].operators[position].outputs
    }
    ends = {**dict.fromkeys(graphs[0].inputs, "input"), **dict.fromkeys(graphs[0].outputs, "output")}
    buffers = []
    for key, owner in problem.owners.items():
        row, tensor = rows[problem.name(owner)], _planned_tensor(graphs, key)
        first, last = (row.first, row.last) if key == owner else problem.live_ranges[key]
        buffers.append(
            PlannedBuffer(
                name=names[key],
                arena=row.arena,
                offset=row.offset,
                size=tensor.size,
                first=first,
                last=last,
                kind=ends.get(key[1], "activation") if key[0] == 0 else "activation",
                alias=None if key == owner else names[owner],
                node=makers.get(key),
                dtype=tensor.dtype,
                shape=tensor.shape,
            )
        )
    scopes = {position: scope for graph, position, scope in problem.scopes if graph == 0}
    for position, size in problem.scratch.items():
        row, scope, node = rows[problem.scratch_name(position)], scopes[position], nodes[0, position]
        buffers.append(
            PlannedBuffer(
                f"{node} scratch",
                row.arena,
                row.offset,
                size,
                scope,
                scope,
                WORKSPACE,
                node=node,
                dtype=None,
                shape=None,
            )
        )
    return tuple(buffers)
