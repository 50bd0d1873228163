"""Progress of long work: reported to a callable, shown by the command line."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Receives the name of each stage of long work. A stage that counts its parts also gives how many are done, and of how many."""

    def __call__(self, stage: str, done: int = 0, total: int = 0, /) -> None:
        """Note that `stage` has begun or advanced. A `total` of 0 means that its length is unknown."""
        ...


def silent(_stage: str, _done: int = 0, _total: int = 0, /) -> None:
    """Say nothing."""


def within(progress: Progress, stage: str) -> Progress:
    """Return a progress whose stages are parts of `stage`, and are called so: "point 3: searching"."""

    def tell(part: str, done: int = 0, total: int = 0, /) -> None:
        progress(f"{stage}: {part}", done, total)

    return tell


def counted(parts: Collection[T], stage: str, progress: Progress) -> Iterator[T]:
    """Yield each of `parts`, and say before it how many are done."""
    for done, part in enumerate(parts):
        progress(stage, done, len(parts))
        yield part
