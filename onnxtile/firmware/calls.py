"""The calls of a run as a stream of bytes: kernels and operands by number, equal calls whose operands advance as loops.

A number is written in groups of seven bits, the lowest first; each byte but the last has the highest bit. The stream is blocks, each
with twice its turns (0 ends the stream), its number of calls, and the calls. A call is the number of its kernel, and its operands.

An operand is units × spaces + space. In a block of several turns it is twice that, plus 1 where it advances. Its advance in units follows
then, as a zigzag number. A branch is 1, its condition as an operand, and the bytes to skip where this is zero; 3 skips bytes always.

A repeat is 5, three places, the bytes of its calls, and the calls, which 0 ends. The places are those of the most turns, of whether there
is a next turn, and of the number of the turn: 0 for none, else an operand plus 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import gcd
from typing import TypeAlias

from onnxtile.firmware.program import Branch, RepeatedCalls
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import about_options

_MOST = 1 << 31
"""One more than an operand may be as a number: twice that plus 1 is read as 32 bits."""
_LONGEST = 96
"""Calls of a loop, at most."""


@dataclass(frozen=True)
class SpaceOffset:
    """An address: bytes from the start of a space, by its number."""

    space: int
    offset: int


@dataclass(frozen=True)
class TableCall:
    """A call of a kernel, by its number, on operands."""

    kernel: int
    operands: tuple[SpaceOffset, ...]


TableEntry: TypeAlias = "TableCall | Branch[SpaceOffset, TableEntry] | RepeatedCalls[SpaceOffset, TableEntry]"


def flat(entries: Iterable[TableEntry]) -> Iterator[SpaceOffset]:
    """Yield all operands of `entries`, those of branches and turns too."""
    for entry in entries:
        if isinstance(entry, TableCall):
            yield from entry.operands
        else:
            yield from entry.places
            yield from flat(entry.inside)


def depth(entries: Iterable[TableEntry]) -> int:
    """Return how deep repeats are inside each other."""
    levels = (entry for entry in entries if not isinstance(entry, TableCall))
    return max((depth(entry.inside) + isinstance(entry, RepeatedCalls) for entry in levels), default=0)


@dataclass(frozen=True)
class Block:
    """Calls that run `turns` times; `steps` are the bytes by which the operands of each advance."""

    calls: tuple[TableCall, ...]
    turns: int = 1
    steps: tuple[tuple[int, ...], ...] = ()


def blocks_of(calls: Sequence[TableCall]) -> list[Block]:
    """Return `calls` as blocks: the loop that saves most, from the first call on."""
    blocks: list[Block] = []
    single: list[TableCall] = []
    at = 0
    while at < len(calls):
        turns, length = _best(calls, at)
        if turns == 1:
            single.append(calls[at])
            at += 1
            continue
        if single:
            blocks.append(Block(tuple(single)))
            single = []
        blocks.append(_loop(calls[at : at + 2 * length], turns))
        at += turns * length
    return [*blocks, Block(tuple(single))] if single else blocks


def _best(calls: Sequence[TableCall], at: int) -> tuple[int, int]:
    """Return the turns and the calls of the loop from `at` on that saves most; one turn where none saves."""
    best, turns_and_length = 0, (1, 1)
    for length in range(1, min(_LONGEST, (len(calls) - at) // 2) + 1):
        turns = _turns(calls, at, length)
        saved = (turns - 1) * length - (length if turns > 1 else 0) // 2
        if turns > 1 and saved > best:
            best, turns_and_length = saved, (turns, length)
    return turns_and_length


def _turns(calls: Sequence[TableCall], at: int, length: int) -> int:
    """Return how many times the `length` calls from `at` on run, each time all operands as far from those before."""
    if not all(_is_like(calls[at + index], calls[at + length + index]) for index in range(length)):
        return 1
    turns, end = 2, at + 2 * length
    steps = [_step(calls[at + index], calls[at + length + index]) for index in range(length)]
    while end + length <= len(calls):
        for index in range(length):
            before, after = calls[end - length + index], calls[end + index]
            if not _is_like(before, after) or _step(before, after) != steps[index]:
                return turns
        turns, end = turns + 1, end + length
    return turns


def _is_like(call: TableCall, other: TableCall) -> bool:
    spaces = [[operand.space for operand in same.operands] for same in (call, other)]
    return call.kernel == other.kernel and spaces[0] == spaces[1]


def _step(call: TableCall, other: TableCall) -> tuple[int, ...]:
    return tuple(b.offset - a.offset for a, b in zip(call.operands, other.operands, strict=True))


def _loop(calls: Sequence[TableCall], turns: int) -> Block:
    half = len(calls) // 2
    steps = tuple(_step(call, other) for call, other in zip(calls[:half], calls[half:], strict=True))
    return Block(tuple(calls[:half]), turns, steps)


def units_of(calls: Iterable[TableEntry], spaces: int) -> list[int]:
    """Return for each space the bytes of which all offsets in it are multiples."""
    units = [0] * spaces
    for operand in flat(calls):
        units[operand.space] = gcd(units[operand.space], operand.offset)
    return [unit or 1 for unit in units]


def grouped(value: int) -> bytes:
    """Return a whole number that is not negative in groups of seven bits."""
    data = bytearray()
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


_IF, _SKIP, _REPEAT = 1, 3, 5
"""The first numbers of a branch, of a jump, and of a repeat; those of blocks are even."""


@dataclass(frozen=True)
class Stream:
    """Calls as bytes, and the number of their blocks."""

    data: bytes
    blocks: int


def stream_of(entries: Sequence[TableEntry], units: Sequence[int]) -> Stream:
    """Return all calls as bytes, with the end."""
    stream = _stream(entries, units)
    return Stream(stream.data + bytes([0]), stream.blocks)


def _stream(entries: Sequence[TableEntry], units: Sequence[int]) -> Stream:
    data, blocks, calls = bytearray(), 0, list[TableCall]()
    for entry in (*entries, None):
        if isinstance(entry, TableCall):
            calls.append(entry)
            continue
        new_blocks = blocks_of(calls)
        data += _written(new_blocks, units)
        blocks, calls = blocks + len(new_blocks), []
        if isinstance(entry, RepeatedCalls):
            turn = _stream(entry.turn, units)
            data += grouped(_REPEAT)
            for address in (entry.most, entry.goes_on, entry.number):
                data += grouped(0) if address is None else grouped(_code(address, units) + 1)
            data += grouped(len(turn.data) + 1) + turn.data + grouped(0)
            blocks += turn.blocks
        elif entry is not None:
            then, other = _stream(entry.then, units), _stream(entry.otherwise, units)
            jump = grouped(_SKIP) + grouped(len(other.data))
            data += grouped(_IF) + _operand(entry.condition, None, units) + grouped(len(then.data) + len(jump))
            data += then.data + jump + other.data
            blocks += then.blocks + other.blocks
    return Stream(bytes(data), blocks)


def _written(blocks: Iterable[Block], units: Sequence[int]) -> bytes:
    """Return `blocks` as bytes."""
    data = bytearray()
    for block in blocks:
        data += grouped(block.turns * 2) + grouped(len(block.calls))
        for index, call in enumerate(block.calls):
            data += _call(call, block.steps[index] if block.turns > 1 else None, units)
    return bytes(data)


def _call(call: TableCall, steps: Sequence[int] | None, units: Sequence[int]) -> bytes:
    """Return a call as bytes; `steps` are the bytes by which its operands advance (None: in a block of one turn)."""
    data = bytearray(grouped(call.kernel))
    for index, operand in enumerate(call.operands):
        data += _operand(operand, None if steps is None else steps[index], units)
    return bytes(data)


def _code(operand: SpaceOffset, units: Sequence[int]) -> int:
    """Return an operand as a number. Raises UsageError for an address too far from the start of its space."""
    code = operand.offset // units[operand.space] * len(units) + operand.space
    if code >= _MOST:
        raise about_options(
            f"no table of calls in C has the offset {operand.offset:,} in a memory: it is too large",
            hint="offsets are multiples of {alignment}: a larger one reaches further",
        )
    return code


def _operand(operand: SpaceOffset, step: int | None, units: Sequence[int]) -> bytes:
    unit, code = units[operand.space], _code(operand, units)
    if step is None:
        return grouped(code)
    if not step:
        return grouped(code * 2)
    advance = step // unit
    return grouped(code * 2 + 1) + grouped(advance * 2 if advance >= 0 else -advance * 2 - 1)
