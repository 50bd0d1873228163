"""A command for each verb: its arguments and options, its help, and what it reads and writes, derived from the declaration."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from onnxtile.cli import help as layout
from onnxtile.cli.completion import complete
from onnxtile.cli.files import require_apart, require_beside, require_there
from onnxtile.cli.job import Job
from onnxtile.cli.streams import require_stdout, say
from onnxtile.errors import NAME_ONLY, Entry, invalid
from onnxtile.option import Option, VerbParameter, parameters, read, with_progress
from onnxtile.printable import error_line
from onnxtile.run_limits import RunLimits
from onnxtile.verb import Outcome, Rendered, Verb

_STDOUT = "-"


def command(app: typer.Typer, verb: Verb, name: str) -> None:
    """Add the command of `verb` to `app`."""

    def run(**texts: Any) -> None:
        _run(verb, _settings(verb, texts))

    known = parameters(verb.command)
    shown = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=_default(one), annotation=_annotation(one))
        for one in known.values()
    ]
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in shown}
    text, examples = layout.split(verb.command.__doc__)
    app.command(name, cls=layout.Command, help=text, epilog=examples)(run)


def _default(parameter: VerbParameter) -> Any:
    return ... if parameter.is_required else None


def _annotation(parameter: VerbParameter) -> Any:
    """Return the type and the looks of a parameter as typer has them: a flag, a text or several; what they mean is read later."""
    several = parameter.kind.several
    kind: Any = bool if parameter.kind.flag else list[str] if several else str
    about, told = parameter.about, parameter.shown_default
    text = about.help + (f" [{told}]" if told else "")
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
    return [kind.from_text(one) for one in text] if kind.several else kind.from_text(text)


def _table(parameter: VerbParameter, texts: Iterable[str]) -> dict[str, Any]:
    """Return the table that NAME=VALUE texts make."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise invalid(parameter.name, text, reason=f"this is not of the form {parameter.kind.pair}")
        if found.get(name, value) != value:
            reason = f"{name!r} is given twice, with {found[name]} before"
            raise invalid(parameter.name, Entry(name, value), reason=reason)
        found[name] = value
    return {name: parameter.kind.from_text(value) for name, value in found.items()}


def _run(verb: Verb, settings: Any) -> None:
    """Do the work of a command, report it, and end with 1 where a check said no."""
    require_there(vars(settings))
    require_apart(vars(settings))
    _require_json(settings.as_json)
    job = Job(settings.as_json, settings.quiet)
    with RunLimits(settings.run_seconds, settings.run_memory).held():
        verb.require(settings)
        target, render = _target(verb, settings), _emission(verb, settings)
        with job.progress() as progress:
            outcome = verb.run(with_progress(settings, progress))
        _finish(job, settings, outcome, target, render)
    if outcome.reason is not None:
        raise typer.Exit(1)


def _finish(job: Job, settings: Any, outcome: Outcome, target: str | None, render: Rendered) -> None:
    """Write what a command has to write, all or nothing, then print."""
    content = outcome.result.to_dict()
    files = dict(render(content if outcome.emitted is None else outcome.emitted))
    own = None if target is None or target == _STDOUT else Path(target)
    save = None
    if outcome.model is not None and target is not None:
        save = partial(job.save, outcome.model, target, settings.model, force=settings.force)
    elif outcome.save is not None and own is not None:
        save = partial(outcome.save, own)
    elif outcome.text and own is not None:
        files[own] = outcome.text.encode()
    job.report(outcome, content, target if save is not None else None, files=files, save=save)
    if outcome.text and own is None and job.as_json != _STDOUT:
        sys.stdout.write(outcome.text)
    if outcome.after and not job.quiet and job.as_json != _STDOUT:
        sys.stdout.write(outcome.after)
    if outcome.note and not (job.quiet and outcome.reason is None):
        say(error_line(outcome.note, None) + "\n")


def _target(verb: Verb, settings: Any) -> str | None:
    """Return where the result goes, checked before any work is done: a path, "-", or None for nowhere."""
    from onnxtile.model.whole import require_writable

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
    beside = {name: getattr(settings, name, ()) for name in ("as_json", "curve", "emit")}
    require_beside(path, settings.model, beside)
    return str(path)


def _emission(verb: Verb, settings: Any) -> Rendered:
    """Return the function that renders the files of --emit, which are checked before any work."""
    paths = [Path(file) for file in getattr(settings, "emit", ())]
    render = verb.emits(settings, paths)
    if paths:
        from onnxtile.model.whole import require_writable

        for path in paths:
            require_writable(path, source=settings.model)
    return render


def _require_json(file: str | None) -> None:
    if file == _STDOUT:
        require_stdout("--json")
    elif file is not None:
        from onnxtile.model.whole import require_writable

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
