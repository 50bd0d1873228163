"""The names of the library for type checkers: those of `onnxtile.api`, and the version."""

from onnxtile.api import *  # noqa: F403

__all__: list[str]
__version__: str
