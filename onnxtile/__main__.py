"""The program: `onnxtile`, or `python -m onnxtile`."""

import signal


def main() -> None:
    """Run the command line so that Ctrl-C is no traceback either while Python starts or while it ends, and no crash ends it in silence."""
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if own:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from onnxtile import cli
    from onnxtile.cli import crashes

    crashes.heed()
    try:
        cli.main()
    finally:
        if own:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main()
