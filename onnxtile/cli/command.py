"""A command for each verb: its arguments and options, its help, and what it reads and writes, derived from the declaration."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from onnxtile.cli.streams import require_stdout, say
from onnxtile.declare.verb import (
    OPTIONS,
    REPORTING,
    SIZES,
    WRITING,
    Option,
    Outcome,
    Rendered,
    Verb,
    VerbParameter,
    drop_advice,
    limits_of,
    parameters,
    read,
    with_progress,
)
from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import NAME_ONLY, Entry, ModelError, OnnxtileError, UsageError, error_line, escaped, invalid
from onnxtile.system.files import real, require_readable
from onnxtile.system.long_work import Progress, silent
from onnxtile.system.registry import discover, named
from onnxtile.system.text import as_json

if TYPE_CHECKING:
    import onnx_ir as ir
    from rich.console import Console

    from onnxtile.model.save import Draft


# The layout of help: options under headings, examples on lines of their own; plain text, so that nothing heavy is loaded for it.

_LAST = (SIZES, WRITING, REPORTING)
DEBUG = "--debug"
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


# Checks the files of a command before any work: inputs exist, and no file is overwritten or written twice.

_WRITTEN = {
    **{"as_json": "--json", "emit": "--emit"},
    **{"junit": "--junit", "markdown": "--markdown", "output": "-o"},
}
"""The parameters that name files to write, and what a user calls them. -o over IN is judged with --force elsewhere."""


_READ = ("model", "other", "pipeline", "baseline")
_TEXT_FILE = ".toml"
"""A text that is read and ends so names a file; any other is a name or a query, which no file system need take."""
_MODELS = ("model", "other", "models")


def require_there(given: Mapping[str, Any]) -> None:
    """Raise ModelError where an input is no file; where it is missing, with the file that may have been meant."""
    named = [given[name] for name in _READ if isinstance(given.get(name), Path)]
    for path in named:
        if path.exists() or path.is_symlink():
            require_readable(path, ModelError)
    for path in (*named, *given.get("models", ())):
        if not (path.exists() or path.is_symlink()):
            names = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
            near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.75)
            hint = f"did you mean {path.with_name(near[0])}?" if near else None
            raise ModelError(f"{path}: no such file", hint=hint)


def require_apart(given: Mapping[str, Any]) -> None:
    """Raise UsageError where two of the options in `given` write one file, or one writes a file that is read: weights of models, too."""
    read = {path for name, value in given.items() if name not in _WRITTEN for path in _paths(value, _TEXT_FILE)}
    source = {path for name in ("model", "models") for path in _paths(given.get(name))}
    written: dict[Path, str] = {}
    for name, option in _WRITTEN.items():
        for path in _paths(given.get(name)):
            if path in (read - source if name == "output" else read):
                raise UsageError(f"{option} {path} would be written over what is read", hint="name another file")
            if path in written:
                raise UsageError(f"{written[path]} and {option} both name {path}", hint="name two files")
            written[path] = option
    _require_no_weights(given, {path: option for path, option in written.items() if path.is_file()})


def require_beside(target: Path, model: Path, others: Mapping[str, Any]) -> None:
    """Raise UsageError where one of the files in `others` is the model `target`, made from `model`, or where its weights may go."""
    from onnxtile.system.files import weights_beside

    for name, option in _WRITTEN.items():
        for path in _paths(others.get(name)):
            if path == target.resolve():
                raise UsageError(
                    f"{option} {path} is where the model is written to",
                    hint="name another file, or another model with -o",
                )
            if path in map(real, weights_beside(target, model)) or _is_data_of(path, target):
                raise UsageError(f"{option} {path} is where weights of {target} may go", hint="name another file")


def _require_no_weights(given: Mapping[str, Any], written: Mapping[Path, str]) -> None:
    from onnxtile.system.files import named_weights

    models = [path for name in _MODELS for path in _paths(given.get(name))] if written else []
    for weights in (file.resolve() for model in models for file in named_weights(model)):
        if weights in written:
            raise UsageError(
                f"{written[weights]} {weights} would be written over weights that are read", hint="name another file"
            )


def _is_data_of(path: Path, target: Path) -> bool:
    return path.parent == target.parent.resolve() and path.name.startswith(f"{target.name}.data")


def _paths(value: Any, ending: str = "") -> Iterator[Path]:
    """Yield the files that a value names: paths, and texts with this `ending`. A device, a pipe and stdout may be named twice."""
    for entry in value if isinstance(value, list | tuple) else [value]:
        is_file = isinstance(entry, Path) or (isinstance(entry, str) and entry != "-" and entry.endswith(ending))
        path = Path(entry).absolute() if is_file else None
        if path is not None and (path.is_file() or not path.exists()):
            yield real(path)


_STDOUT = "-"

# Reports of a command: progress on stderr, results on stdout, files whole or not at all.


@contextmanager
def bar() -> Iterator[Progress]:
    """Show on stderr what is said while the block runs: the stage, the time, and how many of its parts are done, of how many where that
    is known.
    """
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Line

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
    )
    with Line(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True, refresh_per_second=8
    ) as shown:
        line = shown.add_task("starting", total=None, count="")

        def show(stage: str, done: int = 0, total: int = 0, /) -> None:
            count = f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
            shown.update(line, description=escaped(stage), completed=done, total=total or None, count=count)

        yield show


@dataclass(frozen=True)
class Job:
    """How a command reports: `as_json` is the file of --json, "-" for stdout."""

    as_json: str | None = None
    quiet: bool = False

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show how far long work is, on stderr, where that is a terminal and the result does not go to a script."""
        if self.quiet or self.as_json is not None or not sys.stderr.isatty():
            yield silent
            return
        with bar() as show:
            yield show

    def report(
        self,
        outcome: Outcome,
        content: Mapping[str, Any],
        target: str | None = None,
        *,
        files: Mapping[Path, bytes] | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        """Render all that `outcome` is shown as, then write `files`, what `save` writes, and --json, then print the tables.

        The last line names the files, --json apart. Nothing is printed where stdout is taken (by `target`, too).
        """
        shown = bool(outcome.table) and not self.quiet and self.as_json != "-" and target != "-"
        parts = _tables(outcome.table, content) if shown else []
        self.write(content, files, save)
        if not parts:
            return
        from onnxtile.report.table import line, plain, short

        written = [*([] if target is None else [target]), *map(str, files or ())]
        parts += [line(f"written: {', '.join(written)}")] if written else []
        console = _terminal()
        if console is None:
            sys.stdout.writelines(f"{row.rstrip()}\n" for part in parts for row in plain(part))
            return
        for row in (row for part in parts for row in short(part)):
            console.print(row)

    def write(
        self,
        content: Mapping[str, Any],
        files: Mapping[Path, bytes] | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        """Write `files`, what `save` writes, and `content` to where --json says; an error leaves every file as it was."""
        from onnxtile.system.files import staged

        text = "" if self.as_json is None else as_json(content)
        asked = {} if self.as_json in {None, "-"} else {Path(str(self.as_json)): text.encode()}
        with staged({**(files or {}), **asked}):
            if save is not None:
                with self.progress() as progress:
                    progress("writing")
                    save()
        if self.as_json == "-":
            sys.stdout.write(text)

    def save(self, model: ir.Model | Draft, target: str, source: Path, *, force: bool) -> None:
        """Write `model`, made from the file `source`, to `target`: a path, or "-" for stdout."""
        from onnxtile import api
        from onnxtile.model.save import write_model

        if target == "-":
            write_model(model, sys.stdout.buffer)
        else:
            api.save(model, target, source=source, force=force)


_AS_TERMINAL = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables of the environment by which rich takes a stream for a terminal."""


def _terminal() -> Console | None:
    """Return the terminal that stdout is; None for a pipe or a file."""
    if not sys.stdout.isatty() and not any(map(os.environ.get, _AS_TERMINAL)):
        return None
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else None


def _tables(name: str, content: Mapping[str, Any]) -> list[Any]:
    from onnxtile.report.tables import tables_called

    return tables_called(name, content)


# The command of a verb: its arguments and options, its help, and its run.


def command(app: typer.Typer, verb: Verb, name: str, known: Mapping[str, VerbParameter]) -> None:
    """Add the command of `verb` to `app`, with the `known` arguments and options."""

    def run(**texts: Any) -> None:
        _run(verb, _settings(verb, texts))

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


def _settings(verb: Verb, texts: Mapping[str, Any]) -> Any:
    """Return the options of a command that the command line gave as `texts`. Raises UsageError."""
    known = parameters(verb.command)
    given = {
        name: _value(known[name], text) for name, text in texts.items() if text is not None and text not in ([], ())
    }
    return read(verb.command, {**verb.defaults, **given})


def _value(parameter: VerbParameter, text: Any) -> Any:
    """Return the input of a parameter's `read`, from the texts of the command line."""
    kind = parameter.kind
    if kind.flag:
        return text != parameter.flags[-1].startswith("--no-")
    if kind.pair:
        if kind.lone and len(text) == 1 and "=" not in text[0]:
            return kind.from_text(text[0])
        return _table(parameter, text)
    if kind.several:
        return [kind.from_text(entry) for entry in text]
    return kind.from_text(text if isinstance(text, str) else _only(parameter, text))


def _only(parameter: VerbParameter, texts: Sequence[str]) -> str:
    """Return the text of an option that takes one value. Raises UsageError where it is given twice, with two values."""
    other = next((text for text in texts if text != texts[0]), None)
    if other is not None:
        raise invalid(parameter.name, other, reason=f"it is given twice, with {texts[0]} before")
    return texts[0]


def _table(parameter: VerbParameter, texts: Iterable[str]) -> dict[str, Any]:
    """Return the table that NAME=VALUE texts make."""
    table: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise invalid(parameter.name, text, reason=f"this is not of the form {parameter.kind.pair}")
        if table.get(name, value) != value:
            reason = f"{name!r} is given twice, with {table[name]} before"
            raise invalid(parameter.name, Entry(name, value), reason=reason)
        table[name] = value
    return {name: parameter.kind.from_text(value) for name, value in table.items()}


def _run(verb: Verb, settings: Any) -> None:
    """Do the work of a command, report it, and end with 1 where a check failed."""
    require_there(vars(settings))
    require_apart(vars(settings))
    _require_json(settings.as_json)
    job = Job(settings.as_json, settings.quiet)
    with limits_of(settings).held():
        verb.require(settings)
        target, render = _target(verb, settings), _emission(verb, settings)
        with job.progress() as progress:
            try:
                outcome = verb.run(with_progress(settings, progress))
            except OnnxtileError as error:
                drop_advice(error, parameters(verb.command))
                raise
        _finish(job, settings, outcome, target, render)
    if outcome.reason is not None:
        raise typer.Exit(1)


def _finish(job: Job, settings: Any, outcome: Outcome, target: str | None, render: Rendered) -> None:
    """Write what a command has to write, all or nothing, then print."""
    content = outcome.result.to_dict()
    files = dict(render(content if outcome.emitted is None else outcome.emitted))
    file = None if target is None or target == _STDOUT else Path(target)
    save = None
    if outcome.model is not None and target is not None:
        save = partial(job.save, outcome.model, target, settings.model, force=settings.force)
    elif outcome.save is not None and file is not None:
        save = partial(outcome.save, file)
    elif outcome.text and file is not None:
        files[file] = outcome.text.encode()
    job.report(outcome, content, target if save is not None else None, files=files, save=save)
    if outcome.text and file is None and job.as_json != _STDOUT:
        sys.stdout.write(outcome.text)
    if outcome.note and not (job.quiet and outcome.reason is None):
        say(error_line(outcome.note, None) + "\n")


def _target(verb: Verb, settings: Any) -> str | None:
    """Return where the result goes, checked before any work is done: a path, "-", or None for nowhere."""
    from onnxtile.system.files import require_writable

    ending, output = verb.writes(settings), getattr(settings, "output", None)
    if ending is None:
        if output is not None and not isinstance(output, Path):
            require_writable(Path(output), source=settings.model)
        return output if isinstance(output, str) else None
    if settings.dry_run:
        return None
    if output == _STDOUT:
        require_stdout("-o")
        return _STDOUT
    path = (
        Path(output)
        if output is not None
        else settings.model.with_suffix(f".{ending}" if "." in ending else f".{ending}.onnx")
    )
    require_writable(path, source=settings.model, force=settings.force)
    beside = {name: getattr(settings, name, ()) for name in ("as_json", "emit")}
    require_beside(path, settings.model, beside)
    return str(path)


def _emission(verb: Verb, settings: Any) -> Rendered:
    """Return the function that renders the files of --emit, which are checked before any work."""
    paths = [Path(file) for file in getattr(settings, "emit", ())]
    render = verb.emits(settings, paths)
    if paths:
        from onnxtile.report.format import further_files
        from onnxtile.system.files import require_writable

        paths = [*paths, *(other for path in paths for other in further_files(path).values())]
        require_apart({**vars(settings), "emit": paths})
        for path in paths:
            require_writable(path, source=settings.model)
    return render


def _require_json(file: str | None) -> None:
    if file == _STDOUT:
        require_stdout("--json")
    elif file is not None:
        from onnxtile.system.files import require_writable

        require_writable(Path(file))


def worded(commands: Callable[[], Iterable[type]]) -> Callable[[str, object], str]:
    """Return how errors name parameters on a command line: as the options of `commands`."""

    def option(name: str, value: object) -> str:
        flag = next(
            (
                known[name].flags[-1].partition("/")[0]
                for known in map(parameters, commands())
                if name in known and isinstance(known[name].about, Option)
            ),
            "",
        )
        if value is NAME_ONLY or isinstance(value, bool):
            return flag or name
        shown = (
            f"{value.key}={value.value}"
            if isinstance(value, Entry)
            else repr(value)
            if isinstance(value, str)
            else str(value)
        )
        return f"{flag or name} {shown}"

    return option


# The application: a command for each verb of `onnxtile.verbs`, found by their existence.


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
