"""Workers of a pipeline: threads or processes of this machine, by joblib, or of a cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import CRITICAL
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from onnxtile.system.dataclass import dataclass
from onnxtile.system.errors import UsageError, about_options, invalid, of_extra
from onnxtile.system.files import remove_temporary
from onnxtile.system.limits import stop_runs
from onnxtile.system.process import imports_compiled, silence_finalisers, silence_libraries

# The start of worker processes: a terminal's signals to its whole group reach this process alone, with which they end.

_OF_TERMINALS = ("SIGINT", "SIGHUP")
"""By name: Windows lacks the last."""


@contextmanager
def starting_workers() -> Iterator[None]:
    """Start processes in the block that never see Ctrl-C or the end of a terminal: a new process inherits what is blocked.

    Else one of them, still importing modules, prints a traceback, or a report says that a worker died.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        _start_trackers()
        yield
        return
    blocked = [getattr(signal, name) for name in _OF_TERMINALS if hasattr(signal, name)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    _start_trackers()
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)  # Python has let some through again
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_trackers() -> None:
    """Start the processes that remove shared memory and semaphores of workers without a stderr.

    One prints a traceback where two processes that end at once both say that a semaphore is not needed. One that a terminal's end has
    killed is started again by Python, with stderr: so it must not see that.
    """
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as of_joblib

    with _without_stderr():
        resource_tracker.ensure_running()
        of_joblib.ensure_running()


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Let the descriptor 2, which a new process inherits, lead nowhere in the block."""
    nowhere, stderr = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)


# The end of worker processes: soon after the process that they work for, however that one ended.

_EVERY = 0.5
"""Seconds between two looks."""
_GRACE = 2.0
"""Seconds in which what is under way is undone: temporary files are removed."""
_CODE = 128 + signal.SIGTERM


def end_with(parent: int) -> None:
    """Let this process, a child of `parent`, end within seconds of that one; at once where `parent` has gone already.

    It is called before anything heavy is imported, which takes seconds of its own, and before there is anything to be undone. Windows does
    not say who the parent is where Python runs in a virtual environment; there, a worker ends when it has had no work for some minutes.
    """
    if os.name == "nt":
        return
    if os.getppid() != parent:
        os._exit(_CODE)
    signal.signal(signal.SIGTERM, _end)
    silence_finalisers()
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY)
    os.kill(os.getpid(), signal.SIGTERM)
    stop_runs()
    time.sleep(_GRACE)
    remove_temporary()
    os._exit(_CODE)


def _end(_signal: int, frame: FrameType | None) -> NoReturn:
    if imports_compiled(frame):
        remove_temporary()
        os._exit(_CODE)
    raise SystemExit(_CODE)


# Who does the work, and how the results come back.

T = TypeVar("T")
R = TypeVar("R")

BACKENDS = ("loky", "threading", "dask")
_PATIENCE = 5.0
"""Seconds in which a scheduler has to answer."""
_ON_LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
"""Address of the HTTP server of our own Dask cluster: a free port of the loopback interface, not 8787."""
_WITHOUT_PAGES = {
    "distributed.scheduler.allowed-failures": 0,  # what killed a worker is not tried again on the next
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


@dataclass(frozen=True)
class Workers:
    """Who does the work: how many models at a time, and where. `scheduler` is the address of a cluster, for dask."""

    jobs: int = 1
    backend: str = "loky"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise invalid("jobs", self.jobs, reason="at least one model is worked on at a time")
        if self.backend not in BACKENDS:
            raise invalid("backend", self.backend, BACKENDS)
        if self.scheduler is not None and not self.are_a_cluster:
            raise about_options("{scheduler} needs a cluster", hint="add {backend} dask", scheduler=self.scheduler)

    @property
    def are_here(self) -> bool:
        """Whether this process does it all."""
        return self.jobs == 1 and not self.are_a_cluster

    @property
    def are_a_cluster(self) -> bool:
        """Whether the work goes to the processes of a cluster, on this machine or others."""
        return self.backend == "dask"

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the result of `work` for each of `items`, in the order of completion.

        Raises UsageError where the backend is not installed or cannot be reached; another error, at the end, where a worker died:
        what has not come by then is lost.
        """
        if self.are_a_cluster:
            yield from _each_on_dask(self, work, items)
            return
        import joblib

        process_options = (
            {"initializer": _begin, "initargs": (os.getpid(), Path.cwd())} if self.backend == "loky" else {}
        )
        with joblib.parallel_config(backend=self.backend, **process_options):
            parallel = joblib.Parallel(n_jobs=self.jobs, return_as="generator_unordered")
            with starting_workers():
                results = parallel(joblib.delayed(work)(item) for item in items)
            yield from results


def _begin(parent: int, folder: Path) -> None:
    """Make this process a worker of `parent`, which stands in `folder`.

    joblib uses the workers of an earlier run again only where both are the same.
    """
    os.chdir(folder)
    end_with(parent)
    silence_libraries()


def _each_on_dask(workers: Workers, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the results of a Dask cluster. joblib 1.6 is not used: it waits forever for the results of a worker that died."""
    with _client(workers) as client:
        from distributed import as_completed

        futures = client.map(work, items, pure=False)
        lost = None
        for future in as_completed(futures):  # type: ignore[no-untyped-call]
            if future.status == "finished":
                yield future.result()
            else:
                lost = lost or future.exception()
        if lost is not None:
            raise lost


@contextmanager
def _client(workers: Workers) -> Iterator[Any]:
    try:
        import dask
        from distributed import Client
    except ImportError:
        raise UsageError("the backend dask is not installed", hint=of_extra("dask")) from None
    try:
        _require_answer(workers.scheduler)
        cluster = {"n_workers": workers.jobs, "threads_per_worker": 1, "silence_logs": CRITICAL, **_ON_LOOPBACK}
        where = cluster if workers.scheduler is None else {"address": workers.scheduler}
        with dask.config.set(_WITHOUT_PAGES), starting_workers():
            client = Client(timeout=_PATIENCE, **where)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TimeoutError) as error:
        address = workers.scheduler or "this machine"
        reason = " ".join(str(error).split()) or f"nothing came in {_PATIENCE:g} s"
        raise UsageError(
            f"no dask scheduler answers at {address}: {reason}",
            hint="start one by `dask scheduler`, which prints its address",
        ) from None
    with client:
        yield client


def _require_answer(address: str | None) -> None:
    """Raise TimeoutError or OSError where nothing at `address` answers as a scheduler does.

    A client would wait without end for a scheduler that accepts and does not answer.
    """
    if address is None:
        return
    import asyncio

    from distributed.comm.core import connect

    async def shake_hands() -> None:
        comm = await asyncio.wait_for(connect(address, timeout=_PATIENCE), _PATIENCE)  # type: ignore[no-untyped-call]
        await comm.close()

    asyncio.run(shake_hands())
