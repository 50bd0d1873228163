"""The order of the file."""

from __future__ import annotations

from onnxtile.planning.layout.ordering.schedule import Schedule
from onnxtile.planning.order import Ground, Order


def candidates(ground: Ground) -> tuple[Schedule, ...]:
    """Return the nodes as they stand in the model."""
    return (ground.packed(ground.own),)


order = Order("model", "as the nodes stand in the file", candidates)
