"""Further runs of one kernel that shares bytes: on other values of the operands that are in the arena.

A kernel that reads and writes different bytes needs one run: every tensor is compared when it is written, and whenever it is read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from onnxtile.planning.proof.kernel import Kernel
from onnxtile.planning.proof.memory import VECTOR, TensorMemory

FURTHER_RUNS = 2
"""The further runs of a kernel that shares bytes."""


def shares_bytes(kernel: Kernel, sites: Mapping[ir.Value, TensorMemory]) -> bool:
    """Return whether an output of `kernel` has bytes of one of its operands."""
    made = [sites[value] for _, value in kernel.outputs if value in sites]
    read = [sites[value] for value in kernel.reads if value in sites]
    return any(_overlap(one, other) for one in made for other in read)


def placement(
    kernel: Kernel, sites: Mapping[ir.Value, TensorMemory], values: Mapping[ir.Value, TensorMemory]
) -> Hashable:
    """Return the same key for kernels of one session whose operands and results have the same distances in the arena.

    One of them on other values stands for all. An operand that keeps its values, such as indices, is in the key itself.
    """
    places = [sites[value].address if value in sites else None for value in kernel.reads]
    places += [sites[value].address if value in sites else None for _, value in kernel.outputs]
    base = min(place for place in places if place is not None)
    kept = tuple(value for value in kernel.reads if not _is_movable(values[value]))
    return kernel.session, base % VECTOR, tuple(None if place is None else place - base for place in places), kept


def other_values(
    kernel: Kernel, sites: Mapping[ir.Value, TensorMemory], values: Mapping[ir.Value, TensorMemory]
) -> Iterator[dict[ir.Value, TensorMemory]]:
    """Yield the operands of `kernel` with their elements moved around, once for each further run.

    Only operands in the arena change, and no integers of more than 8 bits: these may be indices or sizes. Nothing is yielded where
    two such operands share bytes.
    """
    moved = [value for value in dict.fromkeys(kernel.reads) if value in sites and _is_movable(values[value])]
    if _share_bytes([sites[value] for value in moved]):
        return
    for turn in range(1, FURTHER_RUNS + 1 if moved else 1):
        yield {value: _moved(values[value], turn) for value in moved}


def _is_movable(tensor: object) -> bool:
    if not isinstance(tensor, TensorMemory):
        return False
    bits = tensor.dtype.bitwidth
    return len(tensor.data) > 1 and (bits == 8 or (bits > 8 and tensor.dtype.is_floating_point()))


def _moved(tensor: TensorMemory, turn: int) -> TensorMemory:
    elements = tensor.data.reshape(-1, tensor.dtype.bitwidth // 8)
    copy = TensorMemory.empty(tensor.dtype, tensor.shape, len(tensor.data), tensor.address)
    copy.data[:] = np.roll(elements, turn * (len(elements) // 3) + 1, axis=0).reshape(-1)
    return copy


def _share_bytes(tensors: Iterable[TensorMemory]) -> bool:
    """Return whether two of `tensors`, which all have bytes, share one: then two do whose first bytes are neighbours."""
    ranges = sorted((tensor.address, tensor.address + len(tensor.data)) for tensor in tensors)
    return any(start < end for (_, end), (start, _) in pairwise(ranges))


def _overlap(one: TensorMemory, other: TensorMemory) -> bool:
    return one.address < other.address + len(other.data) and other.address < one.address + len(one.data)
