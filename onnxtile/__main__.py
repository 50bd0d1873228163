"""`python -m onnxtile` is the command `onnxtile`."""

from onnxtile.cli import main

if __name__ == "__main__":
    main()
