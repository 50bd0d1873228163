"""The command line that typer makes of the declarations: help, completion, and what is wrong with words that are no plain command."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from onnxtile.cli.command import DEBUG, HELP, CommandRefused, run_verb, verbs
from onnxtile.declare.verb import OPTIONS, REPORTING, SIZES, WRITING, Option, Verb, VerbParameter, parameters
from onnxtile.system.registry import named

# The layout of help: options under headings, examples on lines of their own; plain text, so that nothing heavy is loaded for it.

_LAST = (SIZES, WRITING, REPORTING)
_ARGUMENTS = "Arguments"
_HEADING = "Examples:"


def split(doc: str | None) -> tuple[str, str]:
    """Return the text of a docstring, and the command lines below its "Examples:"."""
    text, _, examples = inspect.cleandoc(doc or "").partition(f"\n\n{_HEADING}\n")
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


_ALL = "all"
"""The word after --help that asks for all options."""
_FEW = 14
"""Options that are shown together; of more, help shows the main ones first."""


class Command(_Plain, TyperCommand):
    """A command whose options stand under the headings that they name; `--help all` shows those that are not main ones, too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; `all` after --help is part of it, and --debug is the application's, wherever it stands."""
        args = [word for word in args if word != DEBUG]
        asked = next((index for index, word in enumerate(args) if word in ctx.help_option_names), len(args))
        if args[asked + 1 : asked + 2] == [_ALL]:
            ctx.meta[_ALL] = True
            args = args[: asked + 1]
        read_args: list[str] = super().parse_args(ctx, args)
        return read_args

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, the options without a heading, the command's own headings, then the common ones."""
        params = self.get_params(ctx)
        first = {"help", *getattr(self.callback, "main", ())}
        hidden = set() if _ALL in ctx.meta or len(params) <= _FEW else {param.name for param in params} - first
        headings: dict[str, list[tuple[str, str]]] = {_ARGUMENTS: []}
        for param in params:
            record = param.get_help_record(ctx)
            if record is not None and param.name not in hidden:
                headings.setdefault(_heading(param), []).append(_short(record))
        of_command = [heading for heading in headings if heading not in _LAST]
        for heading in (heading for heading in (*of_command, *_LAST) if headings.get(heading)):
            with formatter.section(heading):
                formatter.write_dl(headings[heading])
        if hidden:
            formatter.write_paragraph()
            formatter.write(f"{len(hidden)} more options: {ctx.command_path} --help {_ALL}\n")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write the examples, a line each."""
        _write_examples(self.epilog, formatter)


class Group(_Plain, TyperGroup):
    """A group of commands with examples."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write how to see all options of a command, and the examples, a line each."""
        formatter.write_paragraph()
        formatter.write(f"All options of a command: {ctx.command_path} COMMAND --help {_ALL}\n")
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


# Shell completion: the names that an option takes, found where they are known, and only when they are asked for.

Complete = Callable[[str], list[str]]
"""Takes the text so far; returns the texts that it may become. Where there are none, the shell completes files."""


def complete(parameter: VerbParameter) -> Complete | None:
    """Return the function that completes the value of an option or argument; None without known values."""
    choices = parameter.choices
    if choices is not None:
        return lambda incomplete: [name for name in choices.names() if name.startswith(incomplete)]
    names_files = isinstance(parameter.about, Option) and parameter.about.endings is not None
    return (lambda incomplete: endings(incomplete, parameter.endings)) if names_files else None


def endings(incomplete: str, known: Iterable[str]) -> list[str]:
    """Return `incomplete` with each of the `known` endings that its own begins."""
    name = PurePath(incomplete).name
    stem, dot, begun = name.partition(".")
    if not dot or not stem:
        return []
    start = incomplete.removesuffix(f".{begun}")
    return [start + ending for ending in known if ending.startswith(f".{begun}")]


# The command of a verb: its arguments and options, and its help.


def command(app: typer.Typer, verb: Verb, name: str, known: Mapping[str, VerbParameter]) -> None:
    """Add the command of `verb` to `app`, with the `known` arguments and options."""

    def run(**texts: Any) -> None:
        raise typer.Exit(run_verb(verb, texts))

    shown = [
        inspect.Parameter(
            parameter.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=... if parameter.is_required else None,
            annotation=_annotation(parameter),
        )
        for parameter in known.values()
    ]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    main = {name for name, parameter in known.items() if getattr(parameter.about, "main", True)}
    run.main = main  # type: ignore[attr-defined]
    text, examples = split(verb.command.__doc__)
    app.command(name, cls=Command, help=text, epilog=examples)(run)


def _annotation(parameter: VerbParameter) -> Any:
    """Return the type and the looks of a parameter as typer has them: a flag, a text or several; what they mean is read later."""
    about, default = parameter.about, parameter.shown_default
    # Of an option that takes one value, all that are given come, so that a second one is noticed.
    several = parameter.kind.several or isinstance(about, Option)
    kind: Any = bool if parameter.kind.flag else list[str] if several else str
    text = about.help + (f" [{default}]" if default else "")
    how: dict[str, Any] = {"metavar": parameter.metavar, "show_default": False, "autocompletion": complete(parameter)}
    if not isinstance(about, Option):
        return Annotated[kind if parameter.is_required else kind | None, typer.Argument(help=text, **how)]
    if parameter.kind.flag:
        how.pop("metavar")
    flags = parameter.flags
    return Annotated[
        kind if parameter.is_required else kind | None,
        typer.Option(*flags, help=text, rich_help_panel=about.heading, **how),
    ]


# The application: a command for each verb of `onnxtile.verbs`, found by their existence.


_EXAMPLES = """\
onnxtile demo
onnxtile fuse model.onnx -p LayerNorm -p GeLU
onnxtile tile model.fused.onnx --max 64
onnxtile plan model.fused.tiled.onnx --emit plan.html"""


_GROUPS = {"pattern": "Write patterns of your own."}


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
        context_settings={"help_option_names": list(HELP)},
    )
    app.callback(invoke_without_command=True)(_onnxtile)
    groups: dict[str, typer.Typer] = {}
    only = named("onnxtile.verbs", asked, Verb)
    for name, verb in verbs().items() if only is None else [(asked, only)]:
        group, _, command_name = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = _group(app, group)
        known = {} if asked in HELP else parameters(verb.command)
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


def run() -> int:
    """Run the command of the process's arguments and return its exit code. Raises CommandRefused, KeyboardInterrupt."""
    try:
        code = build(*sys.argv[1:2])(prog_name="onnxtile", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        raise CommandRefused(_usage_of(error), _help_of(error)) from None
    return code if isinstance(code, int) else 0


def _usage_of(error: typer.TyperException) -> str:
    """Return what is wrong with a command line; the name of an unknown option without names that only look like it."""
    name = getattr(error, "option_name", None)
    is_unknown = name is not None and hasattr(error, "possibilities")
    return f"there is no option {name}" if is_unknown else " ".join(error.format_message().split())


def _help_of(error: typer.TyperException) -> str:
    """Return the option that may have been meant, or where the help of the command is that the error is about."""
    known = {*(getattr(error, "possibilities", None) or ())} - {"--help"}
    near = difflib.get_close_matches(getattr(error, "option_name", ""), sorted(known), n=1)
    if near:
        return f"did you mean {near[0]}?"
    context: Any = getattr(error, "ctx", None)
    path = "onnxtile" if context is None else " ".join(context.command_path.split())
    words = "--help all" if hasattr(error, "possibilities") and " " in path else "--help"
    return f"{path} {words} shows what there is"
