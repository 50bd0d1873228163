"""onnxtile unfuse."""

from __future__ import annotations

from functools import partial

import typer

from onnxtile.cli.job import In, Rewrite, command


def unfuse(job: Rewrite, model: In) -> None:
    """Undo what fuse did.

    Examples:
        onnxtile unfuse model.fused.onnx -o original.onnx
    """
    from onnxtile import api

    target = job.target(model, "unfused")
    with job.progress() as progress:
        result = api.unfuse(model, verify=not job.no_verify, progress=progress)
    job.report(result, "unfuse", target, save=partial(job.save, result.model, target, model))


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, unfuse)
