"""Tiles every contraction of a model: find them all, refuse too many nodes, then rewrite the graph in place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import onnx_ir as ir

from onnxtile.model.binding import Unbound, free_inputs
from onnxtile.model.save import raise_ir_version
from onnxtile.operators.node_view import KnownConstants, NoConstants, NotApplicable
from onnxtile.operators.reads import AxisSize
from onnxtile.operators.row import Left
from onnxtile.operators.table import operator_of
from onnxtile.system.errors import Infeasible, UsageError, unknown
from onnxtile.system.process import collector_paused
from onnxtile.system.progress import Progress, counted, silent
from onnxtile.system.registry import discover
from onnxtile.tiling.accumulate import TilingPolicy
from onnxtile.tiling.choose import MOST_NODES, Candidate, TileSite, choose, examine
from onnxtile.tiling.contraction import Contraction, ShapeTable, with_quantized
from onnxtile.tiling.experts import ExpertSite, FunctionCopies, FunctionTable, cut_experts, find_experts
from onnxtile.tiling.inplace import LateSite, Writing, defer, may_wait, rewrite
from onnxtile.tiling.islands import island_of
from onnxtile.tiling.limits import Limits
from onnxtile.tiling.result import SkippedNode, TiledNode, TileResult
from onnxtile.tiling.tileable import FIRST_OPSET, HALVES, FreeAt, Tileable, TilingFacts, none_known
from onnxtile.tiling.write import most_nodes
from onnxtile.tiling.writer import SCATTER_OPSET, Names, keeps_copies, scatters


def reason_untiled(node: ir.Node) -> str | None:
    """Return why a node with products in it is left whole; None for any other."""
    row = operator_of(node)
    if row is None or not isinstance(row.contraction, Left):
        return None
    return f"tile does not cut {node.op_type}" + (f": {row.contraction.why}" if row.contraction.why else "")


@collector_paused()
def tile(
    model: ir.Model,
    limits: Limits,
    shapes: ShapeTable,
    constants: KnownConstants,
    options: TilingPolicy | None = None,
    progress: Progress = silent,
    *,
    late: bool = False,
    free: FreeAt = none_known,
) -> TileResult:
    """Cut every tileable node of `model`, in place, into tiles within `limits`; with `late`, the result makes the tiles that can wait.

    `shapes`, `constants` and `free` describe the model as it comes in. Values keep their names, types and roles; constants that
    only the old nodes used are removed. The IR version becomes 10 at least where anything is tiled, for the marks on the
    nodes. A node that no tile within the limits can do is left as it is, unless the options are strict. Raises, before anything is
    changed, Infeasible where they are, or where all tiles need more nodes than allowed; UsageError for a node to skip that does not
    exist, or where more than `MOST_NODES` would be written and the options do not allow so many.
    """
    options = options or TilingPolicy()
    names = Names(model)
    facts = TilingFacts(shapes, constants, _opset(model), Unbound.of(free_inputs(model)), free)
    operators = discover("onnxtile.tiling.operators", Tileable)  # type: ignore[type-abstract]
    table = FunctionTable(model, shapes, constants)
    copies = FunctionCopies(model, table)
    copies.split(lambda node: _is_tileable(node, operators))
    search = _Search(model, limits, facts, names, operators, table, options)
    found = choose(search.all(), options)
    mixtures = find_experts(model, limits, facts, names, options)
    _require_names(options.skip, [*found, *mixtures])
    sites = [site for site in found if isinstance(site, TileSite)]
    _refuse_explosion(sites, options, facts.opset)
    mixed = [site for site in mixtures if isinstance(site, ExpertSite)]
    _refuse_experts(mixed, options)
    for site in sites:
        # `free` describes the model as it is before the first of them is rewritten.
        keeps_copies(site.contraction, site.grid, facts.opset)
    if sites or mixed:
        raise_ir_version(model)
    # From the last node to the first: a constant that is the result of a product is read before that product is replaced.
    done: dict[ir.Node, TiledNode | SkippedNode] = {}
    writing = Writing(model, names, constants, options, bodies=frozenset(f.graph for f in model.functions.values()))
    waiting = set(may_wait(sites, writing) if late else ())
    for site in counted([site for site in sites if site.node not in waiting][::-1], "tiling", progress):
        done[site.node] = rewrite(site, writing)
    found_late: dict[ir.Node, LateSite] = {}
    for site in counted([site for site in sites if site.node in waiting], "tiling", progress):
        done[site.node], found_late[site.node] = defer(site, writing)
    experts = tuple(cut_experts(site, constants, names) for site in mixed)
    copies.merge()
    reported = [done[entry.node] if isinstance(entry, TileSite) else entry for entry in found]
    return TileResult(
        tiled=tuple(entry for entry in reported if isinstance(entry, TiledNode)),
        skipped=tuple(entry for entry in (*reported, *mixtures) if isinstance(entry, SkippedNode)),
        late=found_late,
        experts=experts,
    )


def opset_to_join(
    model: ir.Model,
    limits: Limits,
    shapes: ShapeTable,
    constants: KnownConstants,
    options: TilingPolicy | None = None,
    *,
    free: FreeAt = none_known,
) -> int:
    """Return the first opset in which the tiles of `model` can be joined in place; the model's own where a Concat copies little, too.

    A model with local functions keeps its opset, since its functions have one of their own. The model is not changed. Raises as `tile`.
    """
    options, opset = options or TilingPolicy(), _opset(model)
    if opset >= SCATTER_OPSET or model.functions:
        return opset
    facts = TilingFacts(shapes, constants, opset, Unbound.of(free_inputs(model)), free)
    operators = discover("onnxtile.tiling.operators", Tileable)  # type: ignore[type-abstract]
    table = FunctionTable(model, shapes, constants)
    found = choose(_Search(model, limits, facts, Names(model), operators, table, options).all(), options)
    sites = (site for site in found if isinstance(site, TileSite))
    return SCATTER_OPSET if any(scatters(site.contraction, site.grid, SCATTER_OPSET) for site in sites) else opset


def _require_names(names: Iterable[str], found: Iterable[TileSite | ExpertSite | SkippedNode]) -> None:
    """Raise UsageError where one of `names` is not the name of a node that tile could cut."""
    known = {entry.node if isinstance(entry, SkippedNode) else entry.name for entry in found}
    for name in names:
        if name not in known:
            raise unknown("node to skip", name, known)


def _opset(model: ir.Model) -> int:
    return model.graph.opset_imports.get("", 0)


@dataclass(frozen=True)
class _Search:
    """Looks at all nodes of a model, in its order, and changes nothing."""

    model: ir.Model
    limits: Limits
    facts: TilingFacts
    names: Names
    operators: Mapping[str, Tileable]
    table: FunctionTable
    options: TilingPolicy

    def all(self) -> Iterator[Candidate | SkippedNode]:
        """Yield the nodes that can be tiled, and the nodes that cannot, with the reason."""
        for node in self.model.graph.all_nodes():
            if _is_tileable(node, self.operators):
                yield self._examine(node, self.facts, self.names.of(node))
                continue
            reason = reason_untiled(node)
            if reason is not None:
                yield SkippedNode(self.names.of(node), reason)
        for function in self.model.functions.values():
            for node in function.all_nodes():
                if _is_tileable(node, self.operators):
                    yield self._inside(node, function)

    def _inside(self, node: ir.Node, function: ir.Function) -> Candidate | SkippedNode:
        """Examine a node of a local function: all its inputs come from outside, with the sizes that the calls agree on."""
        overload = f":{function.overload}" if function.overload else ""
        name = f"{function.name}{overload}/{self.names.within(node)}"
        if function.opset_imports.get("", 0) != self.facts.opset:
            return SkippedNode(name, f"it is inside {function.domain}::{function.name}, which has another opset")
        try:
            facts = replace(self.facts, shapes=self.table.of(function), constants=NoConstants(), free=none_known)
        except NotApplicable as reason:
            return SkippedNode(name, str(reason))
        return self._examine(node, facts, name)

    def _examine(self, node: ir.Node, facts: TilingFacts, name: str) -> Candidate | SkippedNode:
        if facts.opset < FIRST_OPSET:
            return SkippedNode(name, f"opset {facts.opset} is too old: raise the model to {FIRST_OPSET} at least")
        if name in self.options.skip:
            return SkippedNode(name, "left out on request")
        limits = self.limits.of_operator(node.op_type)
        sizes: tuple[AxisSize, AxisSize, AxisSize] | None = None
        try:
            stated = island_of(node, facts) or self.operators[node.op_type].restate(node, facts)
            contraction: Contraction = replace(with_quantized(stated, limits), free=partial(facts.free, node))
            if contraction.dtype in HALVES:
                contraction = replace(contraction, sums=self.options.sums)
            sizes = (contraction.m, contraction.k, contraction.n)
            return examine(name, node, contraction, limits, facts, self.options.accumulate)
        except NotApplicable as reason:
            return SkippedNode(name, str(reason), sizes)
        except Infeasible as error:
            if self.options.strict:
                raise
            return SkippedNode(name, f"{error} ({error.hint})", sizes, over_limits=True)


def _is_tileable(node: ir.Node, operators: Mapping[str, Tileable]) -> bool:
    operator = operators.get(node.op_type)
    return operator is not None and node.domain == operator.domain


def _refuse_explosion(sites: list[TileSite], options: TilingPolicy, opset: int) -> None:
    """Raise UsageError, with the limit to raise, where tiling would write more nodes than the options allow."""
    counts = [most_nodes(site.contraction, site.grid, options.accumulate, opset) for site in sites]
    total = sum(counts)
    if total <= max(MOST_NODES, options.nodes_at_most or 0):
        return
    worst = sites[counts.index(max(counts))]
    raise UsageError(
        f"tiling would write {total:,} nodes, {max(counts):,} of them for {worst.name!r}; the most is {MOST_NODES:,}",
        hint=f"{_what_to_raise(worst)}; --nodes-at-most {total} allows them",
    )


def _refuse_experts(sites: Iterable[ExpertSite], options: TilingPolicy) -> None:
    """Raise UsageError where a mixture of experts would become more nodes than the options allow."""
    for site in sites:
        if 2 * site.tiles > max(MOST_NODES, options.nodes_at_most or 0):
            raise UsageError(
                f"tiling would write {2 * site.tiles:,} nodes for {site.name!r}; the most is {MOST_NODES:,}",
                hint=f"raise --max-n and --max-k, which cut {site.inner} into {site.tiles} there",
            )


def _what_to_raise(worst: TileSite) -> str:
    """Return the limit that makes most of the tiles of a site."""
    counts = dict(zip("mkn", worst.grid.shape, strict=True))
    axis = max("mkn", key=lambda letter: counts[letter])
    if worst.contraction.windows:
        return f"raise the limits along {axis.upper()}, which is cut into {counts[axis]} there"
    cuts = worst.grid.rows if axis == "m" else getattr(worst.grid, axis)
    return f"raise --max-{axis} (now {cuts.step}), which cuts {cuts.size} into {cuts.count} there"
