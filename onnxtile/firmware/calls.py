"""The calls of a run as a stream of bytes: kernels and operands by number, equal calls whose operands advance as loops.

A number is written in groups of seven bits, the lowest first; each byte but the last has the highest bit. The stream is blocks, each
with its turns (0 ends the stream), its number of calls, and the calls. A call is the number of its kernel, and its operands.

An operand is units × spaces + space. In a block of several turns it is twice that, plus 1 where it advances. Its advance in units follows
then, as a zigzag number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd

_LONGEST = 96
"""Calls of a loop, at most."""


@dataclass(frozen=True)
class Operand:
    """An address: bytes from the start of a space, by its number."""

    space: int
    offset: int


@dataclass(frozen=True)
class TableCall:
    """A call of a kernel, by its number, on operands."""

    kernel: int
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Block:
    """Calls that run `turns` times; `steps` are the bytes by which the operands of each advance."""

    calls: tuple[TableCall, ...]
    turns: int = 1
    steps: tuple[tuple[int, ...], ...] = ()


def blocks_of(calls: Sequence[TableCall]) -> list[Block]:
    """Return `calls` as blocks: the loop that saves most, from the first call on."""
    found: list[Block] = []
    single: list[TableCall] = []
    at = 0
    while at < len(calls):
        turns, length = _best(calls, at)
        if turns == 1:
            single.append(calls[at])
            at += 1
            continue
        if single:
            found.append(Block(tuple(single)))
            single = []
        found.append(_loop(calls[at : at + 2 * length], turns))
        at += turns * length
    return [*found, Block(tuple(single))] if single else found


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
    if not all(_is_like(calls[at + place], calls[at + length + place]) for place in range(length)):
        return 1
    turns, end = 2, at + 2 * length
    steps = [_step(calls[at + place], calls[at + length + place]) for place in range(length)]
    while end + length <= len(calls):
        for place in range(length):
            before, after = calls[end - length + place], calls[end + place]
            if not _is_like(before, after) or _step(before, after) != steps[place]:
                return turns
        turns, end = turns + 1, end + length
    return turns


def _is_like(one: TableCall, other: TableCall) -> bool:
    spaces = ([operand.space for operand in call.operands] for call in (one, other))
    return one.kernel == other.kernel and next(spaces) == next(spaces)


def _step(one: TableCall, other: TableCall) -> tuple[int, ...]:
    return tuple(b.offset - a.offset for a, b in zip(one.operands, other.operands, strict=True))


def _loop(calls: Sequence[TableCall], turns: int) -> Block:
    half = len(calls) // 2
    steps = tuple(_step(one, other) for one, other in zip(calls[:half], calls[half:], strict=True))
    return Block(tuple(calls[:half]), turns, steps)


def units_of(calls: Iterable[TableCall], spaces: int) -> list[int]:
    """Return for each space the bytes of which all offsets in it are multiples."""
    found = [0] * spaces
    for call in calls:
        for operand in call.operands:
            found[operand.space] = gcd(found[operand.space], operand.offset)
    return [unit or 1 for unit in found]


def grouped(value: int) -> bytes:
    """Return a whole number that is not negative in groups of seven bits."""
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def stream_of(blocks: Iterable[Block], units: Sequence[int]) -> bytes:
    """Return `blocks` as bytes."""
    made = bytearray()
    for block in blocks:
        made += grouped(block.turns) + grouped(len(block.calls))
        for place, call in enumerate(block.calls):
            made += grouped(call.kernel)
            for turn, operand in enumerate(call.operands):
                step = block.steps[place][turn] if block.turns > 1 else None
                made += _operand(operand, step, units)
    return bytes([*made, 0])


def _operand(operand: Operand, step: int | None, units: Sequence[int]) -> bytes:
    unit = units[operand.space]
    code = operand.offset // unit * len(units) + operand.space
    if step is None:
        return grouped(code)
    if not step:
        return grouped(code * 2)
    advance = step // unit
    return grouped(code * 2 + 1) + grouped(advance * 2 if advance >= 0 else -advance * 2 - 1)
