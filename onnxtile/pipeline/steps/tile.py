"""The step `tile`."""

from __future__ import annotations

from onnxtile import api
from onnxtile.pipeline.step import Bytes, Count, Done, SizedOptions, State, Step
from onnxtile.tile.limits import Limits
from onnxtile.tile.options import Options as TileOptions
from onnxtile.tile.target import find


class _Options(SizedOptions):
    max: Count | None = None
    max_m: Count | None = None
    max_k: Count | None = None
    max_n: Count | None = None
    target: str | None = None
    memory: Bytes | None = None
    nodes_at_most: Count | None = None
    accumulate: str = "sum"
    wrap: bool = False
    verify: bool = True


def _limits(options: _Options) -> Limits:
    base = None if options.target is None else find(options.target)
    most, m, k, n = options.max, options.max_m, options.max_k, options.max_n
    return Limits.of(max=most, m=m, k=k, n=n, memory=options.memory, base=base)


def _how(options: _Options) -> TileOptions:
    return TileOptions.of(accumulate=options.accumulate, nodes_at_most=options.nodes_at_most, wrap=options.wrap)


def _apply(options: _Options, state: State) -> Done:
    result = api.tile(
        state.model,
        _limits(options),
        options=_how(options),
        dims=options.dims,
        shapes=options.shapes,
        verify=options.verify,
        progress=state.progress,
    )
    return Done(result.to_dict(), result.model)


def _require(options: _Options) -> None:
    _limits(options)
    _how(options)


TILE = Step("tile", _Options, _apply, _require)
