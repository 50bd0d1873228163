"""Parts of pictures and pages: elements of SVG, marks of an axis, texts that fit, colours; the picture as PNG.

An SVG needs no package. A PNG is drawn from it by resvg with the face Roboto, which the extra "pictures" brings: fonts of the machine are
not used, so that the same picture is the same bytes everywhere.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from html import escape
from importlib import resources
from typing import Any, TypeAlias

from onnxtile.report.format import PlanJson
from onnxtile.report.layout import BufferJson
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, escaped, of_extra
from onnxtile.system.text import compact

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


# The colours of pictures, light enough for black letters on them.
#
# Colours of kinds differ in print and for the colour-blind (after Okabe and Ito, 2002).

SHARED = "alias"
"""The kind of an activation that lies inside the bytes of another tensor."""

COLORS = {
    "activation": "#7fb2d9",
    SHARED: "#c6dff0",
    "output": "#e69f00",
    "input": "#56b98b",
    "workspace": "#cc79a7",
    "constant": "#bdb76b",
}
CATEGORIES = (
    *("#7fb2d9", "#f2a65a", "#86c99a", "#e48fa8", "#b5a4e0", "#e9cf6b"),
    *("#72cbc6", "#cba68c", "#b9c96f", "#a8c8f0", "#d9a3d3", "#9fb0a2"),
)
"""Colours of groups without an order, the most distinct first."""

GIVEN = "#56b98b"
"""The colour of graph inputs."""

OTHER = "#c3c7cb"
PEAK = "#b2182b"
GAP = "#a6a6a6"
EDGE = "#3d5a73"


def kind_of(row: BufferJson) -> str:
    """Return the kind as which `row` is coloured."""
    return SHARED if row.get("alias") is not None and row["kind"] == "activation" else str(row["kind"])


def kinds(plan: PlanJson) -> list[str]:
    """Return the kinds that a plan has, those with a colour of their own first."""
    present = {kind_of(row) for row in plan["buffers"]}
    return [*(kind for kind in COLORS if kind in present), *sorted(present - COLORS.keys())]


def color(kind: str) -> str:
    """Return the colour of `kind`."""
    return COLORS.get(kind, OTHER)


_RAMP = ("#7ea6e0", "#72c4d4", "#82cfa5", "#b9d67c", "#f0d268", "#f4a765", "#e98a94", "#c79be0")
"""The colours through which a ramp runs."""


def ramp(count: int) -> list[str]:
    """Return `count` colours in even distances along the ramp."""
    return [_between(i / max(count - 1, 1) * (len(_RAMP) - 1)) for i in range(count)]


def _between(at: float) -> str:
    low = min(int(at), len(_RAMP) - 2)
    parts = ((int(_RAMP[low][i : i + 2], 16), int(_RAMP[low + 1][i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(start + (end - start) * (at - low)):02x}" for start, end in parts)


# The ways to colour the tensors of a picture: by operator, by layer, or by kind.

_NUMBERED = re.compile(r"^(onnxtile::.+)\.\d+$")
"""A meta-op that has the name of another: with another body, and a number after the name."""

INPUT = "graph input"
"""The group of rows that no node makes."""


@dataclass(frozen=True)
class ColorGroup:
    """Tensors of one colour ("#rrggbb"), and how a legend calls them."""

    label: str
    color: str


@dataclass(frozen=True)
class Coloring:
    """One way to colour tensors. `is_ramp` says that the groups have an order, and their colours run from one end to the other."""

    name: str
    groups: tuple[ColorGroup, ...]
    is_ramp: bool
    key: Callable[[BufferJson], str] = field(repr=False)
    indices: Mapping[str, int] = field(repr=False)

    def index(self, row: BufferJson) -> int:
        """Return the group of `row`, by its place in `groups`."""
        return self.indices.get(self.key(row), len(self.groups) - 1)

    def color(self, row: BufferJson) -> str:
        """Return the colour of `row`."""
        return self.groups[self.index(row)].color


def colorings(plans: Sequence[PlanJson], first: str | None = None) -> tuple[Coloring, ...]:
    """Return the ways to colour `plans`, as `shown` returns them, with the same colours in all; the one called `first` comes first."""
    rows = [row for plan in plans for row in plan["buffers"]]
    ways = (_by_operator(rows), _by_layer(rows), _by_kind(plans))
    return tuple(sorted((way for way in ways if way is not None), key=lambda way: way.name != first))


def _by_operator(rows: Sequence[BufferJson]) -> Coloring | None:
    """Return the operators with the most bytes in colours of their own, then the others in one."""
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[_operator(row)] = sizes.get(_operator(row), 0) + row["size"]
    given = [INPUT] if sizes.pop(INPUT, None) is not None else []
    if not sizes:
        return None
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    coloured = names if len(names) <= len(CATEGORIES) else names[: len(CATEGORIES) - 1]
    left = len(names) - len(coloured)
    groups = [ColorGroup(name.rpartition("::")[2], shade) for name, shade in zip(coloured, CATEGORIES, strict=False)]
    groups += [ColorGroup(INPUT, GIVEN) for _ in given]
    groups += [ColorGroup(f"{left} other operators", OTHER)] if left else []
    return Coloring("operator", tuple(groups), False, _operator, _numbered((*coloured, *given)))


def _operator(row: BufferJson) -> str:
    return _NUMBERED.sub(r"\1", row.get("operator") or INPUT)


def _by_layer(rows: Sequence[BufferJson]) -> Coloring | None:
    """Return the layers in the order in which they first run; None where no names tell them."""
    first: dict[str, int] = {}
    for row in rows:
        first[_layer(row)] = min(first.get(_layer(row), row["first"]), row["first"])
    given = [INPUT] if first.pop(INPUT, None) is not None else []
    if len(first) < 2:
        return None
    names = sorted(first, key=lambda name: first[name])
    groups = [ColorGroup(name, shade) for name, shade in zip(names, ramp(len(names)), strict=True)]
    groups += [ColorGroup(INPUT, GIVEN) for _ in given]
    return Coloring("layer", tuple(groups), True, _layer, _numbered((*names, *given)))


def _layer(row: BufferJson) -> str:
    return row.get("layer") or INPUT


def _by_kind(plans: Sequence[PlanJson]) -> Coloring:
    names = list(dict.fromkeys(kind for plan in plans for kind in kinds(plan)))
    return Coloring("kind", tuple(ColorGroup(name, color(name)) for name in names), False, kind_of, _numbered(names))


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


# A page of one file: a template of web/ in which the other files there and what is to be shown take their places.


_PART = re.compile(r"@([a-z.]+)@")


def filled(template: str, given: Mapping[str, str]) -> bytes:
    """Return the page that `template` of web/ makes: `@name@` stands for the HTML `given` under the name, or for a file of web/."""
    files = resources.files("onnxtile.report") / "web"

    def part(match: re.Match[str]) -> str:
        name = match[1]
        return given[name] if name in given else (files / name).read_text(encoding="utf-8").strip()

    return _PART.sub(part, (files / template).read_text(encoding="utf-8")).encode()


def as_text(text: str) -> str:
    """Return `text` as it stands in a page: nothing in it is markup."""
    return html.escape(escaped(text))


def figures(pairs: Iterable[tuple[str, str]]) -> str:
    """Return the figures of the head of a page: pairs of a label and a text."""
    return "\n".join(f"<div><dt>{as_text(label)}</dt><dd>{as_text(text)}</dd></div>" for label, text in pairs)


def in_script(content: Any) -> str:
    """Return JSON that cannot end the script element around it, whatever the names of tensors."""
    return compact(content).replace("<", "\\u003c")
