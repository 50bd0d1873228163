"""onnxtile plan."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onnxtile.cli.completion import efforts, of, orders, placings, plan_files, planners
from onnxtile.cli.help import SIZES, WRITING
from onnxtile.cli.inputs import Inputs, Range, ranges
from onnxtile.cli.job import Dim, In, Rewrite, Shape, command
from onnxtile.cli.values import capacities, dims, shapes, workspaces
from onnxtile.collector import collector_paused
from onnxtile.errors import UsageError

if TYPE_CHECKING:
    from onnxtile.planning.result import PlanResult
    from onnxtile.report.emit import Emission

_SEARCH = "Search"


def plan(
    job: Rewrite,
    model: In,
    dim: Dim = None,
    shape: Shape = None,
    bound: Annotated[
        list[str] | None,
        typer.Option("--bound", metavar="NAME=N", help="the most of a size that data decide", rich_help_panel=SIZES),
    ] = None,
    alignment: Annotated[
        int | None,
        typer.Option("--alignment", metavar="BYTES", help="buffers start at multiples [64; of a CSV 1]"),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option("--capacity", metavar="[NAME=]256KiB", help="an arena's limit; the fastest first"),
    ] = None,
    io: Annotated[
        str,
        typer.Option(
            "--io",
            metavar="outputs|inside|outside",
            help="which lie in the arena",
            autocompletion=of(placings),
        ),
    ] = "outputs",
    overwrite_inputs: Annotated[bool, typer.Option("--overwrite-inputs", help="inputs inside may be lost")] = False,
    workspace: Annotated[
        list[str] | None,
        typer.Option("--workspace", metavar="OPERATOR=BYTES", help="kernels need it: 4096, inputs[0].bytes"),
    ] = None,
    share_workspaces: Annotated[bool, typer.Option("--share-workspaces", help="one for all, the largest")] = False,
    check: Annotated[
        Path | None,
        typer.Option("--check", metavar="PLAN", help="check this plan only: .json or planned model"),
    ] = None,
    planner: Annotated[
        str,
        typer.Option(
            "--planner",
            metavar="NAME",
            help="how offsets are found",
            rich_help_panel=_SEARCH,
            autocompletion=of(planners),
        ),
    ] = "best",
    effort: Annotated[
        str | None,
        typer.Option(
            "--effort",
            metavar="low|normal|high|N",
            help="how long; N steps [normal]",
            rich_help_panel=_SEARCH,
            autocompletion=of(efforts),
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="5s", help="how long, in seconds", rich_help_panel=_SEARCH),
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            metavar="model|min-peak|any",
            help="which node runs when",
            rich_help_panel=_SEARCH,
            autocompletion=of(orders),
        ),
    ] = "model",
    streams: Annotated[
        int, typer.Option("--streams", metavar="N", help="nodes that may run in one step", rich_help_panel=_SEARCH)
    ] = 1,
    inputs: Inputs = None,
    input_range: Range = None,
    emit: Annotated[
        list[Path] | None,
        typer.Option(
            "--emit",
            metavar="FILE",
            help="the plan as .json .csv .h .html .svg .png .tflm ...",
            rich_help_panel=WRITING,
            autocompletion=plan_files,
        ),
    ] = None,
    names: Annotated[
        bool | None,
        typer.Option("--names/--no-names", help="name tensors in pictures [if it fits]", rich_help_panel=WRITING),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option("--compare", metavar="PLAN.json", help="another plan, drawn beside", rich_help_panel=WRITING),
    ] = None,
) -> None:
    """Give every activation, or buffer of a problem in a .csv, an offset.

    Examples:
        onnxtile plan model.onnx --dim batch=1 --capacity 256KiB --emit plan.html
        onnxtile plan problem.csv --capacity arena=1048576 --emit out.csv
    """
    from onnxtile import api
    from onnxtile.model.whole import require_writable
    from onnxtile.planning.offsets.effort import effort as effort_of
    from onnxtile.report.emit import Emission

    search, room = effort_of(effort, time), capacities(capacity)
    is_bare = model.suffix.lower() == ".csv"
    if check is not None and not is_bare:
        _require_no_plan(
            {
                **{"--alignment": alignment, "--capacity": capacity, "--io": io != "outputs", "--emit": emit},
                **{"--overwrite-inputs": overwrite_inputs, "--workspace": workspace, "--names": names is not None},
                **{"--share-workspaces": share_workspaces, "--planner": planner != "best", "--compare": compare},
                **{"--effort": effort, "--time": time, "--order": order != "model", "--streams": streams != 1},
                **{"-o": job.output, "--force": job.force, "--no-verify": job.no_verify},
            }
        )
        _check(job, model, check, dim, shape, bound, inputs, input_range)
        return
    if is_bare:
        _require_no_model(
            {
                **{"--dim": dim, "--shape": shape, "--bound": bound, "--order": order != "model", "-o": job.output},
                **{"--streams": streams != 1, "--io": io != "outputs", "--overwrite-inputs": overwrite_inputs},
                **{"--workspace": workspace, "--share-workspaces": share_workspaces},
                **{"--inputs": inputs, "--range": input_range, "--check": check},
            }
        )
    target = None if is_bare else job.target(model, "planned", emit)
    emission = Emission.of(emit or (), names, compare)
    for path in emission.files:
        require_writable(path, source=model)
    if is_bare:
        with job.progress() as progress, collector_paused():
            unit = 1 if alignment is None else alignment
            placed = api.plan_problem(
                model, alignment=unit, planner=planner, effort=search, capacity=room, progress=progress
            )
        job.report(placed, "plan", files=_rendered(job, emission, placed))
        return
    with job.progress() as progress:
        result = api.plan(
            model,
            dims=dims(dim),
            shapes=shapes(shape),
            bounds=dims(bound, "bound"),
            alignment=64 if alignment is None else alignment,
            planner=planner,
            order=order,
            streams=streams,
            effort=search,
            capacity=room,
            io=io,
            overwrite_inputs=overwrite_inputs,
            workspaces=workspaces(workspace),
            share_workspaces=share_workspaces,
            inputs=inputs,
            ranges=ranges(input_range),
            verify=not job.no_verify,
            progress=progress,
        )
    files, save = _rendered(job, emission, result.plan), partial(job.save, result.model, target, model)
    job.report(result, "plan", target, files=files, save=save)


def _require_no_model(options: Mapping[str, object]) -> None:
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise UsageError(f"{given} is for models, not for a bare problem", hint="leave it out")


def _rendered(job: Rewrite, emission: Emission, plan: PlanResult) -> dict[Path, bytes]:
    return emission.content(plan.to_dict()) if emission.files and not job.dry_run else {}


def _require_no_plan(options: Mapping[str, object]) -> None:
    given = next((name for name, value in options.items() if value), None)
    if given is not None:
        raise UsageError(f"{given} is for planning, and --check plans nothing", hint="leave one of the two out")


def _check(
    job: Rewrite,
    model: Path,
    plan: Path,
    dim: list[str] | None,
    shape: list[str] | None,
    bound: list[str] | None,
    inputs: Path | None,
    input_range: list[str] | None,
) -> None:
    """Report what is wrong with the plan in the file `plan`; exit 1 where something is."""
    from onnxtile import api

    with job.progress() as progress:
        audit = api.check_plan(
            model,
            plan,
            dims=dims(dim),
            shapes=shapes(shape),
            bounds=dims(bound, "bound"),
            inputs=inputs,
            ranges=ranges(input_range),
            progress=progress,
        )
    job.report(audit, "check")
    if not audit.sound:
        raise typer.Exit(1)


def add_to(app: typer.Typer) -> None:
    """Add the command to `app`."""
    command(app, plan)
