"""tile: split matrix products and convolutions within limits."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from onnxtile.common_options import ModelArgument, SizeOptions, VerifyOptions, WriteOptions
from onnxtile.declare import values
from onnxtile.declare.option import Choices, Option, narrowed
from onnxtile.declare.verb import Verb
from onnxtile.system.registry import late

if TYPE_CHECKING:
    from onnxtile.tiling.limits import Limits, TilingPolicy
else:
    Limits: TypeAlias = Any

_LIMITS = "Limits"
_CONVOLUTIONS = "Convolutions"


@dataclass(frozen=True)
class TileOptions(VerifyOptions, SizeOptions):
    """The options of `tile`; `limits` are those of hardware, and the bounds below count more."""

    model: ModelArgument
    limits: Limits | None = None
    _: KW_ONLY
    max: Annotated[int | None, Option("upper bound of M, K and N", "N", heading=_LIMITS)] = None
    max_m: Annotated[int | None, Option("upper bound of M, the rows of the left operand", "N", heading=_LIMITS)] = None
    max_k: Annotated[int | None, Option("upper bound of K, the summed axis", "N", heading=_LIMITS)] = None
    max_n: Annotated[int | None, Option("upper bound of N, the columns of the right operand", "N", heading=_LIMITS)] = (
        None
    )
    target: Annotated[
        str | None,
        Option(
            "limits of the hardware, a file or a name: 64x64x64 ...",
            "FILE|NAME",
            heading=_LIMITS,
            choices=Choices("onnxtile.tiling.limits:ready_made", open=True),
        ),
    ] = None
    memory: Annotated[
        int | str | None,
        Option(
            "memory for one tile; selects a tile that moves few bytes",
            "256KiB",
            heading=_LIMITS,
            kind=values.SIZE,
        ),
    ] = None
    nodes_at_most: Annotated[
        int | None, Option("upper bound of the nodes of all tiles together", "N", heading=_LIMITS)
    ] = None
    conv: Annotated[
        bool,
        Option("tile convolutions too", heading=_CONVOLUTIONS),
    ] = False
    max_rows: Annotated[int | None, Option("output rows of a tile", "N", heading=_CONVOLUTIONS)] = None
    max_columns: Annotated[int | None, Option("output columns of a tile", "N", heading=_CONVOLUTIONS)] = None
    max_channels: Annotated[int | None, Option("input channels of a tile", "N", heading=_CONVOLUTIONS)] = None
    max_filters: Annotated[int | None, Option("output channels of a tile", "N", heading=_CONVOLUTIONS)] = None
    accumulate: Annotated[
        str,
        Option(
            "addition of partial sums",
            "sum|chain|tree|gemm",
            choices=Choices("onnxtile.tiling.limits:Accumulation"),
        ),
    ] = "chain"
    accumulate_type: Annotated[
        str | None,
        Option(
            "element type in which float16 partial sums are added",
            "float32",
            choices=Choices("onnxtile.tiling.limits:SUM_TYPES"),
        ),
    ] = None
    wrap: Annotated[bool, Option("put each tiled layer into a local function")] = False
    peaks: Annotated[
        bool | None,
        Option(
            "compare the live bytes of each way to add partial sums",
            flags=("--peaks/--no-peaks",),
            default="for small models",
        ),
    ] = False
    runs: Annotated[int, Option("sets of random inputs for each product", "N", kind=values.RUNS)] = 1

    skip: Annotated[tuple[str, ...], Option("keep this node whole", "NODE", kind=values.TEXTS)] = ()
    strict: Annotated[bool, Option("end with an error if a node cannot meet the limits")] = False

    @property
    def bounds(self) -> Limits:
        """The limits of a tile. Raises UsageError."""
        from onnxtile.tiling.limits import Limits, WindowBounds, find

        window = WindowBounds(self.max_rows, self.max_columns, self.max_channels, self.max_filters)
        return Limits.of(
            max=self.max,
            m=self.max_m,
            k=self.max_k,
            n=self.max_n,
            memory=None if self.memory is None else values.read_size(self.memory),
            window=window if self.conv or window.asks else None,
            base=self.limits if self.target is None else find(self.target),
        )

    @property
    def manner(self) -> TilingPolicy:
        """How tiles are written and judged. Raises UsageError."""
        from onnxtile.tiling.limits import TilingPolicy

        return narrowed(TilingPolicy, self)


@dataclass(frozen=True)
class TileCommand(WriteOptions, TileOptions):
    """Split matrix products and convolutions into bounded ones.

    Examples:
        onnxtile tile model.onnx --max 64 --conv --dim batch=1
    """


def _require(options: TileOptions) -> None:
    _ = options.bounds, options.manner


TILE = Verb(
    "tile",
    TileCommand,
    late("onnxtile.verbs.flows.tile:run"),
    TileOptions,
    writes=lambda _options: "tiled",
    require=_require,
    defaults={"peaks": None},
)
