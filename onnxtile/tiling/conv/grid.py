"""How a convolution is cut: by groups, output rows, output columns, input channels and output channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from onnxtile.tiling.grid import Axis, loop


@dataclass(frozen=True)
class Grouped(Axis):
    """An axis of `groups` times `size` elements: `together` groups to a stretch, or each group in stretches of `step`.

    Groups lie one after another, and no stretch holds parts of two.
    """

    groups: int = 1
    together: int = 1

    @property
    def within(self) -> int:
        """How many stretches a single group has."""
        assert self.size is not None and self.step is not None
        return -(-self.size // self.step)

    @property
    def count(self) -> int:
        """How many stretches there are."""
        return -(-self.groups // self.together) * self.within

    @property
    def total(self) -> int | None:
        """The number of elements of all groups."""
        assert self.size is not None
        return self.groups * self.size

    @property
    def fills(self) -> bool:
        """Nothing fills up a stretch."""
        return False

    def stretch(self, index: int) -> slice:
        """Return the half-open range of elements in stretch `index`."""
        assert self.size is not None and self.step is not None and self.total is not None
        if self.within == 1:
            long = self.together * self.size
            return slice(index * long, min((index + 1) * long, self.total))
        group, inside = divmod(index, self.within)
        start = group * self.size + inside * self.step
        return slice(start, min(start + self.step, (group + 1) * self.size))

    def width(self, index: int) -> int:
        """Return the number of elements in stretch `index`."""
        stretch = self.stretch(index)
        return int(stretch.stop - stretch.start)


@dataclass(frozen=True)
class ConvGrid:
    """The cuts of a convolution. `spatial` are those of the output's rows and columns, or columns only.

    Where `channels` or `filters`, those of one group, are cut, a tile has one group. `order` names the loops inside each set of
    groups, outermost first: m over the pixels, row by row, k over input channels, n over output channels.
    """

    groups: Axis
    spatial: tuple[Axis, ...]
    channels: Axis
    filters: Axis
    order: str = "mnk"

    @property
    def inputs(self) -> Grouped:
        """The cuts along all input channels."""
        return self._grouped(self.channels)

    @property
    def outputs(self) -> Grouped:
        """The cuts along all output channels."""
        return self._grouped(self.filters)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The number of stretches along M, K and N of one group."""
        return prod(axis.count for axis in self.spatial), self.channels.count, self.filters.count

    @property
    def steps(self) -> list[int | None]:
        """The size of a full tile along M, K and N: pixels, input channels, output channels of its groups."""
        pixels = [axis.step for axis in self.spatial if axis.step is not None]
        together = self.groups.step or 1
        m = prod(pixels) if len(pixels) == len(self.spatial) else None
        return [m, (self.channels.step or 1) * together, (self.filters.step or 1) * together]

    @property
    def matmuls(self) -> int:
        """How many convolutions there are."""
        return self.groups.count * prod(self.shape)

    @property
    def is_cut(self) -> bool:
        """Whether there is more than one tile."""
        return self.matmuls > 1

    @property
    def cuts_pixels(self) -> bool:
        """Whether rows or columns are cut."""
        return any(axis.is_cut for axis in self.spatial)

    def places(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield the place (group, m, k, n) of each tile in loop order."""
        for group in range(self.groups.count):
            for m, k, n in loop(self.order, self.shape):
                yield group, m, k, n

    def pixels(self, m: int) -> tuple[slice, ...]:
        """Return the rows and columns of the output that tile `m` makes, counted row by row."""
        found: list[slice] = []
        for axis in reversed(self.spatial):
            m, index = divmod(m, axis.count)
            found.append(axis.stretch(index))
        return tuple(reversed(found))

    def to_dict(self) -> dict[str, object]:
        """Return the size of a full tile along each axis, ready for JSON."""
        names = ("rows", "columns")[-len(self.spatial) :]
        sizes = {name: axis.step for name, axis in zip(names, self.spatial, strict=True)}
        return {"groups": self.groups.step, **sizes, "channels": self.channels.step, "filters": self.filters.step}

    def _grouped(self, axis: Axis) -> Grouped:
        return Grouped(axis.size, axis.step, groups=self.groups.size or 1, together=self.groups.step or 1)
