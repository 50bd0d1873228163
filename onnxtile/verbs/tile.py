"""tile: split matrix products and convolutions within limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile.common_options import (
    ModelArgument,
    RunWords,
    SizeOptions,
    TargetOptions,
    VerifyOptions,
    WriteOptions,
    counted_runs,
)
from onnxtile.declare import values
from onnxtile.declare.verb import Choices, Option, Verb, narrowed
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import invalid, nearest
from onnxtile.system.registry import late
from onnxtile.system.text import bytes_of, whole

if TYPE_CHECKING:
    from onnxtile.tiling.limits import Limits, TilingPolicy
else:
    Limits: TypeAlias = Any

_LIMITS = "Limits"


COMPARE = "compare"
"""The word that asks for the live bytes of each way to add partial sums."""
SUM_WORDS = ("float32",)
"""The words for element types in which partial sums of 16 bits are added."""


@dataclass(frozen=True)
class LargestTile:
    """The largest tile: a bound of `every` axis or of `axes` M, K and N, in elements, its bytes, and the nodes of all tiles together."""

    every: int | None = None
    axes: tuple[int | None, int | None, int | None] = (None, None, None)
    memory: int | None = None
    nodes: int | None = None


MaxWords: TypeAlias = int | str | Sequence[int | str | None] | LargestTile
"""Bounds of tiles: 64, "64x64x64", "256KiB", "500nodes", one of them or several; (None, 64, 64) are M, K and N."""


def _read_max(value: Any) -> LargestTile:
    """Return the bounds that words name, each kind of bound once."""
    if isinstance(value, LargestTile):
        return value
    entries = [value] if isinstance(value, str | int) else value
    if isinstance(value, bool) or not isinstance(entries, Sequence) or not entries:
        raise values.Unreadable("give a bound", hint=_EXAMPLE_MAX)
    if len(entries) == 3 and all(size is None or isinstance(size, int) for size in entries):
        m, k, n = (None if size is None else values.read_count(size) for size in entries)
        return LargestTile(axes=(m, k, n))
    bounds: dict[str, Any] = {}
    for entry in entries:
        kind, bound = _bound_of(entry)
        if kind in bounds or {kind, *bounds} >= {"every", "axes"}:
            raise values.Unreadable(f"{entry!r} is the second bound of its kind", hint=_EXAMPLE_MAX)
        bounds[kind] = bound
    return LargestTile(**bounds)


def _bound_of(entry: Any) -> tuple[str, Any]:
    text = str(entry).strip()
    if whole(text) is not None or text.startswith("-") or isinstance(entry, int):
        return "every", values.read_count(entry if isinstance(entry, int) else values.number_or_text(text))
    if text.endswith("nodes"):
        return "nodes", values.read_count(values.number_or_text(text.removesuffix("nodes").strip()))
    sizes = text.split("x")
    if len(sizes) == 3:
        return "axes", tuple(None if size == "_" else values.read_count(values.number_or_text(size)) for size in sizes)
    if bytes_of(text) is None:
        raise values.Unreadable("this is not a bound of a tile", hint=_EXAMPLE_MAX)
    return "memory", values.read_size(text)


_EXAMPLE_MAX = "write 64, 64x64x64, _x48x48, 256KiB or 500nodes"


def _read_accumulate(value: Any) -> tuple[str, ...]:
    """Return the words for how partial sums are added: a way, an element type, and whether all ways are compared."""
    from onnxtile.tiling.limits import Accumulation

    ways = [str(way) for way in Accumulation]
    words = tuple(word for entry in values.read_texts(value) for word in entry.split(","))
    for word in words:
        if word not in (known := [*ways, *SUM_WORDS, COMPARE]):
            raise values.Unreadable(f"{word!r} is no way to add partial sums", hint=nearest(word, known))
    if len([word for word in words if word in ways]) > 1:
        raise values.Unreadable("there are two ways to add partial sums", hint="leave one of the two out")
    return words


_MAX = values.ValueKind(_read_max, several=True, forms=("64", "(None, 64, 64)", '["256KiB", "500nodes"]'))
_ACCUMULATE = values.ValueKind(_read_accumulate, several=True, forms=('"sum"', '["tree", "float32"]'))


@dataclass(frozen=True)
class TileOptions(VerifyOptions, SizeOptions, TargetOptions):
    """The options of `tile`; `limits` are those of hardware, and the bounds below count more."""

    model: ModelArgument
    limits: Limits | None = None
    _: KW_ONLY
    max: Annotated[
        MaxWords | None,
        Option(
            "largest tile: 64 or MxKxN (_: no bound), its bytes, the nodes of all tiles",
            "64|_x64x64|256KiB|500nodes",
            heading=_LIMITS,
            kind=_MAX,
            main=True,
        ),
    ] = None
    conv: Annotated[bool, Option("tile convolutions too", heading=_LIMITS, main=True)] = False
    accumulate: Annotated[
        str | Sequence[str],
        Option(
            "addition of partial sums; float32: in this type; compare: the bytes of each way",
            "sum|chain|tree|gemm|float32|compare",
            kind=_ACCUMULATE,
            choices=Choices("onnxtile.tiling.limits:Accumulation", also=(*SUM_WORDS, COMPARE), open=True),
            default="chain",
            main=True,
        ),
    ] = ()
    wrap: Annotated[bool, Option("put each tiled layer into a local function")] = False
    runs: Annotated[RunWords | None, counted_runs("sets of random inputs for each product", 1)] = None
    skip: Annotated[tuple[str, ...], Option("keep this node whole", "NODE", kind=values.TEXTS, main=True)] = ()
    strict: Annotated[bool, Option("end with an error if a node cannot meet the limits", main=True)] = False

    @property
    def bounds(self) -> Limits:
        """The limits of a tile. Raises UsageError."""
        from onnxtile.tiling.limits import Limits, WindowBounds, find

        if self.limits is not None and not isinstance(self.limits, Limits):
            raise invalid("limits", self.limits, reason="give a Limits", hint="write max=64 for a bound")
        m, k, n = self._largest.axes
        return Limits.of(
            max=self._largest.every,
            m=m,
            k=k,
            n=n,
            memory=self._largest.memory,
            window=WindowBounds() if self.conv else None,
            base=self.limits if self.target is None else find(self.target),
        )

    @property
    def manner(self) -> TilingPolicy:
        """How tiles are written and judged. Raises UsageError."""
        from onnxtile.tiling.limits import Accumulation, TilingPolicy

        words = _read_accumulate(self.accumulate)
        way = next((word for word in words if word in set(Accumulation)), Accumulation.CHAIN)
        kind = next((word for word in words if word in SUM_WORDS), None)
        return narrowed(
            TilingPolicy,
            self,
            accumulate=str(way),
            accumulate_type=kind,
            nodes_at_most=self._largest.nodes,
            runs=self.run_count or 1,
        )

    @property
    def compares(self) -> bool | None:
        """Whether the live bytes of each way to add partial sums are compared; None: where it takes little time."""
        return COMPARE in _read_accumulate(self.accumulate)

    @property
    def _largest(self) -> LargestTile:
        return LargestTile() if self.max is None else _read_max(self.max)


@dataclass(frozen=True)
class TileCommand(WriteOptions, TileOptions):
    """Split matrix products and convolutions into bounded ones.

    Examples:
        onnxtile tile model.onnx --max 64 --conv --dim batch=1
        onnxtile tile model.onnx --max _x64x64 --max 256KiB
    """

    @property
    def compares(self) -> bool | None:
        """Whether the live bytes of each way to add partial sums are compared; None: where it takes little time."""
        return super().compares or None


def _require(options: TileOptions) -> None:
    _ = options.bounds, options.manner, options.figures


TILE = Verb(
    "tile",
    TileCommand,
    late("onnxtile.verbs.flows.tile:run"),
    TileOptions,
    writes=lambda _options: "tiled",
    require=_require,
)
