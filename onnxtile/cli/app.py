"""The application: its commands are the modules of `onnxtile.cli.commands`, found by their existence."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Annotated

import typer

from onnxtile.cli import commands
from onnxtile.cli.help import Group, require_command

_EXAMPLES = """\
onnxtile demo
onnxtile fuse model.onnx -p LayerNorm -p GeLU
onnxtile tile model.fused.onnx --max 64
onnxtile plan model.fused.tiled.onnx --emit plan.html"""


def build() -> typer.Typer:
    """Return the application with every command: each module of `commands` adds its own."""
    app = typer.Typer(
        cls=Group,
        epilog=_EXAMPLES,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_onnxtile)
    for module in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{module.name}").add_to(app)
    return app


def _onnxtile(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False,
) -> None:
    """Fuse, tile and plan ONNX models for hardware with limits, and prove by running that nothing changed."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("onnxtile"))
        raise typer.Exit
    require_command(context)
