"""Reports of a command: progress on stderr, results on stdout, files whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxtile.system.errors import escaped
from onnxtile.system.progress import Progress, silent
from onnxtile.system.text import as_json

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxtile.declare.verb import Outcome
    from onnxtile.model.stream import Draft


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

        Nothing is printed where stdout is taken (by `target`, too).
        """
        shown = bool(outcome.table) and not self.quiet and self.as_json != "-" and target != "-"
        parts = _tables(content, outcome.table) if shown else []
        self.write(content, files, save)
        if not parts:
            return
        from rich.console import Console

        from onnxtile.report.table import line, plain, short

        console = Console()
        if not console.is_terminal:
            console.width = 10_000  # in a pipe there is no edge to wrap at
        for part in parts if target is None else [*parts, line(f"written: {target}")]:
            for row in short(part) if console.is_terminal else [plain(part)]:
                console.print(row, crop=console.is_terminal)

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
        from onnxtile.model.stream import write_model

        if target == "-":
            write_model(model, sys.stdout.buffer)
        else:
            api.save(model, target, source=source, force=force)


def _tables(content: Mapping[str, Any], verb: str) -> list[Any]:
    from onnxtile.report import tables

    render: Callable[[Mapping[str, Any]], list[Any]] = getattr(tables, f"for_{verb}")
    return render(content)
