"""tile: split matrix products and convolutions within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxtile.declare.option import declared
from onnxtile.declare.verb import Outcome, Verb
from onnxtile.verbs.options.tile import TileCommand, TileOptions

if TYPE_CHECKING:
    from onnxtile.verbs.flows.results import TiledModel


@declared(TileOptions)
def tile(options: TileOptions) -> TiledModel:
    """Split every matrix product of `model` into MatMul, Sum and Concat nodes within the limits; convolutions where these ask for it.

    `limits` are those of a limits file, and the other bounds count more than they do. With a memory, the tile is chosen that moves the
    fewest bytes. With `peaks`, the model is tiled once for each way to add partial sums, to show the bytes that live at once; None asks
    for that where it takes little time. With `verify`, each different product is judged against a float64 run, and the whole model is run
    beside the original. Raises ModelError, UsageError; Infeasible where no tile meets the limits; Mismatch where a result is further off
    than rounding explains.
    """
    from onnxtile.verbs.flows import tiling

    return tiling.tile(options)


def _run(options: TileOptions) -> Outcome:
    from onnxtile.verbs.flows import tiling

    result = tiling.tile(options)
    return Outcome(result, "tile", result.draft)


def _require(options: TileOptions) -> None:
    _ = options.bounds, options.manner


TILE = Verb(
    "tile",
    TileCommand,
    _run,
    TileOptions,
    writes=lambda _options: "tiled",
    require=_require,
    defaults={"peaks": None},
)
