"""Residence: tensors that a user places in the fast or the slow memory, or keeps, in a plan with copies between both.

A tensor placed in the fast memory never leaves it. One placed in the slow memory is copied there when it is made, and copied in for its
uses. A kept tensor without a place has its bytes in the slow memory to the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import UsageError
from onnxtile.model.walk import all_values
from onnxtile.planning.layout.pins import NO_PINS, Pins
from onnxtile.planning.movement.write import WrittenCopies


@dataclass(frozen=True)
class Residence:
    """The names of tensors that `stay` in the fast memory, that `leave` it between uses, and that are `held` there for the whole run.

    Those in `stored` have bytes in the slow memory as soon as they are made.
    """

    stay: frozenset[str] = frozenset()
    leave: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()

    @classmethod
    def of(cls, pins: Pins, fast: str, slow: str, lasting: Iterable[str] = ()) -> Residence:
        """Return the residence that `pins` ask for, in the memories with these names; `lasting` inputs are not overwritten."""
        stay = frozenset(name for name, place in pins.places.items() if place == fast)
        leave = frozenset(name for name, place in pins.places.items() if place == slow)
        return cls(stay, leave, leave | (pins.kept - stay), pins.kept.union(lasting) & stay)


NO_RESIDENCE = Residence()
"""No tensor is placed or kept."""


def require_residence(pins: Pins, slow: str, inputs: Iterable[str], workspaces: Iterable[str], io: str) -> None:
    """Raise UsageError for a placed or kept input outside the memories, and for a workspace in the `slow` one."""
    outside = set() if io == "inside" else set(inputs)
    for name in pins.names:
        if name in outside:
            raise UsageError(f"{name!r} has no address in an arena: a graph input", hint="add --io inside")
    for name in workspaces:
        if pins.places.get(name) == slow:
            raise UsageError(f"the workspace {name!r} is used by a kernel, so it cannot be in the slow memory {slow!r}")


def moved_pins(pins: Pins, residence: Residence, written: WrittenCopies) -> Pins:
    """Return `pins` for a model with the copies `written`: those of tensors in the slow memory are for the values there."""
    if not pins.names:
        return NO_PINS

    def named(found: Iterable[str]) -> dict[str, str]:
        return {name: written.stored.get(name, name) if name in residence.stored else name for name in found}

    def of(wanted: Mapping[str, str]) -> dict[str, str]:
        return {new: wanted[old] for old, new in named(wanted).items()}

    names = named(pins.offsets)
    offsets = {names[name]: offset for name, offset in pins.offsets.items()}
    return Pins(offsets, of(pins.places), tuple(named(pins.keeps).values()), pins.capacities)


def without_marks(model: ir.Model) -> None:
    """Remove pins, places and marks to keep a tensor from the metadata of `model` (in place)."""
    for value in all_values(model):
        for key in (keys.PIN, keys.PLACE_IN, keys.KEEP):
            value.metadata_props.pop(key, None)
