"""How help looks: options under headings, examples on lines of their own; plain text, so that nothing heavy is loaded for it."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

SIZES = "Sizes and inputs"
WRITING = "Writing"
REPORTING = "Reporting"
"""Headings, in this order, behind those that a command has of its own."""

_LAST = (SIZES, WRITING, REPORTING)
_EXAMPLES = "Examples:"


def split(doc: str | None) -> tuple[str, str]:
    """Return what a docstring says, and the command lines below its "Examples:"."""
    text, _, examples = inspect.cleandoc(doc or "").partition(f"\n\n{_EXAMPLES}\n")
    return text, inspect.cleandoc(f"\n{examples}")


class Command(TyperCommand):
    """A command whose options stand under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a heading, the command's own headings, then the common ones."""
        headings: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                headings.setdefault(_heading(param), []).append(_short(record))
        for heading in (*(own for own in headings if own not in _LAST), *(one for one in _LAST if one in headings)):
            with formatter.section(heading):
                formatter.write_dl(headings[heading])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the examples, a line each."""
        _write_examples(self.epilog, formatter)


class Group(TyperGroup):
    """A group of commands with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the examples, a line each."""
        _write_examples(self.epilog, formatter)


def require_command(context: typer.Context) -> None:
    """End with the help, and as usage errors do, where a group was called without one of its commands."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def _short(record: tuple[str, str]) -> tuple[str, str]:
    """Leave out what help says of itself: that a path is a path, and the range of a count."""
    name, text = record
    return name.partition(" <")[0], text.replace("Show this message and exit.", "show this and exit")


def _heading(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    if param.name == "help":
        return REPORTING
    return str(getattr(param, "rich_help_panel", None) or "Options")


def _write_examples(examples: str | None, formatter: Any) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for line in examples.splitlines():
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")
