"""onnxtile fuse."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from onnxtile.cli.completion import lowerings, of, patterns
from onnxtile.cli.job import In, Rewrite, command


def fuse(
    job: Rewrite,
    model: In,
    pattern: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--pattern",
            metavar="NAME|FILE|QUERY",
            help="a pattern, a set, a .toml file or a query [all there are]",
            autocompletion=of(patterns),
        ),
    ] = None,
    lower: Annotated[
        str,
        typer.Option(
            "--lower",
            metavar="none|onnx|ort",
            help="write operators that mean the same instead of calls",
            autocompletion=of(lowerings),
        ),
    ] = "none",
    explain: Annotated[
        str | None,
        typer.Option(
            "--explain",
            metavar="NAME",
            help="write nothing; say where this pattern stopped, and why",
            autocompletion=of(patterns),
        ),
    ] = None,
) -> None:
    """Fuse subgraphs into meta-ops: calls of functions that the model brings along.

    Examples:
        onnxtile fuse model.onnx
        onnxtile fuse model.onnx -p LayerNorm -p my.toml -o small.onnx
        onnxtile fuse model.onnx -p 'MatMul-*>Add' --lower onnx
        onnxtile fuse model.onnx --explain LayerNorm
    """
    from onnxtile import api

    if explain is not None:
        with job.progress() as progress:
            why = api.explain(model, explain, pattern or (), progress=progress)
        job.report(why, "explain")
        return
    target = job.target(model, "fused")
    with job.progress() as progress:
        result = api.fuse(model, pattern or (), lower=lower, verify=not job.no_verify, progress=progress)
    job.report(result, "fuse", target, save=partial(job.save, result.model, target, model))


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, fuse)
