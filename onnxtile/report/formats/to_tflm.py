"""TensorFlow Lite Micro's OfflineMemoryAllocation as the bytes of its buffer: 32-bit integers, little-endian as in any flatbuffer."""

from __future__ import annotations

import struct

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.offline import words


def _write(plan: PlanJson, _options: RenderOptions) -> bytes:
    values = words(plan)
    return struct.pack(f"<{len(values)}i", *values)


FORMAT = Format("tflm", ".tflm", _write, "the bytes of TensorFlow Lite Micro's offline memory allocation")
