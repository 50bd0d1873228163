"""Graphs of kernels as plain data: random ones, and what their bytes hold while they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from onnxtile.kernels.kernel_graph import (
    IN_PLACE,
    OUTSIDE,
    ByteSpan,
    GraphKernel,
    GraphTensor,
    KernelGraph,
    Schedule,
    Share,
    TensorRead,
)

UNIT = 4


@dataclass
class PlainGraph:
    """A graph that grows by one kernel at a time."""

    tensors: list[GraphTensor] = field(default_factory=list)
    kernels: list[GraphKernel] = field(default_factory=list)

    def tensor(self, size: int) -> int:
        """Add a tensor of `size` bytes."""
        self.tensors.append(GraphTensor(f"t{len(self.tensors)}", bytes=size, dtype="FLOAT", dims=(size // UNIT,)))
        return len(self.tensors) - 1

    def size(self, tensor: int) -> int:
        """Return the bytes of a tensor."""
        return self.tensors[tensor].bytes or 0

    def put(
        self, operands: Sequence[int], makes: Sequence[int], shares: Sequence[Share], move: str | None = None
    ) -> None:
        """Add a kernel; one that cuts reads only the bytes of its results."""
        cuts = tuple(ByteSpan(one.at, one.at + self.size(one.result)) for one in shares if one.kind == "cut")
        reads = tuple(TensorRead(operand, cuts or None) for operand in dict.fromkeys(operands))
        name = f"k{len(self.kernels)}"
        self.kernels.append(GraphKernel(name, "", tuple(operands), reads, tuple(makes), (), tuple(shares), move=move))

    def compute(self, operands: Sequence[int], size: int, *, over: bool) -> int:
        """Add a kernel that makes new bytes, where it may `over` operands of the same size."""
        made = self.tensor(size)
        same = [one for one in dict.fromkeys(operands) if over and self.size(one) == size]
        self.put(operands, [made], [Share(IN_PLACE, made, one) for one in same])
        return made

    def view(self, operand: int) -> int:
        """Add a kernel whose result has the bytes of its operand."""
        made = self.tensor(self.size(operand))
        self.put([operand], [made], [Share("view", made, operand)], "view")
        return made

    def cut(self, operand: int, starts: Sequence[int], sizes: Sequence[int]) -> None:
        """Add a kernel whose results are parts of its operand."""
        makes = [self.tensor(size) for size in sizes]
        self.put(
            [operand], makes, [Share("cut", made, operand, at) for made, at in zip(makes, starts, strict=True)], "cut"
        )

    def join(self, operands: Sequence[int]) -> None:
        """Add a kernel whose result is its operands, one after the other."""
        made, at, shares = self.tensor(sum(map(self.size, operands))), 0, []
        for operand in operands:
            shares.append(Share("join", made, operand, -at))
            at += self.size(operand)
        self.put(operands, [made], shares, "join")

    def graph(self, inputs: int, *, inside: bool, keeps_given: bool = True) -> KernelGraph:
        """Return the graph, of which the first tensors are `inputs`; what no kernel reads is an output."""
        read = {read.tensor for kernel in self.kernels for read in kernel.reads}
        ends = tuple(tensor for tensor in range(inputs, len(self.tensors)) if tensor not in read)
        given = tuple(range(inputs))
        tensors = [
            one if inside or number >= inputs else replace(one, role=OUTSIDE) for number, one in enumerate(self.tensors)
        ]
        held = given if inside else ()
        return KernelGraph(tuple(tensors), tuple(self.kernels), held, ends, given, ends, keeps_given=keeps_given)


@st.composite
def kernel_graphs(draw: st.DrawFn, most: int = 12) -> KernelGraph:
    """Graphs of up to `most` kernels that compute, show, cut and join tensors."""
    made = PlainGraph()
    inputs = draw(st.integers(1, 2))
    for _ in range(inputs):
        made.tensor(draw(st.sampled_from([UNIT, 2 * UNIT, 4 * UNIT])))
    for _ in range(draw(st.integers(1, most))):
        tensors = st.integers(0, len(made.tensors) - 1)
        operands = draw(st.lists(tensors, min_size=1, max_size=3))
        first, size = operands[0], made.size(operands[0])
        kind = draw(st.sampled_from(["compute", "compute", "view", "split", "slice", "join"]))
        if kind == "join":
            made.join(operands)
        elif kind == "view":
            made.view(first)
        elif kind == "compute" or size < 2 * UNIT:
            made.compute(operands, draw(st.sampled_from([size, 2 * UNIT])), over=draw(st.booleans()))
        else:
            at = draw(st.integers(1, size // UNIT - 1)) * UNIT
            starts, sizes = ([0, at], [at, size - at]) if kind == "split" else ([at], [size - at])
            made.cut(first, starts, sizes)
    inside = draw(st.booleans())
    return made.graph(inputs, inside=inside, keeps_given=draw(st.booleans()))


Token = tuple[int, int]
"""A byte by the tensor that it was first made in, and its place there."""


def contents(graph: KernelGraph) -> list[list[Token]]:
    """Return what each tensor holds."""
    found: list[list[Token]] = [[(t, byte) for byte in range(one.bytes or 0)] for t, one in enumerate(graph.tensors)]
    for kernel in graph.kernels:
        for share in kernel.shares if kernel.move else ():
            for byte, token in enumerate(found[share.operand]):
                if 0 <= byte - share.at < len(found[share.result]):
                    found[share.result][byte - share.at] = token
    return found


@dataclass
class Memory:
    """The bytes of buffers; `places` has the buffer of each tensor, and its start there."""

    graph: KernelGraph
    places: Mapping[int, tuple[int, int]]

    def __post_init__(self) -> None:
        self.held: dict[tuple[int, int], Token] = {}
        self.contents = contents(self.graph)

    def write(self, tensor: int) -> None:
        """Put the content of `tensor` where it belongs."""
        buffer, start = self.places[tensor]
        self.held.update({(buffer, start + byte): token for byte, token in enumerate(self.contents[tensor])})

    def lost(self, tensor: int, spans: Sequence[ByteSpan] | None = None) -> list[int]:
        """Return the bytes of `tensor`, of `spans` alone where they are given, that hold something else."""
        buffer, start = self.places[tensor]
        spans = (ByteSpan(0, len(self.contents[tensor])),) if spans is None else spans
        read = (byte for span in spans for byte in range(*span))
        return [byte for byte in read if self.held.get((buffer, start + byte)) != self.contents[tensor][byte]]

    def run(self, schedule: Schedule) -> None:
        """Run the kernels in their order. Fails where one reads bytes that hold something else, or writes over what is still read."""
        self.there = set(self.graph.given)
        for tensor in self.graph.given:
            self.write(tensor)
        for place, number in enumerate(schedule.order):
            self._step(self.graph.kernels[number], schedule.order[place + 1 :])
        for tensor in self.graph.kept:
            assert not self.lost(tensor), f"t{tensor} is overwritten before the end"

    def _step(self, kernel: GraphKernel, later: Sequence[int]) -> None:
        reads = [read for read in kernel.reads if read.tensor in self.places]
        made = [tensor for tensor in kernel.makes if tensor in self.places]
        for tensor, spans in reads:
            assert not self.lost(tensor, spans), f"{kernel.name} reads what is left of t{tensor}"
        for tensor in made:
            taken = self._needed(later) & (self._bytes(tensor) - self._in_place(kernel, tensor))
            assert not taken, f"{kernel.name} writes {sorted(taken)} for t{tensor}, which are read later"
            self.write(tensor)
        for tensor in made:
            assert not self.lost(tensor), f"{kernel.name} writes over its own t{tensor}"
        for tensor, spans in reads:
            over = [
                r for r in made if Share(IN_PLACE, r, tensor) in kernel.shares and self.places[r] == self.places[tensor]
            ]
            assert over or not self.lost(tensor, spans), f"{kernel.name} writes over t{tensor} while it reads that"
        self.there.update(made)

    def _bytes(self, tensor: int, spans: Sequence[ByteSpan] | None = None) -> set[tuple[int, int]]:
        buffer, start = self.places[tensor]
        spans = (ByteSpan(0, len(self.contents[tensor])),) if spans is None else spans
        return {(buffer, start + byte) for span in spans for byte in range(*span)}

    def _in_place(self, kernel: GraphKernel, tensor: int) -> set[tuple[int, int]]:
        """Return the bytes of a result that its kernel finds where they belong, so that it does not write them."""
        buffer, start = self.places[tensor]
        moved = [share for share in kernel.shares if kernel.move and share.result == tensor]
        shown = [one for one in moved if self.places.get(one.operand) == (buffer, start - one.at)]
        return set[tuple[int, int]]().union(*(self._bytes(one.operand) for one in shown))

    def _needed(self, later: Sequence[int]) -> set[tuple[int, int]]:
        """Return the bytes of the tensors made so far that the kernels `later` read, or that outlive the run."""
        reads = [read for number in later for read in self.graph.kernels[number].reads]
        reads += [TensorRead(tensor) for tensor in self.graph.kept]
        held = (self._bytes(*read) for read in reads if read.tensor in self.there and read.tensor in self.places)
        return set[tuple[int, int]]().union(*held)
