"""The run of a command: the words of a plain one, the files that it reads and writes, and its report. None of it needs typer."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxtile.cli.streams import require_stdout, say
from onnxtile.declare.verb import (
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


DEBUG = "--debug"
HELP = ("-h", "--help")


class CommandRefused(Exception):
    """What is wrong with a command line, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


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


# The run of a command.


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


def run_plain(words: Sequence[str]) -> int | None:
    """Run the command that `words` are and return its exit code; None where they have to be read by typer, which takes long to load."""
    verb = named("onnxtile.verbs", words[0], Verb) if words else None
    texts = None if verb is None else plain_texts(words[1:], parameters(verb.command))
    return None if verb is None or texts is None else run_verb(verb, texts)


def plain_texts(words: Sequence[str], known: Mapping[str, VerbParameter]) -> dict[str, Any] | None:
    """Return the texts of the parameters as typer reads `words`; None for help, for completion, and for what may be a mistake."""
    if os.name == "nt" or "_ONNXTILE_COMPLETE" in os.environ:  # typer expands patterns of files there
        return None
    options = {
        flag: parameter
        for parameter in known.values()
        if isinstance(parameter.about, Option)
        for flag in parameter.flags
    }
    texts: dict[str, Any] = {}
    operands: list[Any] = []
    left = [word for word in reversed(words) if word != DEBUG]
    while left:
        word = left.pop()
        flag, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
        option = options.get(flag)
        if not word or (option is None and word.startswith("-") and word != _STDOUT):
            return None
        if option is None:
            operands.append(word)
        elif option.kind.flag:
            if equals:
                return None
            texts[option.name] = True
        else:
            value = value if equals or not left else left.pop()
            if not value or (value.startswith("-") and value != _STDOUT):
                return None
            texts.setdefault(option.name, []).append(value)
    places = [parameter for parameter in known.values() if not isinstance(parameter.about, Option)]
    if any(parameter.kind.several for parameter in places[:-1]) or not places:
        return None
    if places[-1].kind.several:
        operands[len(places) - 1 :] = [operands[len(places) - 1 :]] if len(operands) >= len(places) else []
    is_full = len(operands) == len(places)
    return (
        {**texts, **{parameter.name: text for parameter, text in zip(places, operands, strict=True)}}
        if is_full
        else None
    )


def run_verb(verb: Verb, texts: Mapping[str, Any]) -> int:
    """Run the command of `verb` with the `texts` of the command line and return its exit code. Raises OnnxtileError."""
    return _run(verb, _settings(verb, texts))


def _run(verb: Verb, settings: Any) -> int:
    """Do the work of a command, report it, and return 1 where a check failed, else 0."""
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
    return 0 if outcome.reason is None else 1


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


def verbs() -> dict[str, Verb]:
    """Return all verbs by name."""
    return dict(sorted(discover("onnxtile.verbs", Verb).items()))
