"""Long work: the time and the memory that runs of a model may take, obeyed by every run inside a block; and its progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import Lock, Thread
from typing import Protocol, TypeVar

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import OverLimit, UsageError
from onnxtile.system.posix import data_bytes, data_limit, set_data_limit

SECONDS = 600.0
"""Of one run, unless limits say otherwise."""
LOOP_SECONDS = 10.0
"""Of one run of a model with a Loop or a Scan, whose work no size tells, unless limits say otherwise."""
_MOST_SECONDS = 1e8
_MOST_BYTES = 2**60
_LOOK = 0.1
"""Seconds between two looks at what runs."""
_IDLE = 50
"""Looks without a run until the thread that looks ends."""

_CURRENT: ContextVar[RunLimits | None] = ContextVar("run_limits", default=None)


@dataclass(frozen=True)
class RunLimits:
    """Limits of the runs of a model.

    `seconds` limits one run (None: 600, and 10 for a model with a Loop or a Scan). `memory` limits the bytes that the process takes beyond
    those it has when the block begins. None stands for the available memory of the machine. Memory is limited on Linux only.

    Raises UsageError for a limit that is not positive.
    """

    seconds: float | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.seconds is not None and not 0 < self.seconds <= _MOST_SECONDS:
            raise UsageError(
                f"a run cannot have a limit of {self.seconds:g} s",
                hint=f"give more than 0 s, at most {_MOST_SECONDS:g} s",
            )
        if self.memory is not None and not 0 < self.memory <= _MOST_BYTES:
            raise UsageError(
                f"a run cannot have a limit of {self.memory} bytes", hint="give more than 0 bytes, at most 2^60"
            )

    def or_else(self, other: RunLimits) -> RunLimits:
        """Return these limits, and those of `other` where these say nothing."""
        return RunLimits(
            other.seconds if self.seconds is None else self.seconds,
            other.memory if self.memory is None else self.memory,
        )

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Hold the runs inside the block to these limits, and to those around it where these say nothing. Raises OverLimit."""
        if self == RunLimits():
            yield
            return
        around = _CURRENT.get()
        with (self if around is None else self.or_else(around)).held():
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the runs inside the block to these limits. Raises OverLimit where there is not enough memory."""
        token = _CURRENT.set(self)
        try:
            with _MEMORY.held(self.memory):
                yield
        except MemoryError:
            raise too_much_memory() from None
        finally:
            _CURRENT.reset(token)


def too_much_memory() -> OverLimit:
    """Return the error of work that asked for more memory than it may have."""
    return OverLimit(
        "this takes more memory than there is, or than --runs allows",
        hint="smaller --dim or --shape take less; so does --no-verify",
    )


def seconds_of_a_run(*, iterates: bool) -> float:
    """Return how long one run may take, of a model that `iterates` (has a Loop or a Scan) or not."""
    limits = _CURRENT.get()
    if limits is not None and limits.seconds is not None:
        return limits.seconds
    return LOOP_SECONDS if iterates else SECONDS


def memory_of_runs() -> int | None:
    """Return the bytes that limits allow runs to take; None where limits say nothing of memory."""
    limits = _CURRENT.get()
    return None if limits is None else limits.memory


class Watch:
    """Stops a run when its time is over: used as `with Watch(seconds, stop):`. Leaving the block raises OverLimit where it did.

    `stop` is called from another thread. Where `stop_runs` has been called, leaving the block raises SystemExit: the process is to end.
    """

    def __init__(self, seconds: float, stop: Callable[[], object]) -> None:
        self._seconds = seconds
        self._stop = stop
        self.is_over = False
        self.is_to_end = False

    def __enter__(self) -> Watch:
        self._due = time.monotonic() + self._seconds
        _WATCHDOG.add(self)
        return self

    def __exit__(self, *_: object) -> None:
        _WATCHDOG.remove(self)
        if self.is_to_end:
            raise SystemExit
        if self.is_over:
            raise too_long(self._seconds) from None

    def look(self, now: float) -> None:
        """Stop what is watched where its time is over at `now`."""
        if now >= self._due:
            self.is_over = True
            self._stop()

    def end(self) -> None:
        """Stop what is watched since the process is to end."""
        self.is_to_end = True
        self._stop()


class Clock:
    """The time of a run that is made of many short ones."""

    def __init__(self) -> None:
        self._seconds = seconds_of_a_run(iterates=False)
        self._due = time.monotonic() + self._seconds

    def check(self) -> None:
        """Raise OverLimit where the time is over."""
        if time.monotonic() >= self._due:
            raise too_long(self._seconds)


def too_long(seconds: float) -> OverLimit:
    """Return the error of a run that was stopped after so many `seconds`."""
    return OverLimit(
        f"a run of the model was stopped after {seconds:g} s", hint="allow more by --runs, as in --runs 3600s"
    )


def stop_runs() -> None:
    """Stop all runs that are under way in this process, which is to end: each raises SystemExit after its current kernel."""
    _WATCHDOG.stop_all()


class _Watchdog:
    """One thread for all runs: they are many and short, and a thread for each would take longer than most of them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._running: set[Watch] = set()
        self._thread: Thread | None = None

    def add(self, watch: Watch) -> None:
        with self._lock:
            self._running.add(watch)
            if self._thread is None or not self._thread.is_alive():
                self._thread = Thread(target=self._look, name="onnxtile watchdog", daemon=True)
                self._thread.start()

    def remove(self, watch: Watch) -> None:
        with self._lock:
            self._running.discard(watch)

    def stop_all(self) -> None:
        with self._lock:
            for watch in self._running:
                watch.end()

    def _look(self) -> None:
        idle = 0
        while True:
            time.sleep(_LOOK)
            with self._lock:
                idle = 0 if self._running else idle + 1
                if idle > _IDLE:
                    self._thread = None
                    return
                now = time.monotonic()
                for watch in self._running:
                    watch.look(now)


class _MemoryWatch:
    """The limit on the memory of this process: that of the block entered last, until it is left."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: list[int] = []
        self._before = (-1, -1)

    @contextmanager
    def held(self, memory: int | None) -> Iterator[None]:
        allowed = _available() if memory is None else memory
        taken = data_bytes()
        if allowed is None or taken is None:
            yield
            return
        most = taken + allowed
        with self._lock:
            if not self._held:
                self._before = data_limit()
            self._held.append(most)
            self._set()
        try:
            yield
        finally:
            with self._lock:
                self._held.remove(most)
                self._set()

    def _set(self) -> None:
        soft, hard = self._before
        others = [limit for limit in (soft, hard) if limit >= 0]  # -1 is no limit
        set_data_limit(min([*self._held[-1:], *others], default=-1), hard)


def _available() -> int | None:
    """Return the bytes that the machine, or the container, has left; None where only Linux would tell."""
    try:
        rows = (line.split() for line in Path("/proc/meminfo").read_text("utf-8").splitlines())
        left = next((int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"), None)
    except OSError:
        return None
    try:
        most, used = (Path(f"/sys/fs/cgroup/memory.{name}").read_text("ascii").strip() for name in ("max", "current"))
    except OSError:
        return left
    return left if left is None or not most.isdecimal() else min(left, max(int(most) - int(used), 1))


_WATCHDOG = _Watchdog()
_MEMORY = _MemoryWatch()


# Progress of long work: reported to a callable, shown by the command line.


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
