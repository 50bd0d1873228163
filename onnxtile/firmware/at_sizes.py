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
from onnxtile.firmware.size_points import OpenSize, SizePoints
from onnxtile.system.errors import UsageError


def over_sizes(programs: Sequence[CProgram], points: SizePoints, sizes: tuple[OpenSize, ...]) -> CProgram:
    """Return the program over the ranges of `sizes` that is `programs` at the `points`. Raises UsageError where their calls differ."""
    results = list(zip(*(program.results for program in programs), strict=True))
    calls = list[ProgramCall]()
    moved = next((same[0] for same in results if len({result.calls for result in same}) > 1), None)
    if moved is not None or len({len(program.calls) for program in programs}) > 1:
        raise _differs(moved)
    for number, same_calls in enumerate(zip(*(program.calls for program in programs), strict=True)):
        try:
            calls.append(_merged_call(same_calls))
        except _OtherBytesError as error:
            raise _differs(next((same[0] for same in results if same[0].calls > number), None)) from error
    return replace(
        programs[0],
        calls=tuple(calls),
        results=tuple(replace(same[0], others=same[1:]) for same in results),
        points=points,
        sizes=sizes,
    )


class _OtherBytesError(Exception):
    """A call has other operands at other sizes, or there is none."""


def _merged(sides: Sequence[tuple[ProgramCall, ...]]) -> tuple[ProgramCall, ...]:
    if len(set(map(len, sides))) > 1:
        raise _OtherBytesError
    return tuple(_merged_call(calls) for calls in zip(*sides, strict=True))


def _merged_call(calls: Sequence[Any]) -> ProgramCall:
    """Return one call that is `calls` at the points."""
    first, *others = calls
    if any(_fixed(call) != _fixed(first) for call in others):
        raise _OtherBytesError
    if all(call == first for call in others):
        return first  # type: ignore[no-any-return]
    if isinstance(first, KernelCall):
        return replace(first, kernel=replace(first.kernel, others=tuple(call.kernel for call in others)))
    if isinstance(first, CopyCall):
        return replace(first, others=tuple(call.size for call in others))
    if isinstance(first, HelperCall):
        return replace(first, others=tuple(call.numbers for call in others))
    if isinstance(first, Branch):
        sides = ([call.then for call in calls], [call.otherwise for call in calls])
        return Branch(first.condition, *map(_merged, sides))
    if isinstance(first, RepeatedCalls):
        return replace(first, turn=_merged([call.turn for call in calls]))
    raise _OtherBytesError


def _fixed(call: ProgramCall) -> object:
    """Return what of a call is the same at all sizes."""
    if isinstance(call, KernelCall):
        kernel = call.kernel
        return call.addresses, kernel.op_type, kernel.fixed, kernel.opsets
    if isinstance(call, CopyCall):
        return replace(call, size=0)
    if isinstance(call, HelperCall):
        return call.helper, call.addresses
    if isinstance(call, Branch):
        return replace(call, then=(), otherwise=())
    return replace(call, turn=()) if isinstance(call, RepeatedCalls) else call


def _differs(result: NodeResult | None) -> UsageError:
    where = "the states or outputs" if result is None else f"the node that makes {result.name!r} ({result.operator})"
    return UsageError(
        f"no C can be written over a range for {where}: from size to size, it uses bytes at other addresses",
        hint="bind each dimension to one size; nothing was written",
    )
