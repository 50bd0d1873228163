"""The constants of a program in flash: each once, those that are a slice of another as an offset into it.

Words of one size are one array, so that a compiler places and aligns them, whatever the order of bytes of the target is. In a file the
arrays follow each other, those of the largest words first, so that each is aligned where the file is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from onnxtile.system.dataclass import dataclass
from onnxtile.system.runtime import Array

_LEAST = 16
"""Bytes of a constant that is looked for in others."""


@dataclass(frozen=True)
class FlashWeights:
    """The bytes of constants by the size of their elements, and for each constant, by number, that size and its offset in these."""

    blocks: dict[int, bytes]
    addresses: Mapping[int, tuple[int, int]]

    @property
    def size(self) -> int:
        """The bytes of all blocks."""
        return sum(map(len, self.blocks.values()))

    @property
    def file(self) -> bytes:
        """All blocks one after the other, those of the largest elements first."""
        return b"".join(block for _, block in sorted(self.blocks.items(), reverse=True))

    def start(self, size: int) -> int:
        """Return the offset in `file` of the block of elements of `size` bytes."""
        return sum(len(block) for other, block in self.blocks.items() if other > size)


def placed(arrays: Mapping[int, Array]) -> FlashWeights:
    """Return the bytes of `arrays`, and where each is: the largest first, those that are in these already where they are."""
    blocks: dict[int, bytearray] = {}
    addresses: dict[int, tuple[int, int]] = {}
    by_size: dict[int, list[int]] = {}
    for number, array in arrays.items():
        by_size.setdefault(array.dtype.itemsize, []).append(number)
    for size, numbers in sorted(by_size.items()):
        block = blocks[size] = bytearray()
        order = sorted(numbers, key=lambda number: (-arrays[number].nbytes, number))
        for level in _levels(order, arrays):
            offsets = _inside(block, [arrays[number].tobytes() for number in level], size)
            for number, offset in zip(level, offsets, strict=True):
                addresses[number] = size, len(block) if offset is None else offset
                if offset is None:
                    block += arrays[number].tobytes()
    return FlashWeights({size: bytes(block) for size, block in blocks.items()}, addresses)


def _levels(order: Sequence[int], arrays: Mapping[int, Array]) -> Iterator[list[int]]:
    """Yield constants of one length together: none of them is a slice of another."""
    level: list[int] = []
    for number in order:
        if level and arrays[number].nbytes != arrays[level[0]].nbytes:
            yield level
            level = []
        level.append(number)
    if level:
        yield level


def _inside(block: bytearray, wanted: Sequence[bytes], size: int) -> list[int | None]:
    """Return where each of `wanted`, which have one length, is in `block`, at a multiple of `size`; None where it is not."""
    if not block or len(wanted[0]) < _LEAST:
        return [_found(block, data, size) if len(block) < 1 << 16 else None for data in wanted]
    heads = np.asarray([np.frombuffer(data[:8], np.uint64)[0] for data in wanted])
    words = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block, np.uint8), 8)[::size]
    values = np.ascontiguousarray(words).view(np.uint64).ravel()
    hits = np.flatnonzero(np.isin(values, heads))
    by_head: dict[int, list[int]] = {}
    for hit in hits:
        by_head.setdefault(int(values[hit]), []).append(int(hit) * size)
    return [
        next((at for at in by_head.get(int(head), ()) if block.startswith(data, at)), None)
        for head, data in zip(heads, wanted, strict=True)
    ]


def _found(block: bytearray, data: bytes, size: int) -> int | None:
    at = block.find(data) if data else -1
    while at >= 0 and at % size:
        at = block.find(data, at + 1)
    return at if at >= 0 else None
