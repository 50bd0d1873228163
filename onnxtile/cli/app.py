"""The application: a command for each verb of `onnxtile.verbs`, found by their existence."""

from __future__ import annotations

from typing import Annotated

import typer

from onnxtile.cli.command import Group, command, require_command
from onnxtile.declare.verb import Verb, parameters
from onnxtile.system.registry import discover, named

_EXAMPLES = """\
onnxtile demo
onnxtile fuse model.onnx -p LayerNorm -p GeLU
onnxtile tile model.fused.onnx --max 64
onnxtile plan model.fused.tiled.onnx --emit plan.html"""


_HELP = ("-h", "--help")
_GROUPS = {"pattern": "Write patterns of your own."}


def verbs() -> dict[str, Verb]:
    """Return all verbs by name."""
    return dict(sorted(discover("onnxtile.verbs", Verb).items()))


def build(asked: str = "") -> typer.Typer:
    """Return the application with a command for each verb; one named "GROUP NAME" stands in a group.

    Where `asked`, the first argument, is a verb with a module of its name, the others are neither loaded nor added. The list of commands
    needs none of their options.
    """
    app = typer.Typer(
        cls=Group,
        epilog=_EXAMPLES,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": list(_HELP)},
    )
    app.callback(invoke_without_command=True)(_onnxtile)
    groups: dict[str, typer.Typer] = {}
    only = named("onnxtile.verbs", asked, Verb)
    for name, verb in verbs().items() if only is None else [(asked, only)]:
        group, _, command_name = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = _group(app, group)
        known = {} if asked in _HELP else parameters(verb.command)
        command(groups.get(group, app), verb, command_name, known)
    return app


def _group(app: typer.Typer, name: str) -> typer.Typer:
    group = typer.Typer(cls=Group, help=_GROUPS.get(name), rich_markup_mode=None)
    group.callback(invoke_without_command=True)(require_command)  # a group of one command is a group all the same
    app.add_typer(group, name=name)
    return group


def _onnxtile(
    context: typer.Context,
    version: Annotated[bool | None, typer.Option("--version", help="print the version and exit")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,  # noqa: ARG001 - read of sys.argv
) -> None:
    """Fuse, tile and plan ONNX models for hardware with limits, and prove by running that nothing changed."""
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("onnxtile"))
        raise typer.Exit
    require_command(context)
