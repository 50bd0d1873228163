"""Diagrams of docs/tile.md and docs/patterns.md: a product in tiles, and a query beside the nodes that it matches.

python docs/diagrams.py [FOLDER]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from onnxtile.report.svg import CATEGORIES, EDGE, element, picture, text

FOLDER = Path(__file__).parent / "images"
SIZES, LARGEST = (128, 192, 128), 64
"""M, K and N of the product in tile.svg, and the option --max."""
QUERY = ("MatMul", "Div", "Softmax", "MatMul")
"""The operators of the query of pattern.svg, one after the other."""
META_OP = "Att"

_CELL, _PLAIN = 32, "#e9ecef"
_BOX = (70, 22)


def _grid(x: float, y: float, rows: int, columns: int, fills: dict[tuple[int, int], str]) -> Iterator[str]:
    """Yield the blocks of a matrix; `fills` has the colours of some, by row and column."""
    for row in range(rows):
        for column in range(columns):
            fill = fills.get((row, column), _PLAIN)
            at = {"x": x + column * _CELL, "y": y + row * _CELL}
            yield element("rect", **at, width=_CELL, height=_CELL, fill=fill, stroke="#fff", stroke_width=1.5)


def tiles() -> bytes:
    """Return tile.svg: the blocks of both factors that make one block of the result, coloured by their place along K."""
    m, k, n = (size // LARGEST for size in SIZES)
    row, column = 0, n - 1
    by_k = [CATEGORIES[place] for place in range(k)]
    left, right, result = 20, 60 + k * _CELL, 110 + (k + n) * _CELL
    top, below = 44, 64 + k * _CELL
    parts = [
        text(
            left, 18, f"--max {LARGEST}: a product of {SIZES[0]} × {SIZES[1]} and {SIZES[1]} × {SIZES[2]}", font_size=11
        ),
        *(text(x, top - 6, name) for x, name in ((left, "A, M × K"), (right, "B, K × N"), (result, "result, M × N"))),
        *_grid(left, top, m, k, {(row, place): fill for place, fill in enumerate(by_k)}),
        *_grid(right, top, k, n, {(place, column): fill for place, fill in enumerate(by_k)}),
        *_grid(result, top, m, n, {(row, column): EDGE}),
        text(right - 24, top + _CELL * m / 2, "×", middle=14, font_size=14),
        text(result - 30, top + _CELL * m / 2, "=", middle=14, font_size=14),
    ]
    for place, fill in enumerate(by_k):
        x = left + place * 84
        parts.append(element("rect", x=x, y=below, width=58, height=20, rx=3, fill=fill))
        parts.append(text(x + 29, below + 10, "MatMul", middle=8, text_anchor="middle"))
        parts.append(
            text(x + 71, below + 10, "+" if place < k - 1 else "=", middle=12, text_anchor="middle", font_size=12)
        )
    last = left + k * 84
    parts.append(element("rect", x=last, y=below, width=20, height=20, fill=EDGE))
    parts.append(text(last + 28, below + 10, "one block of the result", middle=8))
    counts = f"{m * k * n} MatMul, {m * n * (k - 1)} Add, and Concat of the {m * n} blocks"
    parts.append(text(left, below + 40, f"the whole product: {counts}"))
    return picture(last + 140, below + 54, parts)


def _box(x: float, y: float, label: str, fill: str, height: float = _BOX[1]) -> Iterator[str]:
    yield element("rect", x=x, y=y, width=_BOX[0], height=height, rx=3, fill=fill)
    yield text(x + _BOX[0] / 2, y + height / 2, label, middle=8, text_anchor="middle")


def _arrow(x: float, y: float, to: float) -> Iterator[str]:
    yield element("path", d=f"M{x} {y}V{to - 4}m-3 -1l3 5l3 -5", fill="none", stroke="#5c6770")


def match() -> bytes:
    """Return pattern.svg: a query, the nodes of attention that it matches, and the meta-op in their place."""
    left, right, top, step = 60, 300, 64, 42
    parts = [text(20, 20, "query:", font_size=10)]
    x = 62.0
    for place, operator in enumerate(QUERY):
        parts.append(
            element("rect", x=x - 3, y=9, width=7 * len(operator) + 4, height=15, rx=2, fill=CATEGORIES[place])
        )
        parts.append(text(x, 20, operator, font_size=10))
        x += 7 * len(operator) + 6
        if place < len(QUERY) - 1:
            parts.append(text(x, 20, "->", font_size=10))
            x += 18
    bottom = top + step * (len(QUERY) - 1) + _BOX[1]
    for place, operator in enumerate(QUERY):
        y = top + place * step
        parts += _box(left, y, operator, CATEGORIES[place])
        parts += _arrow(left + 35, y + _BOX[1], y + step if place < len(QUERY) - 1 else y + _BOX[1] + 20)
    parts += _box(right, top, META_OP, "#d5dde5", bottom - top)
    parts += _arrow(right + 35, bottom, bottom + 20)
    for x in (left, right):
        for place, name in enumerate(("Q", "K")):
            parts.append(text(x + 18 + 34 * place, top - 20, name, text_anchor="middle"))
            parts += _arrow(x + 18 + 34 * place, top - 16, top)
        y = bottom - _BOX[1] / 2
        parts.append(text(x - 32, y, "V", middle=8, text_anchor="middle"))
        parts.append(element("path", d=f"M{x - 26} {y}H{x - 4}m-5 -3l5 3l-5 3", fill="none", stroke="#5c6770"))
    parts.append(text((left + right + _BOX[0]) / 2 - 12, top + 60, "fuse", text_anchor="middle", font_size=10))
    y = top + 70
    parts.append(element("path", d=f"M{left + 100} {y}H{right - 60}m-6 -4l6 4l-6 4", fill="none", stroke="#5c6770"))
    return picture(right + 110, bottom + 34, parts)


DIAGRAMS = {"tile.svg": tiles, "pattern.svg": match}


def main(folder: Path = FOLDER) -> None:
    """Draw the diagrams into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (folder / name).write_bytes(draw())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
