"""The rules by which a tensor may share bytes with an operand, as the independent check knows them.

Each says what breaks it, given a tensor and the one that it shares bytes with; None where it is kept. That nothing is overwritten before
it has been read for the last time is no business of theirs: plan.proof.replay finds that out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from onnxtile.plan.alias.lawful import CUTS, IN_PLACE, JOINS, VIEWS
from onnxtile.plan.proof.tenant import Made, Tenant


def _view(tenant: Tenant, source: Tenant) -> str | None:
    """A view is the same bytes under another shape: it writes nothing, so its source may be read before, while and after."""
    made = tenant.made
    if made is None or made.operator not in VIEWS or not made.operands:
        return f"{made.operator if made is not None else 'its operator'} does not give views"
    if made.operands[0] is None or made.operands[0].name != source.name:
        return "that is not what it is given"
    if (tenant.element, tenant.size) != (source.element, source.size):
        return f"{tenant.size} bytes of {tenant.element} are not {source.size} bytes of {source.element}"
    if tenant.offset != source.offset:
        return f"it is at {tenant.offset}, not at {source.offset}"
    return _not_before(tenant, source)


def _in_place(tenant: Tenant, source: Tenant) -> str | None:
    """A result is written over an operand that nobody reads later, element by element, row by row or channel by channel."""
    made = tenant.made
    if made is None or not (made.operator in IN_PLACE or made.over):
        return f"{made.operator if made is not None else 'its operator'} does not compute in place"
    allowed = frozenset(made.over) or IN_PLACE[made.operator]
    places = [place for place, operand in enumerate(made.operands) if operand and operand.name == source.name]
    if not places or (allowed is not None and not allowed.issuperset(places)):
        return f"{made.operator} may not write over that operand"
    if (tenant.shape, tenant.size, tenant.granule) != (source.shape, source.size, source.granule):
        return f"{list(source.shape)} of {source.element} is not as large as {list(tenant.shape)} of {tenant.element}"
    if (tenant.bound or source.bound) and not _same_in_every_run(made, source):
        return "of one bound, both may have two sizes"
    if tenant.offset != source.offset:
        return f"it is at {tenant.offset}, not at {source.offset}"
    if source.kept or max(source.steps) > min(tenant.steps):
        return "that is still to be read"
    if min(tenant.steps) in source.crowded:
        return "another node reads that in the same step"
    return _not_before(tenant, source)


def _same_in_every_run(made: Made, source: Tenant) -> bool:
    """Return whether the result has the shape of `source` whatever sizes data decide: no other operand can make it larger."""
    if IN_PLACE.get(made.operator) == frozenset({0}):
        return True
    others = [operand for operand in made.operands if operand is not None and operand.name != source.name]
    return made.operator in IN_PLACE and all(
        o.shape is not None and set(o.shape) <= {1} and not o.bound for o in others
    )


def _cut(tenant: Tenant, source: Tenant) -> str | None:
    """A result of Split or Slice is read where it lies in the operand."""
    made = tenant.made
    if made is None or made.operator not in CUTS or not made.operands:
        return "it is not made by cutting"
    first = made.operands[0]
    if first is None or first.name != source.name:
        return "that is not what is cut"
    return _box(tenant, source, made.starts) or _not_before(tenant, source)


def _join(tenant: Tenant, source: Tenant) -> str | None:
    """An operand of Concat lies where the result has it, and may be read there also afterwards."""
    made = tenant.made
    if made is None or made.operator not in JOINS:
        return "it is not made by joining"
    axis = made.axis % len(tenant.shape)
    start, broken = 0, "that is not one of what is joined"
    for operand in made.operands:
        if operand is None or operand.shape is None or len(operand.shape) != len(tenant.shape):
            return "not every operand's shape is known"
        if operand.name == source.name:
            starts = tuple(start if place == axis else 0 for place in range(len(tenant.shape)))
            reason = _box(source, tenant, starts)
            if reason is None:
                return _not_before(tenant, source)
            broken = reason
        start += operand.shape[axis]
    return broken


def _box(part: Tenant, whole: Tenant, starts: tuple[int, ...]) -> str | None:
    """Return what keeps the box `part`, which begins at `starts` of `whole`, from being the bytes at its address, in one piece."""
    if part.element != whole.element or not len(part.shape) == len(whole.shape) == len(starts):
        return f"{list(part.shape)} of {part.element} is no part of {list(whole.shape)} of {whole.element}"
    rows = list(zip(starts, part.shape, whole.shape, strict=True))
    if any(start < 0 or start + length > all_ for start, length, all_ in rows):
        return f"{list(part.shape)} at {list(starts)} is not inside of {list(whole.shape)}"
    # In one piece: the distance from the first to the last element is as many elements as there are.
    strides = [math.prod(whole.shape[axis + 1 :]) for axis in range(len(starts))]
    span = 1 + sum((length - 1) * stride for length, stride in zip(part.shape, strides, strict=True))
    count = math.prod(part.shape)
    if not count or span != count or part.size % count:
        return "its bytes are not contiguous there"
    at = sum(start * stride for start, stride in zip(starts, strides, strict=True)) * (part.size // count)
    if part.offset != whole.offset + at:
        return f"it is at {part.offset}, not at {whole.offset + at}"
    return None


def _not_before(tenant: Tenant, source: Tenant) -> str | None:
    return "it is there before its source" if min(tenant.steps) < min(source.steps) else None


RULES: Mapping[str, Callable[[Tenant, Tenant], str | None]] = {
    "view": _view,
    "in place": _in_place,
    "cut": _cut,
    "join": _join,
}
