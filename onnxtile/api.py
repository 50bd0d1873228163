"""The library's face: each verb takes a path, a ModelProto or an onnx_ir.Model and returns a typed result.

The caller's model is never changed. Nothing is printed; `progress` hears the name of each stage of long work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir as ir

from onnxtile.errors import Mismatch, UsageError
from onnxtile.fuse import author
from onnxtile.fuse import patterns as pattern_files
from onnxtile.fuse.check import SiteVerdict, check_sites
from onnxtile.fuse.lower.evidence import check_parts
from onnxtile.fuse.lowering import Facts, Lowered, LoweredSite, Target
from onnxtile.fuse.lowering import lower as lower_graph
from onnxtile.fuse.patterns import Pattern
from onnxtile.fuse.rewrite import PatternResult, Refused
from onnxtile.fuse.rewrite import fuse as fuse_graph
from onnxtile.fuse.unfuse import Unfused
from onnxtile.fuse.unfuse import unfuse as unfuse_graph
from onnxtile.model import save as files
from onnxtile.model.check import check
from onnxtile.model.constants import Constants
from onnxtile.model.dims import bind
from onnxtile.model.load import Source, digest, load
from onnxtile.model.shapes import resolve
from onnxtile.query.explain import Stopped
from onnxtile.query.explain import explain as explain_program
from onnxtile.query.match import Match, Matcher, compiled
from onnxtile.tile.check import TileVerdict, check_tiles
from onnxtile.tile.limits import Limits
from onnxtile.tile.options import Options as TileOptions
from onnxtile.tile.result import TileResult
from onnxtile.tile.rewrite import tile as tile_graph
from onnxtile.verify import Verdict, bound_copy, compare_with, run_original

if TYPE_CHECKING:
    from onnxtile.plan.arena_run import ArenaVerdict
    from onnxtile.plan.result import PlanResult

Progress: TypeAlias = Callable[[str], None]
Dims: TypeAlias = Mapping[str, int]
InputShapes: TypeAlias = Mapping[str, tuple[int, ...]]


def _silent(_stage: str) -> None:
    return None


@dataclass(frozen=True)
class MatchResult:
    """Where a query matches."""

    query: str
    matches: tuple[Match, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `match`."""
        return {"query": self.query, "matches": [match.to_dict() for match in self.matches]}


@dataclass(frozen=True)
class FuseResult:
    """The fused model, what each pattern did, and the verdict of the runs (None where verification was off)."""

    model: ir.Model = field(repr=False)
    patterns: tuple[PatternResult, ...]
    nodes_before: int
    nodes_after: int
    verdict: Verdict | None
    sites: tuple[SiteVerdict, ...] = ()
    lowered: tuple[LoweredSite, ...] = ()

    @property
    def fused(self) -> int:
        """How many meta-ops the patterns made."""
        return sum(len(pattern.calls) for pattern in self.patterns)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `fuse`."""
        return {
            "patterns": [pattern.to_dict() for pattern in self.patterns],
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "verdict": self.verdict and self.verdict.to_dict(),
            "sites": [site.to_dict() for site in self.sites],
            "lowered": [site.to_dict() for site in self.lowered],
        }


@dataclass(frozen=True)
class UnfuseResult:
    """The model as it was before fuse, and how many calls were undone."""

    model: ir.Model = field(repr=False)
    unfused: Unfused
    verdict: Verdict | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `unfuse`."""
        return {**self.unfused.to_dict(), "verdict": self.verdict and self.verdict.to_dict()}


@dataclass(frozen=True)
class TiledModel:
    """The tiled model, what became of each product, and the verdict of the runs (None where verification was off)."""

    model: ir.Model = field(repr=False)
    result: TileResult
    nodes_before: int
    nodes_after: int
    verdict: Verdict | None
    sites: tuple[TileVerdict, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `tile`."""
        return {
            **self.result.to_dict(),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "verdict": self.verdict and self.verdict.to_dict(),
            "sites": [site.to_dict() for site in self.sites],
        }


@dataclass(frozen=True)
class PlannedModel:
    """The annotated model, its plan, and the verdict of the run inside the arena (None where verification was off)."""

    model: ir.Model = field(repr=False)
    plan: PlanResult
    verdict: ArenaVerdict | None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `plan`."""
        return {**self.plan.to_dict(), "verdict": self.verdict and self.verdict.to_dict()}


def match(model: Source, query: str, *, progress: Progress = _silent) -> MatchResult:
    """Return where `query` matches in `model`; matches may overlap. Raises ModelError and QueryError."""
    progress("reading the model")
    graph = load(model)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    program = compiled(query, known)
    return MatchResult(query, tuple(Matcher(graph, Constants(graph)).find(program)))


def fuse(
    model: Source,
    patterns: Iterable[str | Pattern] = (),
    *,
    lower: str = "none",
    verify: bool = True,
    progress: Progress = _silent,
) -> FuseResult:
    """Fuse the subgraphs that `patterns` describe into meta-ops: calls of model-local functions.

    A pattern is a name of the library, a set of it, a TOML file, or a query; by default the whole library. `lower` turns calls into
    operators that mean the same where that is proved: "onnx" into standard ones, raising the opset where they ask for it, "ort" into
    those that onnxruntime runs best. With `verify`, each different site alone and the whole model are run beside the original. Raises
    ModelError, QueryError, PatternError, UsageError; Mismatch where the outputs differ.
    """
    chosen = _patterns(patterns)
    progress("reading the model")
    original = load(model)
    if lower != "none":
        return _lowered(original, chosen, lower, verify, progress)
    fused = original.clone()
    progress("matching")
    results = fuse_graph(fused, chosen)
    check(fused)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        trials, dims = run_original(original)
        verdict = _agreeing(compare_with(trials, fused, dims), "the fused model")
        if any(result.calls for result in results):
            bound = bound_copy(original, dims)
            sites = check_sites(bound, fused, resolve(bound, run=True))
            _require_sites(site.call for site in sites if not site.equal)
    return FuseResult(fused, tuple(results), original.graph.num_nodes(), fused.graph.num_nodes(), verdict, sites)


def _lowered(original: ir.Model, chosen: list[Pattern], lower: str, verify: bool, progress: Progress) -> FuseResult:
    names = [target.value for target in Target]
    if lower not in names:
        raise UsageError(f"there is no lowering {lower!r}", hint=f"there is none, {', '.join(names)}")
    progress("matching")
    lowered = lower_graph(original, chosen, Target(lower))
    check(lowered.model)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        trials, dims = run_original(original)
        verdict = _agreeing(compare_with(trials, lowered.model, dims), "the lowered model")
        sites = _lowered_sites(lowered, dims)
        _require_sites(site.call for site in sites if not site.equal)
    return FuseResult(
        lowered.model,
        lowered.patterns,
        original.graph.num_nodes(),
        lowered.model.graph.num_nodes(),
        verdict,
        sites,
        lowered.sites,
    )


def _lowered_sites(lowered: Lowered, dims: Dims) -> tuple[SiteVerdict, ...]:
    """Run each different lowered site, and each different call that stayed, alone."""
    bound = bound_copy(lowered.source, dims)
    shapes = resolve(bound, run=True)
    return (*check_sites(bound, lowered.model, shapes), *check_parts(lowered.parts, Facts(bound, shapes)))


def _patterns(patterns: Iterable[str | Pattern]) -> list[Pattern]:
    chosen: list[Pattern] = []
    for pattern in patterns:
        chosen += [pattern] if isinstance(pattern, Pattern) else pattern_files.select([pattern])
    return chosen or pattern_files.pattern_set()


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
    model: Source, pattern: str, patterns: Iterable[str | Pattern] = (), *, progress: Progress = _silent
) -> Explanation:
    """Fuse `model` in memory with `patterns` (the library by default) up to `pattern`, and say where that one stopped, and why.

    `pattern` is a name among `patterns`, or what `fuse` takes for one, which then stands alone. What it matched is not
    explained. Raises as `fuse` does.
    """
    chosen = _patterns(patterns)
    if pattern not in [one.name for one in chosen]:
        chosen = _patterns([pattern])
    wanted = next((i for i, one in enumerate(chosen) if one.name == pattern), len(chosen) - 1)
    progress("reading the model")
    graph = load(model)
    constants = Constants(graph)
    progress("matching")
    done = fuse_graph(graph, chosen[: wanted + 1])[-1]
    matcher = Matcher(graph, constants)
    best: dict[str, Attempt] = {}
    for i, program in enumerate(chosen[wanted].programs):
        for stopped in explain_program(matcher, program):
            other = best.get(stopped.root)
            if other is None or len(other.stopped.nodes) < len(stopped.nodes):
                best[stopped.root] = Attempt(i + 1, stopped)
    attempts = sorted(best.values(), key=lambda attempt: -len(attempt.stopped.nodes))
    return Explanation(chosen[wanted].name, len(done.calls), done.refused, tuple(attempts))


@dataclass(frozen=True)
class PatternDraft:
    """A pattern file for nodes that were chosen, ready to edit, and how often its query matches in their model."""

    name: str
    query: str
    text: str
    matches: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `pattern new`."""
        return dict(vars(self))


def draft_pattern(
    model: Source, nodes: Sequence[str], name: str = "MyMetaOp", *, progress: Progress = _silent
) -> PatternDraft:
    """Write the query for the nodes called `nodes` (a node without a name is called by its first output).

    Raises UsageError where a node is not there, or they are not connected.
    """
    progress("reading the model")
    graph = load(model)
    constants = Constants(graph)
    query = author.write_query(author.find_nodes(graph, nodes), constants)
    progress("matching")
    known = {node.op_type for node in graph.graph.all_nodes()}
    matches = Matcher(graph, constants).find(compiled(query, known))
    return PatternDraft(name, query, author.pattern_file(name, query), len(matches))


def unfuse(model: Source, *, verify: bool = True, progress: Progress = _silent) -> UnfuseResult:
    """Undo all that fuse did to `model`. Raises UsageError where there is nothing to undo, ModelError, Mismatch."""
    progress("reading the model")
    fused = load(model)
    restored = fused.clone()
    unfused = unfuse_graph(restored)
    check(restored)
    verdict = None
    if verify:
        progress("verifying")
        trials, dims = run_original(fused)
        verdict = _agreeing(compare_with(trials, restored, dims), "the unfused model")
    return UnfuseResult(restored, unfused, verdict)


def tile(
    model: Source,
    limits: Limits,
    *,
    options: TileOptions | None = None,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    verify: bool = True,
    progress: Progress = _silent,
) -> TiledModel:
    """Split every matrix product of `model` into MatMul, Sum and Concat nodes within `limits`.

    Where `limits` name a memory, the tile is chosen that moves the fewest bytes. `options` say how partial sums are added.
    With `verify`, each different product alone is judged against a float64 run, and the whole model is run beside the original.
    Raises ModelError, UsageError; Infeasible where no tile meets the limits;
    Mismatch where a result is further off than rounding explains.
    """
    progress("reading the model")
    original = load(model)
    bind(original, dims or {}, shapes or {})
    tiled = original.clone()
    progress("inferring shapes")
    known, constants = resolve(tiled, run=verify), Constants(tiled)
    progress("tiling")
    result = tile_graph(tiled, limits, known, constants, options)
    verdict: Verdict | None = None
    sites: tuple[TileVerdict, ...] = ()
    if verify:
        progress("verifying")
        sites = check_tiles(result.tiled, constants, tiled.graph.opset_imports.get("", 0))
        _require_sites(site.node for site in sites if not site.passed)
        check(tiled)
        trials, assigned = run_original(original)
        verdict = _agreeing(compare_with(trials, tiled, assigned), "the tiled model")
    return TiledModel(tiled, result, original.graph.num_nodes(), tiled.graph.num_nodes(), verdict, sites)


def plan(
    model: Source,
    *,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    alignment: int = 64,
    planner: str = "best",
    capacity: int | None = None,
    verify: bool = True,
    progress: Progress = _silent,
) -> PlannedModel:
    """Give every activation of `model` an offset in one arena, and annotate the model with it.

    `alignment` and `capacity` are in bytes. The plan is checked by code that shares nothing with the planners; with `verify`,
    the model is also run with every tensor at its planned address. Raises ModelError, UsageError; Infeasible over `capacity`;
    Mismatch where the run inside the arena differs.
    """
    from onnxtile.plan.annotate import annotate
    from onnxtile.plan.arena_run import arena_run
    from onnxtile.plan.planning import plan as plan_graph

    progress("reading the model")
    planned = load(model)
    bound = bind(planned, dims or {}, shapes or {})
    progress("inferring shapes")
    known, constants = resolve(planned, run=True), Constants(planned)
    progress("planning")
    result = plan_graph(
        planned,
        known,
        constants,
        alignment=alignment,
        planner=planner,
        capacity=capacity,
        digest=digest(model),
        dims=bound,
    )
    verdict = None
    if verify:
        progress("running inside the arena")
        verdict = arena_run(planned, result, known, constants)
        if not verdict.equal:
            where = f": {verdict.differing!r} at step {verdict.step}" if verdict.differing else ""
            raise Mismatch(
                f"the run inside the arena differs from the plain run{where}", hint="please report it with the model"
            )
    annotate(planned, result)
    return PlannedModel(planned, result, verdict)


def verify(
    model: Source,
    other: Source,
    *,
    dims: Dims | None = None,
    shapes: InputShapes | None = None,
    progress: Progress = _silent,
) -> Verdict:
    """Run both models on the same random inputs and compare every output; a difference is in the result, not an error."""
    progress("reading the models")
    pair = [load(model), load(other)]
    for one in pair:
        bind(one, dims or {}, shapes or {})
    progress("running")
    trials, assigned = run_original(pair[0])
    return compare_with(trials, pair[1], assigned)


def save(model: ir.Model, path: str | Path, *, source: Source | None = None, force: bool = False) -> None:
    """Write `model`, whole or not at all. Raises UsageError where `path` is the `source` file and `force` is off."""
    origin = Path(source) if isinstance(source, str | Path) else None
    files.save(model, Path(path), source=origin, force=force)


def _agreeing(verdict: Verdict, what: str) -> Verdict:
    """Return `verdict`, or raise Mismatch that names the worst output."""
    if verdict.equal:
        return verdict
    worst = max((output for output in verdict.outputs if not output.equal), key=lambda output: output.max_abs)
    raise Mismatch(
        f"{what} does not compute what the original does: {worst.name!r} is off by {worst.max_abs:.3g}"
        + (f" ({worst.reason})" if worst.reason else ""),
        hint="nothing was written; please report it with the model",
    )


def _require_sites(failed: Iterable[str]) -> None:
    names = list(failed)
    if names:
        raise Mismatch(
            f"{names[0]!r} run alone does not compute what it replaces", hint="nothing was written; please report it"
        )
