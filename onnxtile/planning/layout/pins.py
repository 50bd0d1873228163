"""Pins: the addresses and memories that tensors and workspaces of a graph must have, and the tensors that share bytes with nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx_ir as ir

from onnxtile import keys
from onnxtile.errors import UsageError, unknown
from onnxtile.model.walk import all_values
from onnxtile.planning.layout.aliases.find import Alias, LayoutFacts
from onnxtile.planning.layout.roles import Roles
from onnxtile.planning.offsets.problem import Buffer, Problem
from onnxtile.sizes import whole


@dataclass(frozen=True)
class Pins:
    """The offset in bytes and the memory that a tensor or workspace must have, by name, and the names of tensors to keep.

    A kept tensor shares its bytes with nothing for the whole run, so its value may be read at any time after it is made. `capacities` has
    the bytes of each memory (None: no limit).
    """

    offsets: Mapping[str, int] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    keeps: tuple[str, ...] = ()
    capacities: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names in it, each once."""
        return tuple(dict.fromkeys((*self.offsets, *self.places, *self.keeps)))

    def with_marks(self, model: ir.Model) -> Pins:
        """Return these pins with those in the metadata of the values of `model`; an option replaces a mark of the same tensor.

        Raises UsageError for a mark that says nothing.
        """
        offsets: dict[str, int] = {}
        places: dict[str, str] = {}
        keeps: dict[str, None] = {}
        own = {*model.graph.inputs, *(value for node in model.graph for value in node.outputs)}
        for value in all_values(model):
            name, marks = value.name or "", value.metadata_props
            if value not in own and not marks.keys().isdisjoint((keys.PIN, keys.PLACE_IN, keys.KEEP)):
                raise _inside(name)
            if keys.PIN in marks:
                offsets[name] = _number(name, marks[keys.PIN])
            if keys.PLACE_IN in marks:
                places[name] = marks[keys.PLACE_IN]
            if keys.KEEP in marks and _flag(name, marks[keys.KEEP]):
                keeps[name] = None
        every = tuple(keeps | dict.fromkeys(self.keeps))
        return Pins({**offsets, **self.offsets}, {**places, **self.places}, every, self.capacities)

    def require_known(self, model: ir.Model, roles: Roles, workspaces: Collection[str]) -> None:
        """Raise UsageError for a name that is no tensor or workspace of the main graph with an address in an arena."""
        if not self.names:
            return
        tensors = {value.name or "" for value in roles.tensors}
        reasons = {value.name or "": reason for value, reason in (*roles.outside.items(), *roles.unplanned.items())}
        reasons |= {value.name or "": "a constant" for value in roles.constants}
        for name in self.names:
            if name in tensors or (name in workspaces and name not in self.keeps):
                continue
            if name in workspaces:
                raise UsageError(f"{name!r} is a workspace, not a tensor", hint="its rule may say unique")
            if name in reasons:
                inside = reasons[name] in {"a graph input", "a graph output"}
                raise UsageError(
                    f"{name!r} has no address in an arena: {reasons[name]}", hint="add --io inside" if inside else None
                )
            if any(value.name == name for value in all_values(model)):
                raise _inside(name)
            raise unknown("tensor", name, {*tensors, *workspaces})

    def limit(self, name: str) -> int | None:
        """Return the capacity of the memory of the pinned tensor `name`, in bytes; None for a tensor without a pin or a limit."""
        if name not in self.offsets:
            return None
        return self.capacities.get(self.places.get(name) or next(iter(self.capacities), ""))

    def require_addresses(self, sizes: Mapping[str, int], alignment: int) -> None:
        """Raise UsageError for a pin of one of `sizes` that is not aligned, or leaves the capacity of its memory."""
        for name, size in sizes.items():
            if name in self.offsets:
                Problem((Buffer(name, size, 0, 1, pin=self.offsets[name]),), alignment, self.limit(name))

    def require_memories(self) -> None:
        """Raise UsageError for a place that is none of the memories, and a pin whose memory is not known."""
        names = tuple(self.capacities)
        for name, place in self.places.items():
            if place not in names:
                error = unknown("memory", place, names)
                raise UsageError(f"the place {place!r} of {name!r} has no capacity", hint=error.hint)
        for name in self.offsets if len(names) > 1 else ():
            if name not in self.places:
                raise UsageError(
                    f"the pin of {name!r} is an offset in one of several memories", hint=f"choose {', '.join(names)}"
                )

    def require_agreement(self, facts: LayoutFacts, tensors: Iterable[ir.Value]) -> None:
        """Raise UsageError for a view that must have another address or memory than its source."""
        if not self.offsets and not self.places:
            return
        sources = {a.value: a.source for a in _views(facts)}
        known = {value.name or "" for value in tensors}
        by_root: dict[ir.Value, list[str]] = {}
        for root, name in ((_root(v, sources, frozenset(self.keeps)), v.name or "") for v in tensors):
            if name in self.offsets or name in self.places:
                by_root.setdefault(root, []).append(name)
        for names in by_root.values():
            for wanted in (self.offsets, self.places):
                said = [name for name in names if name in wanted and name in known]
                other = next((name for name in said if wanted[name] != wanted[said[0]]), None)
                if other is not None:
                    raise UsageError(
                        f"{said[0]!r} and {other!r} are views of one another, and cannot be at {wanted[said[0]]} and {wanted[other]}"
                    )

    @cached_property
    def kept(self) -> frozenset[str]:
        """The names of tensors that share bytes with nothing."""
        return frozenset(self.keeps)

    def on(self, buffer: Buffer) -> Buffer:
        """Return the buffer of a workspace with its pin and its memory."""
        if buffer.name not in self.offsets and buffer.name not in self.places:
            return buffer
        return replace(buffer, pin=self.offsets.get(buffer.name), memory=self.places.get(buffer.name))


NO_PINS = Pins()
"""No pins."""


def _inside(name: str) -> UsageError:
    return UsageError(f"{name!r} has no address of its own in the main graph: it is made in a body or function")


def _views(facts: LayoutFacts) -> Iterator[Alias]:
    return (alias for node in facts.model.graph for alias in facts.lawful(node) if alias.rule == "view")


def _root(value: ir.Value, sources: Mapping[ir.Value, ir.Value], kept: frozenset[str]) -> ir.Value:
    while value in sources and value.name not in kept and sources[value].name not in kept:
        value = sources[value]
    return value


def _number(name: str, text: str) -> int:
    found = whole(text)
    if found is None:
        raise UsageError(f"the metadata {keys.PIN!r} of {name!r} is {text!r}, not a number of bytes")
    return found


def _flag(name: str, text: str) -> bool:
    if text not in {"true", "false"}:
        raise UsageError(f"the metadata {keys.KEEP!r} of {name!r} is {text!r}", hint="write true or false")
    return text == "true"
