"""The progress bar: one line on stderr that is gone when the work is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from onnxtile.system.errors import escaped
from onnxtile.system.progress import Progress as Hears


@contextmanager
def bar(console: Console | None = None) -> Iterator[Hears]:
    """Show what is said while the block runs: the stage, how many of its parts are done where it counts them, of how many where that
    is known, and the time.
    """
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[count]}"),
    )
    shown = Progress(
        *columns, TimeElapsedColumn(), console=console or Console(stderr=True), transient=True, refresh_per_second=8
    )
    with shown:
        line = shown.add_task("starting", total=None, count="")

        def show(stage: str, done: int = 0, total: int = 0, /) -> None:
            count = f"{done:,} of {total:,}" if total else f"{done:,}" if done else ""
            shown.update(line, description=escaped(stage), completed=done, total=total or None, count=count)

        yield show
