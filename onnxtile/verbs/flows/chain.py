"""Results that hold a model: the model is saved, or the next verb takes it, without a file between."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import onnx_ir as ir

from onnxtile.declare.result import VerbResult
from onnxtile.model.load import Source
from onnxtile.model.stream import Draft

if TYPE_CHECKING:
    from onnxtile.inspection.summary import Inspection
    from onnxtile.verbs.flows.fusing import FuseResult
    from onnxtile.verbs.flows.matching import MatchResult
    from onnxtile.verbs.flows.planning import PlannedModel
    from onnxtile.verbs.flows.tiling import TiledModel
    from onnxtile.verbs.flows.unfusing import UnfuseResult
    from onnxtile.verbs.fuse import Patterns
    from onnxtile.verification.trials import Verdict


def file_of(model: Source) -> Path | None:
    """Return the file of `model`; None for a model in memory."""
    return Path(model) if isinstance(model, str | Path) else None


@dataclass(frozen=True, repr=False)
class ModelResult(VerbResult):
    """A result with a `model`. `source` is the file that the first verb read; `save` does not overwrite it unless told to."""

    source: Path | None = field(default=None, kw_only=True, compare=False)

    if TYPE_CHECKING:  # a field in one subclass, made when it is first asked for in another

        @property
        def model(self) -> ir.Model:
            """The model that the verb made."""

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model to `path`, whole or not at all. Raises UsageError where `path` is the file that was read and `force` is off."""
        from onnxtile.verbs.flows.saving import save

        save(self._written(), path, source=self.source, force=force)

    def _written(self) -> ir.Model | Draft:
        """Return the model that `save` writes."""
        return self.model

    def inspect(self, **options: Any) -> Inspection:
        """Return operators, parameters, work and traffic of the model; `options` are those of `onnxtile.inspect`."""
        from onnxtile.verbs.inspect import inspect

        return inspect(self.model, **options)

    def match(self, query: str, **options: Any) -> MatchResult:
        """Return where `query` matches in the model; `options` are those of `onnxtile.match`."""
        from onnxtile.verbs.match import match

        return match(self.model, query, **options)

    def verify(self, original: Source, **options: Any) -> Verdict:
        """Run `original` and the model on the same inputs and compare outputs; `options` are those of `onnxtile.verify`."""
        from onnxtile.verbs.verify import verify

        return verify(original, self.model, **options)


@dataclass(frozen=True, repr=False)
class RewrittenModel(ModelResult):
    """A result whose model the next verb may rewrite or plan: `onnxtile.fuse(model).tile(max=64).plan()`."""

    def fuse(self, patterns: Patterns = (), **options: Any) -> FuseResult:
        """Fuse subgraphs of the model; the arguments are those of `onnxtile.fuse`."""
        from onnxtile.verbs.fuse import fuse

        return self._next(fuse(self.model, patterns, **options))

    def unfuse(self, **options: Any) -> UnfuseResult:
        """Undo what fuse did to the model; `options` are those of `onnxtile.unfuse`."""
        from onnxtile.verbs.unfuse import unfuse

        return self._next(unfuse(self.model, **options))

    def tile(self, *limits: Any, **options: Any) -> TiledModel:
        """Split matrix products of the model; the arguments are those of `onnxtile.tile`."""
        from onnxtile.verbs.tile import tile

        return self._next(tile(self.model, *limits, **options))

    def plan(self, **options: Any) -> PlannedModel:
        """Give every activation of the model an offset in an arena; `options` are those of `onnxtile.plan`."""
        from onnxtile.verbs.plan import plan

        return self._next(plan(self.model, **options))

    def _next(self, result: _Chained) -> _Chained:
        """Return `result` with the file that the first verb read."""
        return replace(result, source=self.source)


_Chained = TypeVar("_Chained", bound=ModelResult)


def verified(verdict: Verdict | None) -> str:
    """Return whether there is a verdict, in words, and how many outputs were compared where not all were.

    A verb whose check fails raises, and returns none.
    """
    if verdict is None:
        return "not verified"
    count, left = len(verdict.outputs), len(verdict.not_compared)
    return f"verified in {count:,} of {count + left:,} outputs" if left else "verified"
