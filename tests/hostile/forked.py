"""One command in a process of its own: a copy of this one, so that nothing is imported again, with limits and its own streams."""

from __future__ import annotations

import atexit
import importlib
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import onnxtile
from onnxtile import __main__

_ADDRESSES = 12 * 2**30
"""Bytes of address space of one command: a guard for the machine, above what a command may take."""
_PROCESSOR_SECONDS = 40
"""Of one command: what takes longer is killed, however slow other work makes the machine."""
_OPTIONAL = ("executorch", "tflite", "tflm", "notebook", "numba")
"""Modules with these in their names need packages that may be absent."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: the exit code (below 0 the signal that killed it), its streams, and its times.

    `peak_bytes` is the most memory that it had beyond that of the process that it is a copy of.
    """

    code: int
    out: str
    err: str
    seconds: float
    processor_seconds: float
    peak_bytes: int
    timed_out: bool


def warm_up() -> None:
    """Import what commands import, onnxruntime too, once for all copies of this process."""
    from onnxtile.system.runtime import contrib_schemas

    import_package()
    contrib_schemas("Gelu", "com.microsoft")


def import_package() -> None:
    """Import every module of the package."""
    for found in pkgutil.walk_packages(onnxtile.__path__, "onnxtile."):
        if not any(name in found.name for name in (*_OPTIONAL, "__main__")):
            importlib.import_module(found.name)


def run(
    arguments: tuple[str, ...], folder: Path, *, seconds: float, processor_seconds: int = _PROCESSOR_SECONDS
) -> Ended:
    """Run the command in `folder`; it is killed after `seconds`. Temporary files go to the folder tmp beside."""
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    out, err = folder.parent / "stdout", folder.parent / "stderr"
    start, copied = time.monotonic(), _resident_bytes()
    child = os.fork()
    if child == 0:
        _command(arguments, folder, temporary, out, err, processor_seconds)
    timer = threading.Timer(seconds, os.kill, (child, signal.SIGKILL))
    timer.start()
    _, status, used = os.wait4(child, 0)
    timed_out = not timer.is_alive()
    timer.cancel()
    timer.join()
    return Ended(
        os.waitstatus_to_exitcode(status),
        out.read_bytes().decode("utf-8", "surrogateescape"),
        err.read_bytes().decode("utf-8", "surrogateescape"),
        time.monotonic() - start,
        used.ru_utime + used.ru_stime,
        max(0, used.ru_maxrss * 1024 - copied),
        timed_out,
    )


def _resident_bytes() -> int:
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _command(
    arguments: tuple[str, ...], folder: Path, temporary: Path, out: Path, err: Path, processor_seconds: int
) -> NoReturn:
    code = 99
    try:
        os.chdir(folder)
        os.environ["TMPDIR"] = str(temporary)
        tempfile.tempdir = None
        for number, path in ((1, out), (2, err)):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, number)
            os.close(file)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES, _ADDRESSES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (processor_seconds, processor_seconds))
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - a stream is known by its number
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.argv = ["onnxtile", *arguments]
        atexit._clear()
        __main__.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 98
    except BaseException as error:  # noqa: BLE001 - this process ends here, and its parent has to hear of it
        sys.stderr.write(f"escaped from the command: {error!r}\n")
    finally:
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
