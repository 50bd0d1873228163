"""onnxtile verify."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.inputs import Inputs, Range, ranges
from onnxtile.cli.job import Dim, In, Job, Shape, command
from onnxtile.cli.values import dims, shapes


def verify(
    job: Job,
    model: In,
    other: Annotated[Path, typer.Argument(metavar="OTHER", help="the model to compare with", show_default=False)],
    dim: Dim = None,
    shape: Shape = None,
    inputs: Inputs = None,
    runs: Annotated[int, typer.Option("--runs", min=1, metavar="N", help="how many sets of random inputs")] = 2,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="from which they are drawn")] = 0,
    range_: Range = None,
    edge: Annotated[
        bool, typer.Option("--edge", help="also zeros, ones, large, small, negative, NaN, infinity")
    ] = False,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="find the first value that differs, and its rewrite")
    ] = False,
) -> None:
    """Run two models and compare every output; exit 1 when they differ.

    Examples:
        onnxtile verify a.onnx b.onnx --dim batch=2
        onnxtile verify a.onnx b.onnx --inputs real.npz --bisect
        onnxtile verify a.onnx b.onnx --range ids=0:30522 --edge
    """
    from onnxtile import api

    how = api.Comparing(inputs=inputs, runs=runs, seed=seed, ranges=ranges(range_), edge=edge, bisect=bisect)
    with job.progress() as progress:
        result = api.verify(model, other, dims=dims(dim), shapes=shapes(shape), how=how, progress=progress)
    job.report(result, "verify")
    if not result.equal:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, verify)
