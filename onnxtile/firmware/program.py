"""A program as plain calls: which kernel runs on which bytes, copies, branches and repeats, and what they run on. It knows no plan.

Over ranges of sizes, numbers of calls are formulas of the sizes, and where a kernel differs, `others` has it at the sizes after the first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import combinations_with_replacement, groupby
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir

from onnxtile.arena.run import copy_spans
from onnxtile.declare.plan_document import MemoryCopy
from onnxtile.firmware.own_kernels import OwnCall
from onnxtile.model.formula import SizeFormula, SizeRanges, product_of
from onnxtile.model.save import MAX_IR_VERSION
from onnxtile.report.format import c_texts
from onnxtile.report.formats.to_header import filled
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.runtime import Array

_C = c_texts("onnxtile.firmware", "program.c")
"""Texts in C, by name."""

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


_CallAddress = TypeVar("_CallAddress")
_InnerCall = TypeVar("_InnerCall")
_ChangedAddress = TypeVar("_ChangedAddress")
_ChangedCall = TypeVar("_ChangedCall")


@dataclass(frozen=True)
class Branch(Generic[_CallAddress, _InnerCall]):
    """The calls `then` where the byte at `condition` is not zero, else the calls `otherwise`."""

    condition: _CallAddress
    then: tuple[_InnerCall, ...]
    otherwise: tuple[_InnerCall, ...]

    @property
    def inside(self) -> tuple[_InnerCall, ...]:
        """The calls in it."""
        return (*self.then, *self.otherwise)

    @property
    def places(self) -> tuple[_CallAddress, ...]:
        """The addresses that it reads and writes itself."""
        return (self.condition,)

    def changed(
        self,
        at: Callable[[_CallAddress], _ChangedAddress],
        calls: Callable[[Iterable[_InnerCall]], Iterable[_ChangedCall]],
    ) -> Branch[_ChangedAddress, _ChangedCall]:
        """Return it with the addresses that `at` gives, and the calls that `calls` gives for those inside."""
        return Branch(at(self.condition), tuple(calls(self.then)), tuple(calls(self.otherwise)))


@dataclass(frozen=True)
class RepeatedCalls(Generic[_CallAddress, _InnerCall]):
    """The calls `turn`, again and again: while the byte at `goes_on` is not zero, and at most as often as the int64 at `most` says.

    None stands for no such limit. `number` is where the calls read the number of the turn, an int64.
    """

    most: _CallAddress | None
    goes_on: _CallAddress
    number: _CallAddress | None
    turn: tuple[_InnerCall, ...]

    @property
    def inside(self) -> tuple[_InnerCall, ...]:
        """The calls in it."""
        return self.turn

    @property
    def places(self) -> tuple[_CallAddress, ...]:
        """The addresses that it reads and writes itself."""
        return tuple(place for place in (self.most, self.goes_on, self.number) if place is not None)

    def changed(
        self,
        at: Callable[[_CallAddress], _ChangedAddress],
        calls: Callable[[Iterable[_InnerCall]], Iterable[_ChangedCall]],
    ) -> RepeatedCalls[_ChangedAddress, _ChangedCall]:
        """Return it with the addresses that `at` gives, and the calls that `calls` gives for those inside."""
        most, number = (None if place is None else at(place) for place in (self.most, self.number))
        return RepeatedCalls(most, at(self.goes_on), number, tuple(calls(self.turn)))


PlainCall: TypeAlias = KernelCall | CopyCall | HelperCall
ProgramCall: TypeAlias = "PlainCall | Branch[ByteAddress, ProgramCall] | RepeatedCalls[ByteAddress, ProgramCall]"


def flat(calls: Iterable[ProgramCall]) -> Iterator[PlainCall]:
    """Yield `calls`, those of branches and of turns in their places."""
    for call in calls:
        if isinstance(call, Branch | RepeatedCalls):
            yield from flat(call.inside)
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


# Copies between two memories that run beside the kernels: before which step each is started, and before which it has ended.
#
# The copies of a plan are made in their order, one at a time, by a driver such as that of a DMA. Each is started as early as the plan
# allows, and is waited for as late as it allows. What is between is the driver's time.


@dataclass(frozen=True)
class Transfer:
    """The copy `number` of a plan, in the step `step`. It starts before the kernel of `start`, and ends before that of `end`."""

    number: int
    step: int
    start: int
    end: int


def transfers_of(copies: Sequence[MemoryCopy], steps: int, by_kernels: Collection[int]) -> Iterator[Transfer]:
    """Yield the transfers of `copies`, in their order, of a schedule of `steps` nodes.

    A kernel makes the copies in the steps `by_kernels`: all transfers before it have ended then, and none after it has started.
    """
    spans = copy_spans(copies, steps, by_kernels)
    for number, (copy, (start, end)) in enumerate(zip(copies, spans, strict=True)):
        if copy.step not in by_kernels:
            yield Transfer(number, copy.step, start, end)


class TransferSchedule:
    """The transfers of a plan by the steps before which they start, and before which they have ended; `nodes` has those of all steps.

    Those of the step after the last end with the run.
    """

    def __init__(self, copies: Sequence[MemoryCopy], nodes: Sequence[ir.Node]) -> None:
        by_kernels = {copy.step for copy in copies if len(nodes[copy.step].inputs) > 1}
        transfers = list(transfers_of(copies, len(nodes), by_kernels))
        self.steps = frozenset(transfer.step for transfer in transfers)
        self.starting = {step: list(some) for step, some in groupby(transfers, lambda transfer: transfer.start)}
        self.ending = {step: list(some) for step, some in groupby(transfers, lambda transfer: transfer.end)}


# The functions in C that make them.


def proving_driver(title: str, name: str, count: int) -> str:
    """Return a driver in C of a program with `count` transfers, which makes them early in one run and late in the next."""
    return filled(_C["driver"], name.upper(), title=title, count=count) + "\n"


# Numbers of a program over ranges of sizes, as formulas of the sizes: found from what they are at several sizes.
#
# Each tensor has one address at all sizes. So the texts of a program at two sizes differ in whole numbers alone: bounds of loops, strides,
# bytes of copies. Such a number is a size of a tensor, or a product of some, times a number and plus another. Two values tell these two
# numbers, and all further values have to agree. The sizes are in the ranges, and beyond their ends where a range has few.


OpenNumber: TypeAlias = int | SizeFormula
"""A whole number, or a formula of the sizes where it differs from size to size."""

_SPARE = 4
"""Points beside one for each dimension, and the first: each is one more value that a formula must have."""
_WIDTH = 16
"""The least number of sizes of a dimension among which points are chosen."""
_STRIDES = (0.6180339887498949, 0.4142135623730951, 0.7320508075688772, 0.2360679774997897)
"""Steps through the ranges, as parts of them, so that the sizes of several dimensions do not keep step."""
_DEGREE = 3
"""Sizes in a product, at most."""


@dataclass(frozen=True)
class OpenSize:
    """A dimension with a range, from `least` to `most`. Where it is the length of states, each run makes it longer by `step`.

    `name` is that of the dimension; sizes are in elements.
    """

    name: str
    least: int
    most: int
    step: SizeFormula | None = None


@dataclass(frozen=True)
class SizePoints:
    """Sizes at which a program is written, the largest first, and the formulas of the sizes of its tensors."""

    ranges: SizeRanges
    points: tuple[Mapping[str, int], ...]
    formulas: tuple[SizeFormula, ...]

    @classmethod
    def from_ranges(cls, ranges: SizeRanges, formulas: Iterable[SizeFormula]) -> SizePoints:
        """Return the points of `ranges`, of tensors whose sizes are `formulas`. No size is 1: text of a size of 1 may be for that alone."""
        largest = {name: high for name, (_, high) in ranges.items()}
        others = (
            {name: _inside(ends, number, dimension) for dimension, (name, ends) in enumerate(ranges.items())}
            for number in range(1, 1 + _SPARE + len(ranges))
        )
        sizes = sorted(
            {size for size in formulas if size.constant is None}, key=lambda size: (len(str(size)), str(size))
        )
        return cls(ranges, (largest, *others), tuple(sizes))

    @cached_property
    def _products(self) -> tuple[tuple[SizeFormula, tuple[int, ...]], ...]:
        """The sizes of tensors and their products, with the values at all points; of several with equal values the first."""
        by_values: dict[tuple[int, ...], SizeFormula] = {}
        for degree in range(1, _DEGREE + 1):
            for factors in combinations_with_replacement(self.formulas, degree):
                product = product_of(factors)
                by_values.setdefault(tuple(product.at(point) for point in self.points), product)
        return tuple((product, values) for values, product in by_values.items())

    def number(self, values: Sequence[int]) -> OpenNumber | None:
        """Return the number that has `values` at the points; None where no formula has them."""
        if len(set(values)) == 1:
            return values[0]
        formulas = (
            formula for product, known in self._products if (formula := _line(values, product, known)) is not None
        )
        return next(formulas, None)

    def numbers(self, rows: Sequence[Sequence[int]]) -> Iterator[OpenNumber | None]:
        """Yield the numbers that `rows` have at the points, one row a point."""
        return (self.number(values) for values in zip(*rows, strict=True))

    def most(self, formula: OpenNumber) -> int:
        """Return the largest value of a number."""
        return formula if isinstance(formula, int) else formula.limits(self.ranges)[1]


def _inside(ends: tuple[int, int], number: int, dimension: int) -> int:
    if ends[0] == ends[1]:
        return ends[0]
    low = max(ends[0], 2)
    width = max(ends[1] + 1 - low, _WIDTH)
    step = int(width * _STRIDES[dimension % len(_STRIDES)]) | 1  # odd, so that every second size is even
    return low + number * step % width


def _line(values: Sequence[int], product: SizeFormula, known: Sequence[int]) -> SizeFormula | None:
    """Return the `product`, whose values are `known`, times a number plus a number, with `values`; None where there are no such numbers."""
    run = next((index for index in range(1, len(known)) if known[index] != known[0]), None)
    if run is None:
        return None
    times, rest = divmod(values[run] - values[0], known[run] - known[0])
    start = values[0] - times * known[0]
    if rest or any(value != times * size + start for value, size in zip(values, known, strict=True)):
        return None
    return product * times + start


# A program over ranges of sizes, put together from the programs at several sizes: the same calls on the same bytes, of other sizes.


def over_sizes(programs: Sequence[CProgram], points: SizePoints, sizes: tuple[OpenSize, ...]) -> CProgram:
    """Return the program over the ranges of `sizes` that is `programs` at the `points`. Raises UsageError where their calls differ."""
    results = list(zip(*(program.results for program in programs), strict=True))
    calls = list[ProgramCall]()
    moved = next((same[0] for same in results if len({result.calls for result in same}) > 1), None)
    if moved is not None or len({len(program.calls) for program in programs}) > 1:
        raise _refusal(moved, _OTHER_BYTES)
    for number, same_calls in enumerate(zip(*(program.calls for program in programs), strict=True)):
        try:
            calls.append(_merged_call(same_calls, points))
        except _DiffersError as error:
            raise _refusal(next((same[0] for same in results if same[0].calls > number), None), str(error)) from error
    return replace(programs[0], calls=tuple(calls), points=points, sizes=sizes)


_OTHER_BYTES = "from size to size, it uses bytes at other addresses"


class _DiffersError(Exception):
    """A call is not the same at all sizes, for the reason in its text."""


def _merged(sides: Sequence[tuple[ProgramCall, ...]], points: SizePoints) -> tuple[ProgramCall, ...]:
    if len(set(map(len, sides))) > 1:
        raise _DiffersError(_OTHER_BYTES)
    return tuple(_merged_call(calls, points) for calls in zip(*sides, strict=True))


def _merged_call(calls: Sequence[Any], points: SizePoints) -> ProgramCall:
    """Return one call that is `calls` at the `points`."""
    first, *others = calls
    if any(_fixed(call) != _fixed(first) for call in others):
        raise _DiffersError(_OTHER_BYTES)
    if isinstance(first, KernelCall) and any(call != first for call in others):
        return replace(first, kernel=replace(first.kernel, others=tuple(call.kernel for call in others)))
    if isinstance(first, CopyCall):
        return HelperCall("copy", (first.target, first.source), _numbers([(call.size,) for call in calls], points))
    if isinstance(first, HelperCall):
        return replace(first, numbers=_numbers([call.numbers for call in calls], points))
    if isinstance(first, Branch):
        sides = ([call.then for call in calls], [call.otherwise for call in calls])
        return Branch(first.condition, *(_merged(side, points) for side in sides))
    if isinstance(first, RepeatedCalls):
        return replace(first, turn=_merged([call.turn for call in calls], points))
    return first  # type: ignore[no-any-return]


def _numbers(rows: Sequence[tuple[int, ...]], points: SizePoints) -> tuple[OpenNumber, ...]:
    """Return the numbers that `rows` are at the `points`."""
    numbers = list(points.numbers(rows))
    if None in numbers:
        raise _DiffersError("no formula of the sizes gives a number of bytes that it copies")
    return tuple(number for number in numbers if number is not None)


def _fixed(call: ProgramCall) -> object:
    """Return what of a call is the same at all sizes."""
    if isinstance(call, KernelCall):
        kernel = call.kernel
        return call.addresses, kernel.op_type, kernel.fixed, kernel.opsets
    if isinstance(call, CopyCall):
        return call.target, call.source
    if isinstance(call, HelperCall):
        return call.helper, call.addresses
    return call.places


def _refusal(result: NodeResult | None, reason: str) -> UsageError:
    where = "the states or outputs" if result is None else f"the node that makes {result.name!r} ({result.operator})"
    return UsageError(
        f"no C can be written over a range for {where}: {reason}",
        hint="bind each dimension to one size; nothing was written",
    )
