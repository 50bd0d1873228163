"""Parts of pictures: elements of SVG, marks of an axis, texts that fit; and the picture as PNG.

An SVG needs no package. A PNG is drawn from it by resvg with the face Roboto, which the extra "pictures" brings: fonts of the machine are
not used, so that the same picture is the same bytes everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, TypeAlias

from onnxtile.system.errors import UsageError, escaped, of_extra

ASPECT = 0.62
"""Width of a character of a wide sans-serif face, in its size."""

LINE = 1.25
"""Height of a line, in its size."""

RENDERER = "resvg_py"
"""The package that draws a PNG."""

_DPI = 200
Style: TypeAlias = Mapping[str, Any]
"""Attributes of an element, by name; an underscore is a hyphen."""

_FACE = "Roboto, DejaVu Sans, sans-serif"
_BASELINE = 0.36
"""How far the middle of capital letters is above the line on which they stand, in the size."""


def element(tag: str, *inside: str, **attributes: str | float | None) -> str:
    """Return an element with `inside`, which is SVG. An underscore in the name of an attribute is a hyphen; None leaves one out.

    >>> element("line", x1=0, y1=1.234, stroke_width=0.5)
    '<line x1="0" y1="1.23" stroke-width="0.5"/>'
    """
    head = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{value if isinstance(value, str) else number(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return f"<{tag}{head}>{''.join(inside)}</{tag}>" if inside else f"<{tag}{head}/>"


def number(value: float) -> str:
    """Return `value` in hundredths, as short as it can be."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def xml_text(content: str) -> str:
    """Return a text as it stands in SVG: nothing in it is markup, and characters that XML forbids are escaped as Python does."""
    return escape(escaped(content))


def text(
    x: float, y: float, content: str, *, upright: bool = False, middle: float = 0.0, **more: str | float | None
) -> str:
    """Return a text that stands on the height `y`; with `middle`, the size of its letters, it is around that height.

    An `upright` text runs upwards, and `x` takes the part of `y`.
    """
    down = _BASELINE * middle
    if upright:
        turned = f"translate({number(x + down)} {number(y)}) rotate(-90)"
        return element("text", xml_text(content), transform=turned, **more)
    return element("text", xml_text(content), x=x, y=y + down, **more)


def rectangle(x: float, y: float, width: float, height: float) -> str:
    """Return the outline of a rectangle as a part of a path."""
    return f"M{number(x)} {number(y)}h{number(width)}v{number(height)}h{number(-width)}z"


def picture(width: float, height: float, parts: Iterable[str]) -> bytes:
    """Return a file of SVG on white ground, `width` and `height` in points, with letters of eight points where no other size is given."""
    size: Style = {"width": f"{number(width)}pt", "height": f"{number(height)}pt"}
    view: Style = {
        "viewBox": f"0 0 {number(width)} {number(height)}",
        "font_family": _FACE,
        "font_size": 8,
        "role": "img",
    }
    ground = element("rect", width=width, height=height, fill="#fff")
    body = element("svg", "\n", "\n".join((ground, *parts)), "\n", xmlns="http://www.w3.org/2000/svg", **size, **view)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{body}\n'.encode()


def embedded(svg: bytes) -> str:
    """Return the element of a file of SVG, as it stands in a page."""
    content = svg.decode()
    return content[content.index("<svg") :].rstrip()


def png(svg: bytes) -> bytes:
    """Return a file of SVG as PNG, 200 pixels an inch. Raises UsageError where the extra "pictures" is not installed."""
    from importlib.resources import as_file, files

    try:
        import resvg_py

        with as_file(files("fontpkg_roboto") / "files") as folder:
            drawn = resvg_py.svg_to_bytes(
                svg_string=svg.decode(),
                dpi=_DPI,
                skip_system_fonts=True,
                font_dirs=[str(folder)],
                sans_serif_family="Roboto",
            )
    except ModuleNotFoundError as error:
        raise UsageError(f"a .png needs {error.name}", hint=f"{of_extra('pictures')}, or name an .svg") from error
    return bytes(drawn)


# Marks of axes, and texts side by side.


def ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Return round numbers from `low` to `high`, 1, 2 or 5 times a power of ten apart: at most about `most`, no closer than `least`.

    >>> ticks(0, 137, 7)
    [0.0, 20.0, 40.0, 60.0, 80.0, 100.0, 120.0]
    """
    wanted = max((high - low) / most, least, 1e-9)
    unit = 10.0 ** math.floor(math.log10(wanted))
    step = next(times * unit for times in (1, 2, 5, 10) if times * unit >= wanted * (1 - 1e-9))
    return [round(at * step, 9) for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def mark_text(value: float) -> str:
    """Return the number beside a mark of an axis."""
    return f"{value:,.10g}"


_NARROW, _WIDE = frozenset("ijlIt1f.,:;|!'/()[] "), frozenset("mwMW@%—")


def width_of(content: str, size: float) -> float:
    """Return about how wide a text is in letters of `size`."""
    return size * sum(0.32 if letter in _NARROW else 0.88 if letter in _WIDE else 0.6 for letter in content)


def lines_of(texts: Sequence[str], room: float, size: float, gap: float) -> Iterator[list[tuple[float, int]]]:
    """Yield the lines that `texts` take in a width of `room` with letters of `size`, `gap` apart: where each begins, and which it is."""
    line: list[tuple[float, int]] = []
    at = 0.0
    for index, entry in enumerate(texts):
        width = width_of(entry, size)
        if line and at + width > room:
            yield line
            line, at = [], 0.0
        line.append((at, index))
        at += width + gap
    if line:
        yield line
