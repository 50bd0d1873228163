"""A graph as kernels and tensors by number, without ONNX: which bytes each kernel reads and makes, and how long they are live.

A kernel is what runs as one: a node, a meta-op, a quantised island. Whoever plans, orders or places works on these numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from onnxtile.declare.layout_rules import FixedRules
from onnxtile.system.dataclass import dataclass

ARENA, CONSTANT, OUTSIDE, UNKNOWN, AROUND = "arena", "constant", "outside", "unknown", "around"
"""The roles of tensors. A tensor of the role "around" belongs to the graph around the body that reads it."""

NONE = -1
"""The number of an operand that is left out, and of the kernel that makes an input or a constant of the file."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """A value of a graph. It has bytes in the arena, unless its `role` is another; `reason` says why it is outside, or not known.

    `bytes` and `dims` are those of the largest sizes; None where they are not known. `granule` is the alignment of its elements in bytes.
    With `is_constant` it has the same value in each run; a constant that is an output may have bytes in the arena.
    `value` is for readers and writers of models.
    """

    name: str
    role: str = ARENA
    bytes: int | None = 0
    dtype: str | None = None
    dims: tuple[int, ...] | None = None
    granule: int = 1
    reason: str = ""
    is_constant: bool = False
    value: Any = field(default=None, compare=False, repr=False)


class ByteSpan(NamedTuple):
    """The bytes [start, end) of a tensor or buffer."""

    start: int
    end: int


class TensorRead(NamedTuple):
    """The bytes `spans` of `tensor` are read; None for all of them."""

    tensor: int
    spans: tuple[ByteSpan, ...] | None = None


class Share(NamedTuple):
    """`result` may have bytes of `operand`, by the rule `kind`: "view", "cut", "join", "in place" or "state".

    `at` is the start of `result` in bytes after the start of `operand`. It is negative for the result of a Concat and its later operands.
    """

    kind: str
    result: int
    operand: int
    at: int = 0


IN_PLACE = "in place"


@dataclass(frozen=True, slots=True)
class GraphKernel:
    """What runs as one.

    `operands` are its inputs by place, `reads` the tensors that it reads with those that only its bodies read, each once. It makes the
    tensors `makes`, and those `inside` while it runs as one. `shares` are the bytes that results may share with operands. With
    `is_constant`, all its results are constants. `move` says what it does where it only moves bytes: "view", "cut" or "join". Of one that
    `is_tile`, the parts are always in place, since tiles are addressed so. `node` is for readers and writers of models.
    """

    name: str
    operator: str = ""
    operands: tuple[int, ...] = ()
    reads: tuple[TensorRead, ...] = ()
    makes: tuple[int, ...] = ()
    inside: tuple[int, ...] = ()
    shares: tuple[Share, ...] = ()
    is_constant: bool = False
    move: str | None = None
    is_tile: bool = False
    bodies: tuple[KernelBody, ...] = ()
    node: Any = field(default=None, compare=False, repr=False)


class KernelBody(NamedTuple):
    """The graph in the `attribute` of a kernel; None for that of the function that it calls."""

    attribute: str | None
    graph: KernelGraph


class StateShare(NamedTuple):
    """The tensors that are one state: the `output` of a run is the `input` of the next."""

    input: int
    output: int


@dataclass(frozen=True)
class Schedule:
    """The kernels of a graph in the order in which they run.

    Each kernel is a step of its own, unless `numbers` says which step each is in: kernels of one step run in any order, or at once.
    """

    order: tuple[int, ...] = field(repr=False)
    numbers: tuple[int, ...] = field(default=(), repr=False)

    @cached_property
    def steps(self) -> dict[int, int]:
        """The step of each kernel, in the order of the schedule."""
        return dict(zip(self.order, self.numbers or range(len(self.order)), strict=True))

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.numbers[-1] + 1 if self.numbers else len(self.order)


@dataclass(frozen=True)
class KernelGraph:
    """Tensors, and kernels in a valid order, both by number.

    `given` are the inputs in the arena: they are there before the first step, and keep their bytes to the end where `keeps_given`. So do
    the tensors in `lasting`: the outputs in the arena. `apart` share bytes with nothing in the whole run. `inputs` and `outputs` are all of
    them. In a body that `repeats`, a state whose input and output cannot have one address is no state, but an input and an output.
    The kernels of each of `streams` run in this order: they read the rows of an input that come one after the other.
    """

    tensors: tuple[GraphTensor, ...]
    kernels: tuple[GraphKernel, ...]
    given: tuple[int, ...] = ()
    lasting: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    states: tuple[StateShare, ...] = ()
    keeps_given: bool = True
    repeats: bool = False
    streams: tuple[tuple[int, ...], ...] = ()
    apart: frozenset[int] = frozenset()

    @cached_property
    def kept(self) -> frozenset[int]:
        """The tensors that must outlive the run in the arena."""
        before = {state.input for state in self.states}
        given = (tensor for tensor in self.given if tensor not in before) if self.keeps_given else ()
        return frozenset((*self.lasting, *given, *self.apart))

    @cached_property
    def makers(self) -> tuple[int, ...]:
        """The kernel that makes each tensor; NONE for inputs, constants of the file, and tensors around the graph."""
        makers = [NONE] * len(self.tensors)
        for number, kernel in enumerate(self.kernels):
            for tensor in kernel.makes:
                makers[tensor] = number
        return tuple(makers)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """The kernels that read each tensor, in their order."""
        readers: list[list[int]] = [[] for _ in self.tensors]
        for number, kernel in enumerate(self.kernels):
            for read in kernel.reads:
                readers[read.tensor].append(number)
        return tuple(map(tuple, readers))

    @cached_property
    def after(self) -> tuple[tuple[int, ...], ...]:
        """The kernels that make what each kernel reads, and the one before it in a stream, in their order."""
        makers = self.makers
        before = {later: {earlier} for stream in self.streams for earlier, later in pairwise(stream)}
        return tuple(
            tuple(sorted({makers[read.tensor] for read in kernel.reads} - {NONE} | before.get(number, set())))
            for number, kernel in enumerate(self.kernels)
        )

    @cached_property
    def partial_reads(self) -> tuple[TensorRead, ...]:
        """The reads of some bytes of a tensor, in the order of the kernels."""
        return tuple(read for kernel in self.kernels for read in kernel.reads if read.spans is not None)

    @cached_property
    def views(self) -> dict[int, int]:
        """The operand that each view has the bytes of, in the order in which views are made."""
        return {share.result: share.operand for share in self.shares() if share.kind == "view"}

    def root(self, tensor: int) -> int:
        """Return the tensor that `tensor` is a view of, through any number of views; `tensor` itself where it is none."""
        while tensor in self.views:
            tensor = self.views[tensor]
        return tensor

    def shares(self, schedule: Schedule | None = None) -> Iterator[Share]:
        """Yield the shares of all kernels, in the order of `schedule`, or of the kernels."""
        kernels = self.kernels if schedule is None else map(self.kernels.__getitem__, schedule.order)
        return (share for kernel in kernels for share in kernel.shares)

    def sharing_by(self, kinds: Collection[str] | None) -> KernelGraph:
        """Return the graph whose tensors share bytes by these rules alone, and as views; the graph itself for None."""
        if kinds is None:
            return self
        kept = {"view", *kinds}
        return replace(self, kernels=self._sharing(lambda share: share.kind in kept))

    def under(self, rules: FixedRules) -> KernelGraph:
        """Return the graph in which the tensors that `rules` keep share bytes with nothing."""
        if not rules.keeps:
            return self
        held = (*self.given, *(tensor for kernel in self.kernels for tensor in kernel.makes))
        apart = frozenset(tensor for tensor in held if self.tensors[tensor].name in rules.keeps)
        kernels = self._sharing(lambda share: apart.isdisjoint((share.result, share.operand)))
        return replace(self, kernels=kernels, apart=apart)

    def _sharing(self, allowed: Callable[[Share], bool]) -> tuple[GraphKernel, ...]:
        """Return the kernels whose results share bytes by the `allowed` shares alone."""
        return tuple(replace(kernel, shares=tuple(filter(allowed, kernel.shares))) for kernel in self.kernels)

    def is_free(self, state: StateShare) -> bool:
        """Return whether input and output of `state` may have one address."""
        return self.apart.isdisjoint(state)

    @cached_property
    def own_order(self) -> Schedule:
        """The kernels in their order, each in a step of its own."""
        return Schedule(tuple(range(len(self.kernels))))

    def ids(self, schedule: Schedule) -> tuple[str, ...]:
        """Return the names of the kernels in the order of `schedule`."""
        return tuple(self.kernels[number].name for number in schedule.order)

    def sizes(self, schedule: Schedule) -> dict[int, int]:
        """Return the bytes of each tensor in the arena, in the order in which they are made."""
        given = (tensor for tensor in self.given if self.tensors[tensor].role == ARENA)
        results = (tensor for tensor in self.results(schedule) if self.tensors[tensor].role == ARENA)
        return {tensor: self.tensors[tensor].bytes or 0 for tensor in (*given, *results)}

    def results(self, schedule: Schedule) -> Iterator[int]:
        """Yield the tensors that kernels make, in the order in which they are made."""
        return (tensor for number in schedule.order for tensor in self.kernels[number].makes)

    def is_one_size(self, a: int, b: int) -> bool:
        """Return whether both tensors have one element type and one size, and both are known; not where one is NONE."""
        if NONE in (a, b) or self.tensors[a].bytes is None:
            return False
        return self.tensors[a].bytes == self.tensors[b].bytes and self.tensors[a].dtype == self.tensors[b].dtype

    def is_computed(self, kernel: GraphKernel) -> bool:
        """Return whether `kernel` runs before the run: it makes constants, none of which is an output."""
        return kernel.is_constant and all(self.tensors[tensor].role == CONSTANT for tensor in kernel.makes)

    def makes_constants(self, kernel: GraphKernel) -> bool:
        """Return whether `kernel` makes constants outside the arena."""
        return kernel.is_constant and all(self.tensors[tensor].role != ARENA for tensor in kernel.makes)

    def without(self, states: Sequence[StateShare]) -> KernelGraph:
        """Return the graph in which `states` are no states, but inputs and outputs."""
        return replace(self, states=tuple(state for state in self.states if state not in states))


# Live ranges: the steps in which bytes of a tensor must be kept, and the live bytes of each step.


Ints = npt.NDArray[np.int64]

LiveRange = tuple[int, int]
"""Half-open, in steps."""


def merged(first: LiveRange, second: LiveRange) -> LiveRange:
    """Return the live range of bytes that two tensors share."""
    return min(first[0], second[0]), max(first[1], second[1])


# Bytes with live ranges of their own.


class LivePart(NamedTuple):
    """The bytes [start, end) of a buffer, counted from its start, are live in the steps [lower, upper)."""

    start: int
    end: int
    lower: int
    upper: int


def union(parts: Iterable[LivePart]) -> tuple[LivePart, ...]:
    """Return disjoint parts of the same bytes and steps, ordered by bytes, then by steps: the same for every way to cut them.

    Neighbouring bytes with equal live ranges are one part. Parts without bytes or steps are left out.
    """
    given = sorted(part for part in parts if part.start < part.end and part.lower < part.upper)
    cuts = sorted({byte for part in given for byte in (part.start, part.end)})
    disjoint: list[LivePart] = []
    # The live ranges of the bytes before the present ones, and the place of their first part in `found`.
    before: tuple[tuple[int, int], ...] = ()
    begin, taken = 0, 0
    active: list[LivePart] = []
    for start, end in pairwise(cuts):
        while taken < len(given) and given[taken].start <= start:
            active.append(given[taken])
            taken += 1
        active = [part for part in active if part.end > start]
        live = joined_ranges((part.lower, part.upper) for part in active)
        if live == before and disjoint and disjoint[-1].end == start:
            disjoint[begin:] = [part._replace(end=end) for part in disjoint[begin:]]
            continue
        before, begin = live, len(disjoint)
        disjoint += (LivePart(start, end, lower, upper) for lower, upper in live)
    return tuple(disjoint)


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return the steps of `ranges` as ordered ranges with steps between them."""
    joined: list[tuple[int, int]] = []
    for lower, upper in sorted(ranges):
        if joined and lower <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], upper))
        else:
            joined.append((lower, upper))
    return tuple(joined)


def rounded(parts: Iterable[LivePart], unit: int) -> tuple[LivePart, ...]:
    """Return `parts` with their bytes rounded outwards to multiples of `unit`; one without bytes has none then, too."""
    full = (part for part in parts if part.start < part.end)
    return union(part._replace(start=part.start // unit * unit, end=-(-part.end // unit) * unit) for part in full)


def by_steps(parts: Iterable[LivePart]) -> Iterator[LivePart]:
    """Yield the same bytes and steps, cut by steps: as many bytes in a row as are live together, for as long as they are.

    >>> [tuple(part) for part in by_steps([LivePart(0, 4, 1, 3), LivePart(4, 8, 0, 3)])]
    [(4, 8, 0, 1), (0, 8, 1, 3)]
    """
    parts = sorted(parts)
    steps = sorted({step for part in parts for step in (part.lower, part.upper)})
    open_: dict[tuple[int, int], int] = {}
    for step in steps:
        runs: list[tuple[int, int]] = []
        for part in parts:
            if part.lower <= step < part.upper:
                is_next = bool(runs) and runs[-1][1] == part.start
                runs.append((runs.pop()[0] if is_next else part.start, part.end))
        for run in [run for run in open_ if run not in runs]:
            yield LivePart(*run, open_.pop(run), step)
        open_.update((run, step) for run in runs if run not in open_)


class LiveChange(NamedTuple):
    """A change of the live bytes in the steps [lower, upper)."""

    bytes: int
    lower: int
    upper: int


def live_sums(lower: Ints, upper: Ints, sizes: Ints, end: int) -> Ints:
    """Return the sum of `sizes` that are live in each step before `end`: each in the steps [lower, upper). They may have further axes."""
    change = np.zeros((end + 1, *sizes.shape[1:]), np.int64)
    np.add.at(change, lower, sizes)
    np.subtract.at(change, upper, sizes)
    return np.cumsum(change, axis=0)[:-1]


def fullest(live: Ints, lower: Ints, upper: Ints) -> Ints:
    """Return the most `live` bytes in each of the ranges of steps [lower, upper), by tables of powers of two."""
    most = np.zeros(len(lower), np.int64)
    table, width, length = live, 1, upper - lower
    while len(most) and width <= int(length.max()):
        fits = (length >= width) & (length < 2 * width)
        most[fits] = np.maximum(table[lower[fits]], table[upper[fits] - width])
        table, width = np.maximum(table[:-width], table[width:]), 2 * width
    return most


def distinct(numbers: Ints) -> Ints:
    """Return each of `numbers` once, in ascending order, as np.unique does, which loads numpy.ma in 10 milliseconds."""
    ordered = np.sort(numbers)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


class LiveSums:
    """The live bytes of each step before `end`, of all changes added so far. A change takes two additions, however long it lasts."""

    def __init__(self, end: int) -> None:
        self._change: Ints = np.zeros(end + 2, np.int64)
        self._known: Ints | None = None

    def add(self, changes: Iterable[LiveChange], sign: int = 1) -> None:
        """Add `changes`, or remove them with a `sign` of -1."""
        for size, lower, upper in changes:
            self._change[lower] += sign * size
            self._change[upper] -= sign * size
        self._known = None

    @property
    def in_steps(self) -> Ints:
        """The live bytes of each step."""
        if self._known is None:
            self._known = np.cumsum(self._change)
        return self._known

    def with_known(self, known: Ints) -> None:
        """Say that the live bytes are `known`, since what was added to these has been removed."""
        self._known = known


# The live ranges of the tensors of a graph.


def live_ranges(graph: KernelGraph, schedule: Schedule) -> dict[int, LiveRange]:
    """Return the live range of each input in the arena, then of each tensor that a kernel makes, in the order of kernels.

    It starts with the step that makes the tensor, and ends after the last step that reads it, or after its own if none does. Inputs are
    live from the first step on, kept tensors to the last. Tensors that share bytes with nothing are live in all steps.
    """
    lives: dict[int, LiveRange] = dict.fromkeys(graph.given, (0, 1))
    for number, step in schedule.steps.items():
        kernel = graph.kernels[number]
        for tensor, _ in kernel.reads:
            if tensor in lives:
                lives[tensor] = (lives[tensor][0], step + 1)
        lives.update(dict.fromkeys(kernel.makes, (step, step + 1)))
    for tensor in graph.kept & lives.keys():
        first = 0 if tensor in graph.apart else lives[tensor][0]
        lives[tensor] = (first, max(schedule.end, 1))
    return lives


def with_states(ranges: Mapping[int, LiveRange], graph: KernelGraph, schedule: Schedule) -> dict[int, LiveRange]:
    """Return `ranges` in which the inputs of states keep their bytes in all steps: the next run reads these, too."""
    whole = (0, max(schedule.end, 1))
    return {**ranges, **{state.input: whole for state in graph.states if state.input in ranges}}


def live_parts(
    graph: KernelGraph, schedule: Schedule, ranges: Mapping[int, LiveRange]
) -> dict[int, tuple[LivePart, ...]]:
    """Return the live ranges of the bytes of each tensor that dies part by part: the last to read it read only some of its bytes.

    Bytes that no kernel reads are live in the step that makes them.
    """
    reads: dict[int, list[tuple[int, tuple[ByteSpan, ...] | None]]] = {read.tensor: [] for read in graph.partial_reads}
    for number, step in schedule.steps.items() if reads else ():
        for tensor, spans in graph.kernels[number].reads:
            if tensor in reads:
                reads[tensor].append((step + 1, spans))
    parts_of = {}
    for tensor, ends in reads.items():
        size = graph.tensors[tensor].bytes
        if tensor not in ranges or tensor in graph.kept or not size:
            continue
        lower = ranges[tensor][0]
        whole = max((end for end, spans in ends if spans is None), default=lower + 1)
        parts = [LivePart(0, size, lower, whole)]
        parts += (LivePart(*span, lower, end) for end, spans in ends for span in spans or () if end > whole)
        if len(joined := union(parts)) > 1:
            parts_of[tensor] = joined
    return parts_of


# Precedence: whether all uses of one tensor come before another tensor is made.


class Precedence(Protocol):
    """The questions about two tensors that may share bytes."""

    def before(self, a: int, b: int) -> bool:
        """Return whether every use of `a` comes before `b` is made."""
        ...

    def before_in(self, span: ByteSpan, a: int, b: int) -> bool:
        """Return whether every use of the bytes `span` of `a` comes before `b` is made."""
        ...

    def until(self, a: int, b: int) -> bool:
        """Return whether the kernel that makes `b` is the last to use `a`, and the only one in its step."""
        ...

    def made_before(self, a: int, b: int) -> bool:
        """Return whether `a` is made before `b` is."""
        ...


class InSteps:
    """Precedence in one schedule with known live ranges; `parts` has those of tensors that die part by part."""

    def __init__(
        self,
        graph: KernelGraph,
        schedule: Schedule,
        ranges: Mapping[int, LiveRange],
        parts: Mapping[int, Sequence[LivePart]] | None = None,
    ) -> None:
        self._ranges = ranges
        self._parts = parts or {}
        self._readers: Counter[tuple[int, int]] = Counter()
        if schedule.numbers:
            steps = schedule.steps.items()
            self._readers.update((read.tensor, step) for number, step in steps for read in graph.kernels[number].reads)

    def before(self, a: int, b: int) -> bool:
        """Return whether the live range of `a` ends before the one of `b` begins."""
        return self._ranges[a][1] <= self._ranges[b][0]

    def before_in(self, span: ByteSpan, a: int, b: int) -> bool:
        """Return whether the live ranges of the bytes `span` of `a` end before the one of `b` begins."""
        if a not in self._parts:
            return self.before(a, b)
        start = self._ranges[b][0]
        return all(p.upper <= start for p in self._parts[a] if p.start < span.end and span.start < p.end)

    def until(self, a: int, b: int) -> bool:
        """Return whether `a` is read last in the step that makes `b`, and by no other kernel of that step."""
        step = self._ranges[b][0]
        return self._ranges[a][1] == step + 1 and self._readers[a, step] <= 1

    def made_before(self, a: int, b: int) -> bool:
        """Return whether the live range of `a` begins before the one of `b`."""
        return self._ranges[a][0] < self._ranges[b][0]
