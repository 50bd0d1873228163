"""A program as plain calls: which kernel runs on which bytes, copies, branches and repeats, and what they run on. It knows no plan.

Over ranges of sizes, numbers of calls are formulas of the sizes, and where a kernel differs, `others` has it at the sizes after the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from onnxtile.firmware.own_kernels import OwnCall
from onnxtile.firmware.size_points import OpenNumber, OpenSize, SizePoints
from onnxtile.model.save import MAX_IR_VERSION
from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

ARENA, INPUT, OUTPUT, CONSTANT, WORKSPACE = "arena", "input", "output", "constant", "workspace"
"""Where bytes may lie: in an arena, with the caller, in flash, or in the workspace of a kernel."""
END = "end"
"""The address of an operand or result of a meta-op, by its number, until a call of it says where that is."""


@dataclass(frozen=True)
class ByteAddress:
    """`offset` bytes from the start of the block `number` of a kind of memory.

    `kind` is that of the memory, such as an arena or the weights.
    """

    kind: str
    number: int
    offset: int = 0

    def at(self, offset: int) -> ByteAddress:
        """Return the address `offset` bytes further on."""
        return replace(self, offset=self.offset + offset)


@dataclass(frozen=True)
class TensorForm:
    """The element type of a tensor, by its number in onnx, and its sizes.

    `strides` are the bytes from one element to the next on each axis where the rows of the tensor do not follow each other. `dtype` is that
    number, `sizes` are in elements.
    """

    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...] = ()

    @property
    def element(self) -> int:
        """The bytes of one element."""
        return ir.DataType(self.dtype).bitwidth // 8

    @property
    def bytes(self) -> int:
        """The bytes of all elements."""
        return int(np.prod(self.sizes, dtype=np.int64)) * ir.DataType(self.dtype).bitwidth // 8


@dataclass(frozen=True)
class StoredForm:
    """How the weights `operand` of a kernel are stored: whole numbers of `bits` bits, in the order of `sizes`.

    The kernel reads their axes in the `order`. There is a scale for each `block` indices of `axis` (None: one for all). The scales are the
    operand `SCALES`, and the zero points, where there are any, `ZEROS`.
    """

    operand: str
    sizes: tuple[int, ...]
    order: tuple[int, ...]
    axis: int | None
    block: int
    bits: int
    is_signed: bool


SCALES, ZEROS = "i_scales", "i_zeros"
"""The operands of a kernel with stored weights that its node has not."""


@dataclass(frozen=True)
class DistinctKernel:
    """One different kernel: a node whose operands are called i0, i1 ... and its results o0, o1 ...

    `tensors` has the types by these names. `fixed` has the constants, as serialised tensors, whose numbers decide what the kernel is.
    `opsets` are the versions of operators. `label` is the first node that runs it, for messages, and `macs` are its multiply-accumulates
    (0 where no rule counts them). `own` is the call of the user's function that runs it, where there is one. One `of_island` is for float
    operators between quantised tensors, and rounds as these do. `stored` says of which operand it reads stored weights.
    """

    node: bytes
    tensors: tuple[tuple[str, TensorForm], ...]
    fixed: tuple[tuple[str, bytes], ...]
    opsets: tuple[tuple[str, int], ...]
    label: str = field(compare=False)
    op_type: str = field(compare=False)
    own: OwnCall | None = None
    of_island: bool = False
    stored: StoredForm | None = None
    macs: int = field(default=0, compare=False)
    others: tuple[DistinctKernel, ...] = ()


@dataclass(frozen=True)
class KernelCall:
    """A run of `kernel` on operands and results at `addresses`, by their names in it."""

    kernel: DistinctKernel
    addresses: Mapping[str, ByteAddress]


@dataclass(frozen=True)
class CopyCall:
    """A copy of `size` bytes; both may overlap. Over ranges it becomes the helper "copy"."""

    target: ByteAddress
    source: ByteAddress
    size: int


@dataclass(frozen=True)
class HelperCall:
    """A run of the function `helper`, which is no kernel, on the bytes at `addresses` with `numbers`; `write.py` has these functions."""

    helper: str
    addresses: tuple[ByteAddress, ...]
    numbers: tuple[OpenNumber, ...]


@dataclass(frozen=True)
class Branch:
    """The calls `then` where the byte at `condition` is not zero, else the calls `otherwise`."""

    condition: ByteAddress
    then: tuple[ProgramCall, ...]
    otherwise: tuple[ProgramCall, ...]


@dataclass(frozen=True)
class RepeatedCalls:
    """The calls `turn`, again and again: while the byte at `goes_on` is not zero, and at most as often as the int64 at `most` says.

    None stands for no such limit. `number` is where the calls read the number of the turn, an int64.
    """

    most: ByteAddress | None
    goes_on: ByteAddress
    number: ByteAddress | None
    turn: tuple[ProgramCall, ...]


PlainCall: TypeAlias = KernelCall | CopyCall | HelperCall
ProgramCall: TypeAlias = PlainCall | Branch | RepeatedCalls


def flat(calls: Iterable[ProgramCall]) -> Iterator[PlainCall]:
    """Yield `calls`, those of branches and of turns in their places."""
    for call in calls:
        if isinstance(call, Branch):
            yield from flat((*call.then, *call.otherwise))
        elif isinstance(call, RepeatedCalls):
            yield from flat(call.turn)
        else:
            yield call


@dataclass(frozen=True)
class Port:
    """An input or output of the graph: an argument of the run (`address` is the caller's), or bytes of an arena.

    Over ranges `tensor` is the largest, and `formulas` are its sizes as texts. An output that is a growing state is `rows` rows, which
    begin `pitch` bytes apart. `name` is that of the tensor in the model.
    """

    name: str
    tensor: TensorForm
    address: ByteAddress
    formulas: tuple[str, ...] = ()
    rows: int = 1
    pitch: int = 0

    @property
    def is_argument(self) -> bool:
        """Whether the caller gives its memory."""
        return self.address.kind != ARENA


@dataclass(frozen=True)
class StreamPort:
    """An input whose rows along an `axis` come one after the other, from a function of the user's; `tensor` has all of its rows.

    `name` is that of the input.
    """

    name: str
    tensor: TensorForm
    axis: int

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return self.tensor.sizes[self.axis]

    @property
    def planes(self) -> int:
        """The number of runs of bytes that some of its rows are."""
        return int(np.prod(self.tensor.sizes[: self.axis], dtype=np.int64))

    @property
    def run_bytes(self) -> int:
        """The bytes of one row in one of these runs."""
        return self.tensor.bytes // max(self.planes * self.rows, 1)


@dataclass(frozen=True)
class NodeResult:
    """A result of a node of the main graph: after the first `calls` calls its `bytes` lie at `address`.

    `is_rounded` says whether the node rounds it to steps of quantisation. `tensor` is that at the largest sizes.
    """

    calls: int
    name: str
    operator: str
    tensor: TensorForm
    address: ByteAddress
    bytes: OpenNumber
    is_rounded: bool


@dataclass(frozen=True)
class CProgram:
    """The calls of one run in order, and what they run on.

    `arenas` has the name and bytes of each arena, `workspace` the bytes of the workspace. `resets` are the addresses and sizes of
    states, which are zero before the first run. `results` are those of the main graph that calls make, in the order of the calls. `streams`
    are the inputs that come row by row. A program over ranges is there at `points`, and takes or keeps the `sizes`.
    """

    calls: tuple[ProgramCall, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    constants: tuple[Array, ...]
    arenas: tuple[tuple[str, int], ...]
    alignment: int
    workspace: int
    resets: tuple[tuple[ByteAddress, int], ...] = ()
    results: tuple[NodeResult, ...] = ()
    streams: tuple[StreamPort, ...] = ()
    points: SizePoints | None = None
    sizes: tuple[OpenSize, ...] = ()

    @property
    def is_rounded(self) -> bool:
        """Whether a node rounds its result to steps of quantisation."""
        return any(result.is_rounded for result in self.results)

    def with_checks(self) -> CProgram:
        """Return the program with a look at each of its results, in their order."""
        calls, done = list[ProgramCall](), 0
        for result in self.results:
            calls += self.calls[done : result.calls]
            calls.append(HelperCall("check", (result.address,), (result.bytes,)))
            done = result.calls
        return replace(self, calls=(*calls, *self.calls[done:]))


IR_VERSION = min(MAX_IR_VERSION, 10)


def kernels_of(calls: Iterable[ProgramCall]) -> Iterator[DistinctKernel]:
    """Yield the different kernels of `calls`, in the order in which they first run."""
    yield from dict.fromkeys(call.kernel for call in flat(calls) if isinstance(call, KernelCall))


def overlaps(copy: CopyCall, other: CopyCall) -> bool:
    """Return whether a copy writes what another reads."""
    target, source = copy.target, other.source
    if (target.kind, target.number) != (source.kind, source.number):
        return False
    return target.offset < source.offset + other.size and source.offset < target.offset + copy.size
