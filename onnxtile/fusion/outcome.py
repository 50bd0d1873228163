"""The outcome of a pattern: the fate of each match, and the calls that were made."""

from __future__ import annotations

from dataclasses import dataclass, field

from onnxtile.query.vertex import Vertex

FUSED, REFUSED, OVERLAPPED = "fused", "refused", "overlapped"
"""The fates of a match."""


@dataclass(frozen=True)
class Refused:
    """A match that was not fused: the name of its root, and the reason."""

    root: str
    reason: str


@dataclass(frozen=True)
class Fate:
    """What became of one match: it is "fused", "refused", or "overlapped" by another match of its pattern, with which it shares a node.

    `variant` counts from 1; `detail` is the name of the call, the reason, or which match it is and what became of that one.
    """

    root: str
    variant: int
    fate: str
    detail: str
    vertices: tuple[Vertex, ...] = field(default=(), repr=False, compare=False)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON of one match."""
        return {"root": self.root, "variant": self.variant, "fate": self.fate, "detail": self.detail}


@dataclass(frozen=True)
class PatternResult:
    """What one pattern did: how often it matched, the names of the calls it made, and the matches it had to leave alone.

    `fates` has every match.
    """

    name: str
    matches: int
    calls: tuple[str, ...]
    refused: tuple[Refused, ...] = ()
    fates: tuple[Fate, ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, object]:
        """Return the JSON of one pattern."""
        refused = [{"root": r.root, "reason": r.reason} for r in self.refused]
        return {
            "name": self.name,
            "matches": self.matches,
            "fused": len(self.calls),
            "calls": list(self.calls),
            "refused": refused,
        }
