"""A program over ranges of sizes, put together from the programs at several sizes: the same calls on the same bytes, of other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from onnxtile.firmware.program import (
    Branch,
    CopyCall,
    CProgram,
    HelperCall,
    KernelCall,
    NodeResult,
    ProgramCall,
    RepeatedCalls,
)
from onnxtile.firmware.size_points import OpenNumber, OpenSize, SizePoints
from onnxtile.system.errors import UsageError


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
    if isinstance(call, Branch):
        return call.condition
    return call.most, call.goes_on, call.number


def _refusal(result: NodeResult | None, reason: str) -> UsageError:
    where = "the states or outputs" if result is None else f"the node that makes {result.name!r} ({result.operator})"
    return UsageError(
        f"no C can be written over a range for {where}: {reason}",
        hint="bind each dimension to one size; nothing was written",
    )
