"""The effort of a search: in steps, so that a problem has the same plan on every machine, or in seconds; and compiled code for it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from contextlib import suppress
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError
from onnxtile.system.long_work import Progress, silent
from onnxtile.system.text import whole


@dataclass(frozen=True)
class Effort:
    """The budget of a planner.

    `steps` are for an arena smaller than the best one found so far. `fitting` steps are for one that fits the capacity while none does.
    `closing` steps are for one that is near to the lower bound while none is. A step is a look at a buffer: a million take a fifth of a
    second, a hundredth with numba. `seconds`, if given, end each search. `progress` receives the steps or seconds used. An arena of
    `enough` bytes is as good as the smallest.
    """

    steps: int
    fitting: int
    seconds: float | None = None
    progress: Progress = field(default=silent, repr=False, compare=False)
    closing: int = 0
    enough: int = 0

    @property
    def budget(self) -> SearchBudget:
        """The budget of a search for a smaller arena."""
        return SearchBudget(self.steps, self.seconds, self.progress)

    @property
    def budget_to_fit(self) -> SearchBudget:
        """The budget of a search for an arena that fits the capacity."""
        return SearchBudget(self.fitting, self.seconds, self.progress)

    @property
    def budget_to_close(self) -> SearchBudget:
        """The budget of a search for an arena near to the lower bound."""
        return SearchBudget(self.closing, self.seconds, self.progress)

    @property
    def stages(self) -> tuple[Effort, ...]:
        """The efforts for several problems of which the smallest arena counts: a low one for all of them first, then this one.

        The low one is left out where it is a large part of this one.
        """
        low = LEVELS["low"]
        if self.steps < _LOWER * low.steps:
            return (self,)
        return (replace(self, steps=low.steps, fitting=min(self.fitting, low.fitting)), self)

    @property
    def alone(self) -> Effort:
        """The effort for one problem: the normal one has more steps as long as its arena is far above the lower bound."""
        return replace(self, closing=_CLOSING) if self.steps == LEVELS["normal"].steps else self

    def after(self, budget: SearchBudget) -> Effort:
        """Return the effort left after the seconds that `budget` has taken."""
        return self if self.seconds is None else replace(self, seconds=max(0.0, self.seconds - budget.taken))


LEVELS = {
    "low": Effort(200_000, 20_000_000),
    "normal": Effort(5_000_000, 4_000_000_000),
    "high": Effort(1_000_000_000, 100_000_000_000),
}

NORMAL = LEVELS["normal"]

_CLOSING = 300_000_000
"""The steps of the normal effort for one problem while its arena is far above the lower bound: compiled, a second."""

_LOWER = 4
"""The steps of a low effort that goes before another are one in so many of its steps, at most."""

_ENDLESS = 10**18


@dataclass
class SearchBudget:
    """The steps left to a search, counted down as it takes them, and the end of its time."""

    looks: int
    seconds: float | None = None
    progress: Progress = silent
    _start: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self._all = self.looks

    def take(self, looks: int) -> None:
        """Count down by `looks`, and report the progress."""
        self.looks -= looks
        if self.seconds is None:
            self.progress("searching", self._all - self.looks, self._all)
        else:
            self.progress("searching, in seconds", round(self.taken), round(self.seconds))

    @property
    def is_left(self) -> bool:
        """Whether there are steps and time left."""
        return self.looks > 0 and not self.is_late

    @property
    def is_late(self) -> bool:
        """Whether its time is over."""
        return self.seconds is not None and self.taken >= self.seconds

    @property
    def taken(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._start


def parse_effort(level: str | None = None, seconds: float | None = None) -> Effort:
    """Return the effort that `level` ("low", "normal", "high", or a number of steps) and a limit of `seconds` ask for.

    With seconds and no level, only the clock ends the search. Raises UsageError for an invalid level.
    """
    if level is None:
        return NORMAL if seconds is None else Effort(_ENDLESS, _ENDLESS, seconds)
    if level in LEVELS:
        return Effort(LEVELS[level].steps, LEVELS[level].fitting, seconds)
    steps = whole(level)
    if steps is None:
        raise UsageError(f"invalid effort {level!r} (choose {', '.join(LEVELS)}, or a number of steps)")
    return Effort(steps, steps, seconds)


# Modules of plain functions, compiled by numba if it is installed: the same plans, many times faster.

_LOADED: set[tuple[ModuleType, str]] = set()
"""The functions that this process has compiled or loaded."""


@cache
def is_available() -> bool:
    """Return whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def is_loaded(module: ModuleType, name: str) -> bool:
    """Return whether this process has compiled the function `name` of `module`, or loaded it."""
    return (module, name) in _LOADED


def is_kept(module: ModuleType, name: str) -> bool:
    """Return whether a process with this version of Python has compiled the function `name` of `module`, and kept it beside the source."""
    _drop_stale(module)
    source, version = Path(module.__file__ or ""), "".join(map(str, sys.version_info[:2]))
    return any((source.parent / "__pycache__").glob(f"{source.stem}.{name}-*.py{version}.nbi"))


@cache
def function(module: ModuleType, name: str, *, allocates: bool = True) -> Any:
    """Return the function `name` of `module`, compiled with all functions of the module at its first call, which takes seconds.

    numba keeps the result beside the source. Where the function allocates nothing, numba counts no references, which would double the time
    of functions with very many arrays.
    """
    numba: Any = importlib.import_module("numba")
    _drop_stale(module)
    # Compiled functions call one another, so they share a copy of the module's globals.
    space: dict[str, Any] = dict(vars(module))
    for key, value in vars(module).items():
        if isinstance(value, FunctionType) and value.__module__ == module.__name__:
            plain = FunctionType(value.__code__, space, key)
            space[key] = numba.njit(_nrt=allocates, cache=can_keep(module))(plain)
    _LOADED.add((module, name))
    return space[name]


def _drop_stale(module: ModuleType) -> None:
    """Delete compiled code that is older than a source file beside it.

    numba compares only the file of the function itself, and fails to load code whose argument types have been renamed since.
    """
    folder = Path(module.__file__ or "").parent
    newest = max((source.stat().st_mtime for source in folder.glob("*.py")), default=0.0)
    for kept in (folder / "__pycache__").glob("*.nb[ci]"):
        with suppress(OSError):  # another process deletes the same file, or the folder is read-only
            if kept.stat().st_mtime < newest:
                kept.unlink()


def can_keep(module: ModuleType) -> bool:
    """Return whether numba can keep compiled code: in NUMBA_CACHE_DIR, or beside the module."""
    return bool(os.environ.get("NUMBA_CACHE_DIR")) or os.access(Path(module.__file__ or "").parent, os.W_OK)
