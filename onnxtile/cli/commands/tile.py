"""onnxtile tile."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxtile.cli.job import Dim, In, Rewrite, Shape, command
from onnxtile.cli.values import dims, in_bytes, shapes


def tile(
    job: Rewrite,
    model: In,
    most: Annotated[int | None, typer.Option("--max", help="bound on M, K and N")] = None,
    max_m: Annotated[int | None, typer.Option("--max-m", help="bound on M, the rows of the left operand")] = None,
    max_k: Annotated[int | None, typer.Option("--max-k", help="bound on K, the summed axis")] = None,
    max_n: Annotated[int | None, typer.Option("--max-n", help="bound on N, the columns of the right operand")] = None,
    limits_file: Annotated[
        str | None, typer.Option("--target", metavar="FILE|NAME", help="a limits file, or one that ships: 64x64x64 ...")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="256KiB", help="what a tile may hold at once; fewest bytes are moved"),
    ] = None,
    nodes_at_most: Annotated[
        int | None, typer.Option("--nodes-at-most", metavar="N", help="bound on the nodes of all tiles together")
    ] = None,
    accumulate: Annotated[
        str, typer.Option("--accumulate", metavar="WAY", help="how partial sums are added: sum, chain, tree or gemm")
    ] = "sum",
    conv: Annotated[
        bool,
        typer.Option("--conv", help="cut convolutions too: M pixels, K input channels × kernel, N output channels"),
    ] = False,
    max_rows: Annotated[
        int | None, typer.Option("--max-rows", help="bound on the output rows of a convolution's tile")
    ] = None,
    max_columns: Annotated[
        int | None, typer.Option("--max-columns", help="bound on the output columns of a convolution's tile")
    ] = None,
    max_channels: Annotated[
        int | None, typer.Option("--max-channels", help="bound on the input channels of a convolution's tile")
    ] = None,
    max_filters: Annotated[
        int | None, typer.Option("--max-filters", help="bound on the output channels of a convolution's tile")
    ] = None,
    wrap: Annotated[bool, typer.Option("--wrap", help="put each tiled layer into a local function")] = False,
    peaks: Annotated[
        bool, typer.Option("--peaks", help="plan the model for each way to accumulate, and show what lives at once")
    ] = False,
    dim: Dim = None,
    shape: Shape = None,
) -> None:
    """Split matrix products and convolutions into bounded ones. Example: onnxtile tile model.onnx --max 64."""
    from onnxtile import api
    from onnxtile.tile.limits import Limits, Window
    from onnxtile.tile.options import Options
    from onnxtile.tile.target import find

    base = None if limits_file is None else find(limits_file)
    window = Window(max_rows, max_columns, max_channels, max_filters)
    limits = Limits.of(
        max=most,
        m=max_m,
        k=max_k,
        n=max_n,
        memory=in_bytes(memory, "memory"),
        window=window if conv or window.asks else None,
        base=base,
    )
    options = Options.of(accumulate=accumulate, nodes_at_most=nodes_at_most, wrap=wrap)
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
        job.write(result.model, target, model)
    job.report(result, "tile", target)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, tile)
