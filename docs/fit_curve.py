"""The picture of docs/fit.md: the curves of two MobileNetV2 beside published points.

    python docs/fit_curve.py [FOLDER]

It takes some minutes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxtile
from onnxtile.report.curve_files import KIB, CurveMark, Diagram, drawn
from onnxtile.report.svg import CATEGORIES, EDGE, element, text

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
    found = onnxtile.fit_curve(model, dims={"batch": 1}, budget=BUDGET, verify=False)
    points: Sequence[Mapping[str, Any]] = found.to_dict()["curve"]
    return points


def draw(curves: Mapping[Network, Sequence[Mapping[str, Any]]]) -> bytes:
    """Return the picture as an SVG, the same bytes for the same points."""
    marks = {network: [_mark(point, points[0]["macs"]) for point in points] for network, points in curves.items()}
    published = {one: CurveMark(one.arena / KIB, one.extra) for one in PUBLISHED}
    every = [*(mark for found in marks.values() for mark in found), *published.values()]
    diagram = Diagram.of_marks("extra MACs, %", every, 12, 190)
    right, _ = diagram.place(CurveMark(2.0**diagram.high, 0))
    parts = [*diagram.grid(), *diagram.arenas("arena, KiB (hollow points: estimated; crosses: published)")]
    for number, (color, network) in enumerate(zip((EDGE, CATEGORIES[1]), curves, strict=False)):
        parts += diagram.curve(marks[network], color)
        y = diagram.top + 12 + 12 * number
        parts.append(element("line", x1=right - 190, y1=y, x2=right - 175, y2=y, stroke=color))
        parts.append(text(right - 170, y, f"{network.label}, a quarter of float", middle=8))
        for one in (one for one in PUBLISHED if one.network == network):
            x, y = diagram.place(published[one])
            parts.append(element("path", d=f"M{x - 3:.2f} {y - 3:.2f}l6 6m0 -6l-6 6", stroke=color, stroke_width=1.5))
            parts.append(text(x + 5, y - 4, f"{one.label}, int8"))
    return drawn([diagram], parts)


def _mark(point: Mapping[str, Any], macs: int) -> CurveMark:
    return CurveMark(point["arena"] / _FLOAT / KIB, 100 * (point["macs"] / macs - 1), point["estimated"])


def main(folder: Path = FOLDER) -> None:
    """Draw the picture into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FILE).write_bytes(draw({network: curve(network) for network in NETWORKS}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
