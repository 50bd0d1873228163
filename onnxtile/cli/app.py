"""The application: its commands are the modules of `onnxtile.cli.commands`, found by their existence."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Annotated

import typer

from onnxtile.cli import commands


def build() -> typer.Typer:
    """Return the application with every command: each module of `commands` adds its own."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_onnxtile)
    for module in pkgutil.iter_modules(commands.__path__):
        importlib.import_module(f"{commands.__name__}.{module.name}").add_to(app)
    return app


def _onnxtile(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    """Fuse, tile and plan ONNX models for hardware with limits, and prove by running that nothing changed."""
    if version:
        from importlib.metadata import version as installed

        print(installed("onnxtile"))  # noqa: T201
        raise typer.Exit
