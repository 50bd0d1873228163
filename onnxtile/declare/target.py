"""The figures of a target: what its file says of the hardware beside the limits on one tile, which `onnxtile.tiling.limits` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from onnxtile.system.dataclass import dataclass


@dataclass(frozen=True)
class TargetFigures:
    """What the file of a target says beside the limits on one tile.

    `bandwidth` has the bytes per second of memories by name, `macs_per_second` is the speed of the kernels. Up to `streams` independent
    nodes run at the same time. `macs_by_type` has the speed for each element type where the file tells them apart, as `int8` and `float32`;
    `copied_per_second` are bytes within the memory of the activations, `calls_per_second` kernels that do nothing.
    `c_kernels` is the file of a table of functions in C for kernels. `cc` compiles a program in C for the target (empty: the compiler of
    this machine), and `runner` runs what it makes (empty: nothing does). `weights` says where the weights of such a program are: in its
    "code", or in a "file" beside it.
    """

    bandwidth: Mapping[str, int] = field(default_factory=dict)
    macs_per_second: int | None = None
    streams: int = 1
    c_kernels: Path | None = None
    cc: str = ""
    runner: str = ""
    weights: str = "code"
    macs_by_type: Mapping[str, int] = field(default_factory=dict)
    copied_per_second: int | None = None
    calls_per_second: int | None = None
