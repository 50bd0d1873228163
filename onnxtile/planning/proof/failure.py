"""What a check of a plan answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlanFailure:
    """One thing that is wrong with a plan: the buffers or tensors concerned, and the step at which it shows (None: at all steps).

    `body` says which body it is in, as "node/attribute"; empty for the main graph.
    """

    reason: str
    names: tuple[str, ...] = ()
    step: int | None = None
    body: str = ""

    def __str__(self) -> str:
        where = f"in {self.body}: " if self.body else ""
        return f"{where}{self.reason}" + ("" if self.step is None else f" (step {self.step})")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), "names": list(self.names)}
