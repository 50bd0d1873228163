"""A baseline: the summary of an earlier run, with which the figures of each model are compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxtile.errors import UsageError
from onnxtile.paths import require_readable
from onnxtile.pipeline.budgets import Judged

_LOWER = ("arena", "tiles", "nodes")
_HIGHER = ("fused",)
_HINT = "onnxtile run PIPELINE.toml IN ... --json FILE writes one"


@dataclass(frozen=True)
class Baseline:
    """The figures of an earlier run, by model."""

    figures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def judged(self, model: Path, figures: Mapping[str, Any]) -> Iterator[Judged]:
        """Judge the `figures` of a model by those of the earlier run: no larger arena, no more tiles or nodes, no fewer fused sites.

        A plan that was proved the smallest has to be so again. A model, or a figure, that the earlier run lacks is not compared.
        """
        before = self._of(model) or {}
        for name in (*_LOWER, *_HIGHER):
            if isinstance(before.get(name), int) and name in figures:
                value, limit = figures[name], before[name]
                met = value is not None and (value <= limit if name in _LOWER else value >= limit)
                yield Judged(f"baseline.{name}", limit, value, met)
        if before.get("optimal") is True and "optimal" in figures:
            yield Judged("baseline.optimal", True, figures["optimal"], figures["optimal"] is True)

    def require(self, models: Sequence[Path]) -> None:
        """Raise UsageError where the earlier run had none of `models`, so that nothing would be compared."""
        if self.figures and all(self._of(model) is None for model in models):
            known = ", ".join(list(self.figures)[:3])
            raise UsageError("the baseline has none of the models", hint=f"it has {known}")

    def _of(self, model: Path) -> Mapping[str, Any] | None:
        """Return the figures of a model: of the same path, or of the only one of the same name."""
        named = [path for path in self.figures if Path(path).name == model.name]
        return self.figures.get(str(model)) or (self.figures[named[0]] if len(named) == 1 else None)


def read_baseline(path: Path) -> Baseline:
    """Return the baseline in a file that `onnxtile run --json` wrote. Raises UsageError."""
    require_readable(path, UsageError, hint=_HINT)
    try:
        content = json.loads(path.read_bytes())
        return Baseline({str(Path(model["model"])): dict(model["figures"]) for model in content["models"]})
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path}: this is not the summary of a run", hint=_HINT) from None
