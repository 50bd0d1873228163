"""The program: `onnxtile`, or `python -m onnxtile`."""

import os
import signal
import sys

_NEW_OBJECTS = 500_000
"""Python looks for cycles of garbage after so many new objects: modules and a graph have very many, and none of them is garbage."""

_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "1")
"""NumPy's products take one thread: those beside it wait for work in a loop, and few commands have any for them."""


def main() -> None:
    """Run the command line so that Ctrl-C is no traceback either while Python starts or while it ends, and no crash ends it in silence."""
    default = _end_by_interrupts()
    if sys.argv[1:] == ["--version"] and _has_shown_version():
        return
    import atexit
    import gc

    codes: list[object] = []
    gc.set_threshold(_NEW_OBJECTS)
    os.environ.setdefault(*_ONE_THREAD)
    atexit.register(_end_at_once, codes)  # the first that is registered runs last
    from onnxtile.system.registry import defer_libraries

    defer_libraries()
    from onnxtile import cli
    from onnxtile.cli import streams as crashes

    crashes.heed()
    try:
        cli.main()
    except SystemExit as end:
        codes.append(end.code)
        raise
    finally:
        if default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def minimalloc() -> None:
    """Run the command that takes MiniMalloc's arguments. Ctrl-C ends it without a traceback, while modules are imported, too."""
    default = _end_by_interrupts()
    from onnxtile.cli import minimalloc as command

    if default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command.main()


def _has_shown_version() -> bool:
    """Print the version without loading the command line; return False where that fails: the command line says why."""
    try:
        import onnxtile

        print(onnxtile.__version__, flush=True)  # noqa: T201
    except (AttributeError, OSError, ValueError):
        return False
    return sys.stdout is not None


def _end_at_once(codes: list[object]) -> None:
    """End the process with the code in `codes`; without one, or where a stream takes nothing more, Python ends it.

    Python would free every object of the graph one by one, which takes a fiftieth of a command.
    """
    if not codes or not isinstance(codes[0], int):
        return
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return
    os._exit(codes[0])


def _end_by_interrupts() -> bool:
    """Let Ctrl-C end the process at once, where Python would raise KeyboardInterrupt; return whether it would."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return default


if __name__ == "__main__":
    main()
