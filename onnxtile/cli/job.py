"""What the commands share: how they report (`Job`), and how they write a model (`Rewrite`).

A command names one of the two as its first parameter; `command` puts the options that make it in that parameter's place.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, get_type_hints

import typer

from onnxtile.cli import help as layout
from onnxtile.cli.files import require_apart, require_beside, require_there
from onnxtile.cli.streams import require_stdout
from onnxtile.cli.values import in_bytes
from onnxtile.json_text import as_json
from onnxtile.progress import Progress, silent
from onnxtile.run_limits import RunLimits

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtile.model.stream import Draft

In = Annotated[Path, typer.Argument(metavar="IN", help="an ONNX model", show_default=False)]
Dim = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="bind a symbolic dimension", rich_help_panel=layout.SIZES),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", metavar="INPUT=1x3x8x8", help="give an input its whole shape", rich_help_panel=layout.SIZES
    ),
]


def _writable(file: str | None) -> str | None:
    """Return `file`, found to be writable before any work is done."""
    if file == "-":
        require_stdout("--json")
    elif file is not None:
        from onnxtile.model.whole import require_writable

        require_writable(Path(file))
    return file


class Result(Protocol):
    """What every verb of the library returns."""

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON."""
        ...


@dataclass(frozen=True)
class Job:
    """How a command reports: each field is an option of it."""

    as_json: Annotated[
        str | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="write the result as JSON, - for stdout",
            rich_help_panel=layout.REPORTING,
            callback=_writable,
        ),
    ] = None
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="print errors only", rich_help_panel=layout.REPORTING)
    ] = False
    debug: Annotated[
        bool, typer.Option("--debug", help="show the traceback of an error", rich_help_panel=layout.REPORTING)
    ] = False

    run_seconds: Annotated[
        float | None,
        typer.Option(
            "--run-seconds",
            metavar="N",
            help="limit of a run [600; 10 if it loops]",
            rich_help_panel=layout.SIZES,
        ),
    ] = None
    run_memory: Annotated[
        str | None,
        typer.Option(
            "--run-memory",
            metavar="4GiB",
            help="limit of the memory [what there is]",
            rich_help_panel=layout.SIZES,
        ),
    ] = None

    @property
    def limits(self) -> RunLimits:
        """What the runs of this command may take. Raises UsageError."""
        return RunLimits(self.run_seconds, in_bytes(self.run_memory, "run-memory"))

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Show how far long work is, on stderr, where that is a terminal and the result does not go to a script."""
        if self.quiet or self.as_json is not None or not sys.stderr.isatty():
            yield silent
            return
        from onnxtile.cli.bar import bar

        with bar() as show:
            yield show

    def report(
        self,
        result: Result,
        verb: str,
        target: str | None = None,
        *,
        files: Mapping[Path, bytes] | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        """Render all that `result` is shown as, then write `files`, what `save` writes, and --json, then print the tables.

        Nothing is printed where stdout is taken (by `target`, too).
        """
        content = result.to_dict()
        parts = [] if self.quiet or self.as_json == "-" or target == "-" else _tables(content, verb)
        self.write(content, files, save)
        if not parts:
            return
        from rich.console import Console

        from onnxtile.report.table import line, plain, short

        console = Console()
        if not console.is_terminal:
            console.width = 10_000  # in a pipe there is no edge to wrap at
        for part in parts if target is None else [*parts, line(f"written: {target}")]:
            for shown in short(part) if console.is_terminal else [plain(part)]:
                console.print(shown)

    def write(
        self,
        content: Mapping[str, Any],
        files: Mapping[Path, bytes] | None = None,
        save: Callable[[], None] | None = None,
    ) -> None:
        """Write `files`, what `save` writes, and `content` to where --json says; an error leaves every file as it was."""
        from onnxtile.model.whole import staged

        text = "" if self.as_json is None else as_json(content)
        asked = {} if self.as_json in {None, "-"} else {Path(str(self.as_json)): text.encode()}
        with staged({**(files or {}), **asked}):
            if save is not None:
                with self.progress() as progress:
                    progress("writing")
                    save()
        if self.as_json == "-":
            sys.stdout.write(text)


def _tables(content: Mapping[str, Any], verb: str) -> list[Any]:
    from onnxtile.report import tables

    render: Callable[[Mapping[str, Any]], list[Any]] = getattr(tables, f"for_{verb}")
    return render(content)


@dataclass(frozen=True)
class Rewrite(Job):
    """How a command that writes a model reports and writes: each field is an option of it."""

    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="file to write, - for stdout [beside IN]",
            rich_help_panel=layout.WRITING,
        ),
    ] = None
    no_verify: Annotated[
        bool,
        typer.Option("--no-verify", help="do not run the result beside the original", rich_help_panel=layout.WRITING),
    ] = False
    force: Annotated[bool, typer.Option("--force", help="allow OUT to be IN", rich_help_panel=layout.WRITING)] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="write nothing", rich_help_panel=layout.WRITING)] = False

    def target(self, model: Path, ending: str, emit: Sequence[Path] | None = None) -> str | None:
        """Return where the result goes, checked before any work is done: a path, "-", or None for nowhere.

        --json and the files of --emit must go elsewhere.
        """
        from onnxtile.model.whole import require_writable

        if self.dry_run:
            return None
        if self.output == "-":
            require_stdout("-o")
            return "-"
        path = Path(self.output) if self.output is not None else model.with_suffix(f".{ending}.onnx")
        require_writable(path, source=model, force=self.force)
        require_beside(path, model, {"as_json": self.as_json, "emit": emit})
        return str(path)

    def save(self, model: ir.Model | Draft, target: str | None, source: Path) -> None:
        """Write `model`, made from the file `source`, to `target`."""
        from onnxtile import api
        from onnxtile.model.stream import write_model

        if target == "-":
            write_model(model, sys.stdout.buffer)
        elif target is not None:
            api.save(model, target, source=source, force=self.force)


def command(app: typer.Typer, body: Callable[..., None], name: str | None = None) -> None:
    """Add `body`, whose first parameter is a Job or a Rewrite, to `app`; that one's fields become options of the command.

    Its docstring is the help, with command lines below "Examples:" at the end.
    """
    hints = get_type_hints(body, include_extras=True)
    first, *own = inspect.signature(body).parameters.values()
    kind: type[Job] = hints[first.name]
    shared = get_type_hints(kind, include_extras=True)

    def run(**given: Any) -> None:
        require_there(given)
        require_apart({name: value for name, value in given.items() if value is not None})
        job = kind(**{name: given.pop(name) for name in shared})
        with job.limits.held():
            body(job, **given)

    options = [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=shared[one.name])
        for one in fields(kind)
    ]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    run.__signature__ = inspect.Signature([*parameters, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*parameters, *options)}
    text, examples = layout.split(body.__doc__)
    app.command(name or body.__name__, cls=layout.Command, help=text, epilog=examples)(run)
