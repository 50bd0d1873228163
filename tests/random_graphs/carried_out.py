"""Carries a plan out: every tensor at its planned address in one block of bytes, from nothing but the JSON of the plan and the model.

This shares no code with onnxtile. Each result is remembered when it is written, and compared with the bytes at its address whenever it
is read, so that any overwritten tensor is noticed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.random_graphs.kernels import Array, Kernels, as_array, captured, fill

_PARTLY = {"Slice", "Split", "Gather"}
"""Operators that read a part of an operand: the other bytes may be another's by then."""
_MOVES = {
    "Reshape",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "Concat",
    "Transpose",
    "Expand",
    "Dropout",
    "QLinearConcat",
    "DepthToSpace",
    "SpaceToDepth",
    "Tile",
    "Cast",
}
_OVER = {
    "Relu",
    "Sigmoid",
    "Tanh",
    "Neg",
    "Abs",
    "LeakyRelu",
    "Softplus",
    "HardSigmoid",
    "Elu",
    "Selu",
    "Erf",
    "Sin",
    "Cos",
    "Softsign",
    "Sqrt",
    "Exp",
    "ThresholdedRelu",
    "HardSwish",
    "Gelu",
    "Clip",
    "Add",
    "Mul",
    "Sub",
    "Max",
    "Min",
    "Div",
    "Sum",
    "Mean",
    "PRelu",
    "Pow",
    "Not",
    "Less",
    "Greater",
    "Where",
    "Softmax",
    "LogSoftmax",
    "CumSum",
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinearAdd",
    "QLinearMul",
    "QLinearSigmoid",
    "QLinearLeakyRelu",
}
_OVER_ONE = {
    "BatchNormalization": 0,
    "GroupNormalization": 0,
    "InstanceNormalization": 0,
    "LayerNormalization": 0,
    "RMSNormalization": 0,
    "ScatterElements": 0,
    "ScatterND": 0,
    "TensorScatter": 0,
    "Gemm": 2,
}
"""The operand that a result may lie over: read by rows or channels, with updates written over it, or added to a product."""


class Corrupted(AssertionError):
    """A tensor was not at its address, or lost its bytes."""


@dataclass
class Site:
    """A tensor in an arena, and the bytes that it must have."""

    name: str
    memory: Array
    offset: int
    size: int
    alias: str | None
    shape: tuple[int, ...] = ()
    dtype: Any = None
    expected: bytes = b""

    @property
    def data(self) -> Array:
        """The bytes at the address."""
        return self.memory[self.offset : self.offset + self.size]

    def write(self, array: Array) -> None:
        """Write `array`. Raises Corrupted where it is larger than its buffer."""
        data = _stored(array)
        if len(data) > self.size:
            raise Corrupted(f"{self.name!r} has {len(data)} bytes, and its buffer {self.size}")
        self.data[: len(data)] = data
        self.shape, self.dtype, self.expected = array.shape, array.dtype, data.tobytes()

    def read(self) -> Array:
        """Return the tensor. Raises Corrupted where its bytes are not those that were written."""
        if self.is_overwritten:
            raise Corrupted(f"{self.name!r} was overwritten")
        return self.array(self.expected)

    @property
    def is_overwritten(self) -> bool:
        """Whether its bytes are not those that were written."""
        return self.data[: len(self.expected)].tobytes() != self.expected

    def array(self, data: bytes) -> Array:
        """Return the tensor that has these bytes."""
        per_byte = _per_byte(self.dtype)
        if per_byte == 1:
            return np.frombuffer(data, self.dtype).reshape(self.shape)
        held, bits = np.frombuffer(data, np.uint8), 8 // per_byte
        parts = np.stack([held >> bits * place & (1 << bits) - 1 for place in range(per_byte)], 1).reshape(-1)
        return np.asarray(parts[: math.prod(self.shape)].astype(np.uint8).view(self.dtype).reshape(self.shape))

    def meets(self, other: Site) -> bool:
        """Return whether both have bytes in common."""
        return (
            self.memory is other.memory
            and self.offset < other.offset + other.size
            and other.offset < self.offset + self.size
        )


Value = Site | Array


@dataclass
class Frame:
    """A run of one graph. `values` are those that its nodes see, by name."""

    values: dict[str, Value]
    sites: dict[str, Site]
    nodes: list[onnx.NodeProto]
    plan: Mapping[str, Any]
    bodies: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)


class Run:
    """The run of a plan of `model`, whose nodes of one step run in another order with another `seed`."""

    def __init__(
        self,
        model: onnx.ModelProto,
        plan: Mapping[str, Any],
        kernels: Kernels | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        self._model = model
        self._plan = plan
        self._kernels = kernels or Kernels(model)
        self._functions = {(one.domain, one.name): one for one in model.functions}
        self._random = None if seed is None else Random(seed)
        self._memories = {one["name"]: _filled(one["size"]) for one in plan["arenas"]}

    def outputs(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of the model. Raises Corrupted."""
        graph = self._model.graph
        values: dict[str, Value] = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        frame = self._frame(values, list(graph.node), self._plan)
        for name, array in {**values, **feeds}.items():
            if not isinstance(array, Site):
                self._store(frame, name, array)
        self._run(frame)
        return {info.name: as_array(self._read(frame, info.name)) for info in graph.output}

    def _frame(self, values: dict[str, Value], nodes: list[onnx.NodeProto], plan: Mapping[str, Any]) -> Frame:
        sites: dict[str, Site] = {}
        for row in plan["buffers"]:
            if row["kind"] == "workspace":
                continue
            memory = self._memories[row["arena"]]
            if row["offset"] + row["size"] > len(memory):
                raise Corrupted(f"{row['name']!r} leaves the arena")
            sites[row["name"]] = Site(row["name"], memory, row["offset"], row["size"], row["alias"])
        bodies: dict[str, list[Mapping[str, Any]]] = {}
        for body in plan["bodies"]:
            bodies.setdefault(body["node"], []).append(body)
        return Frame(values, sites, nodes, plan, bodies)

    @staticmethod
    def _store(frame: Frame, name: str, array: Array) -> None:
        site = frame.sites.get(name)
        if site is None:
            frame.values[name] = array
            return
        site.write(array)
        frame.values[name] = site

    @staticmethod
    def _read(frame: Frame, name: str) -> Array:
        value = frame.values[name]
        return value.read() if isinstance(value, Site) else value

    def _run(self, frame: Frame) -> None:
        by_result = {name: node for node in frame.nodes for name in node.output if name}
        done: set[int] = set()
        for place in self._order(frame.plan):
            result = next(name for name in frame.plan["results"][place] if name)
            node = by_result[result]
            done.add(id(node))
            self._poison(frame.plan, frame.plan["schedule"][place])
            self._step(frame, node, frame.plan["schedule"][place])
        left = [node for node in frame.nodes if id(node) not in done]
        if left:
            raise Corrupted(f"the plan has no step for {left[0].op_type} {left[0].output[0]!r}")

    def _order(self, plan: Mapping[str, Any]) -> list[int]:
        """Return the places of the schedule, nodes of one step in any order."""
        places = list(range(len(plan["schedule"])))
        random = self._random
        if random is None:
            return places
        keys = [random.random() for _ in places]
        return sorted(places, key=lambda place: (plan["steps"][place], keys[place]))

    def _poison(self, plan: Mapping[str, Any], node: str) -> None:
        """Overwrite the workspaces of a node, as its kernel may."""
        for row in plan["buffers"]:
            if row["kind"] == "workspace" and row.get("node") == node:
                memory = self._memories[row["arena"]]
                memory[row["offset"] : row["offset"] + row["size"]] = _filled(row["size"])

    def _step(self, frame: Frame, node: onnx.NodeProto, name: str) -> None:
        bodies = frame.bodies.get(name, [])
        if node.op_type in _PARTLY and not bodies:
            self._require_parts(frame, node)
            operands = {one: self._read_whole(frame, one) for one in set(node.input) - {""}}
        else:
            operands = {one: self._read(frame, one) for one in {*node.input, *captured(node)} - {""}}
        if not bodies:
            results = self._kernels.run(node, operands)
            self._require_lawful(frame, node)
        elif node.op_type == "If" and node.domain in {"", "ai.onnx"}:
            results = self._if(frame, node, bodies, operands)
        elif node.op_type == "Loop" and node.domain in {"", "ai.onnx"}:
            results = self._loop(frame, node, bodies[0], operands)
        elif node.op_type == "Scan" and node.domain in {"", "ai.onnx"}:
            results = self._scan(frame, node, bodies[0], operands)
        else:
            results = self._call(frame, node, bodies[0])
        for one, array in zip(node.output, results, strict=False):
            if one and array is not None:
                self._store(frame, one, array)

    def _read_whole(self, frame: Frame, name: str) -> Array:
        """Return a tensor as it was written."""
        value = frame.values[name]
        return value.array(value.expected) if isinstance(value, Site) else value

    def _require_parts(self, frame: Frame, node: onnx.NodeProto) -> None:
        """Raise Corrupted where an operator that reads a part of its operands finds other bytes in it than were written."""
        now = {name: frame.values[name] for name in set(node.input) - {""}}
        changed = {name: one for name, one in now.items() if isinstance(one, Site) and one.is_overwritten}
        if not changed:
            return
        written = {name: self._read_whole(frame, name) for name in now}
        there = {name: one.array(one.data[: len(one.expected)].tobytes()) for name, one in changed.items()}
        pairs = zip(self._kernels.run(node, written), self._kernels.run(node, {**written, **there}), strict=True)
        if any(a is not None and b is not None and a.tobytes() != b.tobytes() for a, b in pairs):
            raise Corrupted(f"{', '.join(changed)} was overwritten where {node.op_type} reads it")

    def _require_lawful(self, frame: Frame, node: onnx.NodeProto) -> None:
        """Raise Corrupted where a result is written over an operand that the operator may still read."""
        meta_op = node.domain == "onnxtile"
        for result in (frame.sites[name] for name in node.output if name in frame.sites):
            for name in set(node.input) - {""}:
                operand = frame.values[name]
                if not isinstance(operand, Site) or not operand.size or not result.size or not operand.meets(result):
                    continue
                if node.op_type in _PARTLY:
                    continue  # the bytes that it reads are compared
                if result.alias is None and operand.alias is None:
                    raise Corrupted(f"{result.name!r} overlaps its operand {name!r}, and neither is an alias")
                over = _may_write_over(node, name) and operand.offset == result.offset
                if not (over or meta_op or node.op_type in _MOVES):
                    raise Corrupted(f"{result.name!r} of {node.op_type} is written over its operand {name!r}")

    def _if(
        self, frame: Frame, node: onnx.NodeProto, bodies: Sequence[Mapping[str, Any]], operands: Mapping[str, Array]
    ) -> list[Array | None]:
        chosen = "then_branch" if bool(operands[node.input[0]].reshape(-1)[0]) else "else_branch"
        body = next((one for one in bodies if one["attribute"] == chosen), None)
        if body is None:
            return self._kernels.run(node, operands)
        graph = _graph(node, chosen)
        inner = self._enter(frame, graph, body, {})
        self._run(inner)
        return [self._read(inner, info.name) for info in graph.output]

    def _enter(
        self, frame: Frame, graph: onnx.GraphProto, body: Mapping[str, Any], given: Mapping[str, Array]
    ) -> Frame:
        constants: dict[str, Value] = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        inner = self._frame({**frame.values, **constants}, list(graph.node), body)
        for name, array in given.items():
            self._store(inner, name, array)
        return inner

    def _loop(
        self, frame: Frame, node: onnx.NodeProto, body: Mapping[str, Any], operands: Mapping[str, Array]
    ) -> list[Array | None]:
        graph = _graph(node, "body")
        given = [operands[name] if name else None for name in node.input]
        most = None if given[0] is None else int(given[0].reshape(-1)[0])
        goes_on = True if given[1] is None else bool(given[1].reshape(-1)[0])
        carried: list[Array] = [one for one in given[2:] if one is not None]
        kept: list[list[Array]] = [[] for _ in graph.output[1 + len(carried) :]]
        turn = 0
        while goes_on and (most is None or turn < most):
            fed = [np.asarray(turn, np.int64), np.asarray(goes_on), *carried]
            shown = [one.reshape(_rank(info, one)) for info, one in zip(graph.input, fed, strict=True)]
            inner = self._enter(
                frame, graph, body, {info.name: one for info, one in zip(graph.input, shown, strict=True)}
            )
            self._run(inner)
            found = [self._read(inner, info.name) for info in graph.output]
            goes_on = bool(found[0].reshape(-1)[0])
            carried = found[1 : 1 + len(carried)]
            for rows, row in zip(kept, found[1 + len(carried) :], strict=True):
                rows.append(row)
            self._store_rows(frame, node.output[len(carried) :], kept)
            turn += 1
        for name, rows in zip(node.output[len(carried) :], kept, strict=False):
            if name and rows:
                self._read(frame, name)
        return [*carried, *(np.stack(rows) if rows else None for rows in kept)]

    def _store_rows(self, frame: Frame, names: Sequence[str], kept: Sequence[list[Array]]) -> None:
        """Write the rows of this turn behind those of the turns before, which must still be there."""
        for name, rows in zip(names, kept, strict=False):
            if name:
                if len(rows) > 1:
                    self._read(frame, name)
                self._store(frame, name, np.stack(rows))

    def _scan(
        self, frame: Frame, node: onnx.NodeProto, body: Mapping[str, Any], operands: Mapping[str, Array]
    ) -> list[Array | None]:
        graph = _graph(node, "body")
        count = next(attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs")
        given = [operands[name] for name in node.input]
        states, rows_in = given[: len(given) - count], given[len(given) - count :]
        kept: list[list[Array]] = [[] for _ in graph.output[len(states) :]]
        for turn in range(len(rows_in[0])):
            fed = [*states, *(one[turn] for one in rows_in)]
            inner = self._enter(
                frame, graph, body, {info.name: one for info, one in zip(graph.input, fed, strict=True)}
            )
            self._run(inner)
            found = [self._read(inner, info.name) for info in graph.output]
            states = found[: len(states)]
            for rows, row in zip(kept, found[len(states) :], strict=True):
                rows.append(row)
            self._store_rows(frame, node.output[len(states) :], kept)
        return [*states, *(np.stack(rows) for rows in kept)]

    def _call(self, frame: Frame, node: onnx.NodeProto, body: Mapping[str, Any]) -> list[Array | None]:
        function = self._functions[node.domain, node.op_type]
        operands = [*node.input, *[""] * (len(function.input) - len(node.input))]
        values = {formal: frame.values[name] for formal, name in zip(function.input, operands, strict=True) if name}
        given = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
        inner = self._frame(values, [_resolved(one, given) for one in function.node], body)
        self._run(inner)
        return [self._read(inner, name) for name in function.output]


def _may_write_over(node: onnx.NodeProto, operand: str) -> bool:
    """Return whether the result may lie on `operand`, which an operator of `_OVER_ONE` must read in that place only."""
    places = [place for place, name in enumerate(node.input) if name == operand]
    return node.op_type in _OVER or places == [_OVER_ONE.get(node.op_type)]


def _per_byte(dtype: Any) -> int:
    """Return how many elements of an element type lie in one byte."""
    name = str(np.dtype(dtype))
    return 4 if name.endswith("int2") else 2 if name.endswith("int4") else 1


def _stored(array: Array) -> Array:
    """Return the bytes of a tensor: elements of four bits lie two in a byte, the first one low."""
    if not array.size:
        return np.zeros(0, np.uint8)
    plain = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    per_byte = _per_byte(array.dtype)
    if per_byte == 1:
        return plain
    bits = 8 // per_byte
    padded = np.concatenate([plain & (1 << bits) - 1, np.zeros(-len(plain) % per_byte, np.uint8)])
    rows = padded.reshape(-1, per_byte) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(rows.sum(1), np.uint8)


def _rank(info: onnx.ValueInfoProto, array: Array) -> tuple[int, ...]:
    """Return the shape that a turn's number and condition have in the body: a scalar, or one element."""
    described = info.type.tensor_type
    one = described.HasField("shape") and len(described.shape.dim) == 1 and array.ndim == 0
    return (1,) if one else array.shape


def _graph(node: onnx.NodeProto, name: str) -> onnx.GraphProto:
    return next(attribute.g for attribute in node.attribute if attribute.name == name)


def _resolved(node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]) -> onnx.NodeProto:
    """Return a node of a function with the attributes of the call."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.ClearField("attribute")
    for attribute in node.attribute:
        source = given.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if source is None:
            continue
        made = copy.attribute.add()
        made.CopyFrom(source)
        made.name = attribute.name
        if made.HasField("g"):
            inner = [_resolved(one, given) for one in made.g.node]
            made.g.ClearField("node")
            made.g.node.extend(inner)
    return copy


def _filled(size: int) -> Array:
    pattern = fill()
    return np.frombuffer((pattern * (size // len(pattern) + 1))[:size], np.uint8).copy()
