"""onnxtile inspect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxtile.cli.completion import table_files
from onnxtile.cli.inputs import Inputs, Range, ranges
from onnxtile.cli.job import Dim, In, Job, Shape, command
from onnxtile.cli.values import dims, shapes
from onnxtile.errors import UsageError


def inspect(
    job: Job,
    model: In,
    dim: Dim = None,
    shape: Shape = None,
    training: Annotated[
        bool, typer.Option("--training", help="say which activations a backward pass would keep")
    ] = False,
    tree: Annotated[bool, typer.Option("--tree", help="add up the modules that the names of nodes say")] = False,
    emit: Annotated[
        list[Path] | None,
        typer.Option(
            "--emit",
            metavar="FILE",
            help="write the nodes as .csv, or all as .json",
            autocompletion=table_files,
        ),
    ] = None,
    trace: Annotated[
        list[str] | None,
        typer.Option("--trace", metavar="NODE|OP|QUERY", help="run, and show what these nodes give"),
    ] = None,
    inputs: Inputs = None,
    range_: Range = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE.npz", help="write what --trace shows")
    ] = None,
) -> None:
    """Show operators, parameters, MACs and bytes, node by node.

    Examples:
        onnxtile inspect model.onnx --dim batch=1
        onnxtile inspect model.onnx --emit nodes.csv --training
        onnxtile inspect model.onnx --trace Softmax -o activations.npz
    """
    if trace:
        if training or tree or emit:
            raise UsageError("--trace is a run, and goes without --training, --tree and --emit")
        _trace(job, model, trace, output, inputs=inputs, ranges=ranges(range_), dims=dims(dim), shapes=shapes(shape))
        return
    for option, given in (("--inputs", inputs), ("--range", range_), ("-o", output)):
        if given is not None:
            raise UsageError(
                f"{option} is for --trace", hint="inspect runs nothing without it; --emit writes the nodes"
            )
    from onnxtile import api
    from onnxtile.model.whole import require_writable

    renderers = {path: _renderer(path) for path in emit or ()}
    for path in renderers:
        require_writable(path, source=model)
    with job.progress() as progress:
        result = api.inspect(
            model, dims=dims(dim), shapes=shapes(shape), training=training, tree=tree, progress=progress
        )
    content = result.to_dict() if renderers else {}
    job.report(result, "inspect", files={path: render(content) for path, render in renderers.items()})


def _trace(job: Job, model: Path, nodes: list[str], output: Path | None, **options: Any) -> None:
    from onnxtile import api
    from onnxtile.model.given import write_arrays
    from onnxtile.model.whole import require_writable

    if output is not None:
        require_writable(output, source=model)
    with job.progress() as progress:
        result = api.trace(model, nodes, progress=progress, **options)
    save = None if output is None else partial(write_arrays, output, result.arrays)
    job.report(result, "trace", None if output is None else str(output), save=save)


def _renderer(path: Path) -> Callable[[Mapping[str, Any]], bytes]:
    """Return what writes the format that the name of `path` asks for. Raises UsageError."""
    from onnxtile.report import inspect_csv, inspect_json

    renderers = {".csv": inspect_csv.render, ".json": inspect_json.render}
    if path.suffix not in renderers:
        raise UsageError(f"{path}: no format has this ending", hint="the endings are .csv, .json")
    return renderers[path.suffix]


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, inspect)
