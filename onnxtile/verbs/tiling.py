"""Split matrix products within limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxtile.model.check import check
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind
from onnxtile.model.load import Source, load
from onnxtile.model.shapes import resolve
from onnxtile.tile.check import TileVerdict, check_tiles
from onnxtile.tile.limits import Limits
from onnxtile.tile.options import Options
from onnxtile.tile.result import TileResult
from onnxtile.tile.rewrite import tile as tile_graph
from onnxtile.verbs.stage import Dims, InputShapes, Progress, agreeing, require_sites, silent
from onnxtile.verify import Verdict, compare_with, run_original


@dataclass(frozen=True)
class TiledModel:
    """The tiled model, what became of each product, and the verdict of the runs (None where verification was off)."""

    model: ir.Model = field(repr=False)
    result: TileResult
    nodes_before: int
    nodes_after: int
    verdict: Verdict | None
    sites: tuple[TileVerdict, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `tile`."""
        return {
            **self.result.to_dict(),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "verdict": self.verdict and self.verdict.to_dict(),
            "sites": [site.to_dict() for site in self.sites],
        }


def tile(
    model: Source,
    limits: Limits,
    *,
    options: Options | None = None,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    verify: bool = True,
    progress: Progress = silent,
) -> TiledModel:
    """Split every matrix product of `model` into MatMul, Sum and Concat nodes within `limits`.

    Where `limits` name a memory, the tile is chosen that moves the fewest bytes. `options` say how partial sums are added.
    With `verify`, each different product alone is judged against a float64 run, and the whole model is run beside the original.
    Raises ModelError, UsageError; Infeasible where no tile meets the limits;
    Mismatch where a result is further off than rounding explains.
    """
    progress("reading the model")
    original = load(model)
    bind(original, dims or {}, shapes or {})
    tiled = original.clone()
    progress("inferring shapes")
    known, constants = resolve(tiled, run=verify), Constants(tiled)
    progress("tiling")
    result = tile_graph(tiled, limits, known, constants, options)
    verdict: Verdict | None = None
    sites: tuple[TileVerdict, ...] = ()
    if verify:
        progress("verifying")
        sites = check_tiles(result.tiled, constants, tiled.graph.opset_imports.get("", 0))
        require_sites(site.node for site in sites if not site.passed)
        check(tiled)
        trials, assigned = run_original(original)
        verdict = agreeing(compare_with(trials, tiled, assigned), "the tiled model")
    return TiledModel(tiled, result, original.graph.num_nodes(), tiled.graph.num_nodes(), verdict, sites)
