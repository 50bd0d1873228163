"""TensorFlow Lite Micro's offline memory plan, made of a plan: the bytes of its buffer, or JSON with the tensors' names.

A list of 32-bit integers: version, number of subgraphs, number of tensors n, then the offset of each tensor in the head of the
arena, or -1 where TensorFlow Lite Micro is to find one itself. It becomes the buffer of the model's metadata "OfflineMemoryAllocation".
(https://github.com/tensorflow/tflite-micro, tensorflow/lite/micro/docs/memory_management.md, "Offline planned tensor allocations".)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.system.errors import UsageError
from onnxtile.system.text import as_json

NAME = "OfflineMemoryAllocation"
"""The name of the metadata."""

_VERSION = 1
_SUBGRAPHS = 1
_AT_RUNTIME = -1
_LARGEST = 2**31 - 1


def tensors(plan: PlanJson) -> list[str]:
    """Return the names of the tensors in the order of their offsets: those without an address (inputs, constants), then buffers."""
    return [name for name, _ in _offsets(plan)]


def words(plan: PlanJson) -> list[int]:
    """Return the list of integers. Raises UsageError for several arenas, and for offsets above 2 GiB."""
    used = sorted({row["arena"] for row in plan["buffers"]})
    if len(used) > 1:
        raise UsageError(
            f"TensorFlow Lite Micro has one arena, and the plan has {len(used)}: {', '.join(used)}",
            hint="give one --capacity, or none",
        )
    offsets = [offset for _, offset in _offsets(plan)]
    if max(offsets, default=0) > _LARGEST:
        raise UsageError("TensorFlow Lite Micro takes offsets below 2 GiB, and the plan has larger ones")
    return [_VERSION, _SUBGRAPHS, len(offsets), *offsets]


def _offsets(plan: PlanJson) -> Iterator[tuple[str, int]]:
    for kind in ("outside", "constants", "unplanned"):
        yield from ((row["name"], _AT_RUNTIME) for row in plan.get(kind, ()))
    # TensorFlow Lite Micro has no tensors for workspaces: its kernels request their bytes while they are prepared.
    yield from ((row["name"], row["offset"]) for row in plan["buffers"] if row["kind"] != "workspace")


def _bytes(plan: PlanJson, _options: RenderOptions) -> bytes:
    # Little-endian, as in any flatbuffer.
    values = words(plan)
    return struct.pack(f"<{len(values)}i", *values)


def _json(plan: PlanJson, _options: RenderOptions) -> bytes:
    content = {
        "name": NAME,
        "arena_size": sum(arena["size"] for arena in plan["arenas"]),
        "buffer": words(plan),
        "tensors": tensors(plan),
    }
    return as_json(content).encode()


BYTES = Format("tflm", ".tflm", _bytes, "the bytes of TensorFlow Lite Micro's offline memory allocation")
JSON = Format(
    "tflm-json", ".tflm.json", _json, "TensorFlow Lite Micro's offline memory allocation as a list of numbers"
)
