"""Why a pattern did not match."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from onnxtile.fuse.metaop import Functions
from onnxtile.fuse.patterns import Pattern
from onnxtile.fuse.rewrite import Refused
from onnxtile.fuse.rewrite import fuse as fuse_graph
from onnxtile.model.constants import Constants
from onnxtile.model.load import Source, load
from onnxtile.query.explain import Stopped
from onnxtile.query.explain import explain as explain_program
from onnxtile.query.match import Matcher
from onnxtile.verbs.fusing import chosen_patterns
from onnxtile.verbs.stage import Progress, silent


@dataclass(frozen=True)
class Attempt:
    """The furthest that any variant of a pattern got from one root: the variant, counted from 1, and where and why it stopped."""

    variant: int
    stopped: Stopped

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of one attempt."""
        return {"variant": self.variant, **self.stopped.to_dict()}


@dataclass(frozen=True)
class Explanation:
    """Why a pattern did not match where it might have: the best attempt of each root, the furthest first."""

    pattern: str
    fused: int
    refused: tuple[Refused, ...]
    attempts: tuple[Attempt, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `fuse --explain`."""
        refused = [{"root": r.root, "reason": r.reason} for r in self.refused]
        attempts = [attempt.to_dict() for attempt in self.attempts]
        return {"pattern": self.pattern, "fused": self.fused, "refused": refused, "attempts": attempts}


def explain(
    model: Source, pattern: str, patterns: Iterable[str | Pattern] = (), *, progress: Progress = silent
) -> Explanation:
    """Fuse `model` in memory with `patterns` (the library by default) up to `pattern`, and say where that one stopped, and why.

    `pattern` is a name among `patterns`, or what `fuse` takes for one, which then stands alone. What it matched is not
    explained. Raises as `fuse` does.
    """
    chosen = chosen_patterns(patterns)
    if pattern not in [one.name for one in chosen]:
        chosen = chosen_patterns([pattern])
    wanted = next((i for i, one in enumerate(chosen) if one.name == pattern), len(chosen) - 1)
    progress("reading the model")
    graph = load(model)
    constants = Constants(graph)
    progress("matching")
    done = fuse_graph(graph, chosen[: wanted + 1])[-1]
    matcher = Matcher(graph, constants, closed=Functions(graph).bodies)
    best: dict[str, Attempt] = {}
    for i, program in enumerate(chosen[wanted].programs):
        with chosen[wanted].located(i):
            stops = explain_program(matcher, program)
        for stopped in stops:
            other = best.get(stopped.root)
            if other is None or len(other.stopped.nodes) < len(stopped.nodes):
                best[stopped.root] = Attempt(i + 1, stopped)
    attempts = sorted(best.values(), key=lambda attempt: -len(attempt.stopped.nodes))
    return Explanation(chosen[wanted].name, len(done.calls), done.refused, tuple(attempts))
