"""The uses of the tensors of a schedule, from which the problem of movement follows.

Every operand and result of a kernel is in the fast memory while it runs. A view and its source are one tensor here. A result that
overwrites an operand, or an operand that lies in the result of a Concat, takes no bytes of its own beside that kernel.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

from onnxtile.kernels.aliases import LayoutFacts, sliced
from onnxtile.model import keys
from onnxtile.model.topology import all_values, bodies_of, dependencies
from onnxtile.operators.node_view import operator_name
from onnxtile.planning.layout import NO_PINS, Layout, Pins
from onnxtile.planning.movement.eviction import Gap, MovementProblem, least_bytes
from onnxtile.planning.offsets.problem import align
from onnxtile.shapes.resolve import Shapes, tensor_bytes
from onnxtile.system.errors import Infeasible, UsageError

# Writes the copies of a movement into a graph, as calls of a local function that copies its operand.

COPY = "Copy"
"""The name of the function."""
_FEW_BITS = frozenset({ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4})
"""Element types of which onnxruntime casts tensors, but has no kernel for Identity."""


class CopyToWrite(NamedTuple):
    """A copy of `value` to the fast memory (a load) or out of it; the Slice `part` copies a part of an input.

    A store holds its bytes up to the kernel at the place `held`.
    """

    value: ir.Value
    is_load: bool
    part: ir.Node | None = None
    held: int | None = None


@dataclass(frozen=True)
class MovementOrder:
    """A schedule with the copies to make, in values and nodes of one graph.

    Before the node at a place of `nodes`, the `copies` of this place are made; those of the place behind the last node come at the end.
    `outputs` are copied to the slow memory. The Slices in `parts` are copies. Nodes in `once` make constants, and read no copies.
    """

    nodes: tuple[ir.Node, ...]
    copies: Mapping[int, Sequence[CopyToWrite]]
    outputs: Collection[ir.Value]
    parts: Collection[ir.Node] = ()
    once: Collection[ir.Node] = ()


@dataclass
class WrittenCopies:
    """The copies in a graph.

    `places` has the place in the old schedule that each node of the new one belongs to. By result, `origin` has the value of the old graph
    with the same bytes, and, by name, `tensor` its old name. `slow` are the names of values in the slow memory, `stored` those of them by
    the old name of the tensor. `held` has the last step in which a tensor of the fast memory takes bytes because its copy has not ended.
    """

    places: list[int] = field(default_factory=list)
    tensor: dict[str, str] = field(default_factory=dict)
    origin: dict[ir.Value, ir.Value] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    stored: dict[str, str] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)


def write_copies(model: ir.Model, shapes: Shapes, order: MovementOrder, fast: str, slow: str) -> WrittenCopies:
    """Put the nodes of the graph of `model` (in place), of which `shapes` are known, into `order`, with its copies; return these."""
    return _CopyWriter(model, shapes, order, fast, slow).write()


class _CopyWriter:
    def __init__(self, model: ir.Model, shapes: Shapes, order: MovementOrder, fast: str, slow: str) -> None:
        self._model, self._shapes, self._order, self._fast, self._slow = model, shapes, order, fast, slow
        self._names = {value.name for value in all_values(model)}
        self._inside: dict[ir.Value, ir.Value] = {}
        self._stored: dict[ir.Value, ir.Value] = {}
        self._old_names: dict[ir.Value, str] = {}
        self._nodes: list[ir.Node] = []
        self._found = WrittenCopies()
        self._function = _function(model, COPY, "Identity", 1).name

    def write(self) -> WrittenCopies:
        graph, order, held, steps = self._model.graph, self._order, dict[str, int](), list[int]()
        for place in range(len(order.nodes) + 1):
            for copy in order.copies.get(place, ()):
                source = self._make(copy, place)
                if copy.held is not None:
                    held[source] = copy.held
            if place < len(order.nodes):
                steps.append(len(self._nodes))
                self._run(order.nodes[place], place)
        self._found.held.update((name, steps[last]) for name, last in held.items())
        graph.remove(list(graph))
        graph.extend(self._nodes)
        return self._found

    def _run(self, node: ir.Node, place: int) -> None:
        """Put the kernel `node` at its place, if it is no copy."""
        if node not in self._order.parts:
            if node not in self._order.once:
                _read_copies(node, self._inside)
            self._add(node, place)
        for value in node.outputs:
            if value in self._order.outputs:
                self._old_names[value] = value.name or ""
                value.name = self._unique(value, self._fast)

    def _make(self, copy: CopyToWrite, place: int) -> str:
        """Make a copy at its place; return the name of the tensor that it reads."""
        value = copy.value
        source = self._stored.get(value, value) if copy.is_load else self._inside.get(value, value)
        if copy.part is not None:
            _read_copies(copy.part, self._inside)
            self._copy_part(copy.part, place)
        elif copy.is_load:
            self._inside[value] = self._copy(source, value, self._unique(value, self._fast), place)
        elif value in self._old_names:
            self._hand_out(value, place)
        else:
            self._stored[value] = made = self._copy(source, value, self._unique(value, self._slow), place)
            self._found.stored[value.name or ""] = made.name or ""
            self._found.slow.add(made.name or "")
        return source.name or ""

    def _copy_part(self, node: ir.Node, place: int) -> None:
        """Put a call of a function that copies a part in the place of a Slice."""
        operands, result = list(node.inputs), node.outputs[0]
        source = operands[0]
        assert source is not None
        made = ir.Value(name=result.name, shape=result.shape, type=result.type)
        made.metadata_props.update(result.metadata_props)
        function = add_part_function(self._model, len(operands))
        call = ir.Node(keys.DOMAIN, function.name, operands, outputs=[made], name=node.name)
        call.metadata_props.update(node.metadata_props)
        for number in range(len(operands)):
            node.replace_input_with(number, None)
        self._inside[result] = made
        self._found.origin[made] = result
        self._found.tensor[made.name or ""] = source.name or ""
        self._add(call, place)

    def _add(self, node: ir.Node, place: int) -> None:
        self._nodes.append(node)
        self._found.places.append(place)

    def _hand_out(self, value: ir.Value, place: int) -> None:
        """Give the old name of the output `value` to a copy of it, which is the output."""
        name, outputs = self._old_names[value], self._model.graph.outputs
        places = [number for number, output in enumerate(outputs) if output is value]
        copy = self._copy(value, value, name, place)
        copy.metadata_props.update(value.metadata_props)
        for number in places:
            outputs[number] = copy
        # A constant is copied to the fast memory from where it is.
        if value.producer() not in self._order.once:
            self._stored[value] = copy
        self._found.slow.add(name)

    def _copy(self, source: ir.Value, origin: ir.Value, name: str, place: int) -> ir.Value:
        copy = ir.Value(name=name, shape=origin.shape, type=origin.type)
        function = self._function
        if self._shapes.dtype(origin) in _FEW_BITS:
            function = _function(self._model, f"{COPY}Bits", "CastLike", 1).name
        self._add(ir.Node(keys.DOMAIN, function, [source], outputs=[copy], name=f"{COPY}/{name}"), place)
        self._found.origin[copy] = origin
        self._found.tensor[name] = self._old_names.get(origin, origin.name or "")
        return copy

    def _unique(self, value: ir.Value, memory: str) -> str:
        stem = name = f"{self._old_names.get(value, value.name)}@{memory}"
        number = 1
        while name in self._names:
            number += 1
            name = f"{stem}.{number}"
        self._names.add(name)
        return name


def _read_copies(node: ir.Node, copies: Mapping[ir.Value, ir.Value]) -> None:
    """Let `node` and its bodies read the `copies` of values."""
    if not any(value in copies for value in dependencies(node)):
        return
    for one in (node, *_inner_nodes(node)):
        for number, value in enumerate(one.inputs):
            if value is not None and value in copies:
                one.replace_input_with(number, copies[value])
        for body in bodies_of(one):
            for number, value in enumerate(body.graph.outputs):
                if value in copies:
                    body.graph.outputs[number] = copies[value]


def _inner_nodes(node: ir.Node) -> Iterator[ir.Node]:
    return (inner for body in bodies_of(node) for inner in body.graph.all_nodes())


def add_part_function(model: ir.Model, count: int) -> ir.Function:
    """Return the function of `model` that copies a part of its first operand, as a Slice with `count` operands says."""
    return _function(model, f"{COPY}Slice.{count}", "Slice", count)


def _function(model: ir.Model, name: str, operator: str, count: int) -> ir.Function:
    """Return the function `name` of `model`, which is made where there is none, with one node `operator` of `count` operands.

    CastLike reads its operand twice, and so makes tensors of the same type.
    """
    is_cast = operator == "CastLike"
    imports = model.graph.opset_imports
    imports.setdefault(keys.DOMAIN, 1)
    known = model.functions.get((keys.DOMAIN, name, ""))
    if known is not None:
        return known
    operands, result = [ir.Value(name=f"x{number}") for number in range(count)], ir.Value(name="y")
    node = ir.Node("", operator, operands * 2 if is_cast else operands, outputs=[result], name=operator)
    standard = {"": imports.get("", imports.get("ai.onnx", 1))}
    graph = ir.Graph(operands, [result], nodes=[node], name=name, opset_imports=standard)
    function = ir.Function(keys.DOMAIN, name, graph=graph, attributes=())
    function.doc_string = "Copies its operand, or a part of it, into another memory."
    function.metadata_props[keys.COPY] = "Identity" if is_cast else operator
    model.functions[function.identifier()] = function
    return function


# Residence: tensors that a user places in the fast or the slow memory, or keeps, in a plan with copies between both.
#
# A tensor placed in the fast memory never leaves it. One placed in the slow memory is copied there when it is made, and copied in for its
# uses. A kept tensor without a place has its bytes in the slow memory to the end of the run.


@dataclass(frozen=True)
class Residence:
    """The names of tensors that `stay` in the fast memory, that `leave` it between uses, and that are `held` there for the whole run.

    Those in `stored` have bytes in the slow memory as soon as they are made.
    """

    stay: frozenset[str] = frozenset()
    leave: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pins: Pins, fast: str, slow: str, lasting: Iterable[str] = ()) -> Residence:
        """Return the residence that `pins` ask for, in the memories with these names; `lasting` inputs are not overwritten."""
        stay = frozenset(name for name, place in pins.places.items() if place == fast)
        leave = frozenset(name for name, place in pins.places.items() if place == slow)
        return cls(stay, leave, leave | (pins.kept - stay), pins.kept.union(lasting) & stay)


NO_RESIDENCE = Residence()
"""No tensor is placed or kept."""


def require_residence(pins: Pins, slow: str, inputs: Iterable[str], workspaces: Iterable[str], io: str) -> None:
    """Raise UsageError for a placed or kept input outside the memories, and for a workspace in the `slow` one."""
    outside = set() if io == "inside" else set(inputs)
    for name in pins.names:
        if name in outside:
            raise UsageError(f"{name!r} has no address in an arena: a graph input", hint="add --io inside")
    for name in workspaces:
        if pins.places.get(name) == slow:
            raise UsageError(f"the workspace {name!r} is used by a kernel, so it cannot be in the slow memory {slow!r}")


def moved_pins(pins: Pins, residence: Residence, written: WrittenCopies) -> Pins:
    """Return `pins` for a model with the copies `written`: those of tensors in the slow memory are for the values there."""
    if not pins.names:
        return NO_PINS

    def named(found: Iterable[str]) -> dict[str, str]:
        return {name: written.stored.get(name, name) if name in residence.stored else name for name in found}

    def of(wanted: Mapping[str, str]) -> dict[str, str]:
        return {new: wanted[old] for old, new in named(wanted).items()}

    names = named(pins.offsets)
    offsets = {names[name]: offset for name, offset in pins.offsets.items()}
    return Pins(offsets, of(pins.places), tuple(named(pins.keeps).values()), pins.capacities)


def without_marks(model: ir.Model) -> None:
    """Remove pins, places and marks to keep a tensor from the metadata of `model` (in place)."""
    for value in all_values(model):
        for key in (keys.PIN, keys.PLACE_IN, keys.KEEP):
            value.metadata_props.pop(key, None)


RULES = frozenset({"view", "in place", "join"})
"""The rules of aliases by which kernels need fewer bytes. Parts of a tensor that are read in place would need the whole tensor."""

_INLINE = 64
"""Bytes: smaller constants are read where they are, because kernels take them as parameters."""


@dataclass(frozen=True)
class GapOfTensor:
    """A gap, its numbers of uses before and after in the schedule, and the values that are read afterwards."""

    gap: Gap
    before: int
    after: int
    values: tuple[ir.Value, ...]


@dataclass(frozen=True)
class TensorUses:
    """The uses of the tensors of `layout`, whose inputs start in the slow memory, and whose outputs end there.

    With `streams_weights`, constants are copied to the fast memory before they are read. With `cuts_inputs`, an input that only Slices read
    is never in the fast memory as a whole: each Slice copies its part. `residence` has the tensors with a fixed memory.
    """

    layout: Layout
    facts: LayoutFacts
    streams_weights: bool
    cuts_inputs: bool = False
    residence: Residence = NO_RESIDENCE

    @cached_property
    def kernels(self) -> dict[ir.Node, int]:
        """The nodes that run in each inference, with their places in the schedule."""
        nodes = enumerate(self.layout.schedule.nodes)
        return {node: place for place, node in nodes if any(self._is_made(value) for value in node.outputs)}

    def _is_made(self, value: ir.Value) -> bool:
        """Return whether a kernel makes `value`: it is no constant, or one that stays in the fast memory.

        Another output that is constant is copied from the constants.
        """
        return value not in self.facts.constants or value.name in self.residence.stay

    @cached_property
    def inputs(self) -> frozenset[ir.Value]:
        """The inputs of the graph that have bytes, and are copied as a whole."""
        given = (v for v in self.layout.scope.given if v in self.layout.roles.tensors and self.bytes(v))
        moved = (v for v in given if v.name not in self.residence.stay)
        return frozenset(v for v in moved if not (self.cuts_inputs and self.is_cut(v)))

    @cached_property
    def part_copies(self) -> dict[ir.Node, None]:
        """The Slices that copy a part of an input from the slow memory."""
        if not self.cuts_inputs:
            return {}
        cut = [value for value in self.layout.scope.given if self.bytes(value) and self.is_cut(value)]
        return {node: None for node in self.kernels if node.inputs and node.inputs[0] in cut}

    def is_cut(self, value: ir.Value) -> bool:
        """Return whether all readers of the input `value` are Slices whose results are not graph outputs."""
        outputs = self.layout.scope.graph.outputs
        readers = self._readers.get(value, [])
        is_whole = any(value is output for output in outputs) or value.name in self.residence.stay
        return bool(readers) and not is_whole and all(self._is_slice(node, value) for node in readers)

    @cached_property
    def _readers(self) -> dict[ir.Value, list[ir.Node]]:
        found: dict[ir.Value, list[ir.Node]] = {}
        for node in self.kernels:
            for value in dict.fromkeys(dependencies(node)):
                found.setdefault(value, []).append(node)
        return found

    def _is_slice(self, node: ir.Node, value: ir.Value) -> bool:
        facts, result = self.facts, node.outputs[0]
        is_plain = node.op_type == "Slice" and facts.is_standard(node) and not node.attributes
        reads_once = list(node.inputs).count(value) == 1 and node.inputs[0] is value
        return is_plain and reads_once and self.bytes(result) > 0 and not result.is_graph_output()

    @cached_property
    def outputs(self) -> frozenset[ir.Value]:
        """The outputs of the graph that kernels make, that have bytes, and that do not stay in the fast memory."""
        outputs = (v for v in self.layout.scope.graph.outputs if v.name not in self.residence.stay)
        return frozenset(
            v for v in outputs if v in self.layout.roles.tensors and v.producer() is not None and self.bytes(v)
        )

    @cached_property
    def stored(self) -> dict[ir.Value, int]:
        """The tensors that are copied to the slow memory because they have a place there, each with the place of its kernel."""
        wanted = self.residence.stored
        made = {value: self.kernels[node] for node in self.kernels for value in node.outputs if value.name in wanted}
        return {v: place for v, place in made.items() if self.bytes(v) and v not in self.outputs}

    @cached_property
    def weights(self) -> dict[ir.Value, None]:
        """The constants that are copied to the fast memory, in the order in which they are read."""
        kernels = self.kernels if self.streams_weights else ()
        # A constant that stays in the fast memory is made from constants as they are: so it can be computed before the run for others.
        read = (v for node in kernels if not self.makes_constants(node) for v in dependencies(node))
        return {v: None for v in read if not self._is_made(v) and self._is_weight(v)}

    def makes_constants(self, node: ir.Node) -> bool:
        """Return whether the results of `node` are constants, which it makes from constants outside of the fast memory."""
        return all(value in self.facts.constants for value in node.outputs)

    def bytes(self, value: ir.Value) -> int:
        """Return the bytes of `value`."""
        return tensor_bytes(value, self.facts.shapes) or 0

    def _is_weight(self, value: ir.Value) -> bool:
        """Return whether `value` is more than a parameter of kernels, such as a shape."""
        dtype = self.facts.shapes.dtype(value)
        is_index = dtype in {ir.DataType.INT64, ir.DataType.BOOL}
        return self.bytes(value) > _INLINE and not is_index

    @cached_property
    def _tensor_of(self) -> dict[ir.Value, ir.Value]:
        """The value that stands for all views of one tensor, by value."""
        found: dict[ir.Value, ir.Value] = {}
        for value in filter(self._is_made, self.layout.sharing.alias_sets.of):
            views = (a.source for a in self.layout.sharing.shares.get(value, ()) if a.rule == "view")
            source = next((source for source in views if source in found), None)
            found[value] = value if source is None else found[source]
        found.update((weight, weight) for weight in self.weights)
        return found

    @cached_property
    def touched(self) -> dict[ir.Node, tuple[ir.Value, ...]]:
        """The values that each kernel reads and makes and that are in the fast memory meanwhile."""
        return {
            node: tuple(v for v in dict.fromkeys((*self._read(node), *node.outputs)) if v in self._tensor_of)
            for node in self.kernels
        }

    def _read(self, node: ir.Node) -> tuple[ir.Value, ...]:
        """Return the values that `node` reads in the fast memory, or as constants."""
        if self.makes_constants(node):
            return ()
        values = node.inputs[1:] if node in self.part_copies else dependencies(node)
        return tuple(value for value in values if value is not None)

    @cached_property
    def reads(self) -> dict[ir.Value, list[int]]:
        """The places of the kernels that read each value."""
        found: dict[ir.Value, list[int]] = {}
        for node, place in self.kernels.items():
            for value in dict.fromkeys(self._read(node)):
                if value in self._tensor_of:
                    found.setdefault(value, []).append(place)
        return found

    @cached_property
    def _uses(self) -> dict[ir.Value, list[int]]:
        found: dict[ir.Value, list[int]] = {}
        for node, place in self.kernels.items():
            for tensor in dict.fromkeys(self._tensor_of[value] for value in self.touched[node]):
                found.setdefault(tensor, []).append(place)
        return found

    def next_use(self, value: ir.Value, place: int) -> int | None:
        """Return the place of the first kernel after `place` that touches the tensor of `value`; None for none."""
        uses = self._uses.get(self._tensor_of.get(value, value), [])
        at = bisect_right(uses, place)
        return uses[at] if at < len(uses) else None

    @cached_property
    def _members(self) -> dict[ir.Value, list[ir.Value]]:
        found: dict[ir.Value, list[ir.Value]] = {}
        for value, tensor in self._tensor_of.items():
            found.setdefault(tensor, []).append(value)
        return found

    @cached_property
    def gaps(self) -> tuple[GapOfTensor, ...]:
        """The gaps between two uses of a tensor, with a kernel between them, in which it may stay or leave."""
        free = (tensor for tensor in self._uses if not self._stays(tensor) and not self._leaves(tensor))
        return tuple(gap for tensor in free for gap in self._gaps(tensor, self._uses[tensor]))

    @cached_property
    def absences(self) -> tuple[GapOfTensor, ...]:
        """The gaps in which a tensor leaves because its place is the slow memory."""
        placed = [tensor for tensor in self._uses if self._leaves(tensor)]
        return tuple(gap for tensor in placed for gap in self._gaps(tensor, self._uses[tensor]))

    def _stays(self, tensor: ir.Value) -> bool:
        return any(value.name in self.residence.stay for value in self._members[tensor])

    def _leaves(self, tensor: ir.Value) -> bool:
        return any(value.name in self.residence.leave for value in self._members[tensor])

    @cached_property
    def _waiting(self) -> tuple[int, ...]:
        """The bytes in each step of tensors that stay in the fast memory, and that its kernel does not touch."""
        found = [0] * len(self.layout.schedule.nodes)
        graph = self.layout.scope.graph
        for tensor in filter(self._stays, self._uses):
            uses, members = self._uses[tensor], self._members[tensor]
            is_held = any(value.name in self.residence.held for value in members)
            first = 0 if is_held or any(value in graph.inputs for value in members) else uses[0]
            last = len(found) if is_held or any(value in graph.outputs for value in members) else uses[-1]
            for place in set(range(first, last)) - set(uses):
                found[place] += align(self.bytes(tensor), self.layout.alignment)
        return tuple(found)

    @cached_property
    def _stores(self) -> dict[tuple[ir.Value, ...], int]:
        return {}

    def _gaps(self, tensor: ir.Value, uses: list[int]) -> Iterator[GapOfTensor]:
        size = align(self.bytes(tensor), self.layout.alignment)
        made = {m: self._made(m) for m in self._members[tensor]}
        for before, after in itertools.pairwise(uses) if size else ():
            if after == before + 1:
                continue
            live = tuple(m for m in made if made[m] <= before and self.reads.get(m, [-1])[-1] >= after)
            if not live:
                continue
            new = tuple(m for m in live if not self.is_backed(m))
            store = self._stores.setdefault(new, len(self._stores)) if new else None
            gap = Gap(before + 1, after - 1, size, self.bytes(tensor), store)
            yield GapOfTensor(gap, before, after, live)

    def _made(self, value: ir.Value) -> int:
        maker = value.producer()
        return -1 if maker is None or maker not in self.kernels else self.kernels[maker]

    def is_backed(self, value: ir.Value) -> bool:
        """Return whether the bytes of `value` are outside the fast memory as soon as it is made."""
        return value in self.inputs or value in self.outputs or value in self.weights or value in self.stored

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The bytes of the operands, results and workspaces of each node of the schedule, and of tensors that stay meanwhile."""
        unit = self.layout.alignment
        found = list(self._waiting)
        for node, place in self.kernels.items():
            spans: dict[int, list[tuple[int, int]]] = {}
            for value in self.touched[node]:
                alias_set = None if value in self.weights else self.layout.sharing.alias_sets.of.get(value)
                size, start = self.bytes(value), 0 if alias_set is None else alias_set.start(value)
                spans.setdefault(id(value if alias_set is None else alias_set), []).append((start, start + size))
            found[place] += sum(_covered(of_one, unit) for of_one in spans.values())
        for workspace in self.layout.workspaces:
            for place in range(workspace.buffer.lower, workspace.buffer.upper):
                found[place] += align(workspace.buffer.size, unit)
        return tuple(found)

    @property
    def forced(self) -> int:
        """The bytes that every plan copies: inputs and weights once, or their parts, and outputs once."""
        read = [v for v in (*self.inputs, *self.weights) if v in self.reads]
        parts = [node.outputs[0] for node in self.part_copies]
        return sum(map(self.bytes, (*read, *parts, *self.outputs)))

    @cached_property
    def placed(self) -> int:
        """The bytes copied for tensors whose place is the slow memory, apart from those of inputs and outputs."""
        views = {value for gap in self.absences for value in gap.values if not self.is_backed(value)}
        loaded = sum(self.bytes(value) for gap in self.absences for value in gap.values)
        return loaded + sum(map(self.bytes, (*self.stored, *views)))

    def problem(self, capacity: int) -> MovementProblem:
        """Return the problem for a fast memory of `capacity` bytes. Raises Infeasible where a kernel needs more."""
        over = [place for place, need in enumerate(self.needs) if need > capacity]
        if over:
            raise self._too_large(max(over, key=lambda place: (self.needs[place], -place)), len(over), capacity)
        gaps = tuple(one.gap for one in self.gaps)
        stores = tuple(max(map(self.bytes, values)) for values in self._stores)
        return MovementProblem(tuple(capacity - need for need in self.needs), gaps, stores)

    def _too_large(self, place: int, count: int, capacity: int) -> Infeasible:
        node, name = self.layout.schedule.nodes[place], self.layout.schedule.ids[place]
        more = f", and {count - 1:,} more operators need too many" if count > 1 else ""
        return Infeasible(
            f"the operator {name!r} ({operator_name(node)}) needs {self.needs[place]:,} bytes for its operands and results, more than the "
            f"{capacity:,} bytes of the fast memory{more}",
            hint="onnxtile fit cuts operators into smaller ones",
        )


def _covered(spans: Collection[tuple[int, int]], unit: int) -> int:
    """Return the bytes that `spans` cover, each rounded outwards to `unit`."""
    total, end = 0, 0
    for low, high in sorted(_rounded(spans, unit)):
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total


def _rounded(spans: Iterable[tuple[int, int]], unit: int) -> Iterator[tuple[int, int]]:
    return ((low // unit * unit, align(high, unit)) for low, high in spans if low < high)


# Lower bounds on the bytes copied that hold for more than whole tensors in one order.
#
# Both count the bytes of outputs, of weights, and of inputs as far as kernels read them, once each. The bound for parts adds what must
# leave the fast memory between two uses if any bytes of a tensor may stay.

ElementBox: TypeAlias = "tuple[tuple[int, int], ...]"
"""The elements of a tensor from a start to an end on each axis."""
_MOST_CELLS = 1 << 16


@dataclass(frozen=True)
class WideBounds:
    """The bounds for the order of `uses` and a fast memory of `capacity` bytes, and for any order."""

    uses: TensorUses
    capacity: int

    @cached_property
    def any_order(self) -> int:
        """The bytes that every plan of every order copies."""
        uses = replace(self.uses, cuts_inputs=True)
        read = [value for value in (*uses.inputs, *uses.weights) if value in uses.reads]
        sliced_inputs: dict[ir.Value, list[ir.Node]] = {}
        for node in uses.part_copies:
            source = node.inputs[0]
            assert source is not None
            sliced_inputs.setdefault(source, []).append(node)
        parts = (self._bytes_read(value, nodes) for value, nodes in sliced_inputs.items())
        return sum(map(uses.bytes, (*read, *uses.outputs))) + sum(parts)

    @cached_property
    def parts(self) -> int:
        """The bytes that every plan of this order copies, also where any bytes of a tensor stay and the others leave."""
        # An input that is cut needs no bytes of its own, so the bound holds for inputs as a whole, too.
        problem = replace(self.uses, cuts_inputs=True).problem(self.capacity)
        gaps = tuple(replace(gap, size=gap.loaded) for gap in problem.gaps if gap.loaded)
        return (
            self.any_order + self.uses.placed + (least_bytes(MovementProblem(problem.free, gaps, problem.stores)) or 0)
        )

    def _bytes_read(self, value: ir.Value, nodes: Iterable[ir.Node]) -> int:
        """Return the bytes of the input `value` that the Slices `nodes` read, at least."""
        sizes, nodes = self.uses.facts.shapes.sizes(value), list(nodes)
        boxes = [box for node in nodes if (box := self._box(node)) is not None]
        if sizes is None or len(boxes) < len(nodes):
            return max(self.uses.bytes(node.outputs[0]) for node in nodes)
        total = math.prod(sizes)
        return self.uses.bytes(value) * covered(boxes) // total if total else 0

    def _box(self, node: ir.Node) -> ElementBox | None:
        """Return the elements that a Slice reads; None where its steps are not all 1, or its bounds not known."""
        facts = self.uses.facts
        for result, starts in sliced(node, facts):
            lengths = facts.shapes.sizes(result)
            if lengths is not None:
                return tuple((start, start + length) for start, length in zip(starts, lengths, strict=True))
        return None


def covered(boxes: Sequence[ElementBox]) -> int:
    """Return the elements that are in at least one of `boxes`; those of the largest box where the boxes are too many."""
    cuts = [sorted({end for box in boxes for end in box[axis]}) for axis in range(len(boxes[0]))]
    if math.prod(len(ends) for ends in cuts) * len(boxes) > _MOST_CELLS:
        return max(math.prod(high - low for low, high in box) for box in boxes)
    cells = product(*(tuple(pairwise(ends)) for ends in cuts))
    return sum(math.prod(high - low for low, high in cell) for cell in cells if any(_holds(box, cell) for box in boxes))


def _holds(box: ElementBox, cell: Sequence[tuple[int, int]]) -> bool:
    return all(low <= first and last <= high for (low, high), (first, last) in zip(box, cell, strict=True))
