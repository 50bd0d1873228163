"""Fusion: each match of a pattern becomes a call of a local function, in place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable

import onnx_ir as ir

from onnxtile.collector import collector_paused
from onnxtile.errors import PatternError, QueryError
from onnxtile.fusion.float_view import float_view, has_quantised_operators
from onnxtile.fusion.fuser import Fuser, Site
from onnxtile.fusion.library import Pattern, pattern_set, set_names
from onnxtile.fusion.mirror import Mirror
from onnxtile.fusion.outcome import PatternResult
from onnxtile.fusion.quantised_operators import QUANTISED_OPERATORS
from onnxtile.model.shapes import Shapes
from onnxtile.progress import Progress, counted, silent
from onnxtile.query.match import Matcher
from onnxtile.query.names import require_known


@collector_paused()
def fuse(
    model: ir.Model,
    patterns: Iterable[Pattern],
    progress: Progress = silent,
    shapes: Callable[[], Shapes] | None = None,
    *,
    through: bool = False,
    left_out: Container[Site] = (),
) -> list[PatternResult]:
    """Fuse `model` in place with one pattern after the other; later patterns may name the meta-ops of earlier ones.

    With `through`, queries see the float operators of a quantised model, and nothing that quantises or dequantises between them, unless
    one of them names such an operator; matches have the nodes as they are.

    Of overlapping matches the longest counts. A match is refused where contracting it would make a cycle, where something
    outside reads more of its values than the pattern allows, or where a function cannot say what its nodes say. `shapes` gives those of
    `model` as it is now, for when the first test asks; without it they are inferred. Sites in `left_out` are refused.
    """
    return FusionRun(model, patterns, shapes, through=through, left_out=left_out).apply(progress)


class FusionRun:
    """One run of `fuse`, and the graphs in which it looks for matches: the model, or its float view."""

    def __init__(
        self,
        model: ir.Model,
        patterns: Iterable[Pattern],
        shapes: Callable[[], Shapes] | None = None,
        *,
        through: bool = False,
        left_out: Container[Site] = (),
    ) -> None:
        self._patterns = list(patterns)
        _require_known(model, self._patterns)
        self._fuser = Fuser(model, shapes, left_out=left_out)
        types = {name.rpartition("::")[2] for pattern in self._patterns for name in pattern.needs()}
        named = bool(types & QUANTISED_OPERATORS)
        seen_through = through and not named and has_quantised_operators(model)
        self._finder = _finder(self._fuser) if seen_through else self._fuser

    @property
    def matcher(self) -> Matcher:
        """The matcher of what is searched, as it is now."""
        return self._finder.matcher

    def apply(self, progress: Progress = silent) -> list[PatternResult]:
        """Fuse the model with one pattern after the other, in place."""
        results = []
        for pattern in counted(self._patterns, "matching", progress):
            results.append((self._fuser if pattern.island else self._finder).apply(pattern))
            self._fuser.unify()
        self._fuser.finish()
        return results


def _require_known(model: ir.Model, patterns: Collection[Pattern]) -> None:
    """Raise QueryError, or PatternError for a query in a file, for an operator that nothing can make: a typo."""
    known = {node.op_type for graph in model.graphs() for node in graph} | {pattern.name for pattern in patterns}
    known |= {node.op_type for function in model.functions.values() for node in function}
    try:
        _require_known_in(patterns, known)
    except (QueryError, PatternError):
        known |= {pattern.name for name in set_names() for pattern in pattern_set(name)}
        _require_known_in(patterns, known)


def _require_known_in(patterns: Iterable[Pattern], known: Collection[str]) -> None:
    for pattern in patterns:
        for i, program in enumerate(pattern.programs):
            with pattern.located(i):
                require_known(program.query, known)


def _finder(fuser: Fuser) -> Fuser:
    """Return a fuser that finds matches for `fuser` in the float view of its model."""
    view, known = float_view(fuser.model, fuser.constants), fuser.shapes
    shapes = None if known is None else lambda: view.shapes(known())
    return Fuser(view.model, shapes, Mirror(view, fuser.constants, fuser.contract_region))
