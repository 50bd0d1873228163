"""Colours of tensors in pictures: by operator, by layer, or by kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from onnxtile.report.format import PlanJson
from onnxtile.report.layout import BufferJson
from onnxtile.system.dataclass import dataclass

# The colours of pictures, light enough for black letters on them.
#
# Colours of kinds differ in print and for the colour-blind (after Okabe and Ito, 2002).

SHARED = "alias"
"""The kind of an activation that lies inside the bytes of another tensor."""

COLORS = {
    "activation": "#7fb2d9",
    SHARED: "#c6dff0",
    "output": "#e69f00",
    "input": "#56b98b",
    "workspace": "#cc79a7",
    "constant": "#bdb76b",
}
CATEGORIES = (
    *("#7fb2d9", "#f2a65a", "#86c99a", "#e48fa8", "#b5a4e0", "#e9cf6b"),
    *("#72cbc6", "#cba68c", "#b9c96f", "#a8c8f0", "#d9a3d3", "#9fb0a2"),
)
"""Colours of groups without an order, the most distinct first."""

GIVEN = "#56b98b"
"""The colour of graph inputs."""

OTHER = "#c3c7cb"
PEAK = "#b2182b"
GAP = "#a6a6a6"
EDGE = "#3d5a73"


def kind_of(row: BufferJson) -> str:
    """Return the kind as which `row` is coloured."""
    return SHARED if row.get("alias") is not None and row["kind"] == "activation" else str(row["kind"])


def kinds(plan: PlanJson) -> list[str]:
    """Return the kinds that a plan has, those with a colour of their own first."""
    present = {kind_of(row) for row in plan["buffers"]}
    return [*(kind for kind in COLORS if kind in present), *sorted(present - COLORS.keys())]


def color(kind: str) -> str:
    """Return the colour of `kind`."""
    return COLORS.get(kind, OTHER)


_RAMP = ("#7ea6e0", "#72c4d4", "#82cfa5", "#b9d67c", "#f0d268", "#f4a765", "#e98a94", "#c79be0")
"""The colours through which a ramp runs."""


def ramp(count: int) -> list[str]:
    """Return `count` colours in even distances along the ramp."""
    return [_between(i / max(count - 1, 1) * (len(_RAMP) - 1)) for i in range(count)]


def _between(at: float) -> str:
    low = min(int(at), len(_RAMP) - 2)
    parts = ((int(_RAMP[low][i : i + 2], 16), int(_RAMP[low + 1][i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(start + (end - start) * (at - low)):02x}" for start, end in parts)


_NUMBERED = re.compile(r"^(onnxtile::.+)\.\d+$")
"""A meta-op that has the name of another: with another body, and a number after the name."""

INPUT = "graph input"
"""The group of rows that no node makes."""


@dataclass(frozen=True)
class ColorGroup:
    """Tensors of one colour ("#rrggbb"), and how a legend calls them."""

    label: str
    color: str


@dataclass(frozen=True)
class Coloring:
    """One way to colour tensors. `is_ramp` says that the groups have an order, and their colours run from one end to the other."""

    name: str
    groups: tuple[ColorGroup, ...]
    is_ramp: bool
    key: Callable[[BufferJson], str] = field(repr=False)
    indices: Mapping[str, int] = field(repr=False)

    def index(self, row: BufferJson) -> int:
        """Return the group of `row`, by its place in `groups`."""
        return self.indices.get(self.key(row), len(self.groups) - 1)

    def color(self, row: BufferJson) -> str:
        """Return the colour of `row`."""
        return self.groups[self.index(row)].color


def colorings(plans: Sequence[PlanJson], first: str | None = None) -> tuple[Coloring, ...]:
    """Return the ways to colour `plans`, as `shown` returns them, with the same colours in all; the one called `first` comes first."""
    rows = [row for plan in plans for row in plan["buffers"]]
    ways = (_by_operator(rows), _by_layer(rows), _by_kind(plans))
    return tuple(sorted((way for way in ways if way is not None), key=lambda way: way.name != first))


def _by_operator(rows: Sequence[BufferJson]) -> Coloring | None:
    """Return the operators with the most bytes in colours of their own, then the others in one."""
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[_operator(row)] = sizes.get(_operator(row), 0) + row["size"]
    given = [INPUT] if sizes.pop(INPUT, None) is not None else []
    if not sizes:
        return None
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    coloured = names if len(names) <= len(CATEGORIES) else names[: len(CATEGORIES) - 1]
    left = len(names) - len(coloured)
    groups = [ColorGroup(_plain(name), shade) for name, shade in zip(coloured, CATEGORIES, strict=False)]
    groups += [ColorGroup(INPUT, GIVEN) for _ in given]
    groups += [ColorGroup(f"{left} other operators", OTHER)] if left else []
    return Coloring("operator", tuple(groups), False, _operator, _numbered((*coloured, *given)))


def _operator(row: BufferJson) -> str:
    return _NUMBERED.sub(r"\1", row.get("operator") or INPUT)


def _plain(operator: str) -> str:
    """Return an operator without its domain."""
    return operator.rpartition("::")[2]


def _by_layer(rows: Sequence[BufferJson]) -> Coloring | None:
    """Return the layers in the order in which they first run; None where no names tell them."""
    first: dict[str, int] = {}
    for row in rows:
        first[_layer(row)] = min(first.get(_layer(row), row["first"]), row["first"])
    given = [INPUT] if first.pop(INPUT, None) is not None else []
    if len(first) < 2:
        return None
    names = sorted(first, key=lambda name: first[name])
    groups = [ColorGroup(name, shade) for name, shade in zip(names, ramp(len(names)), strict=True)]
    groups += [ColorGroup(INPUT, GIVEN) for _ in given]
    return Coloring("layer", tuple(groups), True, _layer, _numbered((*names, *given)))


def _layer(row: BufferJson) -> str:
    return row.get("layer") or INPUT


def _by_kind(plans: Sequence[PlanJson]) -> Coloring:
    names = list(dict.fromkeys(kind for plan in plans for kind in kinds(plan)))
    return Coloring("kind", tuple(ColorGroup(name, color(name)) for name in names), False, kind_of, _numbered(names))


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}
