"""TensorFlow Lite Micro's OfflineMemoryAllocation as JSON, with the tensors' names for converters that order them differently."""

from __future__ import annotations

from onnxtile.report.format import Format, PlanJson, RenderOptions
from onnxtile.report.offline import NAME, tensors, words
from onnxtile.system.text import as_json


def _write(plan: PlanJson, _options: RenderOptions) -> bytes:
    content = {
        "name": NAME,
        "arena_size": sum(arena["size"] for arena in plan["arenas"]),
        "buffer": words(plan),
        "tensors": tensors(plan),
    }
    return as_json(content).encode()


FORMAT = Format(
    "tflm-json", ".tflm.json", _write, "TensorFlow Lite Micro's offline memory allocation as a list of numbers"
)
