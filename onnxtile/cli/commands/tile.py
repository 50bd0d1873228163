"""onnxtile tile."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from onnxtile.cli.completion import accumulation_types, accumulations, of, ready_limits
from onnxtile.cli.job import Dim, In, Rewrite, Shape, command
from onnxtile.cli.values import dims, in_bytes, shapes

_LIMITS = "Limits"
_CONVOLUTIONS = "Convolutions"


def _bound(option: str, what: str, panel: str = _LIMITS) -> Any:
    return typer.Option(option, metavar="N", help=what, rich_help_panel=panel)


def tile(
    job: Rewrite,
    model: In,
    most: Annotated[int | None, _bound("--max", "bound on M, K and N")] = None,
    max_m: Annotated[int | None, _bound("--max-m", "bound on M, the rows of the left operand")] = None,
    max_k: Annotated[int | None, _bound("--max-k", "bound on K, the summed axis")] = None,
    max_n: Annotated[int | None, _bound("--max-n", "bound on N, the columns of the right operand")] = None,
    limits_file: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="FILE|NAME",
            help="a limits file, or one that ships: 64x64x64 ...",
            rich_help_panel=_LIMITS,
            autocompletion=of(ready_limits),
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            metavar="256KiB",
            help="what a tile may hold; fewest bytes are moved",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    nodes_at_most: Annotated[int | None, _bound("--nodes-at-most", "bound on the nodes of all tiles together")] = None,
    conv: Annotated[
        bool, typer.Option("--conv", help="M pixels, K channels × kernel, N filters", rich_help_panel=_CONVOLUTIONS)
    ] = False,
    max_rows: Annotated[int | None, _bound("--max-rows", "output rows of a tile", _CONVOLUTIONS)] = None,
    max_columns: Annotated[int | None, _bound("--max-columns", "its output columns", _CONVOLUTIONS)] = None,
    max_channels: Annotated[int | None, _bound("--max-channels", "its input channels", _CONVOLUTIONS)] = None,
    max_filters: Annotated[int | None, _bound("--max-filters", "its output channels", _CONVOLUTIONS)] = None,
    accumulate: Annotated[
        str,
        typer.Option(
            "--accumulate",
            metavar="WAY",
            help="partial sums: sum, chain, tree or gemm [sum]",
            show_default=False,
            autocompletion=of(accumulations),
        ),
    ] = "sum",
    accumulate_type: Annotated[
        str | None,
        typer.Option(
            "--accumulate-type",
            metavar="TYPE",
            help="add float16 partial sums in float32",
            autocompletion=of(accumulation_types),
        ),
    ] = None,
    wrap: Annotated[bool, typer.Option("--wrap", help="put each tiled layer into a function")] = False,
    peaks: Annotated[
        bool | None,
        typer.Option("--peaks/--no-peaks", help="plan each way: what lives at once [where quick]"),
    ] = None,
    runs: Annotated[
        int, typer.Option("--runs", metavar="N", help="sets of random inputs for each product [1]", show_default=False)
    ] = 1,
    dim: Dim = None,
    shape: Shape = None,
) -> None:
    """Split matrix products and convolutions into bounded ones.

    Examples:
        onnxtile tile model.onnx --max 64 --conv --dim batch=1
    """
    from onnxtile import api
    from onnxtile.tiling.limits import Limits, WindowBounds
    from onnxtile.tiling.options import TileOptions
    from onnxtile.tiling.target import find

    base = None if limits_file is None else find(limits_file)
    window = WindowBounds(max_rows, max_columns, max_channels, max_filters)
    limits = Limits.of(
        max=most,
        m=max_m,
        k=max_k,
        n=max_n,
        memory=in_bytes(memory, "memory"),
        window=window if conv or window.asks else None,
        base=base,
    )
    options = TileOptions.of(
        accumulate=accumulate, accumulate_type=accumulate_type, nodes_at_most=nodes_at_most, wrap=wrap, runs=runs
    )
    target = job.target(model, "tiled")
    with job.progress() as progress:
        result = api.tile(
            model,
            limits,
            options=options,
            dims=dims(dim),
            shapes=shapes(shape),
            peaks=peaks,
            verify=not job.no_verify,
            progress=progress,
        )
    job.report(result, "tile", target, save=partial(job.save, result.draft, target, model))


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, tile)
