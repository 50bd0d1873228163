"""A library that crashes on a model, as onnxruntime does where it divides a whole number by zero, ends the command as an error does."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from onnxtile.cli.streams import descriptor_of_errors, keep_stderr

_CRASHES = ("SIGSEGV", "SIGFPE", "SIGBUS", "SIGILL", "SIGABRT")
"""By name: Windows has other ones, and no handler is set there."""
_CODE = 2
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)


def heed() -> None:
    """Let a crash of this process be one line on stderr and exit code 2 from now on; with --debug the C library and the system report it.

    Python's own handlers run after the instruction that failed, which would then fail without end.
    """
    if os.name != "posix" or "--debug" in sys.argv:
        return
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes, set_handler.restype = [ctypes.c_int, _HANDLER], ctypes.c_void_p
    for name in _CRASHES:
        set_handler(getattr(signal, name), _END)
    keep_stderr()


def _end(number: int) -> None:
    what = signal.strsignal(number) or f"signal {number}"
    advice = "the model has values that a kernel cannot take; --no-verify, where there is one, does not run it"
    os.write(descriptor_of_errors(), f"error: a library crashed on this model: {what} ({advice})\n".encode())
    os._exit(_CODE)


_END = _HANDLER(_end)
"""It has to live as long as the process."""
