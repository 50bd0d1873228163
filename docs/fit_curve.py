"""The picture of docs/fit.md: the curves of two MobileNetV2 beside published points.

    python docs/fit_curve.py [FOLDER]

It takes some minutes, and needs the extra "pictures".
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.figure import Figure

import onnxtile
from onnxtile.report.colors import CATEGORIES, EDGE
from onnxtile.report.curve_files import STYLE, saved

FOLDER = Path(__file__).parent / "images"
FILE = "mobilenet-curve.svg"
BUDGET = "50%"
_FLOAT = 4
"""Bytes of a float32: a quarter of a float arena is comparable with the arena of int8."""


class Network(NamedTuple):
    """A MobileNetV2: the factor of its channels, and the rows and columns of its image."""

    width: float
    size: int

    @property
    def label(self) -> str:
        """The name in the legend."""
        return f"MobileNetV2 {self.width:g}, {self.size}"


class Published(NamedTuple):
    """A published point: the arena in bytes of int8, and the multiply-accumulates beyond those of the model, in per cent."""

    label: str
    network: Network
    arena: int
    extra: float


NETWORKS = (Network(1.0, 224), Network(0.35, 144))
PUBLISHED = (
    Published("MCUNetV2", NETWORKS[0], 172_000, 10),
    Published("msf-CNN", NETWORKS[1], 83_133, 1.9),
    Published("msf-CNN", NETWORKS[1], 25_803, 26),
    Published("msf-CNN", NETWORKS[1], 15_199, 39),
)
"""Lin et al. 2021 (arXiv:2110.15352), and Huang et al. 2025 (msf-CNN)."""


def curve(network: Network) -> Sequence[Mapping[str, Any]]:
    """Return the points of a network with random weights and a batch of 1."""
    spec = importlib.util.spec_from_file_location(
        "make_mobilenet_v2", Path(__file__).parent.parent / "models" / "make_mobilenet_v2.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.mobilenet_v2(network.size, width=network.width, seed=0)
    found = onnxtile.fit_curve(model, dims={"batch": 1}, max_extra_macs=BUDGET, verify=False)
    points: Sequence[Mapping[str, Any]] = found.to_dict()["curve"]
    return points


def draw(curves: Mapping[Network, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return the picture as an SVG, the same bytes for the same points."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 3.6), layout="constrained")
        axes = figure.subplots()
        for color, (network, points) in zip((EDGE, CATEGORIES[1]), curves.items(), strict=False):
            across = [point["arena"] / _FLOAT / 1024 for point in points]
            extra = [100 * (point["macs"] / points[0]["macs"] - 1) for point in points]
            fills = ["white" if point["estimated"] else color for point in points]
            axes.plot(across, extra, color=color, linewidth=1.0, label=f"{network.label}, a quarter of float")
            axes.scatter(across, extra, s=18, c=fills, edgecolors=color, zorder=2, clip_on=False)
            for one in (one for one in PUBLISHED if one.network == network):
                axes.scatter([one.arena / 1024], [one.extra], s=32, marker="x", c=color, zorder=3)
                axes.annotate(f"{one.label}, int8", (one.arena / 1024, one.extra), (4, 4), textcoords="offset points")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _place: f"{value:,.0f}")
        axes.set_xlabel("arena, KiB (hollow points: estimated; crosses: published)")
        axes.set_ylabel("extra MACs, %")
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, linewidth=0.3)
        axes.legend(frameon=False, loc="upper right")
        return saved(figure, "svg")


def main(folder: Path = FOLDER) -> None:
    """Draw the picture into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(draw({network: curve(network) for network in NETWORKS}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
