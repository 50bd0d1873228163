"""The figures of a target: what its file says of the hardware beside the limits on one tile, which `onnxtile.tiling.limits` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class TargetFigures:
    """What the file of a target says beside the limits on one tile.

    `bandwidth` has the bytes per second of memories by name, `macs_per_second` is the speed of the kernels. Up to `streams` independent
    nodes run at the same time. `c_kernels` is the file of a table of functions in C for kernels.
    """

    bandwidth: Mapping[str, int] = field(default_factory=dict)
    macs_per_second: int | None = None
    streams: int = 1
    c_kernels: Path | None = None
