"""What a step of a pipeline is: a command with its options, applied to the model as the steps before left it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxtile.api import Progress, Source
from onnxtile.pipeline.options import Options


@dataclass(frozen=True)
class State:
    """The state of a pipeline: the file it reads, the model as it is now, and the receiver of progress."""

    source: Path
    model: Source
    progress: Progress


@dataclass(frozen=True)
class Done:
    """What a step did: its JSON, the model it made (None: the one it was given), and files to write beside it, by their ending.

    Where the step is a check that said no, `reason` says so in a line.
    """

    result: Mapping[str, Any]
    model: Source | None = None
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    reason: str | None = None


def _no_files(_options: Any) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Step:
    """A kind of step: its name, the schema of its options, and what it does.

    `require` says at once, before any model is read, what is wrong with options that the schema alone cannot judge; `endings` are
    those of the files that it writes beside the model.
    """

    name: str
    options: type[Options]
    apply: Callable[[Any, State], Done]
    require: Callable[[Any], object] = lambda _options: None
    endings: Callable[[Any], Iterable[str]] = _no_files
