"""The step `tile`."""

from __future__ import annotations

from onnxtile import api
from onnxtile.pipeline.options import Bytes, Count, SizedOptions
from onnxtile.pipeline.step import Done, State, Step
from onnxtile.tiling.limits import Limits, WindowBounds
from onnxtile.tiling.options import TileOptions
from onnxtile.tiling.target import find


class _Options(SizedOptions):
    max: Count | None = None
    max_m: Count | None = None
    max_k: Count | None = None
    max_n: Count | None = None
    target: str | None = None
    memory: Bytes | None = None
    nodes_at_most: Count | None = None
    conv: bool = False
    max_rows: Count | None = None
    max_columns: Count | None = None
    max_channels: Count | None = None
    max_filters: Count | None = None
    accumulate: str = "sum"
    accumulate_type: str | None = None
    wrap: bool = False
    peaks: bool = False
    verify: bool = True
    runs: Count = 1


def _limits(options: _Options) -> Limits:
    base = None if options.target is None else find(options.target)
    window = WindowBounds(options.max_rows, options.max_columns, options.max_channels, options.max_filters)
    return Limits.of(
        max=options.max,
        m=options.max_m,
        k=options.max_k,
        n=options.max_n,
        memory=options.memory,
        window=window if options.conv or window.asks else None,
        base=base,
    )


def _how(options: _Options) -> TileOptions:
    return TileOptions.of(
        accumulate=options.accumulate,
        accumulate_type=options.accumulate_type,
        nodes_at_most=options.nodes_at_most,
        wrap=options.wrap,
        runs=options.runs,
    )


def _apply(options: _Options, state: State) -> Done:
    result = api.tile(
        state.model,
        _limits(options),
        options=_how(options),
        dims=options.dims,
        shapes=options.shapes,
        peaks=options.peaks,
        verify=options.verify,
        progress=state.progress,
    )
    return Done(result.to_dict(), result.model)


def _require(options: _Options) -> None:
    _limits(options)
    _how(options)


TILE = Step("tile", _Options, _apply, _require)
