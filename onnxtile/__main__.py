"""The program: `onnxtile`, or `python -m onnxtile`."""

import signal
import sys


def main() -> None:
    """Run the command line so that Ctrl-C is no traceback either while Python starts or while it ends, and no crash ends it in silence."""
    default = _end_by_interrupts()
    if sys.argv[1:] == ["--version"] and _has_shown_version():
        return
    from onnxtile import cli
    from onnxtile.cli import streams as crashes

    crashes.heed()
    try:
        cli.main()
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


def _end_by_interrupts() -> bool:
    """Let Ctrl-C end the process at once, where Python would raise KeyboardInterrupt; return whether it would."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return default


if __name__ == "__main__":
    main()
