"""onnxtile plan."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnxtile.cli.inputs import Inputs, Range, ranges
from onnxtile.cli.job import Dim, In, Rewrite, Shape, command
from onnxtile.cli.values import dims, in_bytes, shapes


def plan(
    job: Rewrite,
    model: In,
    dim: Dim = None,
    shape: Shape = None,
    alignment: Annotated[
        int, typer.Option("--alignment", metavar="BYTES", help="every buffer starts at a multiple of it")
    ] = 64,
    planner: Annotated[str, typer.Option("--planner", metavar="NAME", help="how offsets are found")] = "best",
    order: Annotated[str, typer.Option("--order", metavar="model|min-peak|any", help="which node runs when")] = "model",
    streams: Annotated[
        int, typer.Option("--streams", metavar="N", help="up to N independent nodes run in one step")
    ] = 1,
    capacity: Annotated[
        str | None, typer.Option("--capacity", metavar="256KiB", help="fail (exit 1) if the arena is larger")
    ] = None,
    inputs: Inputs = None,
    input_range: Range = None,
    emit: Annotated[
        list[Path] | None,
        typer.Option(
            "--emit", metavar="FILE", help="write the plan: .json .csv .h .html .svg .png .tflm .trace.json .me.json"
        ),
    ] = None,
    names: Annotated[
        bool | None, typer.Option("--names/--no-names", help="name the tensors in pictures [those that fit]")
    ] = None,
    compare: Annotated[
        Path | None, typer.Option("--compare", metavar="PLAN.json", help="another plan, drawn beside this one")
    ] = None,
) -> None:
    """Give every activation an offset in an arena. Example: onnxtile plan model.onnx --dim batch=1 --emit plan.json."""
    from onnxtile import api
    from onnxtile.model.save import require_writable, write_whole
    from onnxtile.report.emit import Emission

    target = job.target(model, "planned")
    emission = Emission.of(emit or (), names, compare)
    for path in emission.files:
        require_writable(path, source=model)
    with job.progress() as progress:
        result = api.plan(
            model,
            dims=dims(dim),
            shapes=shapes(shape),
            alignment=alignment,
            planner=planner,
            order=order,
            streams=streams,
            capacity=in_bytes(capacity, "capacity"),
            inputs=inputs,
            ranges=ranges(input_range),
            verify=not job.no_verify,
            progress=progress,
        )
        content = emission.content(result.plan.to_dict())
        job.write(result.model, target, model)
        for path, data in content.items():
            if not job.dry_run:
                write_whole(path, data)
    job.report(result, "plan", target)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, plan)
