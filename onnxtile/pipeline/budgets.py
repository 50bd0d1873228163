"""Budgets: bounds on what a pipeline makes of a model, which turn it into a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pydantic

from onnxtile.pipeline.fields import CountField, SizeField

_NEEDS = {
    "max_arena": {"plan"},
    "optimal": {"plan"},
    "min_fused": {"fuse"},
    "max_tiles": {"tile"},
    "max_nodes": {"fuse", "tile", "unfuse"},
    "max_error": {"fuse", "tile", "unfuse", "verify"},
}


@dataclass(frozen=True)
class Judged:
    """A budget, what it allows, what there is, and whether that is within."""

    budget: str
    limit: Any
    value: Any
    met: bool

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one budget."""
        return dict(vars(self))


class Budgets(pydantic.BaseModel):
    """The budgets of a pipeline: bytes of all arenas, fused sites by meta-op, tiles, nodes, the worst relative error, a proved plan."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)

    max_arena: SizeField | None = None
    optimal: bool | Literal["any order"] | None = None
    min_fused: dict[str, CountField] = {}
    max_tiles: CountField | None = None
    max_nodes: CountField | None = None
    max_error: float | None = pydantic.Field(default=None, ge=0)

    def needs(self) -> dict[str, set[str]]:
        """Return the steps of which one must be there for each of the budgets that are given."""
        return {name: _NEEDS[name] for name in sorted(self.model_fields_set)}

    def judged(self, figures: Mapping[str, Any]) -> Iterator[Judged]:
        """Judge the `figures` of a model by each budget that is given."""
        for name in ("max_arena", "max_tiles", "max_nodes", "max_error"):
            limit, value = getattr(self, name), figures.get(name.removeprefix("max_"))
            if limit is not None:
                yield Judged(name, limit, value, value is not None and value <= limit)
        if self.optimal is not None:
            value = figures.get("optimal" if isinstance(self.optimal, bool) else "optimal_over")
            yield Judged("optimal", self.optimal, value, value == self.optimal)
        for meta_op, least in self.min_fused.items():
            count = figures.get("fused_by", {}).get(meta_op, 0)
            yield Judged(f"min_fused.{meta_op}", least, count, count >= least)
