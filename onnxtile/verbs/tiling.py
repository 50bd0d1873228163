"""Split matrix products within limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from onnxtile.model.check import check
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind
from onnxtile.model.load import Source, load
from onnxtile.model.shapes import resolve
from onnxtile.tile.accumulate import Accumulation
from onnxtile.tile.check import TileVerdict, check_tiles
from onnxtile.tile.limits import Limits
from onnxtile.tile.options import Options
from onnxtile.tile.result import TileResult
from onnxtile.tile.rewrite import tile as tile_graph
from onnxtile.tile.whole import judge
from onnxtile.verbs.planning import plan
from onnxtile.verbs.stage import Dims, InputShapes, Progress, agreeing, require_sites, silent
from onnxtile.verify import Verdict


@dataclass(frozen=True)
class TiledModel:
    """The tiled model, what became of each product, and the verdict of the runs (None where verification was off)."""

    model: ir.Model = field(repr=False)
    result: TileResult
    nodes_before: int
    nodes_after: int
    verdict: Verdict | None
    sites: tuple[TileVerdict, ...] = ()
    peaks: Mapping[str, int] | None = None
    """For each way to accumulate the bytes that live at once, at most, as the plan of the model tiled so has it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `tile`."""
        return {
            **self.result.to_dict(),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "verdict": self.verdict and self.verdict.to_dict(),
            "sites": [site.to_dict() for site in self.sites],
            "peaks": None if self.peaks is None else dict(self.peaks),
        }


def tile(
    model: Source,
    limits: Limits,
    *,
    options: Options | None = None,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    peaks: bool = False,
    verify: bool = True,
    progress: Progress = silent,
) -> TiledModel:
    """Split every matrix product of `model` into MatMul, Sum and Concat nodes within `limits`; convolutions where these ask for it.

    Where `limits` name a memory, the tile is chosen that moves the fewest bytes. `options` say how partial sums are added.
    With `peaks`, the model is tiled and planned once for each of them, to show what lives at once.
    With `verify`, each different product alone is judged against a float64 run, and the whole model is run beside the original.
    Raises ModelError, UsageError; Infeasible where no tile meets the limits;
    Mismatch where a result is further off than rounding explains.
    """
    progress("reading the model")
    original = load(model)
    bind(original, dims or {}, shapes or {})
    tiled, nodes_before = original.clone() if verify else original, original.graph.num_nodes()
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
        verdict = agreeing(judge(original, tiled), "the tiled model")
    planned = _peaks(model, limits, options or Options(), dims, shapes, progress) if peaks else None
    return TiledModel(tiled, result, nodes_before, tiled.graph.num_nodes(), verdict, sites, planned)


def _peaks(
    model: Source,
    limits: Limits,
    options: Options,
    dims: Dims | None,
    shapes: InputShapes | None,
    progress: Progress,
) -> dict[str, int]:
    """Return the peak of the schedule for each way to accumulate, in bytes."""
    found: dict[str, int] = {}
    for way in Accumulation:
        progress(f"planning with {way}")
        other = tile(
            model, limits, options=replace(options, accumulate=way, wrap=False), dims=dims, shapes=shapes, verify=False
        )
        found[str(way)] = plan(other.model, planner="first-fit", verify=False).plan.peak
    return found
