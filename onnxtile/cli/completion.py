"""What a shell may complete: the names that each option takes, found where they are known, and only when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePath

Complete = Callable[[str], list[str]]
"""Takes what is typed so far; returns what it may become. Where that is nothing, the shell completes files."""


def of(names: Callable[[], Iterable[str]]) -> Complete:
    """Return what completes one of `names`."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def planners() -> Iterable[str]:
    """Return the names of all planners."""
    from onnxtile.planning.planner import planners

    return planners()


def orders() -> Iterable[str]:
    """Return the names of all orders of nodes."""
    from onnxtile.planning.order import orders

    return orders()


def efforts() -> Iterable[str]:
    """Return the levels of effort."""
    from onnxtile.planning.offsets.effort import LEVELS

    return LEVELS


def placings() -> Iterable[str]:
    """Return what --io takes."""
    from onnxtile.planning.layout.scope import PLACINGS

    return PLACINGS


def kinds() -> Iterable[str]:
    """Return the kinds of names that `list` takes."""
    from onnxtile.verbs.listing import KINDS

    return KINDS


def patterns() -> Iterable[str]:
    """Return the names of all sets of patterns, and of the patterns of the library."""
    from onnxtile.fusion.library import pattern_set, set_names

    return sorted({*set_names(), *(pattern.name for pattern in pattern_set())})


def lowerings() -> Iterable[str]:
    """Return what --lower takes."""
    from onnxtile.fusion.lowering_driver.lower import Target

    return "none", *(target.value for target in Target)


def accumulations() -> Iterable[str]:
    """Return the ways to add partial sums."""
    from onnxtile.tiling.accumulate import Accumulation

    return (str(way) for way in Accumulation)


def accumulation_types() -> Iterable[str]:
    """Return the element types that --accumulate-type takes."""
    from onnxtile.tiling.options import SUM_TYPES

    return tuple(SUM_TYPES)


def ready_limits() -> Iterable[str]:
    """Return the limits that ship with the package."""
    from onnxtile.tiling.target import ready_made

    return ready_made()


def backends() -> Iterable[str]:
    """Return who can do the work of `run`."""
    from onnxtile.pipeline.workers import BACKENDS

    return BACKENDS


def plan_files(incomplete: str) -> list[str]:
    """Complete the ending of a file that a plan is written to."""
    from onnxtile.registry import discover
    from onnxtile.report.format import Format

    formats = discover("onnxtile.report.formats", Format).values()
    return endings(incomplete, sorted(form.suffix for form in formats))


def table_files(incomplete: str) -> list[str]:
    """Complete the ending of a file that an inspection is written to."""
    return endings(incomplete, [".csv", ".json"])


def endings(incomplete: str, known: Iterable[str]) -> list[str]:
    """Return `incomplete` with each of the `known` endings that its own begins."""
    name = PurePath(incomplete).name
    stem, dot, begun = name.partition(".")
    if not dot or not stem:
        return []
    start = incomplete.removesuffix(f".{begun}")
    return [start + ending for ending in known if ending.startswith(f".{begun}")]
