"""A graph as kernels and tensors by number, without ONNX: which bytes each kernel reads and makes, and which of these may be the same.

A kernel is what runs as one: a node, a meta-op, a quantised island. Whoever plans, orders or places works on these numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

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
    apart: frozenset[int] = frozenset()
    states: tuple[StateShare, ...] = ()
    keeps_given: bool = True
    repeats: bool = False
    streams: tuple[tuple[int, ...], ...] = ()

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
        shares = (tuple(share for share in kernel.shares if share.kind in kept) for kernel in self.kernels)
        kernels = (replace(kernel, shares=left) for kernel, left in zip(self.kernels, shares, strict=True))
        return replace(self, kernels=tuple(kernels))

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
