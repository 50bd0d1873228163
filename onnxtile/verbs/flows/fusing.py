"""Fuses subgraphs into meta-ops, and takes them apart again."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import onnx_ir as ir

from onnxtile.fusion import pattern as pattern_files
from onnxtile.fusion.edge_rows import EdgeRule
from onnxtile.fusion.fuse import PatternResult, Site
from onnxtile.fusion.fuse import fuse as fuse_graph
from onnxtile.fusion.pattern import IslandRule, Pattern
from onnxtile.fusion.site_check import SiteVerdict, check_sites
from onnxtile.fusion.unfuse import unfuse as unfuse_graph
from onnxtile.model.binding import free_inputs
from onnxtile.model.load import load
from onnxtile.model.validity import check
from onnxtile.planning.annotate import clear_plan
from onnxtile.shapes.infer import values
from onnxtile.shapes.resolve import Shapes, resolve
from onnxtile.system.errors import NAME_ONLY, UsageError, invalid
from onnxtile.system.progress import Progress
from onnxtile.verbs.flows.results import FuseResult, UnfuseResult, file_of
from onnxtile.verbs.flows.stage import BoundDims, agreeing, bound_shapes, require_sites
from onnxtile.verification.open_sizes import bound_form
from onnxtile.verification.rounding import compare, is_narrow, resolved
from onnxtile.verification.trials import Verdict, run_original

if TYPE_CHECKING:
    from onnxtile.verbs.flows.results import ArenaChange
    from onnxtile.verbs.options.fuse import FuseOptions, Patterns
    from onnxtile.verbs.options.unfuse import UnfuseOptions


_PRODUCTS = "QuantisedProduct"
_NAMED = re.compile(r"([A-Za-z_]\w*)=(?!=)(.*)", re.DOTALL)
"""A query with the name of its meta-op before it."""


def fuse(options: FuseOptions) -> FuseResult:
    """Fuse a model as `onnxtile.fuse` says."""
    lower, verify, progress = options.lower, options.verify, options.progress
    _require_runs(options)
    chosen = chosen_patterns(options.patterns, lower)
    progress("reading the model")
    original, source = load(options.model), file_of(options.model)
    clear_plan(original)
    if lower != "none" and options.for_memory:
        message = "{for_memory} chooses meta-ops, and {lower} replaces them"
        raise UsageError(message, hint="leave out one of the two", given={"for_memory": NAME_ONLY, "lower": NAME_ONLY})
    if lower != "none":
        from onnxtile.verbs.flows.lowering import lower_patterns  # fuse without lowering has no use for it

        return replace(lower_patterns(original, chosen, lower, EdgeRule(options.edge), verify, progress), source=source)
    shapes = cache(lambda: resolved(original))
    arena: ArenaChange | None = None

    def fuse_copy(left_out: Container[Site]) -> tuple[ir.Model, list[PatternResult]]:
        return _fused_copy(original, chosen, shapes, left_out, progress)

    if options.for_memory:
        from onnxtile.verbs.flows.memory_choice import choose_by_memory  # it plans

        memory = choose_by_memory(original, fuse_copy, _sizes(original, progress), progress)
        fused, results, arena = memory.model, memory.patterns, memory.arena
    else:
        fused, results = fuse_copy(())
    check(fused)
    verdict: Verdict | None = None
    sites: tuple[SiteVerdict, ...] = ()
    if verify:
        progress("verifying")
        verdict = agreeing(compare(original, fused, progress=progress), "the fused model")
        if any(result.calls for result in results):
            bound = bound_form(original, verdict.dims)
            known = resolve(bound, run=True) if is_narrow(bound) else bound_shapes(original, shapes, bound)
            sites = check_sites(bound, fused, known, progress=progress)
            require_sites(site.call for site in sites if not site.equal)
    return FuseResult(
        fused,
        tuple(results),
        original.graph.num_nodes(),
        fused.graph.num_nodes(),
        verdict,
        sites,
        arena=arena,
        source=source,
    )


def _require_runs(options: FuseOptions) -> None:
    """Raise UsageError where edge rows decide, and nothing is run on them."""
    if options.edge == EdgeRule.KINDER.value:
        return
    given = {"edge": options.edge, "lower": NAME_ONLY, "verify": NAME_ONLY}
    if options.lower == "none":
        raise UsageError("{edge} is about edge rows of lowered sites", hint="add {lower}", given=given)
    if not options.verify:
        message = "{edge} takes runs on edge rows, and {verify} leaves out all runs"
        raise UsageError(message, hint="leave out one of the two", given=given)


def _fused_copy(
    original: ir.Model,
    patterns: list[Pattern],
    shapes: Callable[[], Shapes],
    left_out: Container[Site],
    progress: Progress,
) -> tuple[ir.Model, list[PatternResult]]:
    """Return a copy of `original` fused with `patterns`, and the outcome of each; `shapes` are those of `original`."""
    fused = original.clone()
    counterparts = dict(zip(values(original), values(fused), strict=True))
    progress("matching")
    known = cache(lambda: shapes().of_copies(counterparts))
    return fused, fuse_graph(fused, patterns, progress, known, through=True, left_out=left_out)


def _sizes(model: ir.Model, progress: Progress) -> BoundDims:
    """Return the sizes with which verification runs `model`; none where all its inputs have sizes."""
    bound = all(value.shape is not None and value.shape.is_static() for value in free_inputs(model))
    return {} if bound else run_original(model, runs=1, progress=progress)[1]


def chosen_patterns(patterns: Patterns, lower: str = "none") -> list[Pattern]:
    """Return the patterns that `patterns` name, each after those it needs; where they name none, those for `lower` by default.

    Raises PatternError, QueryError, UsageError.
    """
    chosen: list[Pattern] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        chosen += [pattern] if isinstance(pattern, Pattern) else _selected(pattern)
    found = pattern_files.in_order(chosen) or _default_patterns(lower)
    return found if lower == "none" else [_in_operators(one) for one in found]


def _in_operators(pattern: Pattern) -> Pattern:
    """Return `pattern` without islands of whole attention: both of its products are lowered by themselves."""
    rule = pattern.island
    return pattern if rule is None else replace(pattern, island=rule.model_copy(update={"attention": frozenset()}))


def _default_patterns(lower: str) -> list[Pattern]:
    """Return the library, and what quantised models need besides.

    Of onnxruntime's operators those of products with quantised weights come first: no part of one shall be in a larger meta-op.
    """
    if lower == "onnx":
        return pattern_files.pattern_set()
    if lower == "qdq":
        return pattern_files.pattern_set("dynamic")
    quantised = pattern_files.pattern_set("quantised")
    if lower == "none":
        return [*pattern_files.pattern_set(), *quantised]
    products = [replace(one, name=_PRODUCTS, island=_product_rule(one)) for one in quantised if one.island is not None]
    return [*pattern_files.pattern_set("dynamic"), *products, *pattern_files.pattern_set(), *quantised]


def _product_rule(pattern: Pattern) -> IslandRule | None:
    """Return the island rule of `pattern`, of products with weights alone."""
    return pattern.island and pattern.island.model_copy(update={"products": frozenset({"Gemm", "MatMul"})})


def _selected(pattern: str | tuple[str, str]) -> list[Pattern]:
    """Return the patterns that a text stands for; NAME=QUERY and (NAME, QUERY) name the meta-op of a query."""
    if isinstance(pattern, str):
        named = _NAMED.fullmatch(pattern)
        if named is None:
            return pattern_files.select([pattern])
        pattern = named[1], named[2]
    name, query = pattern
    if not name.isidentifier():
        raise invalid("patterns", name, reason="the name of a meta-op is an identifier")
    return [pattern_files.from_query(query, name)]


# Undo what fuse did.


def unfuse(options: UnfuseOptions) -> UnfuseResult:
    """Undo fuse as `onnxtile.unfuse` says."""
    progress = options.progress
    progress("reading the model")
    fused = load(options.model)
    restored = fused.clone()
    unfused = unfuse_graph(restored)
    clear_plan(restored)
    check(restored)
    verdict = None
    if options.verify:
        progress("verifying")
        verdict = agreeing(compare(fused, restored, progress=progress), "the unfused model")
    return UnfuseResult(restored, unfused, verdict, source=file_of(options.model))
