"""The layout of help: options under headings, examples on lines of their own; plain text, so that nothing heavy is loaded for it."""

from __future__ import annotations

import inspect
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from onnxtile.declare.option import OPTIONS, REPORTING, SIZES, WRITING

_LAST = (SIZES, WRITING, REPORTING)
_ARGUMENTS = "Arguments"
_EXAMPLES = "Examples:"


def split(doc: str | None) -> tuple[str, str]:
    """Return the text of a docstring, and the command lines below its "Examples:"."""
    text, _, examples = inspect.cleandoc(doc or "").partition(f"\n\n{_EXAMPLES}\n")
    return text, inspect.cleandoc(f"\n{examples}")


class _Plain:
    """A command whose parameters keep the texts that were given: their declarations read them, so that typer need not load pydantic."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            parameter.get_runtime_param = lambda: _AsGiven
        return parameters


class _AsGiven:
    """Stands for the adapter that would turn a text into what it means."""

    @staticmethod
    def coerce(value: Any, **_where: Any) -> Any:
        """Return the value as it was given."""
        return value


class Command(_Plain, TyperCommand):
    """A command whose options stand under the headings that they name."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a heading, the command's own headings, then the common ones."""
        headings: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                headings.setdefault(_heading(param), []).append(_short(record))
        of_command = [heading for heading in headings if heading not in _LAST]
        for heading in (heading for heading in (*of_command, *_LAST) if headings.get(heading)):
            with formatter.section(heading):
                formatter.write_dl(headings[heading])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the examples, a line each."""
        _write_examples(self.epilog, formatter)


class Group(_Plain, TyperGroup):
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
    """Leave out what help says of itself: that a text is a text."""
    name, text = record
    return name.partition(" <")[0], text.replace("Show this message and exit.", "show this and exit")


def _heading(param: Any) -> str:
    if param.param_type_name == "argument":
        return _ARGUMENTS
    if param.name == "help":
        return REPORTING
    return str(getattr(param, "rich_help_panel", None) or OPTIONS)


def _write_examples(examples: str | None, formatter: Any) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for line in examples.splitlines():
            formatter.write(f"{'':{formatter.current_indent}}{line}\n")
