"""Work counted in calls of functions, which is the same on a busy machine and on a quiet one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType


def calls(work: Callable[[], object]) -> int:
    """Return how many functions `work` calls, those of C included."""
    count = 0

    def counting(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    gc.freeze()  # to walk the objects of other tests, or free their garbage, takes seconds
    gc.disable()
    sys.setprofile(counting)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
        gc.unfreeze()
    return count
