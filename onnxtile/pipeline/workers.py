"""Workers of a pipeline: threads or processes of this machine, by joblib, or of a cluster."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from logging import CRITICAL
from typing import Any, TypeVar

from onnxtile.pipeline.cluster_processes import ended_with_this_process
from onnxtile.pipeline.parent import end_with
from onnxtile.system.errors import NAME_ONLY, UsageError, invalid
from onnxtile.system.process import silence_libraries

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
    nowhere, own = os.open(os.devnull, os.O_WRONLY), os.dup(2)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)


T = TypeVar("T")
R = TypeVar("R")

BACKENDS = ("loky", "threading", "dask", "ray")
_OF_CLUSTERS = ("dask", "ray")
_PATIENCE = 5.0
"""Seconds in which a scheduler has to answer."""
_ON_LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
"""Address of the HTTP server of our own Dask cluster: a free port of the loopback interface, not 8787."""
_WITHOUT_PAGES = {
    "distributed.scheduler.allowed-failures": 0,  # what killed a worker is not tried again on the next
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
_RAYS_PATIENCE = 20.0
"""The same for ray, which takes some of them to start."""


@dataclass(frozen=True)
class Workers:
    """Who does the work: how many models at a time, and where. `scheduler` is the address of a cluster, for dask and ray."""

    jobs: int = 1
    backend: str = "loky"
    scheduler: str | None = None

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise invalid("jobs", self.jobs, reason="at least one model is worked on at a time")
        if self.backend not in BACKENDS:
            raise invalid("backend", self.backend, BACKENDS)
        if self.scheduler is not None and self.backend not in _OF_CLUSTERS:
            raise UsageError(
                "{scheduler} needs a cluster",
                hint="add {backend} dask or ray",
                given={"scheduler": self.scheduler, "backend": NAME_ONLY},
            )

    @property
    def are_here(self) -> bool:
        """Whether this process does it all."""
        return self.jobs == 1 and not self.are_a_cluster

    @property
    def are_a_cluster(self) -> bool:
        """Whether the work goes to the processes of a cluster, on this machine or others."""
        return self.backend in _OF_CLUSTERS

    def each(self, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
        """Yield the result of `work` for each of `items`, in the order of completion.

        Raises UsageError where the backend is not installed or cannot be reached; another error, at the end, where a worker died:
        what has not come by then is lost.
        """
        if self.are_a_cluster:
            yield from (_each_on_dask if self.backend == "dask" else _each_on_ray)(self, work, items)
            return
        import joblib

        own = {"initializer": _begin, "initargs": (os.getpid(),)} if self.backend == "loky" else {}
        with joblib.parallel_config(backend=self.backend, **own):
            parallel = joblib.Parallel(n_jobs=self.jobs, return_as="generator_unordered")
            with starting_workers():
                results = parallel(joblib.delayed(work)(item) for item in items)
            yield from results


def _begin(parent: int) -> None:
    """Make this process a worker of `parent`."""
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
        raise UsageError("the backend dask is not installed", hint="pip install 'onnxtile[dask]'") from None
    try:
        _require_answer(workers.scheduler)
        own = {"n_workers": workers.jobs, "threads_per_worker": 1, "silence_logs": CRITICAL, **_ON_LOOPBACK}
        where = own if workers.scheduler is None else {"address": workers.scheduler}
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

    A client alone would wait without end for one that accepts and says nothing.
    """
    if address is None:
        return
    import asyncio

    from distributed.comm.core import connect

    async def shake_hands() -> None:
        comm = await asyncio.wait_for(connect(address, timeout=_PATIENCE), _PATIENCE)  # type: ignore[no-untyped-call]
        await comm.close()

    asyncio.run(shake_hands())


def _each_on_ray(workers: Workers, work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield the results of a Ray cluster; its backend for joblib cannot give results in the order of completion."""
    with _ray(workers) as ray:

        def worked(item: T) -> R:
            return work(item)

        task = ray.remote(max_retries=0)(worked)
        left = [task.remote(item) for item in items]
        lost = None
        while left:
            done, left = ray.wait(left)
            try:
                yield ray.get(done[0])
            except ray.exceptions.RayError as error:
                lost = lost or error
        if lost is not None:
            raise lost


@contextmanager
def _ray(workers: Workers) -> Iterator[Any]:
    # Ray's handler in C prints a stack for SIGTERM, as for a fault.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    if workers.scheduler is None and "ray" not in sys.modules:
        _keep_ray_to_this_machine()
    try:
        import ray
    except ImportError:
        raise UsageError("the backend ray is not installed", hint="pip install 'onnxtile[ray]'") from None
    _require_ray(workers.scheduler)
    own = {"address": "local", "num_cpus": workers.jobs, "include_dashboard": False}
    where = own if workers.scheduler is None else {"address": workers.scheduler}
    with ended_with_this_process() if workers.scheduler is None else nullcontext():
        try:
            with _own_handlers(), starting_workers():
                ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=CRITICAL, **where)
        except Exception as error:  # noqa: BLE001 - also a bare one, where its servers did not come up in time
            reason = " ".join(str(error).split())
            raise UsageError(f"ray cannot be reached: {reason}", hint="start it: ray start --head") from None
        try:
            yield ray
        finally:
            ray.shutdown()


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Let signals do after the block as before it, and SIGTERM in it, too: Ray sets handlers of its own, which exit with 1 or 15."""
    if threading.current_thread() is not threading.main_thread():  # no other may say what signals do, nor does Ray
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    asked = False
    try:
        yield
    except SystemExit:
        asked = signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
        if not asked:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        signal.raise_signal(signal.SIGTERM)


def _keep_ray_to_this_machine() -> None:
    """Let the servers of a Ray cluster of our own listen on loopback only, and take orders from this run alone.

    Ray reads the variables while it is imported; who has imported it before has decided. By default its servers listen on all interfaces,
    and whoever reaches one may run code there. The first says that no machine but this one takes part; the token stays in this process and
    its workers.
    """
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


def _require_ray(address: str | None) -> None:
    """Raise UsageError where no ray cluster answers at `address`, HOST:PORT.

    Ray itself tries for minutes, and cannot be told not to; so another process asks, which can be ended.
    """
    if address is None or ":" not in address or "//" in address:
        return
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        subprocess.run(command, capture_output=True, timeout=_RAYS_PATIENCE, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        raise UsageError(
            f"no ray cluster answers at {address}", hint="start one by `ray start --head`, which prints its address"
        ) from None
