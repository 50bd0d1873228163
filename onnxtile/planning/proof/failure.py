"""The failures that a check of a plan returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PlanFailure:
    """One fault of a plan: the reason, the names of buffers or tensors, and the step at which it shows (None: at all steps).

    `body` is the body that has the fault, as "node/attribute"; empty for the main graph.
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
