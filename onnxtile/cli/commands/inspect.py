"""onnxtile inspect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxtile.cli.job import Dim, In, Job, Shape, command
from onnxtile.cli.values import dims, shapes


def inspect(
    job: Job,
    model: In,
    dim: Dim = None,
    shape: Shape = None,
    training: Annotated[
        bool, typer.Option("--training", help="say which activations a backward pass would keep")
    ] = False,
    emit: Annotated[
        list[Path] | None, typer.Option("--emit", metavar="FILE", help="write the nodes as .csv, or all as .json")
    ] = None,
) -> None:
    """Show operators, parameters, MACs and bytes, node by node. Example: onnxtile inspect model.onnx --dim batch=1."""
    from onnxtile import api
    from onnxtile.model.save import require_writable, write_whole

    for path in emit or ():
        _renderer(path)
        require_writable(path, source=model)
    with job.progress() as progress:
        result = api.inspect(model, dims=dims(dim), shapes=shapes(shape), training=training, progress=progress)
    content = result.to_dict()
    for path in emit or ():
        write_whole(path, _renderer(path)(content))
    job.report(result, "inspect")


def _renderer(path: Path) -> Callable[[Mapping[str, Any]], bytes]:
    """Return what writes the format that the name of `path` asks for. Raises UsageError."""
    from onnxtile.errors import UsageError
    from onnxtile.report import inspect_csv, inspect_json

    renderers = {".csv": inspect_csv.render, ".json": inspect_json.render}
    if path.suffix not in renderers:
        raise UsageError(f"{path}: no format has this ending", hint="the endings are .csv, .json")
    return renderers[path.suffix]


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, inspect)
