"""The cyclic garbage collector: held while much is made and nothing thrown away, and asked for what one block of code threw away."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_FROZEN_BY_PYTHON = 1_000 if sys.version_info[:2] == (3, 12) else 0
"""Objects, at most, that Python itself has frozen when a program begins: 375 in 3.12.1, none in other versions."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Hold the collector, also as a decorator: it would walk every live object again and again, and find none to free.

    On a graph of 50,000 nodes this halves the time to load; of a plan for 100,000 buffers it is a fourth. What reference counts free is
    freed as ever.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def cycles_freed() -> Iterator[None]:
    """Free at the end of the block the objects made in it that nothing outside refers to, also as a decorator.

    Nodes and values of a graph refer to each other, so a copy of a graph is freed by the collector alone, and in the meantime it would be
    held beside the next one. Objects made before the block are frozen (gc.freeze), so that the collector does not walk them. Nothing is
    done in a process that has frozen objects already.
    """
    if gc.get_freeze_count() > _FROZEN_BY_PYTHON:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
