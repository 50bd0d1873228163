"""The uses of the tensors of a schedule, from which the problem of movement follows.

Every operand and result of a kernel is in the fast memory while it runs. A view and its source are one tensor here. A result that
overwrites an operand takes no further bytes, nor does an operand that lies in the result of a Concat.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

import onnx_ir as ir

from onnxtile.declare.layout_rules import FIXED, FixedRules
from onnxtile.kernels.aliases import LayoutFacts, sliced
from onnxtile.kernels.kernel_graph import ARENA, NONE, GraphKernel, KernelGraph
from onnxtile.model import keys
from onnxtile.model.functions import add_function
from onnxtile.model.opset import opset_of
from onnxtile.model.topology import all_values, bodies_of, dependencies
from onnxtile.planning.layout import NO_FIXED, Layout, RulesInMemories
from onnxtile.planning.movement.choice import Gap, MovementProblem, least_bytes
from onnxtile.planning.offsets.problem import align
from onnxtile.shapes.resolve import Shapes
from onnxtile.system.dataclass import dataclass
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


@dataclass
class CopyWriter:
    """Puts `nodes` of the graph of `model` (in place), of which `shapes` are known, into a schedule with the copies of a movement.

    Before the node at a place of `nodes`, the `copies` of this place are made; those of the place after the last node come at the end.
    `outputs` are copied to the slow memory. The Slices in `parts` are copies. Nodes in `once` make constants, and read no copies. The
    `memories` are the names of the fast and the slow one.
    """

    model: ir.Model
    shapes: Shapes
    memories: tuple[str, str]
    nodes: tuple[ir.Node, ...]
    copies: Mapping[int, Sequence[CopyToWrite]]
    outputs: Collection[ir.Value]
    parts: Collection[ir.Node]
    once: Collection[ir.Node]

    def __post_init__(self) -> None:
        self._fast, self._slow = self.memories
        self._names = {value.name for value in all_values(self.model)}
        self._inside: dict[ir.Value, ir.Value] = {}
        self._stored: dict[ir.Value, ir.Value] = {}
        self._old_names: dict[ir.Value, str] = {}
        self._schedule: list[ir.Node] = []
        self._written = WrittenCopies()
        self._function = _function(self.model, COPY, "Identity", 1).name

    def write(self) -> WrittenCopies:
        """Write the copies, and return them."""
        graph, held, steps = self.model.graph, dict[str, int](), list[int]()
        for position in range(len(self.nodes) + 1):
            for copy in self.copies.get(position, ()):
                source = self._make(copy, position)
                if copy.held is not None:
                    held[source] = copy.held
            if position < len(self.nodes):
                steps.append(len(self._schedule))
                self._run(self.nodes[position], position)
        self._written.held.update((name, steps[last]) for name, last in held.items())
        graph.remove(list(graph))
        graph.extend(self._schedule)
        return self._written

    def _run(self, node: ir.Node, position: int) -> None:
        """Put the kernel `node` at its place, if it is no copy."""
        if node not in self.parts:
            if node not in self.once:
                _read_copies(node, self._inside)
            self._add(node, position)
        for value in node.outputs:
            if value in self.outputs:
                self._old_names[value] = value.name or ""
                value.name = self._unique(value, self._fast)

    def _make(self, copy: CopyToWrite, position: int) -> str:
        """Make a copy at its place; return the name of the tensor that it reads."""
        value = copy.value
        source = self._stored.get(value, value) if copy.is_load else self._inside.get(value, value)
        if copy.part is not None:
            _read_copies(copy.part, self._inside)
            self._copy_part(copy.part, position)
        elif copy.is_load:
            self._inside[value] = self._copy(source, value, self._unique(value, self._fast), position)
        elif value in self._old_names:
            self._hand_out(value, position)
        else:
            self._stored[value] = stored = self._copy(source, value, self._unique(value, self._slow), position)
            self._written.stored[value.name or ""] = stored.name or ""
            self._written.slow.add(stored.name or "")
        return source.name or ""

    def _copy_part(self, node: ir.Node, position: int) -> None:
        """Put a call of a function that copies a part in the place of a Slice."""
        operands, result = list(node.inputs), node.outputs[0]
        source = operands[0]
        assert source is not None
        part = ir.Value(name=result.name, shape=result.shape, type=result.type)
        part.metadata_props.update(result.metadata_props)
        function = add_part_function(self.model, len(operands))
        call = ir.Node(keys.DOMAIN, function.name, operands, outputs=[part], name=node.name)
        call.metadata_props.update(node.metadata_props)
        for number in range(len(operands)):
            node.replace_input_with(number, None)
        self._inside[result] = part
        self._written.origin[part] = result
        self._written.tensor[part.name or ""] = source.name or ""
        self._add(call, position)

    def _add(self, node: ir.Node, position: int) -> None:
        self._schedule.append(node)
        self._written.places.append(position)

    def _hand_out(self, value: ir.Value, position: int) -> None:
        """Give the old name of the output `value` to a copy of it, which is the output."""
        name, outputs = self._old_names[value], self.model.graph.outputs
        places = [number for number, output in enumerate(outputs) if output is value]
        copy = self._copy(value, value, name, position)
        copy.metadata_props.update(value.metadata_props)
        for number in places:
            outputs[number] = copy
        # A constant is copied to the fast memory from where it is.
        if value.producer() not in self.once:
            self._stored[value] = copy
        self._written.slow.add(name)

    def _copy(self, source: ir.Value, origin: ir.Value, name: str, position: int) -> ir.Value:
        copy = ir.Value(name=name, shape=origin.shape, type=origin.type)
        function = self._function
        if self.shapes.dtype(origin) in _FEW_BITS:
            function = _function(self.model, f"{COPY}Bits", "CastLike", 1).name
        self._add(ir.Node(keys.DOMAIN, function, [source], outputs=[copy], name=f"{COPY}/{name}"), position)
        self._written.origin[copy] = origin
        self._written.tensor[name] = self._old_names.get(origin, origin.name or "")
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
    for reader in (node, *(inner for body in bodies_of(node) for inner in body.graph.all_nodes())):
        for number, value in enumerate(reader.inputs):
            if value is not None and value in copies:
                reader.replace_input_with(number, copies[value])
        for body in bodies_of(reader):
            for number, value in enumerate(body.graph.outputs):
                if value in copies:
                    body.graph.outputs[number] = copies[value]


def add_part_function(model: ir.Model, count: int) -> ir.Function:
    """Return the function of `model` that copies a part of its first operand, as a Slice with `count` operands says."""
    return _function(model, f"{COPY}Slice.{count}", "Slice", count)


def _function(model: ir.Model, name: str, operator: str, count: int) -> ir.Function:
    """Return the function `name` of `model`, which is made where there is none, with one node `operator` of `count` operands.

    CastLike reads its operand twice, and so makes tensors of the same type.
    """
    is_cast = operator == "CastLike"
    known = model.functions.get((keys.DOMAIN, name, ""))
    if known is not None:
        return known
    operands, result = [ir.Value(name=f"x{number}") for number in range(count)], ir.Value(name="y")
    node = ir.Node("", operator, operands * 2 if is_cast else operands, outputs=[result], name=operator)
    function = add_function(model, name, [node], operands, [result], {"": opset_of(model) or 1})
    function.doc_string = "Copies its operand, or a part of it, into another memory."
    function.metadata_props[keys.COPY] = "Identity" if is_cast else operator
    return function


# Residence: tensors that a user places in the fast or the slow memory, or keeps, in a plan with copies between both.
#
# A tensor placed in the fast memory never leaves it. One placed in the slow memory is copied there when it is made, and copied in for its
# uses. A kept tensor without a place has its bytes in the slow memory to the end of the run.


@dataclass(frozen=True)
class Residence:
    """The names of tensors that `stay` in the fast memory, that `leave` it between uses, and that are `held` there for the whole run.

    Those in `stored` have bytes in the slow memory as soon as they are made. `fixed` are the rules that say so.
    """

    stay: frozenset[str] = frozenset()
    leave: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    fixed: RulesInMemories = NO_FIXED

    @classmethod
    def from_rules(cls, fixed: RulesInMemories, lasting: Iterable[str] = ()) -> Residence:
        """Return the residence that `fixed` asks for, in the fast and the slow memory; `lasting` inputs are not overwritten."""
        fast, slow = fixed.capacities
        stay = frozenset(name for name, memory in fixed.places.items() if memory == fast)
        leave = frozenset(name for name, memory in fixed.places.items() if memory == slow)
        kept = frozenset(fixed.keeps)
        return cls(stay, leave, leave | (kept - stay), kept.union(lasting) & stay, fixed)

    @property
    def apart(self) -> FixedRules:
        """The rules by which tensors share bytes with nothing in the fast memory."""
        return FixedRules(keeps=tuple(name for name in self.fixed.keeps if name in self.stay))

    def require_possible(self, inputs: Iterable[str], workspaces: Iterable[str], io: str) -> None:
        """Raise UsageError for a placed or kept input outside the memories, and for a workspace in the slow one."""
        outside = set() if io == "inside" else set(inputs)
        for name in self.fixed.fixed_names:
            if name in outside:
                raise UsageError(f"{name!r} has no address in an arena: a graph input", hint="add --io inside")
        for name in workspaces:
            if name in self.leave:
                slow = self.fixed.places[name]
                raise UsageError(
                    f"the workspace {name!r} is used by a kernel, so it cannot be in the slow memory {slow!r}"
                )

    def moved(self, written: WrittenCopies) -> FixedRules:
        """Return the rules for a model with the copies `written`: those of tensors in the slow memory are for the values there."""
        return self.fixed.renamed(lambda name: written.stored.get(name, name) if name in self.stored else name)


NO_RESIDENCE = Residence()
"""No tensor is placed or kept."""


def without_marks(model: ir.Model) -> None:
    """Remove the rules in the metadata of the values of `model` (in place)."""
    for value in all_values(model):
        for rule in FIXED.values():
            value.metadata_props.pop(rule.mark, None)


RULES = frozenset({"view", "in place", "join"})
"""The rules of aliases by which kernels need fewer bytes. Parts of a tensor that are read in place would need the whole tensor."""

_INLINE = 64
"""Bytes: smaller constants are read where they are, because kernels take them as parameters."""


@dataclass(frozen=True)
class GapOfTensor:
    """A gap, its numbers of uses before and after in the schedule, and the `tensors` that are read afterwards."""

    gap: Gap
    before: int
    after: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class TensorUses:
    """The uses of the tensors of `layout`, whose inputs start in the slow memory, and whose outputs end there.

    With `streams_weights`, constants are copied to the fast memory before they are read. With `cuts_inputs`, an input that only Slices read
    is never in the fast memory as a whole: each Slice copies its part. `residence` has the tensors with a fixed memory. `facts` say which
    elements a Slice reads.
    """

    layout: Layout
    facts: LayoutFacts
    streams_weights: bool
    cuts_inputs: bool = False
    residence: Residence = NO_RESIDENCE

    @property
    def graph(self) -> KernelGraph:
        """The kernels and tensors."""
        return self.layout.graph

    def name(self, tensor: int) -> str:
        """Return the name of `tensor`."""
        return self.graph.tensors[tensor].name

    def bytes(self, tensor: int) -> int:
        """Return the bytes of `tensor`."""
        return self.graph.tensors[tensor].bytes or 0

    @cached_property
    def kernels(self) -> dict[int, int]:
        """The kernels that run in each inference, with their places in the schedule."""
        kernels = self.graph.kernels
        return {
            number: position
            for position, number in enumerate(self.layout.schedule.order)
            if not kernels[number].is_constant or any(map(self._is_made, kernels[number].makes))
        }

    def _is_made(self, tensor: int) -> bool:
        """Return whether a kernel makes `tensor`: it is no constant, or one that stays in the fast memory.

        Another output that is constant is copied from the constants.
        """
        return not self.graph.tensors[tensor].is_constant or self.name(tensor) in self.residence.stay

    @cached_property
    def inputs(self) -> frozenset[int]:
        """The inputs of the graph that have bytes, and are copied as a whole."""
        moved = (t for t in self._given if self.name(t) not in self.residence.stay)
        return frozenset(t for t in moved if not (self.cuts_inputs and self.is_cut(t)))

    @cached_property
    def _given(self) -> tuple[int, ...]:
        return tuple(t for t in self.graph.given if self.graph.tensors[t].role == ARENA and self.bytes(t))

    @cached_property
    def part_copies(self) -> dict[int, None]:
        """The Slices that copy a part of an input from the slow memory."""
        if not self.cuts_inputs:
            return {}
        cut = {tensor for tensor in self._given if self.is_cut(tensor)}
        return {number: None for number in self.kernels if cut.intersection(self.graph.kernels[number].operands[:1])}

    def is_cut(self, tensor: int) -> bool:
        """Return whether all readers of the input `tensor` are Slices whose results are not graph outputs."""
        readers = [number for number in self.graph.readers[tensor] if number in self.kernels]
        is_whole = tensor in self.graph.outputs or self.name(tensor) in self.residence.stay
        return bool(readers) and not is_whole and all(self._is_slice(number, tensor) for number in readers)

    def _is_slice(self, number: int, tensor: int) -> bool:
        kernel = self.graph.kernels[number]
        is_plain = kernel.operator == "Slice" and kernel.move == "cut" and not kernel.node.attributes
        reads_once = kernel.operands.count(tensor) == 1 and kernel.operands[0] == tensor
        return is_plain and reads_once and self.bytes(kernel.makes[0]) > 0 and kernel.makes[0] not in self.graph.outputs

    @cached_property
    def outputs(self) -> frozenset[int]:
        """The outputs of the graph that kernels make, that have bytes, and that do not stay in the fast memory."""
        graph = self.graph
        outputs = (t for t in graph.outputs if graph.tensors[t].role == ARENA and graph.makers[t] != NONE)
        return frozenset(t for t in outputs if self.bytes(t) and self.name(t) not in self.residence.stay)

    @cached_property
    def stored(self) -> dict[int, int]:
        """The tensors that are copied to the slow memory because they have a place there, each with the place of its kernel."""
        positions = {t: position for number, position in self.kernels.items() for t in self.graph.kernels[number].makes}
        wanted = ((t, position) for t, position in positions.items() if self.name(t) in self.residence.stored)
        return {t: position for t, position in wanted if self.bytes(t) and t not in self.outputs}

    @cached_property
    def weights(self) -> dict[int, None]:
        """The constants that are copied to the fast memory, in the order in which they are read."""
        kernels = [self.graph.kernels[number] for number in (self.kernels if self.streams_weights else ())]
        # A constant that stays in the fast memory is made from constants as they are: so it can be computed before the run for others.
        read = (tensor for kernel in kernels if not kernel.is_constant for tensor, _ in kernel.reads)
        return {tensor: None for tensor in read if not self._is_made(tensor) and self._is_weight(tensor)}

    def _is_weight(self, tensor: int) -> bool:
        """Return whether `tensor` is more than a parameter of kernels, such as a shape."""
        return self.bytes(tensor) > _INLINE and self.graph.tensors[tensor].dtype not in {"INT64", "BOOL"}

    @cached_property
    def _root(self) -> dict[int, int]:
        """The tensor that stands for all views of it, by tensor."""
        roots: dict[int, int] = {}
        for tensor in filter(self._is_made, self.layout.sharing.alias_sets.of):
            views = (a.operand for a in self.layout.sharing.shares.get(tensor, ()) if a.kind == "view")
            source = next((source for source in views if source in roots), None)
            roots[tensor] = tensor if source is None else roots[source]
        roots.update((weight, weight) for weight in self.weights)
        return roots

    @cached_property
    def touched(self) -> dict[int, tuple[int, ...]]:
        """The tensors that each kernel reads and makes and that are in the fast memory meanwhile."""
        return {
            number: tuple(
                t for t in dict.fromkeys((*self._read(number), *self.graph.kernels[number].makes)) if t in self._root
            )
            for number in self.kernels
        }

    def _read(self, number: int) -> tuple[int, ...]:
        """Return the tensors that a kernel reads in the fast memory, or as constants."""
        kernel = self.graph.kernels[number]
        if kernel.is_constant:
            return ()
        if number in self.part_copies:
            return tuple(tensor for tensor in dict.fromkeys(kernel.operands[1:]) if tensor != NONE)
        return tuple(read.tensor for read in kernel.reads)

    @cached_property
    def reads(self) -> dict[int, list[int]]:
        """The places of the kernels that read each tensor."""
        reads: dict[int, list[int]] = {}
        for number, position in self.kernels.items():
            for tensor in self._read(number):
                if tensor in self._root:
                    reads.setdefault(tensor, []).append(position)
        return reads

    @cached_property
    def _uses(self) -> dict[int, list[int]]:
        uses: dict[int, list[int]] = {}
        for number, position in self.kernels.items():
            for root in dict.fromkeys(self._root[tensor] for tensor in self.touched[number]):
                uses.setdefault(root, []).append(position)
        return uses

    def next_use(self, tensor: int, position: int) -> int | None:
        """Return the place of the first kernel after `position` that touches `tensor` or a view of it; None for none."""
        uses = self._uses.get(self._root.get(tensor, tensor), [])
        at = bisect_right(uses, position)
        return uses[at] if at < len(uses) else None

    @cached_property
    def _members(self) -> dict[int, list[int]]:
        members: dict[int, list[int]] = {}
        for tensor, root in self._root.items():
            members.setdefault(root, []).append(tensor)
        return members

    @cached_property
    def gaps(self) -> tuple[GapOfTensor, ...]:
        """The gaps between two uses of a tensor, with a kernel between them, in which it may stay or leave."""
        free = (root for root in self._uses if not self._stays(root) and not self._leaves(root))
        return tuple(gap for root in free for gap in self._gaps(root, self._uses[root]))

    @cached_property
    def absences(self) -> tuple[GapOfTensor, ...]:
        """The gaps in which a tensor leaves because its place is the slow memory."""
        placed = [root for root in self._uses if self._leaves(root)]
        return tuple(gap for root in placed for gap in self._gaps(root, self._uses[root]))

    def _stays(self, root: int) -> bool:
        return any(self.name(tensor) in self.residence.stay for tensor in self._members[root])

    def _leaves(self, root: int) -> bool:
        return any(self.name(tensor) in self.residence.leave for tensor in self._members[root])

    @cached_property
    def _waiting(self) -> tuple[int, ...]:
        """The bytes in each step of tensors that stay in the fast memory, and that its kernel does not touch."""
        waiting = [0] * len(self.layout.schedule.order)
        for root in filter(self._stays, self._uses):
            uses, members = self._uses[root], self._members[root]
            is_held = any(self.name(tensor) in self.residence.held for tensor in members)
            first = 0 if is_held or not set(self.graph.inputs).isdisjoint(members) else uses[0]
            last = len(waiting) if is_held or not set(self.graph.outputs).isdisjoint(members) else uses[-1]
            for position in set(range(first, last)) - set(uses):
                waiting[position] += align(self.bytes(root), self.layout.alignment)
        return tuple(waiting)

    @cached_property
    def _stores(self) -> dict[tuple[int, ...], int]:
        return {}

    def _gaps(self, root: int, uses: list[int]) -> Iterator[GapOfTensor]:
        size = align(self.bytes(root), self.layout.alignment)
        born_at = {tensor: self.kernels.get(self.graph.makers[tensor], -1) for tensor in self._members[root]}
        for before, after in itertools.pairwise(uses) if size else ():
            if after == before + 1:
                continue
            live = tuple(t for t in born_at if born_at[t] <= before and self.reads.get(t, [-1])[-1] >= after)
            if not live:
                continue
            new = tuple(tensor for tensor in live if not self.is_backed(tensor))
            store = self._stores.setdefault(new, len(self._stores)) if new else None
            gap = Gap(before + 1, after - 1, size, self.bytes(root), store)
            yield GapOfTensor(gap, before, after, live)

    def is_backed(self, tensor: int) -> bool:
        """Return whether the bytes of `tensor` are outside the fast memory as soon as it is made."""
        return any(tensor in held for held in (self.inputs, self.outputs, self.weights, self.stored))

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The bytes of the operands, results and workspaces of each kernel of the schedule, and of tensors that stay meanwhile."""
        unit, alias_sets = self.layout.alignment, self.layout.sharing.alias_sets.of
        needs = list(self._waiting)
        for number, position in self.kernels.items():
            spans: dict[tuple[bool, int], list[tuple[int, int]]] = {}
            for tensor in self.touched[number]:
                # A weight that is an output is copied from the constants, beside its bytes in the arena.
                alias_set = None if tensor in self.weights else alias_sets.get(tensor)
                start = 0 if alias_set is None else alias_set.start(tensor)
                held = spans.setdefault((alias_set is None, tensor if alias_set is None else alias_set.owner), [])
                held.append((start, start + self.bytes(tensor)))
            needs[position] += sum(_covered(of_one, unit) for of_one in spans.values())
        for workspace in self.layout.workspaces:
            for position in range(workspace.buffer.lower, workspace.buffer.upper):
                needs[position] += align(workspace.buffer.size, unit)
        return tuple(needs)

    @property
    def forced(self) -> int:
        """The bytes that every plan copies: inputs and weights once, or their parts, and outputs once."""
        read = [tensor for tensor in (*self.inputs, *self.weights) if tensor in self.reads]
        parts = [self.graph.kernels[number].makes[0] for number in self.part_copies]
        return sum(map(self.bytes, (*read, *parts, *self.outputs)))

    @cached_property
    def placed(self) -> int:
        """The bytes copied for tensors whose place is the slow memory, apart from those of inputs and outputs."""
        views = {tensor for gap in self.absences for tensor in gap.tensors if not self.is_backed(tensor)}
        loaded = sum(self.bytes(tensor) for gap in self.absences for tensor in gap.tensors)
        return loaded + sum(map(self.bytes, (*self.stored, *views)))

    def problem(self, capacity: int) -> MovementProblem:
        """Return the problem for a fast memory of `capacity` bytes. Raises Infeasible where a kernel needs more."""
        over = [position for position, need in enumerate(self.needs) if need > capacity]
        if over:
            raise self._too_large(
                max(over, key=lambda position: (self.needs[position], -position)), len(over), capacity
            )
        gaps = tuple(entry.gap for entry in self.gaps)
        stores = tuple(max(map(self.bytes, tensors)) for tensors in self._stores)
        return MovementProblem(tuple(capacity - need for need in self.needs), gaps, stores)

    def _too_large(self, position: int, count: int, capacity: int) -> Infeasible:
        kernel = self.graph.kernels[self.layout.schedule.order[position]]
        more = f", and {count - 1:,} more operators need too many" if count > 1 else ""
        return Infeasible(
            f"the operator {kernel.name!r} ({kernel.operator}) needs {self.needs[position]:,} bytes for its operands and results, "
            f"more than the {capacity:,} bytes of the fast memory{more}",
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


def any_order_bound(uses: TensorUses) -> int:
    """Return the bytes that every plan of every order copies."""
    uses = replace(uses, cuts_inputs=True)
    read = [tensor for tensor in (*uses.inputs, *uses.weights) if tensor in uses.reads]
    sliced_inputs: dict[int, list[GraphKernel]] = {}
    for kernel in (uses.graph.kernels[number] for number in uses.part_copies):
        sliced_inputs.setdefault(kernel.operands[0], []).append(kernel)
    parts = (_bytes_read(tensor, kernels, uses) for tensor, kernels in sliced_inputs.items())
    return sum(map(uses.bytes, (*read, *uses.outputs))) + sum(parts)


def parts_bound(uses: TensorUses, capacity: int) -> int:
    """Return the bytes that every plan of the order of `uses` copies into and out of a fast memory of `capacity` bytes.

    Any bytes of a tensor may stay there, and the others leave.
    """
    # An input that is cut needs no bytes of its own, so the bound holds for inputs as a whole, too.
    problem = replace(uses, cuts_inputs=True).problem(capacity)
    gaps = tuple(replace(gap, size=gap.loaded) for gap in problem.gaps if gap.loaded)
    between = least_bytes(MovementProblem(problem.free, gaps, problem.stores)) or 0
    return any_order_bound(uses) + uses.placed + between


def _bytes_read(tensor: int, kernels: Sequence[GraphKernel], uses: TensorUses) -> int:
    """Return the bytes of the input `tensor` that the Slices `kernels` read, at least."""
    dims = uses.graph.tensors[tensor].dims
    boxes = [box for kernel in kernels if (box := _box(kernel, uses)) is not None]
    if dims is None or len(boxes) < len(kernels):
        return max(uses.bytes(kernel.makes[0]) for kernel in kernels)
    total = math.prod(dims)
    return uses.bytes(tensor) * covered(boxes) // total if total else 0


def _box(kernel: GraphKernel, uses: TensorUses) -> ElementBox | None:
    """Return the elements that a Slice reads; None where its steps are not all 1, or its bounds not known."""
    lengths = uses.graph.tensors[kernel.makes[0]].dims
    for _, starts in sliced(kernel.node, uses.facts) if lengths is not None else ():
        return tuple((start, start + length) for start, length in zip(starts, lengths or (), strict=True))
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
